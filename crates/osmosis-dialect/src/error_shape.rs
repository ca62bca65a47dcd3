//! Errors in the words of each dialect.

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::dialect::Dialect;

/// What an error reply says, in any dialect.
#[derive(Debug, Clone, Copy)]
pub struct ErrorShape<'a> {
    pub status: u16,
    pub kind: &'a str,
    pub code: &'a str,
    /// The field of the request that is at fault.
    pub param: Option<&'a str>,
    pub message: &'a str,
}

#[derive(Serialize)]
struct OpenAiShape<'a> {
    error: OpenAiError<'a>,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

impl ErrorShape<'_> {
    /// The body of an error reply.
    pub fn body(&self, dialect: Dialect) -> Bytes {
        match dialect {
            Dialect::ChatCompletions | Dialect::Responses | Dialect::Completions => {
                self.openai_body()
            }
            Dialect::Messages => {
                Bytes::from(anthropic_shape(self.status, self.message).to_string())
            }
        }
    }

    /// The same as an event of a stream that has already begun; `sequence` is its number, in dialects
    /// that number them.
    pub fn event(&self, dialect: Dialect, sequence: u64) -> Bytes {
        let (name, data) = match dialect {
            Dialect::ChatCompletions | Dialect::Completions => ("", self.body(dialect)),
            Dialect::Messages => ("event: error\n", self.body(dialect)),
            Dialect::Responses => {
                let data = json!({
                    "type": "error",
                    "sequence_number": sequence,
                    "code": self.code,
                    "message": self.message,
                    "param": self.param,
                });
                ("event: error\n", Bytes::from(data.to_string()))
            }
        };
        let mut event = Vec::with_capacity(data.len() + name.len() + 8);
        for part in [name.as_bytes(), b"data: ", &data, b"\n\n"] {
            event.extend_from_slice(part);
        }
        Bytes::from(event)
    }

    fn openai_body(&self) -> Bytes {
        let shape = OpenAiShape {
            error: OpenAiError {
                message: self.message,
                r#type: self.kind,
                param: self.param,
                code: self.code,
            },
        };
        // Four strings cannot fail to become JSON; the fallback keeps the types honest.
        serde_json::to_vec(&shape).map_or_else(
            |_| Bytes::from_static(b"{\"error\":{\"message\":\"unknown error\"}}"),
            Bytes::from,
        )
    }
}

/// An error as Anthropic says it.
pub(crate) fn anthropic_shape(status: u16, message: &str) -> Value {
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        408 | 504 => "timeout_error",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": message}})
}
