//! The time of day, for records.

pub(crate) use osmosis_core::clock::now_ms;
