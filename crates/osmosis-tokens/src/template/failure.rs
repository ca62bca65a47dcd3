//! Why a template gave no prompt.

use std::error::Error as _;
use std::fmt;

use minijinja::{Error, ErrorKind};

use super::{MAX_OUTPUT_BYTES, MAX_STEPS};
use crate::TokensError;

/// A template's own `raise_exception`.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

pub(super) fn failure(error: &Error) -> TokensError {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return TokensError::TemplateRaised {
                message: message.clone(),
            };
        }
        source = inner.source();
    }
    if let Some(message) = limit(error) {
        return TokensError::TemplateStopped { message };
    }
    TokensError::TemplateFailed {
        line: error.line().unwrap_or(0),
        message: text_of(error),
    }
}

/// Which limit of ours ended it.
fn limit(error: &Error) -> Option<String> {
    match error.kind() {
        ErrorKind::OutOfFuel => Some(format!("it takes more than {MAX_STEPS} steps")),
        ErrorKind::WriteFailure => Some(format!("it writes more than {MAX_OUTPUT_BYTES} bytes")),
        _ => None,
    }
}

pub(super) fn text_of(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
