//! A rollout with what explains its result.

use osmosis_core::{Outcome, OutcomeKind, Redactor, Reward};
use osmosis_data::Row;
use osmosis_store::{RolloutRecord, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{Speaker, Transcriber, suggested_command};
use crate::RunError;
use crate::run_folder::RunFolder;
use crate::transcripts::{self, Telling};

/// Characters of a text that are kept.
const EXCERPT: usize = 600;

/// A rollout of a report. Long texts are cut, with a mark at their end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportedRollout {
    /// `ROW.RUN`
    pub rollout: String,
    pub outcome: OutcomeKind,
    pub reward: Option<f64>,
    /// What the agent was asked; the row itself when it has no prompt.
    pub prompt: Option<String>,
    /// The last text that the agent wrote.
    pub answer: Option<String>,
    pub ground_truth: Option<String>,
    /// Why it has no reward.
    pub error: Option<String>,
    /// The command that shows all of it.
    pub show: String,
}

impl ReportedRollout {
    pub(super) async fn read(
        store: &dyn Store,
        folder: &RunFolder,
        rollout: &RolloutRecord,
        redactor: &Redactor,
    ) -> Result<Self, RunError> {
        let clean = |text: &str| excerpt(&redactor.clean(text));
        let (mut prompt, mut ground_truth) = (None, None);
        if let Some(stored) = store.row(rollout.row_index).await? {
            match Row::from_body(stored.row_index, stored.line, &stored.body) {
                Ok(row) => {
                    let messages = row.prompt.iter().rev();
                    let mut texts = messages.filter_map(|message| message.get("content")?.as_str());
                    prompt = texts.next().map(clean);
                    ground_truth = row.label.as_deref().map(clean);
                    if prompt.is_none() {
                        prompt = Some(clean(stored.body.as_str()));
                    }
                }
                // For a workflow that takes it whole.
                Err(_) => prompt = Some(clean(stored.body.as_str())),
            }
        }
        let name = format!("{}.{}", rollout.row_index, rollout.run_index);
        let workspace = folder.workspace();
        Ok(Self {
            outcome: rollout
                .outcome
                .as_ref()
                .map_or(OutcomeKind::Cancelled, Outcome::kind),
            reward: rollout
                .outcome
                .as_ref()
                .and_then(Outcome::reward)
                .map(Reward::get),
            prompt,
            answer: answer(store, rollout).await?.as_deref().map(clean),
            ground_truth,
            error: rollout
                .outcome
                .as_ref()
                .and_then(Outcome::explanation)
                .as_deref()
                .map(clean),
            show: suggested_command(&["eval", "show", folder.name(), &name], &workspace),
            rollout: name,
        })
    }
}

/// The last text that the agent wrote in its first sample.
async fn answer(store: &dyn Store, rollout: &RolloutRecord) -> Result<Option<String>, RunError> {
    let samples = store.samples(&rollout.id).await?;
    let talks = transcripts::of(store, &rollout.id, &samples, &Telling::default()).await?;
    let transcriber = Transcriber::default();
    let main = talks.iter().find_map(|talk| {
        let conversation = talk.conversations.get(talk.main)?;
        transcriber.paths(std::slice::from_ref(conversation)).pop()
    });
    let entries = main.unwrap_or_default();
    let said = entries.into_iter().rev();
    let mut said = said.filter(|entry| entry.speaker == Speaker::Assistant);
    Ok(said
        .find(|entry| !entry.text.trim().is_empty())
        .map(|entry| entry.text))
}

fn excerpt(text: &str) -> String {
    let count = text.chars().count();
    if count <= EXCERPT {
        return text.to_owned();
    }
    let start: String = text.chars().take(EXCERPT).collect();
    format!("{start}… ({} characters more)", count - EXCERPT)
}
