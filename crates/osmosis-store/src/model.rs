use bytes::Bytes;
use osmosis_core::statistics::RolloutFact;
use osmosis_core::{
    Attempt, Durations, JsonText, Outcome, OutcomeKind, PolicyVersion, RolloutId, RunName, Sample,
    SampleId,
};
use serde::{Deserialize, Serialize};

use crate::Pieces;

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    Evaluation,
    Training,
    Serving,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    Running,
    /// Every rollout has a result.
    Finished,
    /// Stopped on request, or with rollouts left; it can be resumed.
    Interrupted,
}

/// The run's own record.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    pub name: RunName,
    pub kind: RunKind,
    pub status: RunStatus,
    /// Milliseconds since 1970.
    pub created_at_ms: i64,
    pub finished_at_ms: Option<i64>,
    /// The config file, as it was.
    pub config_toml: String,
    /// The facts a resume compares, a JSON object.
    pub pinned: JsonText,
}

/// A dataset row to add.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRow {
    pub row_index: u64,
    /// The line of the dataset file it came from, from 1.
    pub line: u64,
    /// The row, a JSON object.
    pub body: JsonText,
}

/// A dataset row of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct RowRecord {
    pub row_index: u64,
    pub line: u64,
    pub body: JsonText,
}

/// A rollout to add to the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRollout {
    pub id: RolloutId,
    pub row_index: u64,
    pub run_index: u32,
}

/// A rollout that was handed out.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    pub id: RolloutId,
    pub row_index: u64,
    pub run_index: u32,
    pub attempt: Attempt,
    /// Workers that were lost while they held it: the more, the more alone it must run.
    pub losses: u32,
    /// Infrastructure failures so far.
    pub failures: u32,
    pub row: RowRecord,
}

/// Whose call it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CallPurpose {
    /// The agent asked the policy.
    #[default]
    Policy,
    /// The grader asked its judge. Such a call is in no sum of the policy's and is never trained on.
    Judge,
    /// A workflow's client that was given no address asked: a judge of its own, say. It is in no sum and
    /// is never trained on.
    Other,
}

impl CallPurpose {
    /// The name in the database and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Judge => "judge",
            Self::Other => "other",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Policy, Self::Judge, Self::Other]
            .into_iter()
            .find(|purpose| purpose.as_str() == text)
    }
}

/// Sums over the model calls of an attempt. Those of the judge are apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallSummary {
    pub model_calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Of the prompt tokens, those that came from a cache; `None` when no call was told.
    #[serde(default)]
    pub cached_tokens: Option<u64>,
    /// Of the completion tokens, those spent on reasoning; `None` when no call was told.
    #[serde(default)]
    pub reasoning_tokens: Option<u64>,
    #[serde(default)]
    pub judge: JudgeSummary,
}

impl CallSummary {
    pub fn add(&mut self, other: &Self) {
        self.model_calls += other.model_calls;
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.cached_tokens = sum_of_known(self.cached_tokens, other.cached_tokens);
        self.reasoning_tokens = sum_of_known(self.reasoning_tokens, other.reasoning_tokens);
        self.judge.add(other.judge);
    }
}

/// Unknown only when both are.
fn sum_of_known(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (known, None) | (None, known) => known,
    }
}

/// Sums over the calls to the judge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JudgeSummary {
    pub calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
}

impl JudgeSummary {
    /// Adds the sums of another.
    pub fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
    }
}

/// The result of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    pub id: RolloutId,
    pub attempt: Attempt,
    pub outcome: Outcome,
    pub samples: Vec<Sample>,
    pub metrics: Option<JsonText>,
    pub durations: Durations,
    pub calls: CallSummary,
    pub started_at_ms: i64,
    pub finished_at_ms: i64,
}

/// What became of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionReceipt {
    /// It is the rollout's result, durably.
    Accepted,
    /// Another attempt has the rollout, or it has a result already; nothing changed.
    Fenced,
}

/// A rollout as it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutRecord {
    pub id: RolloutId,
    pub row_index: u64,
    pub run_index: u32,
    /// Attempts so far; 0 when it was never claimed.
    pub attempts: u32,
    /// Infrastructure failures so far.
    pub failures: u32,
    /// `None` while it has no result.
    pub outcome: Option<Outcome>,
    /// Rewards of the kept samples.
    pub rewards: Vec<(SampleId, Option<osmosis_core::Reward>)>,
    pub metrics: Option<JsonText>,
    pub durations: Durations,
    pub calls: CallSummary,
    pub started_at_ms: Option<i64>,
    pub finished_at_ms: Option<i64>,
}

impl RolloutRecord {
    /// What statistics need to know of it; `None` while it has no result.
    pub fn fact(&self) -> Option<RolloutFact> {
        let outcome = self.outcome.as_ref()?;
        Some(RolloutFact {
            row_index: self.row_index,
            run_index: self.run_index,
            kind: outcome.kind(),
            reward: outcome.reward(),
            passed: outcome.passed(),
            durations: self.durations,
            model_calls: self.calls.model_calls,
            prompt_tokens: self.calls.prompt_tokens,
            completion_tokens: self.calls.completion_tokens,
            cached_tokens: self.calls.cached_tokens,
            reasoning_tokens: self.calls.reasoning_tokens,
        })
    }
}

/// Which rollouts to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RolloutQuery {
    pub row_index: Option<u64>,
    pub kind: Option<OutcomeKind>,
    /// Only those with a result.
    pub finished_only: bool,
    /// Continue after this row and run index.
    pub after: Option<(u64, u32)>,
    /// At most this many; 0 means 1,000.
    pub limit: usize,
}

/// Some rollouts, and where the next page starts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RolloutPage {
    pub items: Vec<RolloutRecord>,
    pub next: Option<(u64, u32)>,
}

/// Where a page of rollouts ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageEnd {
    /// This store does not tell before the page is read.
    Unknown,
    /// It is not full: no page follows.
    Last,
    /// With this row and run index.
    At((u64, u32)),
}

/// How many rollouts are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueCounts {
    pub queued: u64,
    pub leased: u64,
    pub done: u64,
}

impl QueueCounts {
    pub fn total(&self) -> u64 {
        self.queued + self.leased + self.done
    }
}

/// The finished rollouts of one kind, summed up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OutcomeTally {
    pub kind: OutcomeKind,
    pub rollouts: u64,
    /// How many of them passed; 0 unless the kind is scored.
    pub passed: u64,
    /// The sum of their rewards; 0 unless the kind is scored.
    pub reward_sum: f64,
    pub calls: CallSummary,
}

/// A model call to record. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq)]
pub struct NewCall {
    pub rollout_id: RolloutId,
    pub attempt: Attempt,
    pub sample_id: SampleId,
    pub purpose: CallPurpose,
    /// `chat_completions`, ...
    pub dialect: String,
    /// The model name the caller sent.
    pub model: String,
    /// The endpoint that answered, without credentials.
    pub upstream: String,
    pub policy_version: PolicyVersion,
    pub streamed: bool,
    /// The HTTP status the caller saw; 0 when it hung up before any.
    pub status: u16,
    /// What went wrong, when something did.
    pub error: Option<String>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    /// Of the prompt tokens.
    pub cached_tokens: Option<u64>,
    /// Of the completion tokens.
    pub reasoning_tokens: Option<u64>,
    pub queued_at_ms: i64,
    pub sent_at_ms: Option<i64>,
    pub first_byte_at_ms: Option<i64>,
    pub done_at_ms: i64,
    pub request: Bytes,
    pub response: Pieces,
    /// What the policy saw and sampled, one record for each choice it gave; empty when the policy does
    /// not know. Opaque here: an encoded `osmosis_tokens::TokenRecord` each.
    pub tokens: Vec<Bytes>,
}

/// A recorded call without its bodies.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRecord {
    pub call_id: u64,
    pub rollout_id: RolloutId,
    pub attempt: Attempt,
    pub sample_id: SampleId,
    pub purpose: CallPurpose,
    pub dialect: String,
    pub model: String,
    pub upstream: String,
    pub policy_version: PolicyVersion,
    pub streamed: bool,
    pub status: u16,
    pub error: Option<String>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    /// Of the prompt tokens.
    pub cached_tokens: Option<u64>,
    /// Of the completion tokens.
    pub reasoning_tokens: Option<u64>,
    pub queued_at_ms: i64,
    pub sent_at_ms: Option<i64>,
    pub first_byte_at_ms: Option<i64>,
    pub done_at_ms: i64,
    /// How many token records it has; 0 when the policy did not know its tokens.
    pub token_records: u32,
}

/// The exact bytes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallBody {
    pub request: Bytes,
    pub response: Bytes,
    /// The token records, as they were given.
    pub tokens: Vec<Bytes>,
}

/// A step of training that is done.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRecord {
    /// From 1; 0 is what was measured before the first.
    pub step: u64,
    /// The weights after the step.
    pub version: PolicyVersion,
    /// The numbers of the step, a JSON object.
    pub metrics: JsonText,
    /// Milliseconds since 1970.
    pub finished_at_ms: i64,
}

/// A batch of rollouts to train on, of a run in which the order they finish in decides which these are.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchRecord {
    /// From 1.
    pub number: u64,
    /// That the age of its tokens was looked at with.
    pub version: PolicyVersion,
    /// Which rollouts it is made of, a JSON value.
    pub content: JsonText,
    /// Milliseconds since 1970, as is the next.
    pub formed_at_ms: i64,
    /// When a trainer from outside said that it has trained on it.
    pub acknowledged_at_ms: Option<i64>,
}

/// Which calls to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallQuery {
    pub rollout_id: RolloutId,
    /// `None`: the attempt whose result was accepted, or the latest.
    pub attempt: Option<Attempt>,
}
