//! The tokens of a rollout as the token lens shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use osmosis_core::generation::LogprobsOf;
use osmosis_core::{RolloutId, SampleId};
use osmosis_store::{CallPurpose, CallQuery, RolloutRecord, RunRecord, Store};
use osmosis_tokens::{CallTree, ChatFormat, Origin, TokenRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::OrderedMap;
use super::group::{GroupUse, Grouping};
use crate::RunError;

/// The `data` of `GET /api/v1/runs/{run}/rollouts/{rollout}/tokens`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutTokens {
    pub samples: Vec<SampleTokens>,
    /// What each token id stands for; empty without the policy's tokenizer.
    pub texts: OrderedMap<String>,
    /// Why there are no tokens, when there are none.
    pub none_because: Option<String>,
    /// What training made of the rollout's group.
    pub group_use: GroupUse,
    /// Tokens that all attempts at the row begin with alike; `null` when fewer than two have token ids.
    pub group_prefix: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SampleTokens {
    pub sample_id: SampleId,
    /// One for each reward of the sample; empty when it has none.
    pub advantages: Vec<f64>,
    pub without_advantage: Option<String>,
    /// In the order of their numbers.
    pub calls: Vec<TokenCall>,
    /// From a first call to a last one: what training rows are made of.
    pub paths: Vec<TokenPath>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenPath {
    /// `SAMPLE/N`
    pub id: String,
    /// The numbers of its calls.
    pub calls: Vec<u32>,
}

/// One model call in tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenCall {
    /// Its number within the sample, from 0.
    pub call: u32,
    /// As the calls of the rollout are listed; `null` when it can't be told.
    pub call_id: Option<u64>,
    /// The call whose tokens its prompt begins with.
    pub continues: Option<u32>,
    /// Why it continues no earlier call, when there was one that it might have continued.
    pub branch_reason: Option<String>,
    /// What the prompt adds to the call that it continues; all of it for the first.
    pub prompt: Vec<u32>,
    pub sampled: Vec<u32>,
    pub logprobs: Vec<f32>,
    /// The weights that sampled the tokens, in order.
    pub versions: Vec<VersionRun>,
    pub temperature: f32,
    /// Whether the sampled tokens are under the loss mask.
    pub trained: bool,
    pub masked_because: Option<String>,
}

/// So many tokens in a row, sampled by the same weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionRun {
    pub version: u64,
    pub tokens: u64,
}

impl RolloutTokens {
    /// `calls` is where its calls are: another run than the rollout's when it was graded again.
    pub async fn of(
        store: &dyn Store,
        calls: &dyn Store,
        record: &RunRecord,
        rollout: &RolloutRecord,
        tokenizer: impl Future<Output = Option<Arc<ChatFormat>>> + Send,
    ) -> Result<Self, RunError> {
        let records = records_of(calls, &rollout.id).await?;
        let grouping = Grouping::of(record)?;
        let visit = grouping.visit_with(store, calls, rollout).await?;
        let mine = visit
            .rollouts
            .iter()
            .find(|member| member.line.result.rollout_id == rollout.id);
        let call_ids = call_ids(calls, &rollout.id, &records).await?;
        let mut samples = vec![];
        let mut seen: BTreeSet<u32> = BTreeSet::new();
        for (sample_id, records) in &records {
            let advantages = mine.and_then(|mine| mine.advantages.get(sample_id.as_str()));
            let sample = SampleTokens::of(
                sample_id,
                records,
                &call_ids,
                advantages.cloned().unwrap_or_default(),
                mine.and_then(|mine| mine.without_advantage.clone()),
            );
            for call in &sample.calls {
                seen.extend(&call.prompt);
                seen.extend(&call.sampled);
            }
            samples.push(sample);
        }
        let tokenizer = if seen.is_empty() {
            None
        } else {
            tokenizer.await
        };
        let texts = tokenizer.map_or_else(OrderedMap::default, |tokenizer| {
            seen.iter()
                .filter_map(|id| Some((id.to_string(), text_of(&tokenizer, *id)?)))
                .collect()
        });
        let none_because = seen.is_empty().then(|| {
            let unknown = records
                .values()
                .flatten()
                .find_map(TokenRecord::ids_unknown);
            match unknown {
                Some(why) => why.to_owned(),
                None if rollout.calls.model_calls == 0 => {
                    "the agent never called the policy".to_owned()
                }
                None => "the model server did not report token ids".to_owned(),
            }
        });
        Ok(Self {
            samples,
            texts,
            none_because,
            group_use: visit.group_use,
            group_prefix: visit.common_prefix,
        })
    }
}

impl SampleTokens {
    fn of(
        sample_id: &SampleId,
        records: &[TokenRecord],
        call_ids: &BTreeMap<(SampleId, u32), u64>,
        advantages: Vec<f64>,
        without_advantage: Option<String>,
    ) -> Self {
        // Damaged records are shown as they are, without paths.
        let rows = CallTree::rows(sample_id, records).unwrap_or_default();
        let on_a_path: BTreeSet<u32> = rows.iter().flat_map(|row| &row.calls).copied().collect();
        let mut sorted: Vec<&TokenRecord> = records.iter().collect();
        sorted.sort_by_key(|record| record.call);
        let calls = sorted.into_iter().map(|record| {
            let masked = masked_because(record, on_a_path.contains(&record.call));
            let (continues, branch_reason) = match &record.origin {
                Origin::Continues { call, .. } => (Some(*call), None),
                Origin::Root { reason } => (None, reason.clone()),
            };
            TokenCall {
                call: record.call,
                call_id: call_ids.get(&(sample_id.clone(), record.call)).copied(),
                continues,
                branch_reason,
                prompt: record.prompt_suffix.clone(),
                sampled: record.sampled.clone(),
                logprobs: record.logprobs.clone(),
                versions: version_runs(record),
                temperature: record.temperature,
                trained: masked.is_none() && !record.sampled.is_empty(),
                masked_because: masked,
            }
        });
        Self {
            sample_id: sample_id.clone(),
            advantages,
            without_advantage,
            calls: calls.collect(),
            paths: rows
                .into_iter()
                .map(|row| TokenPath {
                    id: row.id,
                    calls: row.calls,
                })
                .collect(),
        }
    }
}

/// Why the tokens that a call sampled can't be trained on.
fn masked_because(record: &TokenRecord, on_a_path: bool) -> Option<String> {
    let why = if record.logprobs_of != LogprobsOf::Tempered {
        "the server's logprobs are not of the distribution that was sampled from"
    } else if on_a_path {
        return None;
    } else if record.one_of_several {
        "one of several choices, and no later call continues it"
    } else if record.complete {
        "its answer did not reach the agent, which asked again"
    } else {
        "the answer was cut off before the agent had all of it"
    };
    Some(why.to_owned())
}

fn version_runs(record: &TokenRecord) -> Vec<VersionRun> {
    let mut runs: Vec<VersionRun> = vec![];
    for version in &record.versions {
        match runs.last_mut() {
            Some(last) if last.version == version.0 => last.tokens += 1,
            _ => runs.push(VersionRun {
                version: version.0,
                tokens: 1,
            }),
        }
    }
    runs
}

/// The text of a token alone. A token may be a part of a character: then its bytes.
fn text_of(tokenizer: &ChatFormat, id: u32) -> Option<String> {
    match tokenizer.decode(&[id], false) {
        Ok(text) if !text.contains('\u{fffd}') && !text.is_empty() => Some(text),
        _ => tokenizer.token_text(id),
    }
}

async fn records_of(
    calls: &dyn Store,
    rollout: &RolloutId,
) -> Result<BTreeMap<SampleId, Vec<TokenRecord>>, RunError> {
    let mut by_sample: BTreeMap<SampleId, Vec<TokenRecord>> = BTreeMap::new();
    for (sample, record) in calls.token_records(rollout).await? {
        if let Ok(record) = TokenRecord::decode(record.as_ref()) {
            by_sample.entry(sample).or_default().push(record);
        }
    }
    Ok(by_sample)
}

/// The ids of each sample's first path.
pub(super) async fn path_ids(
    calls: &dyn Store,
    rollout: &RolloutId,
) -> Result<Option<Vec<u32>>, RunError> {
    let records = records_of(calls, rollout).await?;
    let Some((sample, records)) = records.first_key_value() else {
        return Ok(None);
    };
    let rows = CallTree::rows(sample, records).unwrap_or_default();
    Ok(rows.into_iter().next().map(|row| row.ids))
}

/// Which recorded call has which token record: both are listed in the order in which the calls finished.
async fn call_ids(
    calls: &dyn Store,
    rollout: &RolloutId,
    records: &BTreeMap<SampleId, Vec<TokenRecord>>,
) -> Result<BTreeMap<(SampleId, u32), u64>, RunError> {
    let query = CallQuery {
        rollout_id: rollout.clone(),
        attempt: None,
    };
    let listed = calls.calls(query).await?;
    let mut ids = BTreeMap::new();
    for (sample, records) in records {
        let mut rest = records.iter();
        let of_sample = listed
            .iter()
            .filter(|call| call.purpose == CallPurpose::Policy && call.sample_id == *sample);
        let counted: usize = of_sample
            .clone()
            .map(|call| call.token_records as usize)
            .sum();
        // In a rollout under way there may be more by now.
        if counted != records.len() {
            continue;
        }
        for call in of_sample {
            for record in rest.by_ref().take(call.token_records as usize) {
                ids.insert((sample.clone(), record.call), call.call_id);
            }
        }
    }
    Ok(ids)
}
