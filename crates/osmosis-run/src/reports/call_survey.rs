//! What the policy's calls asked for, and which answers were cut, read from what was recorded.

use std::collections::HashSet;
use std::sync::Arc;

use osmosis_core::RolloutId;
use osmosis_data::conversation::is_cut_at_limit;
use osmosis_store::{CallBody, CallPurpose, CallRecord, RolloutPages, Store};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::RunError;
use crate::run_folder::RunFolder;
use crate::runs::Pinned;

/// Answers that ended at the token limit (`finish_reason` `length`, or what it is in other dialects).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TruncationReport {
    /// Calls with such an answer, of the attempts that count.
    pub calls: u64,
    /// Rollouts with such a call.
    pub rollouts: u64,
}

/// Which sampling parameters the model was asked with, and who chose them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SamplingReport {
    /// The policy's calls, of the attempts that count.
    pub calls: u64,
    pub temperature: ParameterReport,
    pub top_p: ParameterReport,
    /// Under any of its names (`max_completion_tokens`, `max_output_tokens`).
    pub max_tokens: ParameterReport,
}

/// Who chose a sampling parameter, in how many calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParameterReport {
    /// Calls in which the agent set it.
    pub set_by_agent: u64,
    /// The least value that the agent set; `null` if it set none.
    pub agent_min: Option<f64>,
    /// The greatest one.
    pub agent_max: Option<f64>,
    /// Calls in which `[sampling]` filled it in.
    pub set_by_config: u64,
    /// The value in `[sampling]`; `null` if there is none.
    pub config_value: Option<f64>,
    /// Calls that were sent without it: the default of the model server applied.
    pub left_to_server: u64,
    /// That default, where it is known: for embedded models, and inference servers that get token ids.
    pub server_default: Option<f64>,
}

impl ParameterReport {
    fn add(&mut self, value: Option<f64>) {
        match (value, self.config_value) {
            (Some(value), _) => {
                self.set_by_agent += 1;
                self.agent_min = Some(self.agent_min.map_or(value, |least| least.min(value)));
                self.agent_max = Some(self.agent_max.map_or(value, |most| most.max(value)));
            }
            (None, Some(_)) => self.set_by_config += 1,
            (None, None) => self.left_to_server += 1,
        }
    }
}

/// Collects the calls of rollouts, page by page.
#[derive(Debug)]
pub(super) struct CallSurvey {
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    sampling: SamplingReport,
    cut_calls: u64,
    cut_rollouts: HashSet<RolloutId>,
}

impl CallSurvey {
    fn of(pinned: &Pinned) -> Self {
        let setting = |name: &str| {
            pinned
                .settings
                .get(name)
                .and_then(serde_json::Value::as_f64)
        };
        let model = pinned.model.as_ref();
        // Where tokens are drawn, or prompts rendered, by us, a call without them is sampled with 1.
        let ours = ["model_sha256", "tokenizer_sha256"];
        let by_us = pinned.model_sha256.is_some()
            || model.is_some_and(|model| ours.iter().any(|fact| model.get(fact).is_some()));
        let parameter = |name: &str| ParameterReport {
            config_value: setting(name),
            server_default: by_us.then_some(1.0),
            ..ParameterReport::default()
        };
        let sampling = SamplingReport {
            temperature: parameter("sampling.rollout_temperature"),
            top_p: parameter("sampling.rollout_top_p"),
            ..SamplingReport::default()
        };
        Self {
            seen: Arc::new(Mutex::new(Seen {
                sampling,
                ..Seen::default()
            })),
        }
    }

    /// Reads the calls of all rollouts that have a result.
    pub(super) async fn of_run(store: &dyn Store, pinned: &Pinned) -> Result<Self, RunError> {
        let survey = Self::of(pinned);
        let mut pages = RolloutPages::finished(store);
        while let Some(page) = pages.next().await? {
            let ids: Vec<_> = page.iter().map(|rollout| rollout.id.clone()).collect();
            survey.read(store, &ids).await?;
        }
        Ok(survey)
    }

    /// Reads the calls of these rollouts.
    async fn read(&self, store: &dyn Store, rollouts: &[RolloutId]) -> Result<(), RunError> {
        let seen = Arc::clone(&self.seen);
        let visit = move |call: &CallRecord, body: &CallBody| seen.lock().add(call, body);
        store
            .visit_calls(rollouts, CallPurpose::Policy, Box::new(visit))
            .await?;
        Ok(())
    }

    pub(super) fn truncation(&self) -> TruncationReport {
        let seen = self.seen.lock();
        TruncationReport {
            calls: seen.cut_calls,
            rollouts: seen.cut_rollouts.len() as u64,
        }
    }

    pub(super) fn sampling(&self) -> SamplingReport {
        self.seen.lock().sampling
    }
}

/// What `metrics.json` has of a survey. Reading all calls again would make a look at a large run slow.
#[derive(Debug, Default, Deserialize)]
pub(super) struct KeptCalls {
    #[serde(default)]
    pub(super) sampling: Option<SamplingReport>,
    #[serde(default)]
    pub(super) truncated: Option<TruncationReport>,
}

impl KeptCalls {
    pub(super) fn read(folder: &RunFolder) -> Self {
        let text = std::fs::read(folder.metrics());
        let kept = text
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        kept.unwrap_or_default()
    }
}

impl Seen {
    fn add(&mut self, call: &CallRecord, body: &CallBody) {
        let asked = RequestedSampling::read(&body.request);
        let sampling = &mut self.sampling;
        sampling.calls += 1;
        sampling.temperature.add(asked.temperature);
        sampling.top_p.add(asked.top_p);
        sampling.max_tokens.add(asked.max_tokens);
        if is_cut_at_limit(&call.dialect, &body.response) {
            self.cut_calls += 1;
            self.cut_rollouts.insert(call.rollout_id.clone());
        }
    }
}

/// What a request says of its sampling.
#[derive(Debug, Default, PartialEq)]
struct RequestedSampling {
    temperature: Option<f64>,
    top_p: Option<f64>,
    max_tokens: Option<f64>,
}

/// The fields of any dialect; a value of another type is not the parameter.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields {
    temperature: Number,
    top_p: Number,
    max_tokens: Number,
    max_completion_tokens: Number,
    max_output_tokens: Number,
    max_new_tokens: Number,
    sampling_params: Option<Box<Fields>>,
}

#[derive(Default, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Number {
    Given(f64),
    Other(IgnoredAny),
    #[default]
    Absent,
}

impl Number {
    fn given(self) -> Option<f64> {
        match self {
            Self::Given(value) => Some(value),
            Self::Other(_) | Self::Absent => None,
        }
    }
}

impl RequestedSampling {
    fn read(request: &[u8]) -> Self {
        let fields: Fields = serde_json::from_slice(request).unwrap_or_default();
        // Calls in token ids have them one level down.
        let fields = match fields.sampling_params {
            Some(inner) => *inner,
            None => fields,
        };
        let limits = [
            fields.max_completion_tokens,
            fields.max_tokens,
            fields.max_output_tokens,
            fields.max_new_tokens,
        ];
        Self {
            temperature: fields.temperature.given(),
            top_p: fields.top_p.given(),
            max_tokens: limits.into_iter().find_map(Number::given),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_of_every_dialect_are_read() {
        let asked = |temperature, top_p, max_tokens| RequestedSampling {
            temperature,
            top_p,
            max_tokens,
        };
        for (request, expected) in [
            (r#"{"messages": []}"#, asked(None, None, None)),
            (
                r#"{"temperature": 0, "top_p": 0.5, "max_tokens": 9, "tools": [{"temperature": 3}]}"#,
                asked(Some(0.0), Some(0.5), Some(9.0)),
            ),
            (
                r#"{"temperature": null, "max_completion_tokens": 7, "max_tokens": 9}"#,
                asked(None, None, Some(7.0)),
            ),
            (r#"{"max_output_tokens": 5}"#, asked(None, None, Some(5.0))),
            (
                r#"{"input_ids": [1], "sampling_params": {"temperature": 0.7, "max_new_tokens": 3}}"#,
                asked(Some(0.7), None, Some(3.0)),
            ),
            (r#"{"temperature": "hot"}"#, asked(None, None, None)),
            ("not json", asked(None, None, None)),
        ] {
            assert_eq!(
                RequestedSampling::read(request.as_bytes()),
                expected,
                "{request}"
            );
        }
    }

    #[test]
    fn a_value_of_the_config_counts_only_where_the_agent_set_none() {
        let mut parameter = ParameterReport {
            config_value: Some(0.5),
            ..ParameterReport::default()
        };
        for value in [None, Some(1.0), Some(0.2)] {
            parameter.add(value);
        }
        assert_eq!((parameter.set_by_agent, parameter.set_by_config), (2, 1));
        assert_eq!(
            (parameter.agent_min, parameter.agent_max),
            (Some(0.2), Some(1.0))
        );
        assert_eq!(parameter.left_to_server, 0);
    }
}
