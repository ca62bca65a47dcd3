//! What goes to a rollout server and what comes back, in its words. Every edition of the protocol gets
//! the same request: servers pass over the fields they do not know.

use std::collections::BTreeMap;

use osmosis_core::frame::TurnRewards;
use osmosis_core::{JsonText, Reward, Sample, SampleId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// The body of `POST /rollout`.
#[derive(Serialize)]
pub(super) struct RolloutBody<'a> {
    pub(super) rollout_id: &'a str,
    pub(super) initial_messages: &'a JsonText,
    pub(super) label: Option<&'a str>,
    pub(super) metadata: Option<&'a JsonText>,
    pub(super) chat_completions_url: &'a str,
    /// Opens the callbacks. Older servers know no other key and send it to the model too, so it opens the model
    /// as well.
    pub(super) controller_api_key: &'a str,
    /// Opens the model alone: it is the key that an agent sees.
    pub(super) llm_api_key: &'a str,
    pub(super) completion_callback_url: &'a str,
    pub(super) grader_callback_url: &'a str,
    pub(super) agent_timeout_sec: f64,
    pub(super) grader_timeout_sec: f64,
}

/// How a server that took a rollout will tell of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Admission {
    /// It calls back.
    Callbacks,
    /// It is to be asked for the result, by whoever shows the lease.
    Polling { lease: String, wait_sec: f64 },
}

impl Admission {
    pub(super) fn read(body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Answer {
            polling_lease_token: Option<String>,
            result_wait_timeout_sec: Option<f64>,
        }
        match serde_json::from_slice(body) {
            Ok(Answer {
                polling_lease_token: Some(lease),
                result_wait_timeout_sec,
            }) => Self::Polling {
                lease,
                wait_sec: result_wait_timeout_sec
                    .filter(|seconds| seconds.is_finite() && *seconds > 0.0)
                    .unwrap_or(30.0),
            },
            Ok(_) | Err(_) => Self::Callbacks,
        }
    }
}

/// Where a rollout stands, in the words that all editions share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    Queued,
    Running,
    Grading,
    Success,
    Failure,
    Cancelled,
    /// The server has never heard of it, or has forgotten it.
    Unknown,
}

/// What a server tells of a rollout: a callback, a status or a result.
#[derive(Debug, Deserialize)]
pub(super) struct RolloutNotice {
    pub(super) status: Word,
    #[serde(default)]
    pub(super) err_message: Option<String>,
    #[serde(default)]
    pub(super) err_category: Option<String>,
    #[serde(default)]
    samples: Option<BTreeMap<String, WireSample>>,
    #[serde(default)]
    sample: Option<WireSample>,
}

#[derive(Debug, Deserialize)]
struct WireSample {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    messages: Option<Box<RawValue>>,
    #[serde(default)]
    reward: Option<f64>,
    #[serde(default)]
    remove_sample: bool,
    #[serde(default)]
    metrics: Option<Box<RawValue>>,
    #[serde(default)]
    extra_fields: Option<Box<RawValue>>,
    #[serde(default)]
    turn_rewards: Option<Vec<f64>>,
}

impl RolloutNotice {
    /// The samples, with the rewards they were sent with.
    pub(super) fn samples(&self) -> Result<Vec<Sample>, String> {
        let named = self.named().into_iter();
        named.map(|(id, sample)| sample.read(id)).collect()
    }

    /// The rewards of their turns, where they were sent with some.
    pub(super) fn turn_rewards(&self) -> Result<TurnRewards, String> {
        let mut all = TurnRewards::new();
        for (id, sample) in self.named() {
            let Some(rewards) = &sample.turn_rewards else {
                continue;
            };
            let id = SampleId::new(id).map_err(|error| error.to_string())?;
            let rewards = rewards.iter().map(|reward| Reward::new(*reward));
            let rewards = rewards.collect::<Result<Vec<_>, _>>();
            all.insert(id, rewards.map_err(|error| error.to_string())?);
        }
        Ok(all)
    }

    fn named(&self) -> Vec<(&str, &WireSample)> {
        let named = self.samples.iter().flatten();
        let mut named: Vec<_> = named.map(|(id, sample)| (id.as_str(), sample)).collect();
        if let (true, Some(only)) = (named.is_empty(), &self.sample) {
            named.push((only.id.as_deref().unwrap_or(SampleId::MAIN), only));
        }
        named
    }

    pub(super) fn has_samples(&self) -> bool {
        self.sample.is_some() || self.samples.as_ref().is_some_and(|all| !all.is_empty())
    }
}

impl WireSample {
    fn read(&self, id: &str) -> Result<Sample, String> {
        let reward = match self.reward {
            Some(reward) => Some(Reward::new(reward).map_err(|error| error.to_string())?),
            None => None,
        };
        let messages = match json(self.messages.as_deref())? {
            Some(messages) => messages,
            None => JsonText::parse("[]").map_err(|error| error.to_string())?,
        };
        Ok(Sample {
            id: SampleId::new(id).map_err(|error| error.to_string())?,
            messages,
            reward,
            remove_sample: self.remove_sample,
            metrics: json(self.metrics.as_deref())?,
            extra_fields: json(self.extra_fields.as_deref())?,
        })
    }
}

/// A value as it was sent; nothing when there is nothing in it.
fn json(value: Option<&RawValue>) -> Result<Option<JsonText>, String> {
    let Some(value) = value.filter(|value| !matches!(value.get(), "null" | "{}")) else {
        return Ok(None);
    };
    let text = JsonText::parse(value.get()).map_err(|error| error.to_string())?;
    match text.problem() {
        None => Ok(Some(text)),
        Some(problem) => Err(format!("it holds JSON that can't be read: {problem}")),
    }
}

/// What an answer that is no says: `{"detail": …}`, or its beginning.
pub(super) fn detail_of(body: &[u8]) -> String {
    let detail = serde_json::from_slice::<Value>(body)
        .ok()
        .and_then(|body| body.get("detail").cloned());
    let text = match detail {
        Some(Value::String(text)) => text,
        Some(detail) => detail.to_string(),
        None => String::from_utf8_lossy(body).into_owned(),
    };
    text.chars().take(300).collect()
}
