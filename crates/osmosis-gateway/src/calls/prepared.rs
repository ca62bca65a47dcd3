//! A call as its policy is asked, and what becomes of the answer.

use bytes::Bytes;
use osmosis_dialect::{
    ChatRequest, Dialect, ReplyStamp, Sampling, TokenRequest, Translator, checked, to_chat,
};

use crate::policy::{CallFormat, Capabilities};
use crate::serving::error_reply::ErrorReply;

#[derive(Debug)]
pub(crate) struct PreparedCall {
    /// Of the body: the caller's, or chat when the policy does not speak the caller's dialect.
    pub(crate) format: CallFormat,
    /// The body as the policy shall see it.
    pub(crate) body: Bytes,
    /// The model name for the record.
    pub(crate) model: String,
    pub(crate) streamed: bool,
    /// The caller wants the usage of a stream too.
    pub(crate) wants_usage: bool,
    /// What of the caller's choices was replaced.
    pub(crate) overridden: Vec<&'static str>,
    /// Writes the answer in the caller's dialect, when the policy does not.
    pub(crate) translator: Option<Translator>,
}

impl PreparedCall {
    /// `model` is what the policy calls itself, `at_ms` when the call came.
    pub(crate) fn new(
        format: CallFormat,
        body: &Bytes,
        model: &str,
        sampling: &Sampling,
        capabilities: &Capabilities<'_>,
        at_ms: i64,
    ) -> Result<Self, ErrorReply> {
        match format {
            CallFormat::TokenIds => {
                let request = TokenRequest::parse(body, sampling)?;
                Ok(Self {
                    format,
                    body: request.body,
                    model: model.to_owned(),
                    streamed: false,
                    wants_usage: false,
                    overridden: request.overridden,
                    translator: None,
                })
            }
            CallFormat::Dialect(dialect) if capabilities.dialects.contains(dialect) => {
                let request = ChatRequest::parse(dialect, body, model, sampling)?;
                Ok(Self::of_request(format, request, None))
            }
            CallFormat::Dialect(dialect) => {
                let stamp = ReplyStamp {
                    id: rand::random(),
                    created: at_ms.unsigned_abs() / 1000,
                };
                let limit = capabilities.output_limit;
                let translated = to_chat(dialect, checked(body)?, limit, stamp)?;
                let spoken = Dialect::ChatCompletions;
                let mut request = ChatRequest::parse(spoken, &translated.request, model, sampling)?;
                // The translator does: both other dialects end their streams with it.
                request.wants_usage = true;
                let format = CallFormat::Dialect(spoken);
                Ok(Self::of_request(
                    format,
                    request,
                    Some(translated.translator),
                ))
            }
        }
    }

    fn of_request(
        format: CallFormat,
        request: ChatRequest,
        translator: Option<Translator>,
    ) -> Self {
        Self {
            format,
            body: request.body,
            model: request.model,
            streamed: request.streamed,
            wants_usage: request.wants_usage,
            overridden: request.overridden,
            translator,
        }
    }
}
