//! The life of a run, once for every kind: prepare, pin, open, drive, settle, report, close.
//!
//! A front end (the CLI, the servers, the viewer) calls this and renders what comes back. This crate
//! never prints and never parses arguments.

mod error;
mod error_kind;
mod gateway_sessions;

pub use error::{RunError, io_error};
pub use error_kind::RunErrorKind;
pub use gateway_sessions::GatewaySessions;
