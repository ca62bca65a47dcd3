//! What was said in a rollout, as the viewer shows it: every turn once, and the paths through them.

use std::sync::Arc;

use osmosis_core::{Sample, SampleId};
use osmosis_data::conversation::{CallFacts, Conversation, Part, Turn};
use osmosis_store::{RolloutRecord, Store};
use osmosis_tokens::ChatFormat;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::RunError;
use crate::transcripts::{self, Telling};

/// The `data` of `GET /api/v1/runs/{run}/rollouts/{rollout}/transcript`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutTranscript {
    pub samples: Vec<SampleTranscript>,
}

/// The turns of one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SampleTranscript {
    pub sample_id: SampleId,
    pub reward: Option<f64>,
    /// The grader took it out.
    pub removed: bool,
    /// What the last call offered, in the shape of Chat Completions.
    pub tools: Vec<Value>,
    /// Turns that several paths begin with are there once.
    pub turns: Vec<TranscriptTurn>,
    /// From a first message to a last one. The sample's own is the first.
    pub paths: Vec<TranscriptPath>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TranscriptPath {
    /// Indices into the sample's turns.
    pub turns: Vec<usize>,
    /// Why the last call has no reply, when it has none.
    pub error: Option<String>,
}

/// What one side said before the other side spoke.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TranscriptTurn {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    pub content: Vec<TranscriptPart>,
    pub reasoning: Option<String>,
    pub tool_calls: Vec<ToolCallDetails>,
    /// The id of the tool call that a tool's result answers.
    pub answers: Option<String>,
    /// The tool reported a failure.
    pub is_error: bool,
    /// Milliseconds since 1970.
    pub at_ms: Option<i64>,
    /// The model call that made this turn.
    pub call: Option<TurnCall>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TranscriptPart {
    Text {
        text: String,
    },
    /// An address, or the picture itself as a `data:` URL.
    Image {
        url: String,
    },
    /// A call that was made in token ids. `text` is `null` without the policy's tokenizer.
    Tokens {
        count: u64,
        text: Option<String>,
    },
    /// A shape of the framework's own, as it was.
    Other {
        value: Value,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolCallDetails {
    /// Empty if it has none.
    pub id: String,
    pub name: String,
    /// As the model wrote them.
    pub arguments: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnCall {
    pub call_id: u64,
    pub model: String,
    pub finish_reason: Option<String>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    /// Milliseconds since 1970, as is the next.
    pub queued_at_ms: i64,
    pub done_at_ms: i64,
}

impl RolloutTranscript {
    /// `calls` is where its calls are: another run than the rollout's when it was graded again.
    pub async fn of(
        store: &dyn Store,
        calls: &dyn Store,
        rollout: &RolloutRecord,
        tokenizer: impl Future<Output = Option<Arc<ChatFormat>>> + Send,
    ) -> Result<Self, RunError> {
        let samples: Vec<Sample> = store.samples(&rollout.id).await?;
        let talks = transcripts::of(calls, &rollout.id, &samples, &Telling::default()).await?;
        let in_ids = talks
            .iter()
            .flat_map(|talk| &talk.conversations)
            .flat_map(|conversation| &conversation.turns)
            .any(|turn| turn.token_ids.is_some());
        let tokenizer = if in_ids { tokenizer.await } else { None };
        let samples = talks.into_iter().map(|talk| {
            let mut conversations = talk.conversations;
            if talk.main < conversations.len() {
                conversations[..=talk.main].rotate_right(1);
            }
            let mut sample = SampleTranscript {
                sample_id: talk.id,
                reward: talk.reward,
                removed: talk.removed,
                tools: conversations
                    .first()
                    .map_or_else(Vec::new, |it| it.tools.clone()),
                turns: vec![],
                paths: vec![],
            };
            let mut parents = vec![];
            for conversation in conversations {
                sample.add(conversation, &mut parents, tokenizer.as_deref());
            }
            sample
        });
        Ok(Self {
            samples: samples.collect(),
        })
    }
}

impl SampleTranscript {
    /// `parents` has the turn before each turn.
    fn add(
        &mut self,
        conversation: Conversation,
        parents: &mut Vec<Option<usize>>,
        tokenizer: Option<&ChatFormat>,
    ) {
        let mut path = vec![];
        for turn in conversation.turns {
            let turn = TranscriptTurn::of(turn, tokenizer);
            let parent = path.last().copied();
            let after = parent.map_or(0, |parent: usize| parent + 1);
            let known = (after..self.turns.len())
                .find(|place| parents[*place] == parent && self.turns[*place].says(&turn));
            let place = known.unwrap_or_else(|| {
                self.turns.push(turn);
                parents.push(parent);
                self.turns.len() - 1
            });
            path.push(place);
        }
        let inside = |other: &TranscriptPath| other.turns.starts_with(&path);
        if conversation.error.is_none() && self.paths.iter().any(inside) {
            return;
        }
        self.paths.push(TranscriptPath {
            turns: path,
            error: conversation.error,
        });
    }
}

impl TranscriptTurn {
    fn of(turn: Turn, tokenizer: Option<&ChatFormat>) -> Self {
        let tokens = turn.token_ids.map(|ids| TranscriptPart::Tokens {
            count: ids.len() as u64,
            text: tokenizer.and_then(|tokenizer| tokenizer.decode(&ids, false).ok()),
        });
        let content = turn.content.into_iter().map(|part| match part {
            Part::Text(text) => TranscriptPart::Text { text },
            Part::Image(url) => TranscriptPart::Image { url },
            Part::Other(value) => TranscriptPart::Other { value },
        });
        Self {
            role: turn.role.as_str().to_owned(),
            content: tokens.into_iter().chain(content).collect(),
            reasoning: turn.reasoning,
            tool_calls: turn
                .tool_calls
                .into_iter()
                .map(|call| ToolCallDetails {
                    id: call.id,
                    name: call.name,
                    arguments: call.arguments,
                })
                .collect(),
            answers: turn.answers,
            is_error: turn.is_error,
            at_ms: turn.at_ms,
            call: turn.call.map(|call| TurnCall::of(&call)),
        }
    }

    /// Whether it is the same turn in another path: what the request of one call repeats has no times and no call.
    fn says(&self, other: &Self) -> bool {
        let same_call = match (&self.call, &other.call) {
            (Some(one), Some(other)) => one.call_id == other.call_id,
            (None, _) | (_, None) => true,
        };
        same_call
            && self.role == other.role
            && self.content == other.content
            && self.tool_calls == other.tool_calls
            && self.answers == other.answers
    }
}

impl TurnCall {
    fn of(call: &CallFacts) -> Self {
        Self {
            call_id: call.call_id,
            model: call.model.clone(),
            finish_reason: call.finish_reason.clone(),
            prompt_tokens: call.usage.prompt_tokens,
            completion_tokens: call.usage.completion_tokens,
            queued_at_ms: call.queued_at_ms,
            done_at_ms: call.done_at_ms,
        }
    }
}
