//! What a probe found: a server that works, may work, or can't.

/// What became of the call to one server.
#[derive(Debug, Clone, PartialEq)]
pub struct Probed {
    /// Where, without credentials.
    pub endpoint: String,
    pub finding: Finding,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    Works,
    /// It may work or not: overloaded, failing, slow, or it refused this very call.
    Doubtful {
        why: String,
    },
    /// No rollout can succeed.
    Broken(ProbeError),
}

/// Why no call can succeed. No message holds a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    #[error("the model server at {endpoint} {message}")]
    Unreachable { endpoint: String, message: String },
    #[error("the model server at {endpoint} {message}")]
    Key {
        endpoint: String,
        message: String,
        has_key: bool,
    },
    #[error("the model server at {endpoint} has no model `{model}`: {message}")]
    Model {
        endpoint: String,
        model: String,
        message: String,
        /// Models that it says it has.
        served: Vec<String>,
    },
    #[error("no chat completions at {endpoint}: {message}")]
    Path { endpoint: String, message: String },
    #[error("no model server: {message}")]
    NotAModelServer { message: String },
}

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeErrorKind {
    Address,
    Key,
    Model,
}

/// Models that are named in a hint.
const MOST_NAMED: usize = 5;

impl ProbeError {
    pub fn kind(&self) -> ProbeErrorKind {
        match self {
            Self::Unreachable { .. } | Self::Path { .. } | Self::NotAModelServer { .. } => {
                ProbeErrorKind::Address
            }
            Self::Key { .. } => ProbeErrorKind::Key,
            Self::Model { .. } => ProbeErrorKind::Model,
        }
    }

    pub fn hint(&self) -> String {
        match self {
            Self::Unreachable { message, .. } => unreachable_hint(message).to_owned(),
            Self::Key { has_key: false, .. } => "no key was sent; give it one".to_owned(),
            Self::Key { has_key: true, .. } => {
                "check the key: is it this server's, whole, and still valid?".to_owned()
            }
            Self::Model { served, .. } if served.is_empty() => {
                "check the name after the provider's prefix in `model_path`".to_owned()
            }
            Self::Model { served, .. } => {
                let named: Vec<&str> = served.iter().take(MOST_NAMED).map(String::as_str).collect();
                let more = if served.len() > MOST_NAMED {
                    ", …"
                } else {
                    ""
                };
                format!("it serves `{}`{more}", named.join("`, `"))
            }
            Self::Path { endpoint, .. } if has_version(endpoint) => {
                "a base URL is what `/chat/completions` is appended to".to_owned()
            }
            Self::Path { endpoint, .. } => {
                format!("base URLs usually end in `/v1`: try `{endpoint}/v1`")
            }
            Self::NotAModelServer { .. } => {
                "something else answers there: check host, port and path of the base URL".to_owned()
            }
        }
    }
}

fn unreachable_hint(message: &str) -> &'static str {
    let message = message.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if says(&[
        "certificate",
        "tls",
        "ssl",
        "handshake",
        "invalidcontenttype",
    ]) {
        "`https://` needs a server with TLS and a certificate this machine trusts (SSL_CERT_FILE names \
         a bundle); a plain server has `http://`"
    } else if says(&["dns", "lookup", "name or service", "resolve"]) {
        "check the host name in the base URL, and the network"
    } else if says(&["refused"]) {
        "nothing listens there: is the server running, and is this its port?"
    } else {
        "check the base URL, the network, and proxies"
    }
}

/// Whether an address names a version: `…/v1`, `…/v1beta/openai`.
fn has_version(endpoint: &str) -> bool {
    endpoint.split('/').any(|segment| {
        let rest = segment.strip_prefix('v');
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}
