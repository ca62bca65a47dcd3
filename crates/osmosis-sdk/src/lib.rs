//! Write agents and graders in Rust: this crate is the guest side of the worker protocol.
//!
//! A rollout is a program of your own with one [`AgentWorkflow`], one [`Grader`] and a `main` that
//! hands both to [`run_worker`]. The `osmosis` engine builds and starts it, sends it dataset rows,
//! and records what it returns. Model calls go to the policy gateway over plain HTTP, with any
//! client: [`WorkflowContext::endpoint`] says where, the features `async-openai` and `rig` give a
//! client that is bound to the rollout.
//!
//! This crate speaks the protocol and nothing else: it never pulls in the engine's dependencies,
//! never talks to the store, and never hands a workflow the label of its row.
//!
//! ```no_run
//! use osmosis_sdk::{AgentWorkflow, Grader, GraderContext, Result, WorkflowContext, WorkflowOutput};
//! use serde_json::json;
//!
//! struct Echo;
//!
//! impl AgentWorkflow for Echo {
//!     type Config = ();
//!
//!     async fn run(&self, ctx: &WorkflowContext) -> Result<WorkflowOutput> {
//!         let answer = ctx.user_prompt().unwrap_or_default().to_uppercase();
//!         let mut messages = ctx.prompt().to_vec();
//!         messages.push(json!({"role": "assistant", "content": answer}));
//!         Ok(messages.into())
//!     }
//! }
//!
//! struct Exact;
//!
//! impl Grader for Exact {
//!     type Config = ();
//!
//!     async fn grade(&self, ctx: &GraderContext) -> Result<()> {
//!         let answer = ctx.sample()?.final_text().unwrap_or_default();
//!         ctx.set_reward(Some(answer.as_str()) == ctx.label())?;
//!         Ok(())
//!     }
//! }
//!
//! fn main() {
//!     osmosis_sdk::run_worker(Echo, Exact)
//! }
//! ```
//!
//! # Configuration
//!
//! `[workflow]` and `[grader]` of the run's TOML are read into `Config`, before anything runs. A
//! value that does not fit is reported with the path of its field; a key that is no field is a
//! warning.
//!
//! ```
//! # use osmosis_sdk::{AgentWorkflow, Result, WorkflowContext, WorkflowOutput};
//! #[derive(serde::Deserialize)]
//! #[serde(default)]
//! struct Settings {
//!     max_turns: u32,
//! }
//!
//! impl Default for Settings {
//!     fn default() -> Self {
//!         Self { max_turns: 8 }
//!     }
//! }
//!
//! struct Solver;
//!
//! impl AgentWorkflow for Solver {
//!     type Config = Settings;
//!
//!     async fn run(&self, ctx: &WorkflowContext<Settings>) -> Result<WorkflowOutput> {
//!         for turn in 0..ctx.config().max_turns {
//!             ctx.log(format_args!("turn {turn}"));
//!         }
//!         Ok(WorkflowOutput::rejected("nothing to solve"))
//!     }
//! }
//! ```
//!
//! # Errors
//!
//! `run` and `grade` return any error that converts into [`Error`], so `?` works on nearly
//! everything, `anyhow` included. What a report calls it is told in [`TaskError`]. A panic ends
//! its task and nothing else, unless the program is built with `panic = "abort"`.

mod clients;
mod config;
mod error;
mod failure;
mod grader_context;
mod message_text;
mod output;
mod panics;
mod rollout;
mod sample;
mod traits;
mod worker;
mod workflow_context;

pub use error::{Error, Result, SdkError, TaskError};
pub use grader_context::GraderContext;
pub use message_text::message_text;
pub use osmosis_core::frame::JudgeAccess;
pub use osmosis_core::{ErrorCategory, Reward};
pub use output::{LogWriter, log, log_writer};
pub use rollout::{Endpoint, Rollout};
pub use sample::{RolloutSample, WorkflowOutput};
pub use traits::{AgentWorkflow, Grader};
pub use worker::run_worker;
pub use workflow_context::WorkflowContext;

/// The model name that means the run's policy, whatever that is.
pub const POLICY_MODEL: &str = "openai/osmosis-rollout";

/// The examples of the guide are tested with ours.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Guide;
