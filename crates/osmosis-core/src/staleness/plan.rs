use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};

use crate::PolicyVersion;
use crate::config::IncompleteGroups;

use super::window::Window;

/// A number of groups. Apart from [`RolloutCount`], so that the two units can't be mixed up.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct GroupCount(pub u64);

/// A number of rollouts.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct RolloutCount(pub u64);

/// What is fixed for a whole run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub batches: Batches,
    /// Rollouts of a group: `n_samples_per_prompt`.
    pub members: NonZeroU32,
    /// Rollouts that may run at once. It may be less than the members of one group.
    pub max_concurrent: NonZeroU64,
    pub pace: Pace,
    pub incomplete_groups: IncompleteGroups,
}

impl Plan {
    /// Whether so many scored members are enough to learn from their group, as in the config.
    pub(super) fn enough(&self, scored: usize) -> bool {
        let wanted = self.members.get() as usize;
        match self.incomplete_groups {
            IncompleteGroups::Drop => scored >= wanted,
            IncompleteGroups::Keep => scored >= wanted.min(2),
        }
    }

    pub(super) fn window(&self, version: PolicyVersion) -> Window {
        Window {
            version,
            max_staleness: self.pace.max_staleness(),
        }
    }
}

/// How many groups each step takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batches {
    /// Groups of a full batch: `rollout_batch_size`.
    pub groups: NonZeroU32,
    /// Rows of an epoch, whose last batch is smaller when they don't divide evenly; `None` when all
    /// batches are full.
    pub rows: Option<NonZeroU64>,
    /// After so many steps the run is over; `None` when it has no end.
    pub steps: Option<u64>,
}

impl Batches {
    /// The groups of the first `steps` steps together: `steps * batch` when all batches are full.
    pub fn through(&self, steps: u64) -> GroupCount {
        let steps = steps.min(self.steps.unwrap_or(u64::MAX));
        let batch = u64::from(self.groups.get());
        GroupCount(match self.rows {
            None => steps.saturating_mul(batch),
            Some(rows) => {
                let rows = rows.get();
                let per_epoch = rows.div_ceil(batch);
                let whole_epochs = (steps / per_epoch).saturating_mul(rows);
                whole_epochs.saturating_add((steps % per_epoch).saturating_mul(batch))
            }
        })
    }

    /// The groups of the step after `done` steps.
    pub fn size(&self, done: u64) -> GroupCount {
        GroupCount(self.through(done.saturating_add(1)).0 - self.through(done).0)
    }

    pub(super) fn over(&self, done: u64) -> bool {
        self.steps.is_some_and(|steps| done >= steps)
    }
}

/// Whether rollouts go on while the policy is updated.
///
/// The policies that would change the synchronous schedule exist in the asynchronous one only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// One batch of groups per version. A group that teaches nothing keeps its place in the batch, which
    /// trains on fewer then.
    Synchronous,
    /// Rollouts go on. A group that teaches nothing leaves, and another one is admitted for it, so that
    /// every update has a full batch.
    Asynchronous {
        max_staleness: NonZeroU32,
        stale_rows: StaleRows,
        straggler: Straggler,
    },
}

impl Pace {
    /// The pace of a config's `max_staleness`; 0 is synchronous, whatever the policies say.
    pub fn of(max_staleness: u32, stale_rows: StaleRows, straggler: Straggler) -> Self {
        NonZeroU32::new(max_staleness).map_or(Self::Synchronous, |max_staleness| {
            Self::Asynchronous {
                max_staleness,
                stale_rows,
                straggler,
            }
        })
    }

    /// How many versions old a token may be when it is trained on.
    pub fn max_staleness(self) -> u32 {
        match self {
            Self::Synchronous => 0,
            Self::Asynchronous { max_staleness, .. } => max_staleness.get(),
        }
    }

    pub(super) fn stale_rows(self) -> StaleRows {
        match self {
            Self::Synchronous => StaleRows::Drop,
            Self::Asynchronous { stale_rows, .. } => stale_rows,
        }
    }

    /// Whether a group may have more rollouts than `n_samples_per_prompt`.
    pub fn tops_up(self) -> bool {
        self.straggler() == Straggler::TopUp
    }

    pub(super) fn straggler(self) -> Straggler {
        match self {
            Self::Synchronous => Straggler::Wait,
            Self::Asynchronous { straggler, .. } => straggler,
        }
    }

    /// Whether a group that teaches nothing makes room for another one.
    pub(super) fn replaces(self) -> bool {
        match self {
            Self::Synchronous => false,
            Self::Asynchronous { .. } => true,
        }
    }
}

/// What becomes of rollouts with tokens that are too old when they are about to be trained on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StaleRows {
    /// The rollout counts as not scored; `incomplete_groups` says what that means for its group.
    #[default]
    Drop,
    /// Its stale tokens are not trained on; its other tokens are, and its reward is compared. A group of
    /// which no token is left is discarded.
    Mask,
}

/// What becomes of a group of which one rollout takes much longer than the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Straggler {
    /// Nothing: other groups go on, and this one is complete when its straggler is.
    #[default]
    Wait,
    /// Another rollout of the same row is started. The group is complete as soon as enough of them are
    /// scored, and what still runs then is cancelled.
    TopUp,
    /// The rollout is cancelled and counts as not scored; `incomplete_groups` says what that means for
    /// its group.
    Drop,
}
