//! The host side of the worker protocol: finds an interpreter, makes the rollout's environment,
//! spawns worker processes, hands them tasks, enforces deadlines and kills what does not answer.
//!
//! Knows nothing of the store, and never interprets what a task means: that is the engine's
//! business. Nothing a worker process does, short of exhausting the machine, harms the pool or the
//! tasks of another worker.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use osmosis_core::execution::{Isolation, RunJob};
//! # use osmosis_core::frame::Load;
//! # use osmosis_worker::{PoolOptions, WorkerPool, environment};
//! # use tokio_util::sync::CancellationToken;
//! # async fn example(load: Load, options: PoolOptions, job: RunJob) -> Result<(), Box<dyn std::error::Error>> {
//! let rollout = camino::Utf8Path::new("rollouts/multiply");
//! let prepared = environment::prepare(rollout, None, |event| tracing::info!(?event)).await?;
//!
//! let (events, _log) = tokio::sync::mpsc::channel(1024);
//! let pool = WorkerPool::start(prepared.launch(rollout, Vec::new()), load, options, events).await?;
//! let cancel = CancellationToken::new();
//! let report = pool.run(job, Isolation::Shared, Duration::from_secs(450), &cancel).await;
//! tracing::info!(?report.result);
//! pool.shut_down(Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```

mod endpoint;
pub mod environment;
mod error;
mod event;
mod executor;
mod exit;
pub mod guard;
mod launcher;
mod options;
mod pool;
mod process_group;
pub mod seal;
mod service;
pub mod user;
pub mod variables;

pub use endpoint::{Endpoint, Listen};
pub use error::{INTRUSION_HINT, WorkerError, WorkerErrorKind};
pub use event::{Role, WorkerEvent};
pub use launcher::{Invitation, JoinedProcess, LaunchedProcess, Launcher, LocalLauncher};
pub use options::{Launch, Limits, PoolOptions};
pub use pool::{Attachment, Intrusion, WorkerPool, end_leftovers};
pub use service::{ServiceCommand, ServiceProcess};
