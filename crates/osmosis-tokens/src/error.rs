use std::io;

use camino::{Utf8Path, Utf8PathBuf};

/// What can go wrong with tokenizers, templates and records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokensError {
    #[error("`{path}`: {message}")]
    Io {
        path: Utf8PathBuf,
        message: String,
        missing: bool,
        full: bool,
    },
    #[error("`{file}` can't be read: {message}")]
    Unreadable { file: &'static str, message: String },
    #[error("the vocabulary of the GGUF file can't be used: {message}")]
    Vocabulary { message: String },
    #[error("the model has no chat template")]
    NoTemplate,
    #[error("the chat template is broken at line {line}: {message}")]
    TemplateSyntax { line: usize, message: String },
    #[error("the chat template can't be used: {message}")]
    TemplateRefused { message: String },
    #[error("the chat template refuses these messages: {message}")]
    TemplateRaised { message: String },
    #[error("the chat template failed at line {line}: {message}")]
    TemplateFailed { line: usize, message: String },
    /// It was stopped: no template needs so much.
    #[error("the chat template was stopped: {message}")]
    TemplateStopped { message: String },
    #[error("message {index}: {message}")]
    Message { index: usize, message: String },
    #[error("the tokenizer failed: {message}")]
    Tokenizer { message: String },
    /// A grammar for what is sampled is wrong, too large, or can't be had with this tokenizer.
    #[error("the reply can't be constrained: {message}")]
    Constraint { message: String },
    #[error("damaged token record: {message}")]
    Damaged { message: String },
    #[error("call {call}: {message}")]
    Inconsistent { call: u32, message: String },
}

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokensErrorKind {
    /// A file of the checkpoint is missing, unreadable or not what it should be.
    Checkpoint,
    /// Nothing could be written because the disk is full.
    DiskFull,
    /// The messages of a request can't be rendered with this template.
    Messages,
    /// Stored records don't fit together.
    Records,
}

impl TokensError {
    pub fn kind(&self) -> TokensErrorKind {
        match self {
            Self::Io { full: true, .. } => TokensErrorKind::DiskFull,
            Self::Io { full: false, .. }
            | Self::Unreadable { .. }
            | Self::Vocabulary { .. }
            | Self::NoTemplate
            | Self::TemplateRefused { .. }
            | Self::TemplateSyntax { .. } => TokensErrorKind::Checkpoint,
            Self::TemplateRaised { .. }
            | Self::TemplateFailed { .. }
            | Self::TemplateStopped { .. }
            | Self::Message { .. }
            | Self::Tokenizer { .. }
            | Self::Constraint { .. } => TokensErrorKind::Messages,
            Self::Damaged { .. } | Self::Inconsistent { .. } => TokensErrorKind::Records,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Io { missing: true, .. } => Some(
                "a checkpoint folder holds `tokenizer.json` and `tokenizer_config.json` beside the weights"
                    .to_owned(),
            ),
            Self::Io { full: true, .. } => Some("free some disk space, then try again".to_owned()),
            Self::NoTemplate => Some(
                "put `chat_template.jinja` beside `tokenizer.json`, or use a model that was trained for chat"
                    .to_owned(),
            ),
            Self::Vocabulary { .. } => Some(
                "use the checkpoint in Hugging Face layout (`tokenizer.json` and safetensors) instead".to_owned(),
            ),
            Self::TemplateRaised { .. } | Self::TemplateFailed { .. } => Some(
                "the model's own template decides which roles, orders and tool calls it takes".to_owned(),
            ),
            Self::TemplateRefused { .. } | Self::TemplateStopped { .. } => Some(
                "a chat template is a program of whoever made the model: use a model that you trust".to_owned(),
            ),
            Self::Io { .. }
            | Self::Unreadable { .. }
            | Self::TemplateSyntax { .. }
            | Self::Message { .. }
            | Self::Tokenizer { .. }
            | Self::Constraint { .. }
            | Self::Damaged { .. }
            | Self::Inconsistent { .. } => None,
        }
    }

    pub(crate) fn io(path: &Utf8Path, error: &io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            message: error.to_string(),
            missing: error.kind() == io::ErrorKind::NotFound,
            full: matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ),
        }
    }

    pub(crate) fn tokenizer(error: impl std::fmt::Display) -> Self {
        Self::Tokenizer {
            message: error.to_string(),
        }
    }

    pub(crate) fn inconsistent(call: u32, message: impl Into<String>) -> Self {
        Self::Inconsistent {
            call,
            message: message.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_can_mend_has_a_hint() {
        let io = |kind| TokensError::io(Utf8Path::new("model"), &io::Error::from(kind));
        for (error, kind, hint) in [
            (
                io(io::ErrorKind::NotFound),
                TokensErrorKind::Checkpoint,
                Some("`tokenizer.json`"),
            ),
            (
                io(io::ErrorKind::StorageFull),
                TokensErrorKind::DiskFull,
                Some("disk space"),
            ),
            (
                io(io::ErrorKind::QuotaExceeded),
                TokensErrorKind::DiskFull,
                Some("disk space"),
            ),
            (
                io(io::ErrorKind::PermissionDenied),
                TokensErrorKind::Checkpoint,
                None,
            ),
            (
                TokensError::NoTemplate,
                TokensErrorKind::Checkpoint,
                Some("`chat_template.jinja`"),
            ),
            (
                TokensError::TemplateRaised {
                    message: "no".to_owned(),
                },
                TokensErrorKind::Messages,
                Some("template"),
            ),
            (
                TokensError::inconsistent(3, "it is not"),
                TokensErrorKind::Records,
                None,
            ),
        ] {
            assert_eq!(error.kind(), kind, "{error}");
            let found = error.hint();
            assert_eq!(found.is_some(), hint.is_some(), "{error}: {found:?}");
            assert!(
                found.unwrap_or_default().contains(hint.unwrap_or_default()),
                "{error}"
            );
        }
    }
}
