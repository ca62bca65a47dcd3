use std::time::Duration;

use osmosis_core::{Attempt, Durations, Outcome, Phase, RolloutId};
use osmosis_store::CallSummary;

/// Something that happened in a run, in the order it happened.
#[derive(Debug, Clone)]
pub enum RunEvent {
    /// The run begins or goes on: `done` of `total` rollouts have a result already.
    Began { total: u64, done: u64 },
    /// An attempt at a rollout was claimed.
    Claimed { id: RolloutId, attempt: Attempt },
    /// User code of a phase is about to run. The attempt asked the policy `calls` times before; the last of these
    /// calls may still be on their way to the store.
    PhaseBegan {
        id: RolloutId,
        phase: Phase,
        calls: u64,
    },
    /// A rollout has its durable result.
    Finished {
        id: RolloutId,
        outcome: Outcome,
        durations: Durations,
        calls: CallSummary,
    },
    /// An attempt came to nothing and the rollout will be tried again.
    Retrying {
        id: RolloutId,
        attempt: Attempt,
        reason: String,
        wait: Duration,
    },
    /// The grader's worker was lost; the samples are graded again, alone.
    GradingAgain { id: RolloutId, reason: String },
    /// No more claims; waiting for what runs.
    Draining { in_flight: usize },
}
