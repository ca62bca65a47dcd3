use std::{fmt, io};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::RolloutId;
use osmosis_core::learner::{LearnerError, LearnerErrorKind};
use osmosis_engine::{EngineError, EngineErrorKind};
use osmosis_store::{StoreError, StoreErrorKind};
use osmosis_tokens::TokensError;

use crate::LogprobMismatch;
use crate::checkpoints::Which;

/// Why training could not go on. What is durable stays: the last good checkpoint is intact.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error("there are no rows to train on")]
    NoRows,
    #[error("{steps} steps are more than a run can number")]
    TooManySteps { steps: u64 },
    #[error("rollout `{rollout}` was scored, but {why}")]
    NoPolicyCall { rollout: RolloutId, why: String },
    #[error("what rollout `{rollout}` returned can't be trained on: {why}")]
    UnusableSequence { rollout: RolloutId, why: String },
    /// Nothing was learned about the policy, and going on would not help.
    #[error("none of the {rollouts} rollouts of {phase} could be run: {message}")]
    NothingRan {
        phase: String,
        rollouts: usize,
        message: String,
    },
    #[error(
        "step {step}: the learner does not confirm the logprobs of tokens that its own weights sampled. They \
         differ by {mean:.3} nats on average over {tokens} tokens, and by {max:.3} at most (bounds: {max_mean} \
         and {max_token}); the most at token {position} of rollout `{rollout}`, which was sampled with \
         {sampled} and has {learned} now",
        mean = mismatch.mean, tokens = mismatch.tokens, max = mismatch.max,
        max_mean = mismatch.max_mean(), max_token = mismatch.max_token(),
        position = mismatch.position, rollout = mismatch.rollout,
        sampled = mismatch.sampled, learned = mismatch.learned
    )]
    Mismatch {
        step: u64,
        mismatch: LogprobMismatch,
    },
    #[error("step {step}: {source}")]
    Update { step: u64, source: LearnerError },
    #[error("the tokens of rollout `{rollout}` can't be read: {source}")]
    Tokens {
        rollout: RolloutId,
        source: TokensError,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Learner(#[from] LearnerError),
    #[error("`{path}`: {message}")]
    File {
        path: Utf8PathBuf,
        message: String,
        full: bool,
    },
    #[error("checkpoint `{folder}` can't be used: {message}")]
    Checkpoint {
        folder: Utf8PathBuf,
        message: String,
    },
    #[error("`{folder}` has no checkpoint {}; it has {known}", Wanted(*which))]
    NoCheckpoint {
        folder: Utf8PathBuf,
        which: Which,
        known: String,
    },
    #[error("{0}")]
    Internal(String),
}

struct Wanted(Which);

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Which::Best => f.write_str("that was evaluated on held-out rows"),
            Which::Latest => f.write_str("at all"),
            Which::Step(step) => write!(f, "of step {step}"),
        }
    }
}

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainErrorKind {
    /// The plan, or the user's code, can't be trained with.
    Invalid,
    /// The numbers ran away: a gradient is missing or not finite.
    Diverged,
    /// The disk has no room; the run can be resumed when it has.
    DiskFull,
    /// The run can be resumed when the cause is gone.
    Resumable,
    /// A checkpoint is not there or damaged.
    Checkpoint,
    /// A defect of ours or a damaged run.
    Internal,
}

impl TrainError {
    pub fn kind(&self) -> TrainErrorKind {
        match self {
            Self::NoRows
            | Self::TooManySteps { .. }
            | Self::NoPolicyCall { .. }
            | Self::UnusableSequence { .. } => TrainErrorKind::Invalid,
            Self::Update { source, .. } => match source.kind {
                LearnerErrorKind::NotFinite => TrainErrorKind::Diverged,
                LearnerErrorKind::Ended => TrainErrorKind::Resumable,
                LearnerErrorKind::Unreadable
                | LearnerErrorKind::Invalid
                | LearnerErrorKind::DiskFull
                | LearnerErrorKind::Unwritable
                | LearnerErrorKind::Fault => TrainErrorKind::Internal,
            },
            Self::NothingRan { .. } | Self::File { full: false, .. } => TrainErrorKind::Resumable,
            Self::Store(error) => match error.kind() {
                StoreErrorKind::DiskFull => TrainErrorKind::DiskFull,
                StoreErrorKind::AlreadyExists
                | StoreErrorKind::NotFound
                | StoreErrorKind::InvalidUrl
                | StoreErrorKind::Held
                | StoreErrorKind::Closed
                | StoreErrorKind::Denied
                | StoreErrorKind::Unreachable
                | StoreErrorKind::Unreadable
                | StoreErrorKind::Altered => TrainErrorKind::Resumable,
            },
            Self::Engine(EngineError::Store(error)) if error.kind() == StoreErrorKind::DiskFull => {
                TrainErrorKind::DiskFull
            }
            Self::Engine(error) => match error.kind() {
                EngineErrorKind::Resumable => TrainErrorKind::Resumable,
                EngineErrorKind::Internal => TrainErrorKind::Internal,
                EngineErrorKind::Unusable => TrainErrorKind::Invalid,
            },
            Self::Learner(error) => match error.kind {
                LearnerErrorKind::DiskFull => TrainErrorKind::DiskFull,
                LearnerErrorKind::Unwritable | LearnerErrorKind::Ended => TrainErrorKind::Resumable,
                LearnerErrorKind::Unreadable
                | LearnerErrorKind::Invalid
                | LearnerErrorKind::NotFinite => TrainErrorKind::Invalid,
                LearnerErrorKind::Fault => TrainErrorKind::Internal,
            },
            Self::File { full: true, .. } => TrainErrorKind::DiskFull,
            Self::Checkpoint { .. } | Self::NoCheckpoint { .. } => TrainErrorKind::Checkpoint,
            Self::Mismatch { .. } | Self::Tokens { .. } | Self::Internal(_) => {
                TrainErrorKind::Internal
            }
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoRows => Some("lower `eval_fraction`, or use a dataset with more rows".to_owned()),
            Self::TooManySteps { .. } => {
                Some("lower `steps`, `total_epochs` or `n_samples_per_prompt`".to_owned())
            }
            Self::NoPolicyCall { .. } => Some(
                "only what the policy itself sampled can be trained on: the agent must call the model \
                 it is given (the rollout context's URL and key, or those in `extra_kwargs`), under the sample that is \
                 graded"
                    .to_owned(),
            ),
            Self::UnusableSequence { .. } => Some(
                "training needs `input_ids` and `loss_mask`, with nothing under the mask but tokens that \
                 `agenerate` gave, after the ids it was asked with"
                    .to_owned(),
            ),
            Self::NothingRan { .. } => {
                Some("remove the cause, then resume the run: they are tried again".to_owned())
            }
            Self::Mismatch { .. } => Some(
                "nothing was updated, and the last checkpoint is intact. Rows and weights don't belong \
                 together: the records were changed, the rollout was sampled by other weights than its record \
                 says, or this is a defect of ours; `train show` has the calls of the rollout"
                    .to_owned(),
            ),
            Self::Update { .. } if self.kind() == TrainErrorKind::Diverged => Some(
                "the last good checkpoint is intact: lower `lr`, or look at the rewards of the last steps"
                    .to_owned(),
            ),
            Self::Update { source, .. } => source.hint.clone(),
            Self::Tokens { source, .. } => source.hint(),
            Self::Store(error) => error.hint(),
            Self::Engine(error) => error.hint(),
            Self::Learner(error) if error.kind != LearnerErrorKind::DiskFull => error.hint.clone(),
            Self::Learner(_) | Self::File { full: true, .. } => Some(
                "free some disk space, then resume the run: the last checkpoint is intact".to_owned(),
            ),
            Self::File { full: false, .. } => {
                Some("check the folder and its permissions, then resume the run".to_owned())
            }
            Self::Checkpoint { .. } => Some("use another checkpoint of the run".to_owned()),
            Self::NoCheckpoint {
                which: Which::Best, ..
            } => Some(
                "name one of these steps, or `latest`. `best` is among the checkpoints after which held-out rows were \
                 evaluated: set `eval_dataset` or `eval_fraction`, and `eval_interval` so that it meets \
                 `checkpoint_save_freq`"
                    .to_owned(),
            ),
            Self::NoCheckpoint { .. } => {
                Some("name one of these steps, or `latest`".to_owned())
            }
            Self::Internal(_) => None,
        }
    }

    /// What the operating system said about a file.
    pub(crate) fn file(path: &Utf8Path, error: &io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            message: error.to_string(),
            full: matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_apart_wherever_it_was_met() {
        let database = |full| StoreError::Database {
            message: "no".to_owned(),
            full,
        };
        for (full, kind) in [
            (true, TrainErrorKind::DiskFull),
            (false, TrainErrorKind::Resumable),
        ] {
            assert_eq!(TrainError::from(database(full)).kind(), kind);
            let engine = EngineError::from(database(full));
            assert_eq!(TrainError::from(engine).kind(), kind);
        }
    }
}
