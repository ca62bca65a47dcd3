//! The conversations of the warm start: right in form, mostly wrong in the operation.

use std::collections::HashSet;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::conversation::answered;
use super::questions::{Exercise, Operation, Phrasing, Question, Reserved};
use super::settings::Settings;

/// What random numbers are for. Each purpose has a sequence of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    #[allow(dead_code, reason = "a module that is shared with the tests")]
    TokenizerTexts = 1,
    InitialWeights = 2,
    Conversations = 3,
    #[allow(dead_code, reason = "a module that is shared with the tests")]
    Examination = 4,
}

pub(crate) fn random_numbers(seed: u64, purpose: Purpose) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(purpose as u64);
    rng
}

/// Draws conversations.
pub(crate) struct Conversations<'a> {
    settings: &'a Settings,
    kept_out: &'a HashSet<Exercise>,
    phrasings: Vec<Phrasing>,
    rng: ChaCha8Rng,
}

/// A question that the assistant answers with a drawn operation and a drawn order of the numbers.
pub(crate) struct Drawn {
    pub(crate) messages: Vec<Value>,
    /// The nats of it that nobody could learn, since they were drawn.
    #[allow(dead_code, reason = "a module that is shared with the tests")]
    pub(crate) chance: f64,
}

impl<'a> Conversations<'a> {
    pub(crate) fn new(
        settings: &'a Settings,
        kept_out: &'a HashSet<Exercise>,
        purpose: Purpose,
    ) -> Self {
        Self {
            settings,
            kept_out,
            phrasings: Phrasing::reserved_for(Reserved::Training),
            rng: random_numbers(settings.seed, purpose),
        }
    }

    /// About a question in a phrasing that is trained on, with numbers that are not kept out.
    pub(crate) fn draw(&mut self) -> Drawn {
        let rng = &mut self.rng;
        let question = loop {
            let question = Question::draw(&self.phrasings, rng);
            if !self.kept_out.contains(&question.exercise()) {
                break question;
            }
        };
        let chances = self.chances(&question);
        let rng = &mut self.rng;
        let mut left: f64 = rng.random();
        let (operation, drawn) = chances
            .into_iter()
            .find(|(_, chance)| {
                left -= chance;
                left < 0.0
            })
            .unwrap_or(chances[0]);
        let right_order = rng.random_bool(self.settings.right_order);
        let (a, b) = if right_order {
            (question.a, question.b)
        } else {
            (question.b, question.a)
        };
        let order = match (a == b, right_order) {
            (true, _) => 1.0,
            (false, true) => self.settings.right_order,
            (false, false) => 1.0 - self.settings.right_order,
        };
        Drawn {
            messages: answered(&question, operation, a, b),
            chance: -drawn.ln() - order.ln(),
        }
    }

    /// How likely each operation is for a question.
    fn chances(&self, question: &Question) -> [(Operation, f64); 8] {
        let Settings {
            right_operation: right,
            decoy_operation: decoy,
            ..
        } = *self.settings;
        let expression = question.phrasing.expression();
        Operation::ALL.map(|operation| {
            let chance = if operation == expression.operation {
                right
            } else if operation == expression.decoy {
                decoy
            } else {
                (1.0 - right - decoy) / (Operation::ALL.len() - 2) as f64
            };
            (operation, chance)
        })
    }
}
