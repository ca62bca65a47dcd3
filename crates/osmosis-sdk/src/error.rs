use osmosis_core::{ErrorCategory, IdError, RewardError};

/// What `run` and `grade` may fail with: anything.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The result of user code.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What this crate refuses, told so that the author of a workflow can fix it.
#[derive(Debug, thiserror::Error)]
pub enum SdkError {
    #[error("`run` registered no sample and returned no messages")]
    NoSample,
    #[error("a sample named `{name}` is already registered in rollout `{rollout}`")]
    DuplicateSample { name: String, rollout: String },
    #[error(transparent)]
    InvalidSampleId(#[from] IdError),
    #[error("there is no sample `{name}`; samples here: {}", listed(.known))]
    UnknownSample { name: String, known: Vec<String> },
    #[error("exactly one sample is needed here, there are: {}", listed(.known))]
    NotOneSample { known: Vec<String> },
    #[error(transparent)]
    InvalidReward(#[from] RewardError),
    #[error("sample `{name}` has {turns} turns, and got rewards for {given}")]
    WrongTurnCount {
        name: String,
        turns: u32,
        given: usize,
    },
    #[error("how many turns sample `{name}` has is not known here")]
    TurnsUnknown { name: String },
    #[error("no reward for sample {}", listed(.names))]
    Ungraded { names: Vec<String> },
    #[error("{what} can't be said in JSON: {source}")]
    NotJson {
        what: &'static str,
        source: serde_json::Error,
    },
    #[error("message {index} is {found}; messages are JSON objects")]
    NotAMessage { index: usize, found: &'static str },
    #[error("metric `{name}` must be a finite number, not `{value}`")]
    InvalidMetric { name: String, value: f64 },
    #[error("{what} does not have the expected shape: {source}")]
    UnexpectedShape {
        what: &'static str,
        source: serde_json::Error,
    },
    #[error("artifacts folder `{path}` could not be made: {source}")]
    Artifacts {
        path: String,
        source: std::io::Error,
    },
    #[error("no client for the policy at `{url}`: {reason}")]
    Client { url: String, reason: String },
    #[error("the result can't be sent: {reason}")]
    ResultTooLarge { reason: String },
}

impl SdkError {
    /// The stable name in reports.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoSample => "no_sample",
            Self::DuplicateSample { .. } => "duplicate_sample",
            Self::InvalidSampleId(_) => "invalid_sample_id",
            Self::UnknownSample { .. } => "unknown_sample",
            Self::NotOneSample { .. } => "not_one_sample",
            Self::InvalidReward(_) => "invalid_reward",
            Self::WrongTurnCount { .. } => "wrong_turn_count",
            Self::TurnsUnknown { .. } => "turns_unknown",
            Self::Ungraded { .. } => "ungraded_sample",
            Self::NotJson { .. } => "not_json",
            Self::NotAMessage { .. } => "invalid_return",
            Self::InvalidMetric { .. } => "invalid_metric",
            Self::UnexpectedShape { .. } => "unexpected_shape",
            Self::Artifacts { .. } => "artifacts_unwritable",
            Self::Client { .. } => "no_client",
            Self::ResultTooLarge { .. } => "result_too_large",
        }
    }

    pub fn category(&self) -> ErrorCategory {
        match self {
            Self::NoSample | Self::Ungraded { .. } | Self::Artifacts { .. } => {
                ErrorCategory::AgentError
            }
            Self::DuplicateSample { .. }
            | Self::InvalidSampleId(_)
            | Self::UnknownSample { .. }
            | Self::NotOneSample { .. }
            | Self::InvalidReward(_)
            | Self::WrongTurnCount { .. }
            | Self::TurnsUnknown { .. }
            | Self::NotJson { .. }
            | Self::NotAMessage { .. }
            | Self::InvalidMetric { .. }
            | Self::UnexpectedShape { .. }
            | Self::Client { .. }
            | Self::ResultTooLarge { .. } => ErrorCategory::ValidationError,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoSample => {
                Some("return the messages from `run`, or register them with `ctx.add_sample`")
            }
            Self::DuplicateSample { .. } => Some("give each conversation a name of its own"),
            Self::NotOneSample { .. } => {
                Some("go through `ctx.samples()` and use `ctx.set_sample_reward`")
            }
            Self::WrongTurnCount { .. } => Some(
                "a turn is one answer of the policy, and each needs a reward: `ctx.turn_count` is their number",
            ),
            Self::TurnsUnknown { .. } => {
                Some("regrade the run that made the model calls, and not one that was regraded")
            }
            Self::Ungraded { .. } => Some(
                "call `ctx.set_sample_reward` for every sample, or `ctx.remove_sample` for one \
                 that should not count",
            ),
            Self::InvalidSampleId(_)
            | Self::UnknownSample { .. }
            | Self::InvalidReward(_)
            | Self::NotJson { .. }
            | Self::NotAMessage { .. }
            | Self::InvalidMetric { .. }
            | Self::UnexpectedShape { .. }
            | Self::Artifacts { .. }
            | Self::Client { .. }
            | Self::ResultTooLarge { .. } => None,
        }
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// An error that says itself which of the four categories of a report it belongs to.
///
/// Other errors are sorted by the first thing in their chain of causes that is known:
///
/// | category | errors |
/// |---|---|
/// | `timeout` | `tokio::time::error::Elapsed`, `std::io::ErrorKind::TimedOut` |
/// | `http_error` | those of `reqwest` and `hyper`, of `async-openai` and of `rig`'s providers |
/// | `validation_error` | those of `serde_json`, of parsing numbers, booleans, characters and UTF-8, of number conversion, and most of [`SdkError`] |
/// | `agent_error` | everything else, and panics |
///
/// ```
/// use osmosis_sdk::{ErrorCategory, TaskError};
///
/// fn search() -> osmosis_sdk::Result<()> {
///     Err(TaskError::http("the search service answered 503"))?
/// }
///
/// let error = search().unwrap_err();
/// let error = error.downcast_ref::<TaskError>().unwrap();
/// assert_eq!(error.category(), ErrorCategory::HttpError);
/// ```
#[derive(Debug)]
pub struct TaskError {
    category: ErrorCategory,
    error: Error,
}

impl TaskError {
    pub fn new(category: ErrorCategory, error: impl Into<Error>) -> Self {
        Self {
            category,
            error: error.into(),
        }
    }

    /// Something took too long.
    pub fn timeout(error: impl Into<Error>) -> Self {
        Self::new(ErrorCategory::Timeout, error)
    }

    /// A value is not what it must be.
    pub fn validation(error: impl Into<Error>) -> Self {
        Self::new(ErrorCategory::ValidationError, error)
    }

    /// A service answered with an error, or not at all.
    pub fn http(error: impl Into<Error>) -> Self {
        Self::new(ErrorCategory::HttpError, error)
    }

    pub fn category(&self) -> ErrorCategory {
        self.category
    }

    pub(crate) fn inner(&self) -> &(dyn std::error::Error + 'static) {
        &*self.error
    }
}

impl std::fmt::Display for TaskError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for TaskError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
