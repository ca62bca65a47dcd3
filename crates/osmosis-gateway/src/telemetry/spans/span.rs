//! A call as a span with the names of the GenAI semantic conventions.

use osmosis_store::NewCall;
use serde_json::{Value, json};

/// The trace a caller is in, from the `traceparent` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceParent {
    pub(super) trace: u128,
    pub(super) span: u64,
    pub(super) sampled: bool,
}

impl TraceParent {
    /// Reads the W3C form, `00-{32 hex}-{16 hex}-{2 hex}`; anything else is no parent.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let (version, trace, span, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, length: usize| {
            text.len() == length
                && text
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        if !is_hex(version, 2)
            || version == "ff"
            || (version == "00" && parts.next().is_some())
            || !is_hex(trace, 32)
            || !is_hex(span, 16)
            || !is_hex(flags, 2)
        {
            return None;
        }
        let parent = Self {
            trace: u128::from_str_radix(trace, 16).ok()?,
            span: u64::from_str_radix(span, 16).ok()?,
            sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1,
        };
        (parent.trace != 0 && parent.span != 0).then_some(parent)
    }

    /// The caller decided for the whole trace.
    pub(crate) fn is_sampled(self) -> bool {
        self.sampled
    }
}

/// What is said of a call.
#[derive(Debug)]
pub(crate) struct CallSpan<'a> {
    pub(crate) call: &'a NewCall,
    /// The model name the upstream was sent.
    pub(crate) model: &'a str,
    /// The code of the error.
    pub(crate) error_type: Option<&'a str>,
    pub(crate) retries: u32,
    pub(crate) parent: Option<TraceParent>,
}

impl CallSpan<'_> {
    /// The span in OTLP's JSON form. Prompts and answers are not in it.
    pub(super) fn to_json(&self, parent: Option<TraceParent>) -> Value {
        let call = self.call;
        // Responses and messages are conversations as well.
        let operation = match &*call.dialect {
            "completions" => "text_completion",
            _ => "chat",
        };
        let provider = match &*call.dialect {
            "messages" => "anthropic",
            _ => "openai",
        };
        let mut attributes = vec![
            text("gen_ai.operation.name", operation),
            text("gen_ai.provider.name", provider),
            text("gen_ai.request.model", self.model),
            number("http.response.status_code", call.status.into()),
            text("osmosis.rollout.id", call.rollout_id.as_str()),
            text("osmosis.sample.id", call.sample_id.as_str()),
            number("osmosis.attempt", call.attempt.0.into()),
            number("osmosis.policy.version", call.policy_version.0),
            number("osmosis.retries", self.retries.into()),
            boolean("osmosis.streamed", call.streamed),
        ];
        if let Ok(url) = reqwest::Url::parse(&call.upstream)
            && let Some(host) = url.host_str()
        {
            attributes.push(text("server.address", host));
            if let Some(port) = url.port_or_known_default() {
                attributes.push(number("server.port", port.into()));
            }
        }
        for (name, tokens) in [
            ("gen_ai.usage.input_tokens", call.prompt_tokens),
            ("gen_ai.usage.output_tokens", call.completion_tokens),
        ] {
            if let Some(tokens) = tokens {
                attributes.push(number(name, tokens));
            }
        }
        let mut span = json!({
            "traceId": format!("{:032x}", parent.map_or_else(rand::random, |parent| parent.trace)),
            "spanId": format!("{:016x}", rand::random::<u64>()),
            "name": format!("{operation} {}", self.model),
            "kind": KIND_CLIENT,
            "startTimeUnixNano": nanoseconds(call.queued_at_ms),
            "endTimeUnixNano": nanoseconds(call.done_at_ms),
        });
        let mut events = Vec::new();
        for (name, at) in [
            ("sent", call.sent_at_ms),
            ("first_token", call.first_byte_at_ms),
        ] {
            if let Some(at) = at {
                events.push(json!({ "name": name, "timeUnixNano": nanoseconds(at) }));
            }
        }
        span["events"] = events.into();
        if let Some(parent) = parent {
            span["parentSpanId"] = json!(format!("{:016x}", parent.span));
        }
        if let Some(error) = self.error_type {
            attributes.push(text("error.type", error));
            span["status"] = json!({
                "code": STATUS_ERROR,
                "message": call.error.as_deref().unwrap_or_default(),
            });
        }
        span["attributes"] = attributes.into();
        span
    }
}

const KIND_CLIENT: u8 = 3;
pub(super) const STATUS_ERROR: u8 = 2;

pub(super) fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// 64-bit numbers are texts in this form.
pub(super) fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

pub(super) fn boolean(key: &str, value: bool) -> Value {
    json!({ "key": key, "value": { "boolValue": value } })
}

pub(super) fn nanoseconds(ms: i64) -> String {
    (i128::from(ms) * 1_000_000).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_traceparent_is_read_as_w3c_writes_it() {
        let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parent = TraceParent::parse(header).unwrap();
        assert_eq!(parent.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(parent.span, 0x00f0_67aa_0ba9_02b7);
        assert!(parent.is_sampled());
        let not_sampled = header.replace("-01", "-00");
        assert!(!TraceParent::parse(&not_sampled).unwrap().is_sampled());
        for wrong in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceParent::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_header_makes_the_reader_panic(header in "[0-9a-f-]{0,70}|.{0,70}") {
            let _ = TraceParent::parse(&header);
        }
    }
}
