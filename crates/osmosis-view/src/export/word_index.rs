//! Which rollouts of a run have which words and called which tools, for the search of a static copy.
//!
//! There is no server to ask, so the page reads files: one for all words whose first character has the same rest, so
//! that a search for a word, or for the beginning of one, reads a single file. `web/parts/export_search.js` reads them.

use std::collections::{BTreeMap, BTreeSet};

use osmosis_run::reports::{RolloutTranscript, TranscriptPart, TranscriptTurn};

/// Files of words, as the page has it.
const FILES: u32 = 64;
/// Characters of a word that count, as the page has it: encoded data would be one word of any length.
const WORD: usize = 40;

/// Places of rollouts in the grid by word, each as the distance from the one before.
type Postings = BTreeMap<String, Vec<u32>>;

#[derive(Debug, Default)]
pub(super) struct WordIndex {
    words: BTreeMap<u32, Places>,
    tools: Places,
}

#[derive(Debug, Default)]
struct Places {
    steps: Postings,
    last: BTreeMap<String, u32>,
}

impl WordIndex {
    /// Rollouts come in the order of their places. The transcript is as the copy has it: without secrets.
    pub(super) fn add(&mut self, place: u32, transcript: &RolloutTranscript, error: Option<&str>) {
        let mut words = BTreeSet::new();
        let mut tools = BTreeSet::new();
        collect(error.unwrap_or_default(), &mut words);
        for sample in &transcript.samples {
            for turn in &sample.turns {
                read(turn, &mut words, &mut tools);
            }
            for path in &sample.paths {
                collect(path.error.as_deref().unwrap_or_default(), &mut words);
            }
        }
        for word in words {
            let file = word.chars().next().map_or(0, u32::from) % FILES;
            self.words.entry(file).or_default().add(word, place);
        }
        for tool in tools {
            self.tools.add(tool, place);
        }
    }

    /// The files: path and content.
    pub(super) fn files(&self) -> impl Iterator<Item = (String, &Postings)> {
        let words = self.words.iter();
        let words = words.map(|(file, places)| (format!("words/{file}"), &places.steps));
        words.chain(std::iter::once(("tools".to_owned(), &self.tools.steps)))
    }
}

impl Places {
    fn add(&mut self, word: String, place: u32) {
        let before = self.last.get(&word).copied();
        let steps = self.steps.entry(word.clone()).or_default();
        steps.push(place - before.unwrap_or(0));
        self.last.insert(word, place);
    }
}

fn read(turn: &TranscriptTurn, words: &mut BTreeSet<String>, tools: &mut BTreeSet<String>) {
    for part in &turn.content {
        match part {
            TranscriptPart::Text { text } => collect(text, words),
            TranscriptPart::Tokens { text, .. } => {
                collect(text.as_deref().unwrap_or_default(), words)
            }
            TranscriptPart::Other { value } => collect(&value.to_string(), words),
            TranscriptPart::Image { .. } => {}
        }
    }
    collect(turn.reasoning.as_deref().unwrap_or_default(), words);
    for call in &turn.tool_calls {
        tools.insert(call.name.clone());
        collect(&call.name, words);
        collect(&call.arguments, words);
    }
}

/// Letters and digits in a row are a word, in any case.
fn collect(text: &str, words: &mut BTreeSet<String>) {
    let parts = text.split(|c: char| !c.is_alphanumeric());
    for part in parts.filter(|part| !part.is_empty()) {
        let word = part.to_lowercase().chars().take(WORD).collect();
        words.insert(word);
    }
}

#[cfg(test)]
mod tests {
    use osmosis_run::reports::{SampleTranscript, ToolCallDetails, TranscriptPath};

    use super::*;

    fn said(text: &str, tool: Option<&str>) -> RolloutTranscript {
        RolloutTranscript {
            samples: vec![SampleTranscript {
                sample_id: osmosis_core::SampleId::main(),
                reward: None,
                removed: false,
                tools: vec![],
                turns: vec![TranscriptTurn {
                    role: "assistant".to_owned(),
                    content: vec![TranscriptPart::Text {
                        text: text.to_owned(),
                    }],
                    reasoning: None,
                    tool_calls: tool
                        .map(|name| ToolCallDetails {
                            id: String::new(),
                            name: name.to_owned(),
                            arguments: "{}".to_owned(),
                        })
                        .into_iter()
                        .collect(),
                    answers: None,
                    is_error: false,
                    at_ms: None,
                    call: None,
                }],
                paths: vec![TranscriptPath {
                    turns: vec![0],
                    error: None,
                }],
            }],
        }
    }

    #[test]
    fn words_are_found_by_place_whatever_their_case() {
        let mut index = WordIndex::default();
        index.add(0, &said("It is Forty-two.", None), None);
        index.add(3, &said("forty", Some("multiply")), None);
        index.add(5, &said("x", None), Some("ValueError: FORTY"));
        let files: BTreeMap<String, &Postings> = index.files().collect();
        let f = u32::from('f') % FILES;
        assert_eq!(files[&format!("words/{f}")]["forty"], [0, 3, 2]);
        assert_eq!(files["tools"]["multiply"], [3]);
    }
}
