//! The vocabulary and the pure decisions of Osmosis: ids, samples, rewards, outcomes, run config,
//! worker frames, execution jobs and results, what training needs of a learner, statistics, the staleness of
//! training data, the choice of a model server, and the one clock.
//!
//! Nothing in here awaits, opens a file or opens a socket. Everything the other crates exchange is
//! defined here once; they bring the I/O.
//!
//! ```
//! use osmosis_core::{Reward, RolloutId};
//!
//! let id = RolloutId::of(12, 0);
//! assert_eq!(id.as_str(), "r12-0");
//! assert!(Reward::new(f64::NAN).is_err());
//! ```

pub mod clock;
pub mod config;
pub mod credit;
pub mod endpoint_choice;
pub mod execution;
pub mod failure_groups;
pub mod frame;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod generation;
mod id;
mod json_text;
pub mod learner;
mod outcome;
pub mod panics;
mod redact;
mod reward;
pub mod row_selection;
mod sample;
pub mod staleness;
pub mod statistics;
mod task_clock;

pub use id::{Attempt, IdError, PolicyVersion, RolloutId, RolloutName, RunName, RunTag, SampleId};
pub use json_text::{
    JsonText, JsonTextError, MAX_JSON_DEPTH, duplicate_json_field, json_is_too_deep, json_problem,
};
pub use outcome::{Durations, ErrorCategory, Failure, Outcome, OutcomeKind, Phase};
pub use redact::{KEY_PREFIX, Redactor};
pub use reward::{MAX_REWARD, Reward, RewardError, RewardRange, RewardRangeError};
pub use sample::Sample;
pub use task_clock::TaskClock;
