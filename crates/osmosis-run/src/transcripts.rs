//! What was said in the samples of a rollout, from what the store has of it.

use std::collections::HashMap;
use std::sync::Arc;

use osmosis_core::{Reward, RolloutId, Sample, SampleId};
use osmosis_data::conversation::{CallTokens, Conversation, ConversationTree, RecordedCall, Usage};
use osmosis_data::export::SampleTalk;
use osmosis_store::{CallBody, CallPurpose, CallRecord, Store};
use osmosis_tokens::{Origin, TokenRecord};
use parking_lot::Mutex;
use serde_json::Value;

use crate::RunError;

/// How conversations are told.
#[derive(Debug, Clone, Default)]
pub struct Telling {
    /// The run's: what callers name means it, whatever it is. Empty: what they name.
    pub model: String,
    /// Tell also the token ids of calls.
    pub with_tokens: bool,
}

/// The conversations of one rollout; `store` is where its calls are.
pub async fn of(
    store: &dyn Store,
    rollout: &RolloutId,
    samples: &[Sample],
    telling: &Telling,
) -> Result<Vec<SampleTalk>, RunError> {
    let mut heard = hear(store, std::slice::from_ref(rollout), telling).await?;
    let heard = heard.remove(rollout).unwrap_or_default();
    Ok(talks(samples, heard))
}

/// The conversations of several rollouts, read in one go.
pub async fn of_each(
    store: &dyn Store,
    rollouts: &[RolloutId],
    samples: impl IntoIterator<Item = &[Sample]>,
    telling: &Telling,
) -> Result<Vec<Vec<SampleTalk>>, RunError> {
    let mut heard = hear(store, rollouts, telling).await?;
    let told = rollouts.iter().zip(samples).map(|(rollout, samples)| {
        let heard = heard.remove(rollout).unwrap_or_default();
        talks(samples, heard)
    });
    Ok(told.collect())
}

/// The conversations of the samples, then of calls that became no sample.
fn talks(samples: &[Sample], mut heard: Vec<Heard>) -> Vec<SampleTalk> {
    let mut talks = Vec::new();
    for sample in samples {
        let messages: Vec<Value> = sample.messages.read().unwrap_or_default();
        // A lone sample without messages of its own was made by whatever was called.
        let lone = samples.len() == 1 && heard.len() == 1 && messages.is_empty();
        let place = heard
            .iter()
            .position(|heard| heard.sample == sample.id || lone);
        let tree = place.map(|place| heard.remove(place).tree);
        let conversations = tree.unwrap_or_default().conversations(&messages);
        talks.push(SampleTalk {
            id: sample.id.clone(),
            reward: sample.reward.map(Reward::get),
            removed: sample.remove_sample,
            main: Conversation::main_of(&conversations, &messages),
            conversations,
        });
    }
    for heard in heard {
        let conversations = heard.tree.conversations(&[]);
        talks.push(SampleTalk {
            id: heard.sample,
            reward: None,
            removed: false,
            main: Conversation::main_of(&conversations, &[]),
            conversations,
        });
    }
    talks
}

/// The calls of the policy, sample by sample; those of a judge are no part of a conversation.
async fn hear(
    store: &dyn Store,
    rollouts: &[RolloutId],
    telling: &Telling,
) -> Result<HashMap<RolloutId, Vec<Heard>>, RunError> {
    let heard: Arc<Mutex<HashMap<RolloutId, Vec<Heard>>>> = Arc::default();
    let hearing = Arc::clone(&heard);
    let telling = telling.clone();
    let visit = move |call: &CallRecord, body: &CallBody| {
        let mut hearing = hearing.lock();
        let samples = hearing.entry(call.rollout_id.clone()).or_default();
        let place = samples
            .iter()
            .position(|heard| heard.sample == call.sample_id);
        let place = place.unwrap_or_else(|| {
            samples.push(Heard::new(call.sample_id.clone()));
            samples.len() - 1
        });
        samples[place].hear(call, body, &telling);
    };
    store
        .visit_calls(rollouts, CallPurpose::Policy, Box::new(visit))
        .await?;
    let heard = std::mem::take(&mut *heard.lock());
    Ok(heard)
}

/// The calls of one sample so far.
struct Heard {
    sample: SampleId,
    tree: ConversationTree,
    /// Prompt and reply of each call in ids, by its number.
    ids: HashMap<u32, Vec<u32>>,
}

impl Heard {
    fn new(sample: SampleId) -> Self {
        Self {
            sample,
            tree: ConversationTree::default(),
            ids: HashMap::new(),
        }
    }

    fn hear(&mut self, call: &CallRecord, body: &CallBody, telling: &Telling) {
        let tokens: Vec<CallTokens> = if telling.with_tokens {
            body.tokens
                .iter()
                .map(|record| self.tokens(record))
                .collect()
        } else {
            Vec::new()
        };
        self.tree.add(&RecordedCall {
            model: if telling.model.is_empty() {
                &call.model
            } else {
                &telling.model
            },
            tokens: &tokens,
            ..recorded_call(call, body)
        });
    }

    /// The whole prompt of a call in ids: what it continues, and what was new. Empty when it can't be
    /// known.
    fn tokens(&mut self, record: &[u8]) -> CallTokens {
        let Ok(record) = TokenRecord::decode(record) else {
            return CallTokens::default();
        };
        if record.ids_unknown().is_some() {
            return CallTokens::default();
        }
        let mut prompt = match &record.origin {
            Origin::Root { .. } => Vec::new(),
            Origin::Continues { call, .. } => match self.ids.get(call) {
                Some(ids) => ids.clone(),
                None => return CallTokens::default(),
            },
        };
        prompt.extend(&record.prompt_suffix);
        let mut whole = prompt.clone();
        whole.extend(&record.sampled);
        self.ids.insert(record.call, whole);
        CallTokens {
            prompt,
            sampled: record.sampled,
            logprobs: record.logprobs,
        }
    }
}

/// A call as the store has it, without its tokens.
pub(crate) fn recorded_call<'a>(call: &'a CallRecord, body: &'a CallBody) -> RecordedCall<'a> {
    RecordedCall {
        call_id: call.call_id,
        dialect: &call.dialect,
        model: &call.model,
        status: call.status,
        error: call.error.as_deref(),
        request: &body.request,
        response: &body.response,
        usage: Usage {
            prompt_tokens: call.prompt_tokens,
            completion_tokens: call.completion_tokens,
            cached_tokens: call.cached_tokens,
            reasoning_tokens: call.reasoning_tokens,
            cost: None,
        },
        queued_at_ms: call.queued_at_ms,
        first_byte_at_ms: call.first_byte_at_ms,
        done_at_ms: call.done_at_ms,
        tokens: &[],
    }
}
