//! The training loop: groups, advantages, updates, checkpoints.
//!
//! It queues rollouts, lets the engine run them, reads the recorded tokens back as training rows, has a
//! [`Learner`](osmosis_core::learner::Learner) update the policy and gives the weights to a
//! [`WeightSink`](osmosis_core::learner::WeightSink). It must never know how a learner computes (no tensor
//! library, no model), nor which framework the agent used. What is decided ([`schedule`], [`group`], [`batch`])
//! is decided without I/O; [`Trainer`] acts.
//!
//! A run repeats: the rows of a step follow from the seed, the tokens from the gateway's draw keys, the
//! weights from the tokens. A resume goes back to the last good checkpoint and repeats what came after it
//! with the rollouts that are in the store, so a run that was killed ends with the same rewards and the
//! same weights, bit for bit, as one that was not.
//!
//! ```
//! use osmosis_core::config::Training;
//! use osmosis_train::frontier::RowRecords;
//! use osmosis_train::schedule::Schedule;
//!
//! let training = Training { rollout_batch_size: 2, total_epochs: 2, ..Training::default() };
//! let schedule = Schedule::new(&[10, 11, 12], &training, 7)?;
//! assert_eq!(schedule.steps(), 4);
//! // The last batch of an epoch is smaller, and every row comes once per epoch.
//! let rows = |step| schedule.step(step, &RowRecords::new()).rows.len();
//! assert_eq!(rows(1) + rows(2), 3);
//! # Ok::<(), osmosis_train::TrainError>(())
//! ```

pub mod batch;
pub mod checkpoints;
mod clock;
mod crediting;
pub mod delivery;
mod durable_file;
mod ending;
mod error;
mod evaluation;
mod evaluation_report;
mod event;
mod failed_alike;
pub mod frontier;
pub mod group;
mod journal;
mod learning;
mod logprob_mismatch;
mod metrics_file;
mod phase_clock;
mod plan;
mod report;
mod rewarded_rows;
mod rollout_phase;
mod rollout_stream;
pub mod schedule;
mod step;
mod supervised;
pub mod tensorboard;
mod trainer;

pub use ending::{EndCause, FinalEvaluation, TrainEnd, UnusedGroups};
pub use error::{TrainError, TrainErrorKind};
pub use evaluation::is_unseen_phrasing;
pub use evaluation_report::{ByDecoding, EvaluationReport, HeldOutNumbers};
pub use event::TrainEvent;
pub use journal::any_update;
pub use learning::loss_function;
pub use logprob_mismatch::LogprobMismatch;
pub use plan::{NodeGate, TrainParts, TrainPlan};
pub use report::{AsyncReport, FrontierReport, SkipReason, StepReport};
pub use rewarded_rows::{RewardedRows, RolloutRows, rows_of, visit_of};
pub use supervised::{
    HeldOutLoss, SupervisedEvent, SupervisedParts, SupervisedPlan, SupervisedReport, SupervisedRow,
    SupervisedTrainer,
};
pub use trainer::Trainer;
