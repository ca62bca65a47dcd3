//! Drives a run: claims rollouts from the store, runs and grades them in workers, records results.
//!
//! It speaks no HTTP and renders no text. What happens is told as typed [`RunEvent`]s, which the
//! progress display and the log consume; what is decided is in [`decision`], without I/O.

pub mod decision;
mod driver;
mod error;
mod event;
mod live;
mod options;
mod reading;
mod rollout;
mod serving;

pub use driver::Engine;
pub use error::{EngineError, EngineErrorKind};
pub use event::RunEvent;
pub use options::{EngineOptions, RunEnd, Stop};
pub use serving::Cancellation;
