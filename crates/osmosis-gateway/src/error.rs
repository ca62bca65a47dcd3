use std::net::SocketAddr;

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
    /// The machine lacks something: root certificates, a proxy setting that can be read.
    Environment,
}

impl GatewayError {
    pub fn kind(&self) -> GatewayErrorKind {
        match self {
            Self::Listen { .. } => GatewayErrorKind::Listen,
            Self::UpstreamUrl { .. } | Self::UpstreamKey => GatewayErrorKind::Settings,
            Self::UpstreamClient { .. } => GatewayErrorKind::Environment,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Listen { .. } => {
                Some("choose another address, or port 0 for any free one".to_owned())
            }
            Self::UpstreamUrl { .. } => {
                Some("a base URL looks like `https://api.example.com/v1`".to_owned())
            }
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
