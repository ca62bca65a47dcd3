//! Which rollouts contain a text: in the messages of their samples, in their error, or in their model calls.

use std::fmt;

use osmosis_core::{JsonText, Outcome, RolloutId, Sample};
use osmosis_data::conversation::{Conversation, Turn};
use osmosis_data::export::SampleTalk;
use osmosis_store::RolloutRecord;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};

use super::SearchedRun;
use super::raw_calls::RawText;
use crate::RunError;
use crate::transcripts::{self, Telling};

/// Rollouts whose samples are in memory at once.
const AT_ONCE: usize = 200;

/// A text to look for, in upper or lower case.
#[derive(Debug)]
pub(super) struct TextSearch {
    lowercase: String,
}

impl TextSearch {
    pub(super) fn new(text: &str) -> Self {
        Self {
            lowercase: text.to_lowercase(),
        }
    }

    /// Whether each of the rollouts contains the text.
    pub(super) async fn found_in(
        &self,
        run: SearchedRun<'_>,
        rollouts: &[&RolloutRecord],
    ) -> Result<Vec<bool>, RunError> {
        let mut found = Vec::with_capacity(rollouts.len());
        for some in rollouts.chunks(AT_ONCE) {
            found.extend(self.found_in_some(run, some).await?);
        }
        Ok(found)
    }

    async fn found_in_some(
        &self,
        run: SearchedRun<'_>,
        rollouts: &[&RolloutRecord],
    ) -> Result<Vec<bool>, RunError> {
        let ids: Vec<RolloutId> = rollouts.iter().map(|rollout| rollout.id.clone()).collect();
        let samples = run.store.samples_of(&ids).await?;
        let mut found: Vec<bool> = rollouts
            .iter()
            .zip(&samples)
            .map(|(rollout, samples)| {
                let why = rollout.outcome.as_ref().and_then(Outcome::explanation);
                why.is_some_and(|why| self.is_in(&why))
                    || samples
                        .iter()
                        .any(|sample| self.is_in_json(&sample.messages))
            })
            .collect();
        // System prompts, what other agents said and rollouts without messages are in calls alone, which cost more to
        // read: their bytes are looked at first.
        let unread: Vec<RolloutId> = (0..rollouts.len())
            .filter(|place| !found[*place])
            .filter(|place| run.calls_are_elsewhere() || rollouts[*place].calls.model_calls > 0)
            .map(|place| ids[place].clone())
            .collect();
        let candidates = RawText::new(&self.lowercase)
            .candidates(run.calls, &unread)
            .await?;
        let places: Vec<usize> = (0..rollouts.len())
            .filter(|place| candidates.contains(&ids[*place]))
            .collect();
        let candidates: Vec<RolloutId> = places.iter().map(|place| ids[*place].clone()).collect();
        let theirs = places.iter().map(|place| samples[*place].as_slice());
        let telling = Telling::default();
        let talks = transcripts::of_each(run.calls, &candidates, theirs, &telling).await?;
        for (place, talks) in places.into_iter().zip(&talks) {
            found[place] = self.is_in_talks(talks);
        }
        Ok(found)
    }

    fn is_in(&self, text: &str) -> bool {
        text.to_lowercase().contains(&self.lowercase)
    }

    fn is_in_talks(&self, talks: &[SampleTalk]) -> bool {
        let mut conversations = talks.iter().flat_map(|talk| &talk.conversations);
        conversations.any(|conversation| self.is_in_conversation(conversation))
    }

    fn is_in_conversation(&self, conversation: &Conversation) -> bool {
        let error = conversation.error.as_deref();
        error.is_some_and(|error| self.is_in(error))
            || conversation.turns.iter().any(|turn| self.is_in_turn(turn))
    }

    fn is_in_turn(&self, turn: &Turn) -> bool {
        let thought = turn.reasoning.as_deref();
        let mut calls = turn.tool_calls.iter();
        self.is_in(&turn.text())
            || thought.is_some_and(|thought| self.is_in(thought))
            || calls.any(|call| self.is_in(&call.name) || self.is_in(&call.arguments))
    }

    /// In any value of the document; names of fields do not count.
    fn is_in_json(&self, document: &JsonText) -> bool {
        let mut reader = serde_json::Deserializer::from_str(document.as_str());
        match StringsOf(self).deserialize(&mut reader) {
            Ok(found) => found,
            // Documents of older versions may be none; they are read as text.
            Err(_) => self.is_in(document.as_str()),
        }
    }
}

pub(super) fn has_messages(samples: &[Sample]) -> bool {
    samples
        .iter()
        .any(|sample| !matches!(sample.messages.as_str().trim(), "[]" | "null" | ""))
}

/// Reads a document for the strings in it, without building it.
#[derive(Clone, Copy)]
struct StringsOf<'a>(&'a TextSearch);

impl<'de> DeserializeSeed<'de> for StringsOf<'_> {
    type Value = bool;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<bool, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StringsOf<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<bool, E> {
        Ok(self.0.is_in(text))
    }

    fn visit_bool<E>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_i64<E>(self, number: i64) -> Result<bool, E> {
        Ok(self.0.is_in(&number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<bool, E> {
        Ok(self.0.is_in(&number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<bool, E> {
        Ok(self.0.is_in(&number.to_string()))
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        let mut found = false;
        while let Some(inside) = items.next_element_seed(self)? {
            found |= inside;
        }
        Ok(found)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<bool, A::Error> {
        let mut found = false;
        while fields.next_key::<serde::de::IgnoredAny>()?.is_some() {
            found |= fields.next_value_seed(self)?;
        }
        Ok(found)
    }
}
