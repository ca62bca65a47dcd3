/// A failure that is not the agent's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    pub kind: FaultKind,
    /// The status the caller sees.
    pub status: u16,
    pub message: String,
}

/// What kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Nobody answered there.
    Unreachable,
    /// It took too long.
    TimedOut,
    /// 429, after the retries.
    Overloaded,
    /// 5xx, after the retries.
    ServerError,
    /// The reply is not what the protocol says.
    Garbage,
    /// The stream ended before its end.
    CutShort,
    /// 401, 402, 403, 404 or the like from the upstream: a wrong key or model name, or no credit. Trying
    /// again is no use.
    Misconfigured,
    /// So many calls wait already, or this one waited so long, that the gateway takes no more.
    QueueFull,
    /// The policy was paused, and not resumed in time.
    Paused,
    /// The call has tools, and the chat template does not show them to the model.
    ToolsIgnored,
    /// The gateway has had no descriptor for a new connection for some time, so callers wait in vain.
    OutOfDescriptors,
}

impl FaultKind {
    /// The name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "upstream_unreachable",
            Self::TimedOut => "upstream_timed_out",
            Self::Overloaded => "upstream_overloaded",
            Self::ServerError => "upstream_server_error",
            Self::Garbage => "upstream_garbage",
            Self::CutShort => "upstream_cut_short",
            Self::Misconfigured => "upstream_misconfigured",
            Self::QueueFull => "gateway_queue_full",
            Self::Paused => "policy_paused",
            Self::ToolsIgnored => "tools_ignored",
            Self::OutOfDescriptors => "out_of_descriptors",
        }
    }

    /// What an upstream's error status means; `None` for those that are the caller's own fault and are
    /// passed on to it as they are (400, 413, 422).
    pub(crate) fn of_status(status: u16) -> Option<Self> {
        match status {
            // The caller wrote the body, and nothing else of what the upstream got.
            ..=400 | 413 | 422 => None,
            408 => Some(Self::TimedOut),
            429 => Some(Self::Overloaded),
            500.. => Some(Self::ServerError),
            401..=499 => Some(Self::Misconfigured),
        }
    }

    /// Whether another attempt may fare better.
    pub fn worth_retrying(self) -> bool {
        match self {
            Self::Unreachable
            | Self::TimedOut
            | Self::Overloaded
            | Self::ServerError
            | Self::Garbage
            | Self::CutShort
            | Self::QueueFull
            | Self::Paused => true,
            Self::Misconfigured | Self::ToolsIgnored | Self::OutOfDescriptors => false,
        }
    }

    /// Whether a run has no use for going on: every rollout would fare alike, by what the run is made of.
    pub fn ends_the_run(self) -> bool {
        match self {
            Self::ToolsIgnored | Self::OutOfDescriptors => true,
            Self::Unreachable
            | Self::TimedOut
            | Self::Overloaded
            | Self::ServerError
            | Self::Garbage
            | Self::CutShort
            | Self::Misconfigured
            | Self::QueueFull
            | Self::Paused => false,
        }
    }

    /// What a person can do about it.
    pub fn hint(self) -> Option<&'static str> {
        match self {
            Self::ToolsIgnored => Some(
                "write `tool_format = \"hermes\"` in [experiment] to put the tools into the system message, or \
                 `chat_template = \"FILE\"` to use a template that renders `tools`",
            ),
            Self::OutOfDescriptors => Some(
                "raise the limit of the shell (`ulimit -n 65536`) or of the service, or run fewer rollouts at once \
                 (`--max-in-flight`); a resume repeats the rollouts that were under way",
            ),
            Self::Unreachable
            | Self::TimedOut
            | Self::Overloaded
            | Self::ServerError
            | Self::Garbage
            | Self::CutShort
            | Self::Misconfigured
            | Self::QueueFull
            | Self::Paused => None,
        }
    }
}
