pub use osmosis_core::clock::whole_ms;
pub use osmosis_core::clock::{Clock, SystemClock};
