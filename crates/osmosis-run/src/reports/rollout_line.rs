//! One rollout in a line of `index.jsonl`.

use osmosis_core::{Durations, Outcome, OutcomeKind, Reward, RolloutId};
use osmosis_store::{JudgeSummary, RolloutRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::OrderedMap;

/// A line of `index.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutLine {
    #[serde(flatten)]
    pub result: RolloutResult,
    /// Rewards of the kept samples, by id.
    pub samples: OrderedMap<Option<Reward>>,
    #[serde(flatten)]
    pub effort: RolloutEffort,
}

/// Which rollout it is, and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutResult {
    pub row_index: u64,
    pub run_index: u32,
    pub rollout_id: RolloutId,
    /// `null` while it has no result, as the next two.
    pub outcome: Option<OutcomeKind>,
    pub reward: Option<Reward>,
    pub passed: Option<bool>,
}

/// What went wrong, and what the rollout took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutEffort {
    pub error: Option<String>,
    pub attempts: u32,
    pub model_calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Of the prompt tokens, those that came from a cache; `null` if the server didn't report it.
    pub cached_tokens: Option<u64>,
    /// Of the completion tokens, those spent on reasoning; `null` if the server didn't report it.
    pub reasoning_tokens: Option<u64>,
    pub judge: JudgeSummary,
    pub durations: Durations,
}

impl RolloutLine {
    pub fn of(rollout: &RolloutRecord) -> Self {
        let samples = rollout.rewards.iter();
        Self {
            result: RolloutResult::of(rollout),
            samples: samples
                .map(|(id, reward)| (id.to_string(), *reward))
                .collect(),
            effort: RolloutEffort::of(rollout),
        }
    }
}

impl RolloutResult {
    pub(super) fn of(rollout: &RolloutRecord) -> Self {
        let outcome = rollout.outcome.as_ref();
        Self {
            row_index: rollout.row_index,
            run_index: rollout.run_index,
            rollout_id: rollout.id.clone(),
            outcome: outcome.map(Outcome::kind),
            reward: outcome.and_then(Outcome::reward),
            passed: outcome.map(Outcome::passed),
        }
    }
}

impl RolloutEffort {
    pub(super) fn of(rollout: &RolloutRecord) -> Self {
        Self {
            error: rollout.outcome.as_ref().and_then(Outcome::explanation),
            attempts: rollout.attempts,
            model_calls: rollout.calls.model_calls,
            prompt_tokens: rollout.calls.prompt_tokens,
            completion_tokens: rollout.calls.completion_tokens,
            cached_tokens: rollout.calls.cached_tokens,
            reasoning_tokens: rollout.calls.reasoning_tokens,
            judge: rollout.calls.judge,
            durations: rollout.durations,
        }
    }
}
