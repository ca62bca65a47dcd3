//! The credential-scoped access of one rollout, or of its grader, to a policy.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use osmosis_core::{Attempt, RolloutId, SampleId, TaskClock};
use osmosis_store::CallSummary;

/// Opens sessions. What answers model calls, and how they are recorded, is its business.
#[async_trait]
pub trait Sessions: fmt::Debug + Send + Sync {
    /// For the agent of one attempt: the run's policy answers.
    fn open(&self, wanted: AgentSession) -> Box<dyn Session>;

    /// A second one for the same attempt, for clients of its agent that were given no address. What they ask is
    /// recorded, is in no sum, and is never trained on.
    fn open_other(&self, rollout: RolloutId, attempt: Attempt) -> Box<dyn Session>;

    /// For the grader of one attempt: the judge answers. `None` when the run has no judge.
    fn open_judge(
        &self,
        rollout: RolloutId,
        attempt: Attempt,
        clock: Arc<TaskClock>,
    ) -> Option<JudgeSession>;

    /// Waits until a call shows that what answers can't serve this run, however often rollouts are tried. The run
    /// ends then.
    async fn run_fault(&self) -> RunFault {
        std::future::pending().await
    }
}

/// Why what answers can't serve a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFault {
    pub kind: RunFaultKind,
    pub message: String,
    pub hint: Option<String>,
}

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunFaultKind {
    /// The model does not see the tools of its calls.
    ToolsIgnored,
    /// What answers can't take connections.
    OutOfDescriptors,
}

/// What an agent's session is to be like.
#[derive(Debug)]
pub struct AgentSession {
    pub rollout: RolloutId,
    pub attempt: Attempt,
    /// What the rollout is called where it runs, when that is another name.
    pub alias: Option<RolloutId>,
    /// Answers are decoded at temperature 0, whatever the call says.
    pub greedy: bool,
    /// The ids of answers, and what was sampled, are kept for [`SessionCalls`].
    pub keeps_details: bool,
    /// The task's own clock: calls are given up in time for its deadline, and what they lose to servers that fail
    /// is lost on it.
    pub clock: Arc<TaskClock>,
}

/// A grader's session.
#[derive(Debug)]
pub struct JudgeSession {
    pub session: Box<dyn Session>,
    /// The name of the model behind it.
    pub model: String,
}

/// A key that opens one rollout and nothing else. Dropping it ends it too.
#[async_trait]
pub trait Session: fmt::Debug + Send + Sync {
    /// The advertised base URL, which user code appends `/chat/completions` to.
    fn url(&self) -> &str;

    fn key(&self) -> &str;

    /// Where calls go from there, in the user's own words: what failures name instead of the advertised URL.
    fn endpoint(&self) -> Option<&str> {
        None
    }

    /// Ends the key, ends what is still under way, and returns when all of it is queued for recording.
    async fn end(self: Box<Self>) -> SessionCalls;
}

/// What was asked through a session.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionCalls {
    /// Every recorded call counts, also those that failed.
    pub summary: CallSummary,
    /// Time during which at least one call was under way.
    pub model_time: Duration,
    /// The fault of the infrastructure that is behind how the task ended, unless it was late.
    pub fault: Option<ModelFault>,
    /// The same when the task was late: what it lost so much time to that this explains it.
    pub fault_when_late: Option<ModelFault>,
    /// The whole answers that an agent was given, in order.
    pub answers: Vec<GivenAnswer>,
    /// The calls in tokens, encoded, with the samples they belong to, when the session keeps details.
    pub token_records: Vec<(SampleId, Bytes)>,
}

impl SessionCalls {
    /// The fault that is behind how the task ended.
    pub fn fault_behind(&self, timed_out: bool) -> Option<&ModelFault> {
        if timed_out {
            self.fault_when_late.as_ref()
        } else {
            self.fault.as_ref()
        }
    }
}

/// How model calls failed for a reason that is not the agent's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFault {
    /// The name in records: `upstream_unreachable`.
    pub code: &'static str,
    pub message: String,
    /// Another attempt may fare better.
    pub worth_retrying: bool,
}

/// An answer as its caller knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenAnswer {
    /// The id that the caller was given, when the session keeps details.
    pub id: Option<String>,
    pub sample: SampleId,
    /// The numbers of its token records within the sample, one for each choice; empty without tokens.
    pub calls: Vec<u32>,
    /// The token records of an answer to the same request that its caller never got.
    pub replaces: Vec<u32>,
}
