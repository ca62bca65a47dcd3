use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Reward;

/// How a rollout ended. Never collapsed: only `Scored` has a reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    Scored {
        /// The mean over the kept samples.
        reward: Reward,
        /// Every kept sample reached the run's `pass_threshold`.
        passed: bool,
    },
    /// User code raised, produced no sample, or crashed its worker while running alone.
    AgentFailed { failure: Failure },
    /// A phase passed its deadline.
    TimedOut { phase: Phase, limit_ms: u64 },
    /// The grader raised, gave a reward that is no number, or left a kept sample without one.
    Ungraded { failure: Failure },
    /// The workflow declined to be scored.
    Rejected { reason: String },
    /// Something that is not the user's code failed, and kept failing when it was tried again.
    InfrastructureFailed { failure: Failure },
    /// Somebody stopped it.
    Cancelled,
}

impl Outcome {
    pub fn kind(&self) -> OutcomeKind {
        match self {
            Self::Scored { .. } => OutcomeKind::Scored,
            Self::AgentFailed { .. } => OutcomeKind::AgentFailed,
            Self::TimedOut { .. } => OutcomeKind::TimedOut,
            Self::Ungraded { .. } => OutcomeKind::Ungraded,
            Self::Rejected { .. } => OutcomeKind::Rejected,
            Self::InfrastructureFailed { .. } => OutcomeKind::InfrastructureFailed,
            Self::Cancelled => OutcomeKind::Cancelled,
        }
    }

    /// The reward, which only a scored rollout has.
    pub fn reward(&self) -> Option<Reward> {
        match self {
            Self::Scored { reward, .. } => Some(*reward),
            Self::AgentFailed { .. }
            | Self::TimedOut { .. }
            | Self::Ungraded { .. }
            | Self::Rejected { .. }
            | Self::InfrastructureFailed { .. }
            | Self::Cancelled => None,
        }
    }

    pub fn passed(&self) -> bool {
        matches!(self, Self::Scored { passed: true, .. })
    }

    /// The same outcome with its failure changed, when it has one.
    #[must_use]
    pub fn map_failure(self, change: impl FnOnce(Failure) -> Failure) -> Self {
        match self {
            Self::AgentFailed { failure } => Self::AgentFailed {
                failure: change(failure),
            },
            Self::Ungraded { failure } => Self::Ungraded {
                failure: change(failure),
            },
            Self::InfrastructureFailed { failure } => Self::InfrastructureFailed {
                failure: change(failure),
            },
            other @ (Self::Scored { .. }
            | Self::TimedOut { .. }
            | Self::Rejected { .. }
            | Self::Cancelled) => other,
        }
    }

    /// One line for people; `None` when there is nothing to explain.
    pub fn explanation(&self) -> Option<String> {
        match self {
            Self::Scored { .. } | Self::Cancelled => None,
            Self::AgentFailed { failure }
            | Self::Ungraded { failure }
            | Self::InfrastructureFailed { failure } => Some(failure.to_string()),
            Self::TimedOut { phase, limit_ms } => Some(format!(
                "{phase} phase passed its deadline of {} s",
                *limit_ms as f64 / 1000.0
            )),
            Self::Rejected { reason } => Some(reason.clone()),
        }
    }
}

/// The kinds of outcome, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    Scored,
    AgentFailed,
    TimedOut,
    Ungraded,
    Rejected,
    InfrastructureFailed,
    Cancelled,
}

impl OutcomeKind {
    pub const ALL: [Self; 7] = [
        Self::Scored,
        Self::AgentFailed,
        Self::TimedOut,
        Self::Ungraded,
        Self::Rejected,
        Self::InfrastructureFailed,
        Self::Cancelled,
    ];

    /// The name in files and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scored => "scored",
            Self::AgentFailed => "agent_failed",
            Self::TimedOut => "timed_out",
            Self::Ungraded => "ungraded",
            Self::Rejected => "rejected",
            Self::InfrastructureFailed => "infrastructure_failed",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// Whether the rollout ran to an end that says something about the agent. Infrastructure
    /// failures and cancellations are listed apart and are in no denominator.
    pub fn ran(self) -> bool {
        match self {
            Self::Scored | Self::AgentFailed | Self::TimedOut | Self::Ungraded | Self::Rejected => {
                true
            }
            Self::InfrastructureFailed | Self::Cancelled => false,
        }
    }
}

impl fmt::Display for OutcomeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A part of a rollout that has a deadline of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Agent,
    Grade,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agent => "agent",
            Self::Grade => "grade",
        })
    }
}

/// The public reference SDK's four words for what went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCategory {
    Timeout,
    ValidationError,
    HttpError,
    AgentError,
}

/// Something that went wrong, told so that a person can find it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Failure {
    pub category: ErrorCategory,
    /// The exception's type (`ValueError`) or our own name for it (`worker_crashed`).
    pub kind: String,
    pub message: String,
    /// A traceback, when user code raised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceback: Option<String>,
}

impl Failure {
    /// The kind of a failure behind which the machine had no descriptor left, for a file or a connection.
    pub const OUT_OF_DESCRIPTORS: &str = "out_of_descriptors";

    /// Whether this machine is behind it, and neither the code that failed nor a model.
    pub fn is_of_the_machine(&self) -> bool {
        self.kind == Self::OUT_OF_DESCRIPTORS
    }

    /// The same with another text in place of one, wherever that stands.
    #[must_use]
    pub fn replacing(self, text: &str, by: &str) -> Self {
        Self {
            message: self.message.replace(text, by),
            traceback: self.traceback.map(|lines| lines.replace(text, by)),
            ..self
        }
    }

    pub fn new(
        category: ErrorCategory,
        kind: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            category,
            kind: kind.into(),
            message: message.into(),
            traceback: None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            f.write_str(&self.kind)
        } else {
            write!(f, "{}: {}", self.kind, self.message)
        }
    }
}

/// Where a rollout's time went, in milliseconds. `model` is a part of `agent`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Durations {
    #[serde(rename = "queue_ms")]
    pub queue: f64,
    #[serde(rename = "agent_ms")]
    pub agent: f64,
    #[serde(rename = "model_ms")]
    pub model: f64,
    #[serde(rename = "grade_ms")]
    pub grade: f64,
}
