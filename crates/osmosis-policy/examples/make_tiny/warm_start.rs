//! Teaches the form of a conversation, and next to nothing of which operation a question asks for.

use std::collections::HashSet;
use std::error::Error;

use osmosis_policy::{Learner, LossRow, Objective};
use osmosis_tokens::ChatFormat;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value};

use crate::conversation::{answered, tools};
use crate::questions::{Operation, Question};

const BATCH: usize = 64;
/// How often the operation is the one that the question asks for. Were it drawn evenly, the model would
/// have no idea yet that it depends on the question, and reinforcement would find the operation that is
/// right most often, and stay there.
const RIGHT_OPERATION: f64 = 0.26;
/// How often the numbers are in the order that the question asks for.
const RIGHT_ORDER: f64 = 0.6;
const WARM_UP: usize = 50;

/// A question that the assistant answers with a drawn operation and a drawn order of the numbers.
pub(crate) struct Drawn {
    pub(crate) messages: Vec<Value>,
    /// The nats of it that nobody could learn, since they were drawn.
    chance: f64,
}

impl Drawn {
    /// Draws another question when the first is one of those kept out.
    pub(crate) fn new(kept_out: &HashSet<String>, rng: &mut ChaCha8Rng) -> Self {
        let question = loop {
            let question = Question::draw(rng);
            if !kept_out.contains(&question.text) {
                break question;
            }
        };
        let wrong: Vec<Operation> = Operation::ALL
            .into_iter()
            .filter(|one| *one != question.operation)
            .collect();
        let (operation, drawn) = if rng.random_bool(RIGHT_OPERATION) {
            (question.operation, RIGHT_OPERATION)
        } else {
            let drawn = (1.0 - RIGHT_OPERATION) / wrong.len() as f64;
            (wrong[rng.random_range(0..wrong.len())], drawn)
        };
        let right_order = rng.random_bool(RIGHT_ORDER);
        let (a, b) = if right_order {
            (question.a, question.b)
        } else {
            (question.b, question.a)
        };
        let order = match (a == b, right_order) {
            (true, _) => 1.0,
            (false, true) => RIGHT_ORDER,
            (false, false) => 1.0 - RIGHT_ORDER,
        };
        Self {
            messages: answered(&question, operation, a, b),
            chance: -drawn.ln() - order.ln(),
        }
    }
}

/// A conversation to learn from.
pub(crate) struct Lesson {
    pub(crate) row: LossRow,
    /// Tokens of the assistant.
    tokens: usize,
    chance: f64,
}

pub(crate) fn lesson(
    chat: &ChatFormat,
    kept_out: &HashSet<String>,
    rng: &mut ChaCha8Rng,
) -> Result<Lesson, Box<dyn Error + Send + Sync>> {
    let Drawn { messages, chance } = Drawn::new(kept_out, rng);
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
    learner: &mut Learner,
    chat: &ChatFormat,
    kept_out: &HashSet<String>,
    rng: &mut ChaCha8Rng,
) -> Result<Progress, Box<dyn Error + Send + Sync>> {
    let lessons: Vec<Lesson> = (0..BATCH)
        .map(|_| lesson(chat, kept_out, rng))
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
    let report = learner.update(&rows, Objective::Likelihood)?;
    Ok(Progress {
        loss: report.loss,
        learnable: report.loss - chance / tokens as f64,
    })
}

/// Up in a straight line, then down along a cosine to a twentieth.
pub(crate) fn learning_rate(peak: f64, step: usize, steps: usize) -> f64 {
    let up = (step + 1) as f64 / WARM_UP as f64;
    let along = step as f64 / steps as f64;
    let down = 0.05 + 0.95 * 0.5 * (1.0 + (along * std::f64::consts::PI).cos());
    peak * up.min(1.0) * down
}
