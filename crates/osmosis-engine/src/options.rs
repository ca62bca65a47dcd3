use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::Redactor;
use osmosis_core::config::ModelErrors;
use tokio_util::sync::CancellationToken;

/// How a run is driven. None of this changes what a rollout's result means, except the limits and
/// the threshold, which are pinned to the run.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Who holds the leases; for people who look into the database.
    pub owner: String,
    /// Rollouts under way at once.
    pub max_in_flight: usize,
    pub agent_limit: Duration,
    pub grade_limit: Duration,
    /// A kept sample passes from this reward on.
    pub pass_threshold: f64,
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

/// Which rollouts measure, so that nothing is learned from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Measuring {
    Nothing,
    Everything,
    /// Those of these dataset rows.
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
