use std::net::SocketAddr;

use camino::Utf8PathBuf;

use crate::policy::weights::UnusableWeights;
use crate::serving::address_rules::ForbiddenAddress;

/// Why a gateway or a policy could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("cannot listen on {address}: {message}")]
    Listen {
        address: SocketAddr,
        message: String,
    },
    #[error("upstream url `{url}`: {message}")]
    UpstreamUrl { url: String, message: String },
    #[error(
        "upstream key cannot be sent in a header: it contains a control character or a line break"
    )]
    UpstreamKey,
    #[error("no upstream url is given")]
    NoUpstream,
    #[error("prompts in token ids go to one server, and {0} are given")]
    SeveralServers(usize),
    #[error("policy name `{name}` {message}")]
    PolicyName { name: String, message: &'static str },
    #[error("no policy is registered as `{name}`")]
    UnknownPolicy { name: String },
    #[error("the policy `{endpoint}` can't be changed from outside: it keeps its own version")]
    Unchangeable { endpoint: String },
    /// The weights of a server are the server's business.
    #[error("the policy `{endpoint}` takes no weights from a folder")]
    WeightsElsewhere { endpoint: String },
    #[error("weights `{folder}`: {source}")]
    Weights {
        folder: Utf8PathBuf,
        source: UnusableWeights,
    },
    #[error("other weights are being loaded")]
    Loading,
    #[error("version {asked} is lower than version {current}, which is served")]
    VersionGoesBack { asked: u64, current: u64 },
    #[error(transparent)]
    ForbiddenAddress(#[from] ForbiddenAddress),
    #[error("cannot set up the connection to `{url}`: {message}")]
    UpstreamClient { url: String, message: String },
}

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewayErrorKind {
    /// The address is taken or not ours.
    Listen,
    /// A setting of the upstream is wrong.
    Settings,
    /// There is no such policy.
    Unknown,
    /// It does not go with what is served.
    Conflict,
    /// The machine lacks something: root certificates, a proxy setting that can be read.
    Environment,
}

impl GatewayError {
    pub fn kind(&self) -> GatewayErrorKind {
        match self {
            Self::Listen { .. } => GatewayErrorKind::Listen,
            Self::UpstreamUrl { .. }
            | Self::ForbiddenAddress(_)
            | Self::UpstreamKey
            | Self::NoUpstream
            | Self::SeveralServers(_)
            | Self::Weights { .. }
            | Self::PolicyName { .. } => GatewayErrorKind::Settings,
            Self::UnknownPolicy { .. } => GatewayErrorKind::Unknown,
            Self::Unchangeable { .. }
            | Self::WeightsElsewhere { .. }
            | Self::Loading
            | Self::VersionGoesBack { .. } => GatewayErrorKind::Conflict,
            Self::UpstreamClient { .. } => GatewayErrorKind::Environment,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Listen { .. } => {
                Some("choose another address, or port 0 for any free one".to_owned())
            }
            Self::NoUpstream => Some("give at least one endpoint".to_owned()),
            Self::SeveralServers(_) => Some("give one endpoint".to_owned()),
            Self::PolicyName { .. } => {
                Some("a policy's name is what calls send as `model`, like `judge`".to_owned())
            }
            Self::UnknownPolicy { .. } => {
                Some("`GET /v1/policy` lists the policies by name".to_owned())
            }
            Self::Unchangeable { .. } => Some(
                "only policies behind endpoints, and embedded ones by `weights`, change over HTTP"
                    .to_owned(),
            ),
            Self::WeightsElsewhere { .. } => Some(
                "a server loads its own weights: have it do so, then announce `version`, or other \
                 `endpoints`"
                    .to_owned(),
            ),
            Self::Weights { source, .. } => source.hint.clone(),
            Self::Loading => {
                Some("announce again when the first announcement is answered".to_owned())
            }
            Self::VersionGoesBack { .. } => {
                Some("versions only go up, so that records stay in order".to_owned())
            }
            Self::UpstreamUrl { .. } => {
                Some("a base URL looks like `https://api.example.com/v1`".to_owned())
            }
            // It says what to do.
            Self::ForbiddenAddress(_) => None,
            Self::UpstreamKey => {
                Some("check the key's environment variable for a stray line break".to_owned())
            }
            Self::UpstreamClient { .. } => Some(
                "check the system's root certificates, or point SSL_CERT_FILE at a bundle"
                    .to_owned(),
            ),
        }
    }
}
