use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::frame::{InteractionReward, JudgeAccess};
use osmosis_core::{Failure, JsonText, RolloutId, Sample, TaskClock};

/// Whether a task may share its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    Shared,
    /// A worker of its own, which is retired afterwards.
    Alone,
    /// A worker of its own, and nothing else runs in the pool meanwhile.
    Solo,
}

/// How far it is the task's own doing that its worker is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossCause {
    /// The worker held nothing but this task and ended in a way that only its own code brings about: it
    /// exited, faulted or broke the protocol.
    Own,
    /// The worker held nothing but this task, and a signal ended it or the process that it was forked
    /// from. The task may have sent it; so may another one, the kernel when memory runs out, or an operator.
    Signalled,
    /// Nothing says that it was this task: others shared the worker, or the pool ended it.
    Unknown,
}

/// One execution of the workflow.
#[derive(Debug, Clone)]
pub struct RunJob {
    pub rollout_id: RolloutId,
    pub prompt: JsonText,
    /// For an executor that runs and grades in one go. A worker process is never told.
    pub label: Option<String>,
    pub metadata: Option<JsonText>,
    pub chat_completions_url: String,
    pub api_key: String,
    pub artifacts_dir: Option<Utf8PathBuf>,
    /// The whole row, for a workflow that is its own grader.
    pub row: Option<JsonText>,
    /// The rollout measures; nothing is learned from it.
    pub is_eval: bool,
    /// What the deadline is kept by, for those who have a say in it; without it, it is the limit.
    pub clock: Option<Arc<TaskClock>>,
    /// For clients that the workflow gives no address, when it is its own grader.
    pub other_api_key: Option<String>,
}

/// One execution of the grader.
#[derive(Debug, Clone)]
pub struct GradeJob {
    pub rollout_id: RolloutId,
    pub label: Option<String>,
    pub samples: Vec<Sample>,
    pub metadata: Option<JsonText>,
    pub artifacts_dir: Option<Utf8PathBuf>,
    /// The judge that the grader may ask.
    pub judge: Option<JudgeAccess>,
    /// As for [`RunJob`].
    pub clock: Option<Arc<TaskClock>>,
}

/// What came back from a task.
#[derive(Debug, Clone)]
pub struct TaskReport {
    pub result: TaskResult,
    /// From dispatch to the worker's `started`.
    pub waited: Duration,
    /// From `started` to the answer.
    pub took: Duration,
}

impl TaskReport {
    /// A task that no worker was given.
    pub(crate) fn undispatched(result: TaskResult) -> Self {
        Self {
            result,
            waited: Duration::ZERO,
            took: Duration::ZERO,
        }
    }
}

/// How user code answered, or why it did not.
#[derive(Debug, Clone)]
pub enum TaskResult {
    Done {
        samples: Vec<Sample>,
        metrics: Option<JsonText>,
        /// Rewards of single model calls, from a workflow that is its own grader.
        interactions: Vec<InteractionReward>,
    },
    Rejected {
        reason: String,
    },
    Failed {
        failure: Failure,
    },
    /// The deadline passed.
    TimedOut,
    /// The token was cancelled.
    Cancelled,
    /// The worker ended (or broke the protocol, or was killed because of another task), or another
    /// task held its event loop when this one's deadline passed.
    WorkerLost {
        detail: String,
        cause: LossCause,
    },
    /// No worker could be had (they keep dying at start, or the pool is shut down): the task was
    /// never handed out, so this says nothing about it.
    NoWorker {
        detail: String,
    },
    /// Where it was to run, elsewhere, could not be reached, refused it or forgot it: this says
    /// nothing about user code. `retry` when another attempt may fare better.
    OutOfReach {
        detail: String,
        retry: bool,
    },
}
