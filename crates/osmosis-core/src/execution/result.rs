use std::time::Duration;

use crate::frame::{InteractionReward, TurnRewards};
use crate::{Failure, JsonText, Sample};

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
    /// The same with another text in place of one, wherever a failure has it.
    #[must_use]
    pub fn replacing(self, text: &str, by: &str) -> Self {
        let result = match self.result {
            TaskResult::Failed { failure } => TaskResult::Failed {
                failure: failure.replacing(text, by),
            },
            other => other,
        };
        Self { result, ..self }
    }

    /// A task that no worker was given.
    pub fn undispatched(result: TaskResult) -> Self {
        Self {
            result,
            waited: Duration::ZERO,
            took: Duration::ZERO,
        }
    }
}

/// What came back from a grader.
#[derive(Debug)]
pub struct GradeReport {
    pub task: TaskReport,
    /// The samples as they are to be recorded when they have no grade.
    pub samples: Vec<Sample>,
}

/// How user code answered, or why it did not.
#[derive(Debug, Clone)]
pub enum TaskResult {
    Done {
        samples: Vec<Sample>,
        metrics: Option<JsonText>,
        /// Rewards of single model calls, from a workflow that is its own grader.
        interactions: Vec<InteractionReward>,
        /// Rewards of the single turns of samples, from a grader.
        turn_rewards: TurnRewards,
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
        /// For people: `exited with code 3`.
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
