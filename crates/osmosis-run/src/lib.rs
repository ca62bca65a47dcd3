//! The life of a run, once for every kind: prepare, pin, open, drive, settle, report, close.
//!
//! A front end (the CLI, the servers, the viewer) calls this and renders what comes back. This crate
//! never prints and never parses arguments: what a run has to say while it goes on it says to the front
//! end's [`notices::Notices`] and [`events::Observer`].

mod error;
mod error_kind;
mod gateway_sessions;

pub mod builtin_language;
pub mod chat_choice;
pub mod checked_dataset;
pub mod digested_files;
pub mod doctor;
pub mod eval;
pub mod events;
pub mod execution;
pub mod export;
pub mod figures;
pub mod inference_server;
pub mod judge;
pub mod life;
mod log_budget;
pub mod model_export;
pub mod node;
pub mod notices;
pub mod own_environment;
pub mod policy;
pub mod prepared;
pub mod private_files;
pub mod ray;
pub mod ready_code;
pub mod regrade;
pub mod reports;
pub mod rollout_query;
pub mod run_code;
pub mod run_folder;
pub mod run_log;
pub mod runs;
pub mod secrets;
pub mod settings;
pub mod source_digest;
pub mod source_files;
pub mod stop_signals;
pub mod template_trial;
pub mod tracking;
pub mod train;
pub mod transcript_search;
pub mod transcripts;
pub mod user_code;
pub mod withheld;
pub mod workspace;

pub use error::{RunError, io_error};
pub use error_kind::RunErrorKind;
pub use gateway_sessions::GatewaySessions;
