use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;

use crate::frame::JudgeAccess;
use crate::{Attempt, JsonText, RolloutId, Sample, SampleId, TaskClock};

/// Whether a task may share its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    Shared,
    /// A worker of its own, which is retired afterwards.
    Alone,
    /// A worker of its own, and nothing else runs in the pool meanwhile.
    Solo,
}

/// How one attempt at a rollout is to be executed.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub attempt: Attempt,
    pub isolation: Isolation,
    /// The deadline of the workflow, from when user code starts.
    pub agent_limit: Duration,
    /// The same for the grader.
    pub grade_limit: Duration,
}

/// One execution of the workflow.
#[derive(Debug, Clone)]
pub struct RunJob {
    pub rollout_id: RolloutId,
    pub prompt: JsonText,
    /// For an executor that runs and grades in one go. A worker process is never told.
    pub label: Option<String>,
    pub metadata: Option<JsonText>,
    /// Where user code reaches the gateway: the advertised address.
    pub chat_completions_url: String,
    pub api_key: String,
    /// The rollout's folder, as the engine sees it; an executor translates it for its processes.
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
    /// As for [`RunJob`].
    pub artifacts_dir: Option<Utf8PathBuf>,
    /// The judge that the grader may ask.
    pub judge: Option<JudgeAccess>,
    /// As for [`RunJob`].
    pub clock: Option<Arc<TaskClock>>,
    /// How many turns each of the samples has; empty when that is not known.
    pub turns: BTreeMap<SampleId, u32>,
}
