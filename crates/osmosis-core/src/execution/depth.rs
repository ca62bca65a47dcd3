//! The documents of an answer are nested no deeper than those who read them later can follow.

use crate::json_text::TooDeep;
use crate::{ErrorCategory, Failure, JsonText, Sample};

/// Why samples can't be taken; the Python SDK says the same before it sends them.
pub fn too_deep(samples: &[Sample], metrics: Option<&JsonText>) -> Option<Failure> {
    let failure = |what: String| {
        Failure::new(
            ErrorCategory::ValidationError,
            "too_deep",
            format!("{what} is {TooDeep}"),
        )
    };
    if metrics.is_some_and(JsonText::is_too_deep) {
        return Some(failure("`metrics` of the rollout".to_owned()));
    }
    samples.iter().find_map(|sample| {
        [
            ("messages", Some(&sample.messages)),
            ("metrics", sample.metrics.as_ref()),
            ("extra_fields", sample.extra_fields.as_ref()),
        ]
        .into_iter()
        .find(|(_, document)| document.is_some_and(JsonText::is_too_deep))
        .map(|(name, _)| failure(format!("`{name}` of sample `{}`", sample.id)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_JSON_DEPTH, SampleId};

    fn nested(levels: usize) -> JsonText {
        let text = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        JsonText::parse(text).unwrap()
    }

    #[test]
    fn the_document_that_is_too_deep_is_named() {
        let sample = Sample {
            id: SampleId::main(),
            messages: nested(MAX_JSON_DEPTH),
            reward: None,
            remove_sample: false,
            metrics: None,
            extra_fields: None,
        };
        assert_eq!(too_deep(std::slice::from_ref(&sample), None), None);
        let deep = nested(MAX_JSON_DEPTH + 1);
        let told = |sample: &Sample, metrics: Option<&JsonText>| {
            let failure = too_deep(std::slice::from_ref(sample), metrics).unwrap();
            assert_eq!(failure.kind, "too_deep");
            failure.message
        };
        let rollout = told(&sample, Some(&deep));
        assert_eq!(
            rollout,
            "`metrics` of the rollout is nested deeper than 100 levels"
        );
        let extra_fields = Sample {
            extra_fields: Some(deep.clone()),
            ..sample.clone()
        };
        let message = told(&extra_fields, None);
        let expected = format!("`extra_fields` of sample `{}`", sample.id);
        assert!(message.starts_with(&expected), "{message}");
        let messages = Sample {
            messages: deep,
            ..sample
        };
        assert!(told(&messages, None).starts_with("`messages` of"));
    }
}
