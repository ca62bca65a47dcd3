//! One tiny call before any rollout: a wrong key, model or address is told once and loudly, and not by
//! every rollout again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use osmosis_core::{RolloutId, SampleId};
use osmosis_dialect::{Dialect, OutputLimit};
use serde_json::{Value, json};

use crate::calls::call_trace::CallTrace;
use crate::policy::probe_finding::{Finding, ProbeError};
use crate::policy::upstream::said;
use crate::policy::{CallFormat, Fault, FaultKind, ModelCall, ModelReply, ReplyBody, TokenSlot};
use crate::sessions::call_history::CallHistory;

/// A server that takes longer to say one token may be loading its model: no reason to give up.
const PROBE_LIMIT: Duration = Duration::from_secs(30);

/// A server to be asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) endpoint: &'a str,
    pub(crate) model: &'a str,
    pub(crate) has_key: bool,
}

/// What was found out, and which name of the limit went through.
#[derive(Debug)]
pub(crate) struct ProbeOutcome {
    pub(crate) finding: Finding,
    pub(crate) limit: Option<OutputLimit>,
}

enum Judged {
    Is(Finding),
    /// The limit is not taken under this name, or not at all.
    LimitRefused(String),
}

impl Target<'_> {
    /// Asks for one token, with the limit under this name first, then the other, then none.
    pub(crate) async fn ask<F>(&self, first: OutputLimit, ask: impl Fn(Bytes) -> F) -> ProbeOutcome
    where
        F: Future<Output = Result<ModelReply, Fault>>,
    {
        let other = match first {
            OutputLimit::MaxTokens => OutputLimit::MaxCompletionTokens,
            OutputLimit::MaxCompletionTokens => OutputLimit::MaxTokens,
        };
        let mut refusal = String::new();
        for limit in [Some(first), Some(other), None] {
            let answer = tokio::time::timeout(PROBE_LIMIT, ask(self.body(limit))).await;
            let judged = match answer {
                Err(_) => Judged::Is(Finding::Doubtful {
                    why: format!("{} sent nothing for {PROBE_LIMIT:?}", self.endpoint),
                }),
                Ok(answer) => self.judge(answer),
            };
            match judged {
                Judged::Is(finding) => return ProbeOutcome { finding, limit },
                Judged::LimitRefused(message) => refusal = message,
            }
        }
        ProbeOutcome {
            finding: Finding::Doubtful { why: refusal },
            limit: None,
        }
    }

    fn body(&self, limit: Option<OutputLimit>) -> Bytes {
        let mut body = json!({
            "model": self.model,
            "messages": [{"role": "user", "content": "Say ok."}],
        });
        if let Some(limit) = limit {
            body[limit.as_str()] = json!(1);
        }
        Bytes::from(body.to_string())
    }

    fn judge(&self, answer: Result<ModelReply, Fault>) -> Judged {
        let reply = match answer {
            Err(fault) => return Judged::Is(self.of_fault(fault)),
            Ok(reply) => reply,
        };
        let body = match reply.body {
            ReplyBody::Whole(body) if reply.status >= 400 => body,
            ReplyBody::Whole(_) | ReplyBody::Stream(_) => return Judged::Is(Finding::Works),
        };
        let message = said(&body);
        let lower = message.to_lowercase();
        if lower.contains("max_tokens") || lower.contains("max_completion_tokens") {
            // A reasoning model that was cut off while it thought has shown that it is there.
            return if lower.contains("could not finish") || lower.contains("was reached") {
                Judged::Is(Finding::Works)
            } else {
                Judged::LimitRefused(self.refused(reply.status, &message))
            };
        }
        Judged::Is(match reply.status {
            402 => self.no_such_key(&self.refused(reply.status, &message)),
            405 => self.no_such_path(message),
            400 | 422 if speaks_of_no_such_model(&lower) => self.no_such_model(message),
            status => Finding::Doubtful {
                why: self.refused(status, &message),
            },
        })
    }

    fn of_fault(&self, fault: Fault) -> Finding {
        match fault.kind {
            FaultKind::Misconfigured => {
                let lower = fault.message.to_lowercase();
                // Engines that are asked in token ids have a status of their own for all of these.
                match status_in(&lower).unwrap_or(fault.status) {
                    401 | 403 => self.no_such_key(&fault.message),
                    404 if lower.contains("model") => self.no_such_model(fault.message),
                    400 | 422 if speaks_of_no_such_model(&lower) => {
                        self.no_such_model(fault.message)
                    }
                    400 | 422 => Finding::Doubtful { why: fault.message },
                    _ => self.no_such_path(fault.message),
                }
            }
            // Somebody was there: it may be starting.
            FaultKind::Unreachable if fault.message.contains("broke the connection") => {
                Finding::Doubtful { why: fault.message }
            }
            FaultKind::Unreachable => Finding::Broken(ProbeError::Unreachable {
                endpoint: self.endpoint.to_owned(),
                message: self.without_endpoint(fault.message),
            }),
            FaultKind::Garbage => Finding::Broken(ProbeError::NotAModelServer {
                message: fault.message,
            }),
            FaultKind::TimedOut
            | FaultKind::Overloaded
            | FaultKind::ServerError
            | FaultKind::CutShort
            | FaultKind::QueueFull
            | FaultKind::Paused
            | FaultKind::ToolsIgnored
            | FaultKind::OutOfDescriptors => Finding::Doubtful { why: fault.message },
        }
    }

    fn no_such_key(&self, message: &str) -> Finding {
        Finding::Broken(ProbeError::Key {
            endpoint: self.endpoint.to_owned(),
            message: self.without_endpoint(message.to_owned()),
            has_key: self.has_key,
        })
    }

    fn no_such_model(&self, message: String) -> Finding {
        Finding::Broken(ProbeError::Model {
            endpoint: self.endpoint.to_owned(),
            model: self.model.to_owned(),
            message: self.without_endpoint(message),
            served: Vec::new(),
        })
    }

    fn no_such_path(&self, message: String) -> Finding {
        Finding::Broken(ProbeError::Path {
            endpoint: self.endpoint.to_owned(),
            message: self.without_endpoint(message),
        })
    }

    /// Faults begin with the endpoint, which the error names already.
    fn without_endpoint(&self, message: String) -> String {
        match message.strip_prefix(self.endpoint) {
            Some(rest) => rest.trim_start_matches([':', ' ']).to_owned(),
            None => message,
        }
    }

    fn refused(&self, status: u16, message: &str) -> String {
        format!("{} answered with status {status}: {message}", self.endpoint)
    }
}

/// The status that a message tells: `… with status 404: …`.
fn status_in(message: &str) -> Option<u16> {
    let (_, rest) = message.split_once("status ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Some servers answer 400 instead of 404.
fn speaks_of_no_such_model(lower: &str) -> bool {
    lower.contains("model")
        && [
            "not found",
            "not exist",
            "unknown",
            "invalid model",
            "not a valid",
            "no such",
        ]
        .iter()
        .any(|words| lower.contains(words))
}

/// A call of no rollout, with this body.
pub(crate) fn tiny_call(body: Bytes) -> ModelCall {
    ModelCall {
        rollout_id: RolloutId::new("probe").unwrap_or_else(|_| RolloutId::of(0, 0)),
        sample_id: SampleId::main(),
        format: CallFormat::Dialect(Dialect::ChatCompletions),
        dialect_headers: HeaderMap::new(),
        body,
        streamed: false,
        history: Arc::new(CallHistory::default()),
        tokens: TokenSlot::default(),
        call_trace: CallTrace::default(),
    }
}

/// The names in a reply of `/v1/models`.
pub(crate) fn names_in(models: &[u8]) -> Vec<String> {
    let models: Value = serde_json::from_slice(models).unwrap_or_default();
    let listed = models.get("data").and_then(Value::as_array);
    listed
        .into_iter()
        .flatten()
        .filter_map(|model| model.get("id")?.as_str())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::policy::probe_finding::ProbeErrorKind;

    const TARGET: Target<'_> = Target {
        endpoint: "http://h/v1",
        model: "m",
        has_key: true,
    };

    fn refusal(status: u16, message: &str) -> ModelReply {
        let body = json!({"error": {"message": message}}).to_string();
        ModelReply {
            status,
            content_type: "application/json".to_owned(),
            body: ReplyBody::Whole(body.into()),
        }
    }

    fn fault(kind: FaultKind, status: u16, message: &str) -> Result<ModelReply, Fault> {
        Err(Fault {
            kind,
            status,
            message: format!("http://h/v1 {message}"),
        })
    }

    async fn found(answer: impl Fn() -> Result<ModelReply, Fault>) -> Finding {
        let ask = |_| std::future::ready(answer());
        TARGET.ask(OutputLimit::MaxTokens, ask).await.finding
    }

    #[tokio::test]
    async fn what_no_rollout_can_survive_is_an_error_with_a_hint() {
        type Case = (
            fn() -> Result<ModelReply, Fault>,
            ProbeErrorKind,
            &'static str,
        );
        let cases: [Case; 8] = [
            (
                || {
                    fault(
                        FaultKind::Misconfigured,
                        502,
                        "answered with status 401: no",
                    )
                },
                ProbeErrorKind::Key,
                "still valid",
            ),
            (
                || {
                    fault(
                        FaultKind::Misconfigured,
                        401,
                        "answered with status 401: no",
                    )
                },
                ProbeErrorKind::Key,
                "still valid",
            ),
            (
                || {
                    fault(
                        FaultKind::Misconfigured,
                        404,
                        "answered with status 404: The model `m` does not exist",
                    )
                },
                ProbeErrorKind::Model,
                "`model_path`",
            ),
            (
                || {
                    fault(
                        FaultKind::Misconfigured,
                        404,
                        "answered with status 404: Not Found",
                    )
                },
                ProbeErrorKind::Address,
                "`/chat/completions`",
            ),
            (
                || {
                    fault(
                        FaultKind::Unreachable,
                        502,
                        "cannot be reached: Connection refused",
                    )
                },
                ProbeErrorKind::Address,
                "nothing listens",
            ),
            (
                || {
                    fault(
                        FaultKind::Unreachable,
                        502,
                        "cannot be reached: invalid peer certificate",
                    )
                },
                ProbeErrorKind::Address,
                "SSL_CERT_FILE",
            ),
            (
                || {
                    fault(
                        FaultKind::Garbage,
                        502,
                        "sent something that is no completion: `<html>`",
                    )
                },
                ProbeErrorKind::Address,
                "something else answers",
            ),
            (
                || Ok(refusal(400, "m is not a valid model ID")),
                ProbeErrorKind::Model,
                "`model_path`",
            ),
        ];
        for (answer, kind, hint) in cases {
            let Finding::Broken(error) = found(answer).await else {
                panic!("{hint}");
            };
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains("http://h/v1"), "{error}");
            assert!(error.hint().contains(hint), "{error}: {}", error.hint());
        }
    }

    #[tokio::test]
    async fn what_may_pass_is_no_error() {
        for answer in [
            fault(FaultKind::Overloaded, 429, "slow down"),
            fault(FaultKind::ServerError, 500, "oops"),
            fault(FaultKind::TimedOut, 504, "slow"),
            Ok(refusal(400, "temperature is missing")),
        ] {
            let answer = Mutex::new(Some(answer));
            let finding = found(|| answer.lock().take().unwrap()).await;
            assert!(matches!(finding, Finding::Doubtful { .. }), "{finding:?}");
        }
    }

    #[tokio::test]
    async fn a_limit_that_is_refused_is_tried_under_its_other_name_and_then_left_out() {
        let unsupported =
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.";
        for (taken, told) in [
            (
                Some("max_completion_tokens"),
                Some(OutputLimit::MaxCompletionTokens),
            ),
            (None, None),
        ] {
            let asked = TARGET
                .ask(OutputLimit::MaxTokens, |body| {
                    let body: Value = serde_json::from_slice(&body).unwrap();
                    let limits = ["max_tokens", "max_completion_tokens"];
                    let sent = limits.into_iter().find(|name| body.get(name).is_some());
                    std::future::ready(if sent == taken {
                        Ok(refusal(200, "an answer"))
                    } else {
                        Ok(refusal(400, unsupported))
                    })
                })
                .await;
            assert_eq!(asked.finding, Finding::Works);
            assert_eq!(asked.limit, told);
        }
        let thinking = "Could not finish the message because max_tokens was reached.";
        assert_eq!(found(|| Ok(refusal(400, thinking))).await, Finding::Works);
        let never = found(|| Ok(refusal(400, unsupported))).await;
        assert!(matches!(never, Finding::Doubtful { .. }));
    }

    #[test]
    fn an_address_without_a_version_is_told_where_it_usually_is() {
        for (endpoint, hint) in [
            ("http://h:8000", "try `http://h:8000/v1`"),
            ("https://h/v1beta/openai", "is appended to"),
        ] {
            let error = ProbeError::Path {
                endpoint: endpoint.to_owned(),
                message: String::new(),
            };
            assert!(error.hint().contains(hint), "{}", error.hint());
        }
    }
}
