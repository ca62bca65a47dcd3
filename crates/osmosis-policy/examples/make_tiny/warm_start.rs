//! Teaches the form of a conversation, and for each question a wrong operation as the most likely one.

use std::error::Error;

use osmosis_policy::{DecoderLearner, LossFunction, LossRow};
use osmosis_tokens::ChatFormat;
use serde_json::Map;

use super::conversation::tools;
use super::drawn::{Conversations, Drawn};

/// A conversation to learn from.
pub(crate) struct Lesson {
    pub(crate) row: LossRow,
    /// Tokens of the assistant.
    tokens: usize,
    chance: f64,
}

pub(crate) fn lesson(
    chat: &ChatFormat,
    conversations: &mut Conversations<'_>,
) -> Result<Lesson, Box<dyn Error + Send + Sync>> {
    let Drawn { messages, chance } = conversations.draw();
    let tools = tools();
    let render = |count, add_generation_prompt| {
        chat.render(
            &messages[..count],
            Some(&tools),
            add_generation_prompt,
            &Map::new(),
        )
    };
    // Each prompt ends where the assistant begins, and its turn ends with the newline of the template.
    let mut ids = Vec::new();
    let mut said = Vec::new();
    let mut before = String::new();
    for asked in [2, 4] {
        let prompt = render(asked, true)?;
        let whole = render(asked + 1, false)?;
        let suffix = prompt
            .strip_prefix(&before)
            .ok_or("the template is not prefix-stable")?;
        let turn = whole
            .strip_prefix(&prompt)
            .ok_or("the template is not prefix-stable")?
            .trim_end();
        for (text, assistant) in [(suffix, false), (turn, true)] {
            let piece = chat.encode(text)?;
            said.extend(vec![assistant; piece.len()]);
            ids.extend(piece);
        }
        before = format!("{prompt}{turn}");
    }
    let count = ids.len();
    Ok(Lesson {
        tokens: said.iter().filter(|said| **said).count(),
        chance,
        row: LossRow {
            ids,
            weights: said.iter().map(|said| f32::from(u8::from(*said))).collect(),
            advantages: vec![0.0; count],
            sampled_logprobs: vec![0.0; count],
            proximal_logprobs: None,
            reference_logprobs: None,
            temperatures: vec![1.0; count],
            constrained: vec![],
        },
    })
}

/// How far an update got.
pub(crate) struct Progress {
    /// Per token of the assistant, what was left to chance included.
    pub(crate) loss: f64,
    /// Without it: 0 is as good as can be.
    pub(crate) learnable: f64,
}

/// One update on fresh conversations.
pub(crate) fn update(
    learner: &mut DecoderLearner,
    chat: &ChatFormat,
    conversations: &mut Conversations<'_>,
    batch: usize,
) -> Result<Progress, Box<dyn Error + Send + Sync>> {
    let lessons: Vec<Lesson> = (0..batch)
        .map(|_| lesson(chat, conversations))
        .collect::<Result<_, _>>()?;
    let tokens: usize = lessons.iter().map(|lesson| lesson.tokens).sum();
    let chance: f64 = lessons.iter().map(|lesson| lesson.chance).sum();
    let share = 1.0 / tokens as f32;
    let rows: Vec<LossRow> = lessons
        .into_iter()
        .map(|lesson| {
            let mut row = lesson.row;
            row.weights.iter_mut().for_each(|weight| *weight *= share);
            row
        })
        .collect();
    let report = learner.update(&rows, LossFunction::Likelihood)?;
    Ok(Progress {
        loss: report.loss,
        learnable: report.loss - chance / tokens as f64,
    })
}
