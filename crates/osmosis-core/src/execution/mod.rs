//! What user code is asked to do, and what came back: the jobs and results of an executor.
//!
//! Whoever runs user code (worker processes, a rollout server elsewhere) takes these jobs and returns these
//! results; whoever drives a run decides by them. Nothing here says where or how the code runs.

mod exit_status;
mod job;
mod result;

pub use exit_status::ExitStatus;
pub use job::{GradeJob, Isolation, RunJob, Terms};
pub use result::{GradeReport, LossCause, TaskReport, TaskResult};
