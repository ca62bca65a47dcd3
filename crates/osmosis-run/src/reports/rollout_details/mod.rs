//! One rollout with all that is recorded of it.

mod artifacts;
mod attempts;
mod calls;
mod context;
mod exchange;
mod logs;
mod transcript;
mod versions;

use std::sync::Arc;

use osmosis_core::config::ModelPath;
use osmosis_core::credit::Credit;
use osmosis_core::{JsonText, Outcome, Reward, RolloutId, Sample, SampleId};
use osmosis_data::Row;
use osmosis_data::conversation::Conversation;
use osmosis_data::export::SampleTalk;
use osmosis_store::{RolloutQuery, RolloutRecord, Store};
use osmosis_tokens::{ChatFormat, TokenRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use artifacts::{Artifact, ArtifactKind, Artifacts};
pub use attempts::EarlierAttempt;
pub use calls::{CallDetails, raw_call};
pub use context::{OfferedTool, SampleContext};
pub use exchange::CallExchange;
pub use logs::each_log_line;
pub(crate) use logs::log_source;
pub use transcript::{Entry, Speaker, Transcriber};
pub use versions::Versions;

use self::calls::RecordedCalls;
use self::logs::PrintedLines;
use super::{OrderedMap, RolloutEffort, RolloutResult};
use crate::policy;
use crate::run_folder::RunFolder;
use crate::runs::Pinned;
use crate::transcripts::{self, Telling};
use crate::{RunError, RunErrorKind};

/// An item of `eval show --json` and `train show --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutDetails {
    #[serde(flatten)]
    pub result: RolloutResult,
    pub samples: Vec<SampleDetails>,
    #[serde(flatten)]
    pub effort: RolloutEffort,
    /// What was said in samples that bring no messages, from the recorded calls: by the sample's id, each path
    /// from its beginning to its end. Samples that never came to be are among them.
    pub conversations: OrderedMap<Vec<Vec<Entry>>>,
    /// System prompt, tools and finish reasons of each sample with recorded calls, by its id.
    #[serde(default)]
    pub contexts: OrderedMap<SampleContext>,
    /// Lines that the agent printed.
    #[serde(default)]
    pub agent_output: Vec<String>,
    /// Lines that the grader printed. Empty in runs of older versions, whose logs don't tell the two apart.
    #[serde(default)]
    pub grader_output: Vec<String>,
    /// The weights that answered; `null` when the policy was not called.
    pub versions: Option<Versions>,
    pub calls: Vec<CallDetails>,
    /// How it ended, with all that is known of it.
    pub outcome_details: Option<Outcome>,
    pub artifacts: Artifacts,
    /// The run whose samples were graded here, when it was another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regraded_from: Option<String>,
    /// The run that has the policy's calls, when it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_calls_in: Option<String>,
    /// Only where it is asked for, as the next two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ground_truth: Option<GroundTruth>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<SampledTokens>>,
    /// What user code printed during the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<Vec<String>>,
}

/// A sample, with its grade.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SampleDetails {
    pub id: SampleId,
    pub reward: Option<Reward>,
    /// The grader took it out.
    pub remove_sample: bool,
    /// As the workflow returned them.
    pub messages: Vec<Value>,
    /// The messages as text, with a note where a reply was cut off.
    #[serde(default)]
    pub transcript: Vec<Entry>,
    pub metrics: Option<JsonText>,
    pub extra_fields: Option<JsonText>,
    /// Rewards of its single turns, in order; empty when it has one for the whole alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turn_rewards: Vec<Reward>,
}

/// The dataset row, as the run has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroundTruth {
    /// What the grader compares with; `null` when the row has no such column.
    pub label: Option<String>,
    pub row: JsonText,
}

/// The tokens that one call, or one choice of a call, sampled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SampledTokens {
    pub sample_id: SampleId,
    /// What the prompt adds to the call that it continues; all of it for the first.
    pub prompt_suffix: Vec<u32>,
    pub sampled: Vec<u32>,
    pub logprobs: Vec<f32>,
    /// The weights that sampled each token.
    pub versions: Vec<u64>,
}

/// What of a rollout is read beyond what `show` prints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    pub ground_truth: bool,
    pub tokens: bool,
    pub logs: bool,
    /// What each model call sent, and what came back.
    pub exchanges: bool,
    /// For readers who take them from elsewhere: they take a look into every call.
    pub without_conversations: bool,
}

impl RolloutDetails {
    /// `folder` is that of the run.
    pub async fn of(
        store: &dyn Store,
        folder: &RunFolder,
        id: &RolloutId,
        wanted: Wanted,
    ) -> Result<Self, RunError> {
        let found = store.rollouts_by_id(std::slice::from_ref(id)).await?;
        let rollout = found.first().ok_or_else(|| {
            RunError::failed(
                RunErrorKind::RolloutNotFound,
                format!("run `{}` has no rollout `{id}`", folder.name()),
            )
        })?;
        Self::of_record(store, folder, rollout, wanted).await
    }

    /// The rollouts of a dataset row, or the one of them with this number; empty when there is none.
    pub async fn of_row(
        store: &dyn Store,
        folder: &RunFolder,
        row_index: u64,
        run_index: Option<u32>,
        wanted: Wanted,
    ) -> Result<Vec<Self>, RunError> {
        let query = RolloutQuery {
            row_index: Some(row_index),
            ..RolloutQuery::default()
        };
        let mut found = vec![];
        for rollout in &store.rollouts(query).await?.items {
            if run_index.is_none_or(|wanted| rollout.run_index == wanted) {
                found.push(Self::of_record(store, folder, rollout, wanted).await?);
            }
        }
        Ok(found)
    }

    async fn of_record(
        store: &dyn Store,
        folder: &RunFolder,
        rollout: &RolloutRecord,
        wanted: Wanted,
    ) -> Result<Self, RunError> {
        let pinned = match store.run().await? {
            Some(record) => Pinned::read(&record.pinned)?,
            None => Pinned::default(),
        };
        let samples = store.samples(&rollout.id).await?;
        let recorded = RecordedCalls::read(store, &rollout.id, None, wanted).await?;
        let talks = if wanted.without_conversations {
            vec![]
        } else {
            talks(store, folder, &pinned, &rollout.id, &samples).await?
        };
        let samples_shown = samples
            .iter()
            .map(|sample| SampleDetails::of(sample, &talks));
        let samples_shown: Vec<SampleDetails> = samples_shown.collect::<Result<_, _>>()?;
        let contexts = talks
            .iter()
            .filter_map(|talk| Some((talk.id.to_string(), SampleContext::of(talk)?)))
            .collect();
        let is_ours = recorded.called_policy();
        let conversations = if is_ours && !wanted.without_conversations {
            let tokenizer = tokenizer_of(&pinned, folder);
            conversations(&samples, &samples_shown, talks, tokenizer).await
        } else {
            OrderedMap::default()
        };
        let printed = PrintedLines::read(folder, rollout.id.as_str())?;
        let (regraded_from, policy_calls_in) = match &pinned.regraded_from {
            Some(from) => (Some(from.run.clone()), Some(from.calls_in.clone())),
            None => (None, None),
        };
        Ok(Self {
            result: RolloutResult::of(rollout),
            samples: samples_shown,
            effort: RolloutEffort::of(rollout),
            conversations,
            contexts,
            agent_output: printed.agent,
            grader_output: printed.grader,
            versions: recorded.versions(),
            calls: recorded.details(),
            outcome_details: rollout.outcome.clone(),
            artifacts: Artifacts::of(&folder.artifacts().join(rollout.id.as_str())),
            regraded_from,
            policy_calls_in,
            ground_truth: if wanted.ground_truth {
                ground_truth(store, rollout.row_index).await?
            } else {
                None
            },
            tokens: if wanted.tokens {
                Some(sampled_tokens(store, &rollout.id).await?)
            } else {
                None
            },
            logs: if wanted.logs {
                Some(logs_of(folder, rollout.id.as_str())?)
            } else {
                None
            },
        })
    }
}

impl SampleDetails {
    fn of(sample: &Sample, talks: &[SampleTalk]) -> Result<Self, RunError> {
        let messages = messages_of(sample)?;
        let own = talks.iter().filter(|talk| talk.id == sample.id);
        let turns = own.flat_map(|talk| &talk.conversations);
        let turns = turns.flat_map(|conversation| &conversation.turns);
        let transcriber = Transcriber {
            replies: turns.filter(|turn| turn.call.is_some()).cloned().collect(),
            ..Transcriber::default()
        };
        Ok(Self {
            id: sample.id.clone(),
            reward: sample.reward,
            remove_sample: sample.remove_sample,
            transcript: transcriber.entries(&Conversation::of_messages(&messages)),
            messages,
            metrics: sample.metrics.clone(),
            turn_rewards: Credit::read(sample.extra_fields.as_ref())
                .unwrap_or_default()
                .interactions
                .into_iter()
                .map(|one| one.reward)
                .collect(),
            extra_fields: sample.extra_fields.clone(),
        })
    }
}

fn messages_of(sample: &Sample) -> Result<Vec<Value>, RunError> {
    // Older versions recorded these; they are shown as the text they are.
    if sample.messages.problem().is_some() {
        return Ok(vec![sample.messages.as_str().into()]);
    }
    sample
        .messages
        .read()
        .map_err(|error| RunError::failed(RunErrorKind::RunDamaged, error.to_string()))
}

/// What was said in the recorded calls. Those of a run that only grades are in another run.
async fn talks(
    store: &dyn Store,
    folder: &RunFolder,
    pinned: &Pinned,
    rollout: &RolloutId,
    samples: &[Sample],
) -> Result<Vec<SampleTalk>, RunError> {
    let telling = Telling::default();
    let Some(from) = &pinned.regraded_from else {
        return transcripts::of(store, rollout, samples, &telling).await;
    };
    match from.open_calls(&folder.workspace()).await {
        Some(calls) => transcripts::of(&*calls, rollout, samples, &telling).await,
        None => Ok(vec![]),
    }
}

/// What samples without messages said, and those that never came to be.
async fn conversations(
    samples: &[Sample],
    shown: &[SampleDetails],
    mut talks: Vec<SampleTalk>,
    tokenizer: impl Future<Output = Option<Arc<ChatFormat>>> + Send,
) -> OrderedMap<Vec<Vec<Entry>>> {
    let mut transcriber = Transcriber::default();
    for sample in samples {
        // Fields of the user's own may have any shape.
        let credit = Credit::read(sample.extra_fields.as_ref()).unwrap_or_default();
        let interactions = credit.interactions.into_iter();
        let named = interactions.filter(|one| !one.completion.is_empty());
        let rewards = named.map(|one| (one.completion, one.reward.get()));
        transcriber.rewards.extend(rewards);
    }
    let with_messages: Vec<&SampleId> = shown
        .iter()
        .filter(|sample| !sample.messages.is_empty())
        .map(|sample| &sample.id)
        .collect();
    talks.retain(|talk| !with_messages.contains(&&talk.id) && !talk.conversations.is_empty());
    let in_ids = {
        let conversations = talks.iter().flat_map(|talk| &talk.conversations);
        let mut turns = conversations.flat_map(|conversation| &conversation.turns);
        turns.any(|turn| turn.token_ids.is_some())
    };
    if in_ids {
        transcriber.tokenizer = tokenizer.await;
    }
    let read = talks.into_iter().map(|talk| {
        let paths = transcriber.paths(&talk.conversations);
        (talk.id.to_string(), paths)
    });
    read.collect()
}

/// The tokenizer of the run's policy, when it has one that can be had without the weights.
async fn tokenizer_of(pinned: &Pinned, folder: &RunFolder) -> Option<Arc<ChatFormat>> {
    let model: ModelPath = pinned.model_path()?.parse().ok()?;
    policy::tokenizer(&model, &folder.workspace()).await
}

async fn ground_truth(store: &dyn Store, row_index: u64) -> Result<Option<GroundTruth>, RunError> {
    let row = store.row(row_index).await?;
    Ok(row.map(|stored| GroundTruth {
        label: Row::from_body(stored.row_index, stored.line, &stored.body)
            .ok()
            .and_then(|row| row.label),
        row: stored.body,
    }))
}

async fn sampled_tokens(
    store: &dyn Store,
    rollout: &RolloutId,
) -> Result<Vec<SampledTokens>, RunError> {
    let records = store.token_records(rollout).await?.into_iter();
    Ok(records
        .filter_map(|(sample_id, record)| {
            let record = TokenRecord::decode(record.as_ref()).ok()?;
            Some(SampledTokens {
                sample_id,
                prompt_suffix: record.prompt_suffix,
                sampled: record.sampled,
                logprobs: record.logprobs,
                versions: record.versions.iter().map(|version| version.0).collect(),
            })
        })
        .collect())
}

fn logs_of(folder: &RunFolder, rollout: &str) -> Result<Vec<String>, RunError> {
    let mut lines = vec![];
    if folder.logs().exists() {
        each_log_line(folder, Some(rollout), |line| lines.push(line.to_owned()))?;
    }
    Ok(lines)
}
