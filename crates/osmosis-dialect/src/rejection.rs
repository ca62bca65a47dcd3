/// Why a request is not served as it is. The caller's own fault: status 400 in every dialect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The body, or the field `param` of it, is not what the dialect says.
    #[error("{message}")]
    Invalid {
        param: Option<String>,
        message: String,
    },
    /// The field `param` asks for something that is not available here.
    #[error("{message}")]
    UnsupportedParameter { param: String, message: String },
    /// Calls of this dialect are not served by this policy.
    #[error("{message}")]
    UnsupportedEndpoint { message: String },
}

impl RequestError {
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid {
            param: None,
            message: message.into(),
        }
    }

    /// A field that holds what it must not.
    pub fn bad_field(param: &str, message: String) -> Self {
        Self::Invalid {
            param: Some(param.to_owned()),
            message,
        }
    }

    pub fn unsupported_field(param: &str, message: String) -> Self {
        Self::UnsupportedParameter {
            param: param.to_owned(),
            message,
        }
    }

    pub fn message(&self) -> &str {
        match self {
            Self::Invalid { message, .. }
            | Self::UnsupportedParameter { message, .. }
            | Self::UnsupportedEndpoint { message } => message,
        }
    }
}
