use osmosis_core::{JsonText, Sample, SampleId};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::SdkError;
use crate::message_text::last_text;

/// What `run` returns.
///
/// ```
/// use osmosis_sdk::WorkflowOutput;
/// use serde_json::json;
///
/// // The conversation, which becomes the sample `main`.
/// let _: WorkflowOutput = vec![json!({"role": "assistant", "content": "42"})].into();
/// // Everything was registered with `ctx.add_sample`.
/// let _: WorkflowOutput = ().into();
/// // A number to report beside the reward.
/// let _ = WorkflowOutput::from(()).with_metric("turns", 3);
/// // This row can't be scored.
/// let _ = WorkflowOutput::rejected("the page is gone");
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkflowOutput {
    pub(crate) messages: Vec<Value>,
    pub(crate) metrics: Vec<(String, f64)>,
    pub(crate) rejected: Option<String>,
}

impl WorkflowOutput {
    /// The conversation in the types of whatever framework made it.
    pub fn messages<T: Serialize>(messages: &[T]) -> Result<Self, SdkError> {
        let messages = messages
            .iter()
            .map(serde_json::to_value)
            .collect::<Result<_, _>>()
            .map_err(|source| SdkError::NotJson {
                what: "a message",
                source,
            })?;
        Ok(Self {
            messages,
            ..Self::default()
        })
    }

    /// The rollout declines to be scored: it is listed apart and has no reward.
    pub fn rejected(reason: impl Into<String>) -> Self {
        Self {
            rejected: Some(reason.into()),
            ..Self::default()
        }
    }

    /// Adds a number that is reported beside the reward. It must be finite.
    #[must_use]
    pub fn with_metric(mut self, name: impl Into<String>, value: impl Into<f64>) -> Self {
        self.metrics.push((name.into(), value.into()));
        self
    }
}

impl From<Vec<Value>> for WorkflowOutput {
    fn from(messages: Vec<Value>) -> Self {
        Self {
            messages,
            ..Self::default()
        }
    }
}

impl From<()> for WorkflowOutput {
    fn from((): ()) -> Self {
        Self::default()
    }
}

/// A JSON object of numbers; nothing when there are none.
pub(crate) fn metrics_text(metrics: &[(String, f64)]) -> Result<Option<JsonText>, SdkError> {
    if metrics.is_empty() {
        return Ok(None);
    }
    let mut object = Map::new();
    for (name, value) in metrics {
        object.insert(name.clone(), finite(name, *value)?);
    }
    json_text(&object, "metrics").map(Some)
}

pub(crate) fn finite(name: &str, value: f64) -> Result<Value, SdkError> {
    match serde_json::Number::from_f64(value) {
        Some(number) => Ok(Value::Number(number)),
        None => Err(SdkError::InvalidMetric {
            name: name.to_owned(),
            value,
        }),
    }
}

/// A fresh sample, after checking that its messages are objects.
pub(crate) fn new_sample(id: SampleId, messages: &[Value]) -> Result<Sample, SdkError> {
    for (index, message) in messages.iter().enumerate() {
        let found = match message {
            Value::Object(_) => continue,
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a text",
            Value::Array(_) => "a list",
        };
        return Err(SdkError::NotAMessage { index, found });
    }
    Ok(Sample {
        id,
        messages: json_text(messages, "messages")?,
        reward: None,
        remove_sample: false,
        metrics: None,
        extra_fields: None,
    })
}

pub(crate) fn json_text<T: Serialize + ?Sized>(
    value: &T,
    what: &'static str,
) -> Result<JsonText, SdkError> {
    let text = serde_json::to_string(value).map_err(|source| SdkError::NotJson { what, source })?;
    JsonText::parse(text).map_err(|_| SdkError::NotJson {
        what,
        source: serde::ser::Error::custom("the text is not JSON"),
    })
}

/// A sample as the grader sees it.
#[derive(Debug, Clone)]
pub struct RolloutSample {
    pub(crate) given: Sample,
    pub(crate) messages: Vec<Value>,
}

impl RolloutSample {
    pub(crate) fn new(given: Sample) -> Result<Self, SdkError> {
        let messages = serde_json::from_str(given.messages.as_str()).map_err(|source| {
            SdkError::UnexpectedShape {
                what: "the sample's messages",
                source,
            }
        })?;
        Ok(Self { given, messages })
    }

    pub fn id(&self) -> &str {
        self.given.id.as_str()
    }

    /// The conversation, in the shape of the framework that made it.
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// What the assistant said last.
    pub fn final_text(&self) -> Option<String> {
        last_text(&self.messages, "assistant")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sample_takes_objects_only() {
        let sample = new_sample(SampleId::main(), &[json!({"role": "user"})]).unwrap();
        assert_eq!(sample.messages.as_str(), r#"[{"role":"user"}]"#);
        let error = new_sample(SampleId::main(), &[json!({}), json!("hi")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "message 1 is a text; messages are JSON objects"
        );
    }

    #[test]
    fn a_metric_is_a_finite_number() {
        assert_eq!(metrics_text(&[]).unwrap(), None);
        let text = metrics_text(&[("turns".to_owned(), 2.0)]).unwrap().unwrap();
        assert_eq!(text.as_str(), r#"{"turns":2.0}"#);
        let error = metrics_text(&[("turns".to_owned(), f64::NAN)]).unwrap_err();
        assert_eq!(error.kind(), "invalid_metric");
    }
}
