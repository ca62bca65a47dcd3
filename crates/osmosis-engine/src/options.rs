use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::config::ModelErrors;
use osmosis_core::{Redactor, RewardRange, RolloutId};
use tokio_util::sync::CancellationToken;

/// How a run is driven. None of this changes what a rollout's result means, except the limits and
/// the threshold, which are pinned to the run.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Who holds the leases; for people who look into the database.
    pub owner: String,
    /// Rollouts under way at once.
    pub max_in_flight: usize,
    /// How many of them this process takes, where others work on the run too.
    pub claims: Claims,
    pub agent_limit: Duration,
    pub grade_limit: Duration,
    /// A kept sample passes from this reward on.
    pub pass_threshold: f64,
    /// A kept sample with a reward outside of it leaves its rollout ungraded.
    pub reward_range: Option<RewardRange>,
    /// Whose failure it is when model calls fail for reasons of the infrastructure.
    pub model_errors: ModelErrors,
    /// Infrastructure failures after which a rollout is given up.
    pub max_failures: u32,
    /// The wait after the first infrastructure failure of a rollout; doubles with each.
    pub retry_wait: Duration,
    /// How long a claim holds without a heartbeat.
    pub lease: Duration,
    /// Each rollout gets a folder of its own below this.
    pub artifacts_root: Option<Utf8PathBuf>,
    /// User code may ask.
    pub measuring: Measuring,
    /// Takes secrets out of error texts before they are recorded.
    pub redactor: Redactor,
}

/// How much of `max_in_flight` a process claims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Claims {
    #[default]
    Everything,
    /// As much as each of the nodes that are alive: the queue is short, and whoever comes first would take all of it.
    Share,
    /// The nodes run all rollouts.
    Nothing,
}

impl Claims {
    /// How many rollouts may be under way in this process beside so many living nodes.
    pub(crate) fn of(self, max_in_flight: usize, nodes: usize) -> usize {
        match self {
            Self::Everything => max_in_flight,
            Self::Share => max_in_flight.div_ceil(nodes.saturating_add(1)),
            Self::Nothing => 0,
        }
    }
}

/// Which rollouts measure, so that nothing is learned from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Measuring {
    Nothing,
    Everything,
    /// Those of these dataset rows, which training holds out. Where a rollout's id says that it is
    /// [greedy](osmosis_core::RolloutId::is_greedy), its answers are decoded at temperature 0.
    Rows(Arc<BTreeSet<u64>>),
}

impl Measuring {
    pub(crate) fn is_eval(&self, row_index: u64) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Rows(rows) => rows.contains(&row_index),
        }
    }

    /// Elsewhere than in training ids are chosen by others, and say nothing.
    pub(crate) fn is_greedy(&self, row_index: u64, id: &RolloutId) -> bool {
        match self {
            Self::Nothing | Self::Everything => false,
            Self::Rows(rows) => rows.contains(&row_index) && id.is_greedy(),
        }
    }
}

/// How a run is asked to end early. *Drain* finishes what runs; *now* does not.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    pub drain: CancellationToken,
    pub now: CancellationToken,
}

/// How driving the run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// Every rollout has a result.
    Complete,
    /// It was asked to stop; `left` rollouts have no result yet.
    Stopped { left: u64 },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_takes_its_share() {
        assert_eq!(Claims::Everything.of(8, 3), 8);
        assert_eq!(Claims::Nothing.of(8, 3), 0);
        let shares = [0, 1, 2, 7, 100].map(|nodes| Claims::Share.of(8, nodes));
        assert_eq!(shares, [8, 4, 3, 1, 1]);
    }

    #[test]
    fn only_held_out_rows_are_decoded_greedily_and_only_where_their_id_says_so() {
        let held_out = Measuring::Rows(Arc::new([3].into()));
        assert!(held_out.is_greedy(3, &RolloutId::greedy(3, 9)));
        assert!(!held_out.is_greedy(3, &RolloutId::of(3, 9)));
        assert!(!held_out.is_greedy(4, &RolloutId::greedy(4, 9)));
        for served in [Measuring::Everything, Measuring::Nothing] {
            assert!(!served.is_greedy(3, &RolloutId::greedy(3, 9)));
        }
    }
}
