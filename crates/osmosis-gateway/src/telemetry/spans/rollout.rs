//! Spans of what calls are part of: rollouts, their tools and grades. Whoever runs the rollouts knows
//! them; they go the way that the spans of calls go, into the same traces.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use osmosis_core::{Attempt, RolloutId};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::Telemetry;
use super::span::{STATUS_ERROR, TraceParent, boolean, nanoseconds, number, text};

const KIND_INTERNAL: u8 = 1;

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    Text(String),
    Whole(u64),
    Number(f64),
    Bool(bool),
}

/// Something that happened at one moment of a span.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanEvent {
    pub name: &'static str,
    /// Milliseconds since 1970.
    pub at_ms: i64,
    pub attributes: Vec<(&'static str, Attribute)>,
}

/// A span of a rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutSpan {
    pub name: String,
    /// Milliseconds since 1970.
    pub start_ms: i64,
    pub end_ms: i64,
    pub attributes: Vec<(&'static str, Attribute)>,
    pub events: Vec<SpanEvent>,
    /// What went wrong: its type and a text.
    pub error: Option<(String, String)>,
}

/// Sends spans of rollouts. From when it is made, calls whose caller is in no trace belong to the span of
/// their rollout.
#[derive(Debug, Clone)]
pub struct RolloutSpans {
    telemetry: Arc<Telemetry>,
}

impl RolloutSpans {
    pub(crate) fn new(telemetry: Arc<Telemetry>) -> Self {
        telemetry.rollouts_are_traced.store(true, Ordering::Relaxed);
        Self { telemetry }
    }

    /// Sends the span of a whole attempt, whose id the calls have as their parent.
    pub fn send_attempt(&self, rollout: &RolloutId, attempt: Attempt, span: &RolloutSpan) {
        let own = self.telemetry.of_attempt(rollout, attempt);
        self.telemetry
            .enqueue(span.to_json(own.trace, own.span, None));
    }

    /// Sends the span of a part of it: a tool, a grade.
    pub fn send_part(&self, rollout: &RolloutId, attempt: Attempt, span: &RolloutSpan) {
        let parent = self.telemetry.of_attempt(rollout, attempt);
        let id = rand::random::<u64>().max(1);
        self.telemetry
            .enqueue(span.to_json(parent.trace, id, Some(parent.span)));
    }

    /// Counts spans that could not be made in time.
    pub fn drop_one(&self) {
        self.telemetry.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Telemetry {
    /// The ids of an attempt: the same whoever asks, so that nobody has to tell.
    pub(super) fn of_attempt(&self, rollout: &RolloutId, attempt: Attempt) -> TraceParent {
        let mut digest = Sha256::new();
        digest.update(self.seed);
        digest.update(attempt.0.to_le_bytes());
        digest.update(rollout.as_str().as_bytes());
        let digest = digest.finalize();
        let number = |from: usize| {
            let bytes = digest.iter().skip(from).take(16);
            bytes.fold(0_u128, |number, byte| number << 8 | u128::from(*byte))
        };
        TraceParent {
            trace: number(0).max(1),
            span: u64::try_from(number(16) >> 64).unwrap_or(1).max(1),
            sampled: true,
        }
    }
}

impl RolloutSpan {
    fn to_json(&self, trace: u128, id: u64, parent: Option<u64>) -> Value {
        let mut attributes = to_json(&self.attributes);
        let events = self.events.iter().map(|event| {
            json!({ "name": event.name, "timeUnixNano": nanoseconds(event.at_ms),
                "attributes": to_json(&event.attributes) })
        });
        let mut span = json!({
            "traceId": format!("{trace:032x}"),
            "spanId": format!("{id:016x}"),
            "name": self.name,
            "kind": KIND_INTERNAL,
            "startTimeUnixNano": nanoseconds(self.start_ms),
            "endTimeUnixNano": nanoseconds(self.end_ms.max(self.start_ms)),
            "events": events.collect::<Vec<Value>>(),
        });
        if let Some(parent) = parent {
            span["parentSpanId"] = json!(format!("{parent:016x}"));
        }
        if let Some((kind, message)) = &self.error {
            attributes.push(text("error.type", kind));
            span["status"] = json!({ "code": STATUS_ERROR, "message": message });
        }
        span["attributes"] = attributes.into();
        span
    }
}

fn to_json(attributes: &[(&'static str, Attribute)]) -> Vec<Value> {
    let attributes = attributes.iter().map(|(name, value)| match value {
        Attribute::Text(value) => text(name, value),
        Attribute::Whole(value) => number(name, *value),
        Attribute::Number(value) => json!({ "key": name, "value": { "doubleValue": value } }),
        Attribute::Bool(value) => boolean(name, *value),
    });
    attributes.collect()
}
