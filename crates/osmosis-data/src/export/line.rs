use jiff::Timestamp;
use osmosis_core::{Durations, JsonText, JsonTextError, OutcomeKind, Redactor, Reward};
use serde::Serialize;

use super::redact::clean_json;
use super::{ExportRecord, SCHEMA_VERSION};

/// A record as it is written, without secrets.
#[derive(Serialize)]
pub(super) struct Line {
    pub(super) schema_version: i64,
    pub(super) run_name: String,
    pub(super) rollout_id: String,
    pub(super) row_index: u64,
    pub(super) run_index: u32,
    pub(super) outcome: Option<&'static str>,
    pub(super) reward: Option<f64>,
    pub(super) passed: bool,
    pub(super) error: Option<LineError>,
    pub(super) attempts: u32,
    pub(super) row: JsonText,
    pub(super) label: Option<String>,
    pub(super) metadata: Option<JsonText>,
    pub(super) metrics: Option<JsonText>,
    pub(super) samples: Vec<LineSample>,
    pub(super) model_calls: u64,
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
    pub(super) durations: Durations,
    pub(super) started_at: Option<String>,
    pub(super) finished_at: Option<String>,
}

#[derive(Serialize)]
pub(super) struct LineError {
    pub(super) kind: String,
    pub(super) message: String,
}

#[derive(Serialize)]
pub(super) struct LineSample {
    pub(super) id: String,
    pub(super) reward: Option<f64>,
    pub(super) remove_sample: bool,
    pub(super) messages: JsonText,
    pub(super) metrics: Option<JsonText>,
    pub(super) extra_fields: Option<JsonText>,
}

impl Line {
    pub(super) fn of(record: &ExportRecord, redactor: &Redactor) -> Result<Self, JsonTextError> {
        let text = |text: &str| redactor.clean(text);
        let json = |json: &JsonText| clean_json(redactor, json);
        let optional = |text: &Option<JsonText>| text.as_ref().map(json).transpose();
        let samples = record.samples.iter().map(|sample| {
            Ok(LineSample {
                id: text(sample.id.as_str()),
                reward: sample.reward.map(Reward::get),
                remove_sample: sample.remove_sample,
                messages: json(&sample.messages)?,
                metrics: optional(&sample.metrics)?,
                extra_fields: optional(&sample.extra_fields)?,
            })
        });
        Ok(Self {
            schema_version: SCHEMA_VERSION,
            run_name: text(record.run_name.as_str()),
            rollout_id: text(record.rollout_id.as_str()),
            row_index: record.row_index,
            run_index: record.run_index,
            outcome: record.outcome.map(OutcomeKind::as_str),
            reward: record.reward.map(Reward::get),
            passed: record.passed,
            error: record.error.as_ref().map(|error| LineError {
                kind: text(&error.kind),
                message: text(&error.message),
            }),
            attempts: record.attempts,
            row: json(&record.row)?,
            label: record.label.as_deref().map(text),
            metadata: optional(&record.metadata)?,
            metrics: optional(&record.metrics)?,
            samples: samples.collect::<Result<_, JsonTextError>>()?,
            model_calls: record.model_calls,
            prompt_tokens: record.prompt_tokens,
            completion_tokens: record.completion_tokens,
            durations: record.durations,
            started_at: record.started_at_ms.and_then(rfc_3339),
            finished_at: record.finished_at_ms.and_then(rfc_3339),
        })
    }
}

/// In UTC and always with milliseconds, so that texts sort like the times they are.
pub(super) fn rfc_3339(milliseconds: i64) -> Option<String> {
    let time = Timestamp::from_millisecond(milliseconds).ok()?;
    Some(format!("{time:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_with_milliseconds() {
        assert_eq!(rfc_3339(0).as_deref(), Some("1970-01-01T00:00:00.000Z"));
        assert_eq!(
            rfc_3339(1_704_067_200_120).as_deref(),
            Some("2024-01-01T00:00:00.120Z")
        );
        assert_eq!(rfc_3339(i64::MAX), None);
    }
}
