//! Drives a run: claims rollouts from the store, has them run and graded by an [`Executor`]
//! (worker processes, or a rollout server elsewhere), records results. Model calls pass [`Sessions`].
//!
//! It speaks no HTTP, renders no text, and knows neither worker processes nor the gateway. What happens is told
//! as typed [`RunEvent`]s, which the progress display and the log consume; what is decided is in [`decision`],
//! without I/O.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use osmosis_engine::{Engine, EngineError, EngineOptions, Executor, RunEnd, Sessions, Stop};
//! # use osmosis_store::Store;
//! # async fn example(
//! #     store: Arc<dyn Store>,
//! #     sessions: Arc<dyn Sessions>,
//! #     executor: Arc<dyn Executor>,
//! #     options: EngineOptions,
//! #     events: tokio::sync::mpsc::Sender<osmosis_engine::RunEvent>,
//! # ) -> Result<(), EngineError> {
//! let engine = Engine::new(store, sessions, executor, options, events);
//! let stop = Stop::default();
//! let end = engine.run(&stop).await?;
//! assert_eq!(end, RunEnd::Complete);
//! # Ok(())
//! # }
//! ```

mod ahead;
pub mod attempts;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod decision;
mod driver;
mod error;
mod event;
mod executor;
mod live;
mod options;
mod others;
mod own_grade;
mod reading;
mod regrade;
mod rollout;
mod serving;
mod sessions;
mod turns;

pub use driver::Engine;
pub use error::{EngineError, EngineErrorKind};
pub use event::RunEvent;
pub use executor::Executor;
pub use options::{Claims, EngineOptions, Measuring, RunEnd, Stop};
pub use others::{NodeEnd, NodeEnds};
pub use regrade::Recorded;
pub use serving::Cancellation;
pub use sessions::{
    AgentSession, GivenAnswer, JudgeSession, ModelFault, RunFault, RunFaultKind, Session,
    SessionCalls, Sessions,
};
