//! Runs that grade the samples of another run again.

pub mod plan;
pub mod regrading;
pub mod source;
