//! What was said in the samples of a rollout, from what the store has of it.

use std::collections::HashMap;
use std::sync::Arc;

use osmosis_core::{Reward, RolloutId, Sample, SampleId};
use osmosis_data::conversation::{CallTokens, Conversation, ConversationTree, RecordedCall, Usage};
use osmosis_data::export::SampleTalk;
use osmosis_store::{CallBody, CallPurpose, CallQuery, CallRecord, Store};
use osmosis_tokens::{Origin, TokenRecord};
use parking_lot::Mutex;
use serde_json::Value;

use crate::error::CliError;

/// The conversations of a rollout: of its samples, then of calls that became no sample. `store` is where
/// the calls are. Token ids are read when they are asked for. `model` is the run's: what callers name means it, whatever it is.
pub(crate) async fn of(
    store: &dyn Store,
    rollout: &RolloutId,
    samples: &[Sample],
    model: &str,
    with_tokens: bool,
) -> Result<Vec<SampleTalk>, CliError> {
    let mut heard = hear(store, rollout, model, with_tokens).await?;
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
    Ok(talks)
}

/// The calls of the policy, sample by sample; those of a judge are no part of a conversation.
async fn hear(
    store: &dyn Store,
    rollout: &RolloutId,
    model: &str,
    with_tokens: bool,
) -> Result<Vec<Heard>, CliError> {
    let query = CallQuery {
        rollout_id: rollout.clone(),
        attempt: None,
    };
    let heard: Arc<Mutex<Vec<Heard>>> = Arc::default();
    let hearing = Arc::clone(&heard);
    let model = model.to_owned();
    let visit = move |call: &CallRecord, body: &CallBody| {
        let mut heard = hearing.lock();
        let place = heard
            .iter()
            .position(|heard| heard.sample == call.sample_id);
        let place = place.unwrap_or_else(|| {
            heard.push(Heard::new(call.sample_id.clone()));
            heard.len() - 1
        });
        heard[place].hear(call, body, &model, with_tokens);
    };
    store
        .visit_calls(query, CallPurpose::Policy, Box::new(visit))
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

    fn hear(&mut self, call: &CallRecord, body: &CallBody, model: &str, with_tokens: bool) {
        let tokens: Vec<CallTokens> = if with_tokens {
            body.tokens
                .iter()
                .map(|record| self.tokens(record))
                .collect()
        } else {
            Vec::new()
        };
        self.tree.add(&RecordedCall {
            call_id: call.call_id,
            dialect: &call.dialect,
            model: if model.is_empty() { &call.model } else { model },
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
            tokens: &tokens,
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
