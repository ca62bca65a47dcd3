//! The rows of `examples/calculator`.

use std::collections::HashSet;
use std::error::Error;
use std::fs;
use std::path::Path;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::questions::{EXPRESSIONS, Exercise, Phrasing, Question, Reserved};

pub(crate) const SEED: u64 = 20_240_817;
/// Of each phrasing that is trained on.
const TRAINING_ROWS_PER_PHRASING: usize = 10;
/// Of each expression, in the phrasing that only these rows have. There are as many in phrasings that are
/// trained on.
const UNSEEN_ROWS_PER_EXPRESSION: usize = 4;

/// Questions to train on, questions to find settings with, and questions to report. No two of the three
/// share an operation on the same two numbers.
pub(crate) struct Dataset {
    pub(crate) training: Vec<Question>,
    pub(crate) tuning: Vec<Question>,
    pub(crate) held_out: Vec<Question>,
}

impl Dataset {
    /// Always the same.
    pub(crate) fn draw() -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        let mut taken = HashSet::new();
        let held_out = examined(Reserved::HeldOut, &mut taken, &mut rng);
        let tuning = examined(Reserved::Tuning, &mut taken, &mut rng);
        let mut training = Vec::new();
        let mut texts = HashSet::new();
        for phrasing in Phrasing::reserved_for(Reserved::Training) {
            let wanted = training.len() + TRAINING_ROWS_PER_PHRASING;
            while training.len() < wanted {
                let question = Question::phrased(phrasing, &mut rng);
                if !taken.contains(&question.exercise()) && texts.insert(question.text.clone()) {
                    training.push(question);
                }
            }
        }
        training.shuffle(&mut rng);
        Self {
            training,
            tuning,
            held_out,
        }
    }

    /// What the warm start must not see: the operations and numbers of tuning and held-out rows.
    pub(crate) fn kept_out(&self) -> HashSet<Exercise> {
        [&self.tuning, &self.held_out]
            .into_iter()
            .flatten()
            .map(Question::exercise)
            .collect()
    }

    /// The files by their names, without `.jsonl`.
    pub(crate) fn files(&self) -> [(&'static str, String); 3] {
        [
            ("train", &self.training),
            ("tuning", &self.tuning),
            ("held_out", &self.held_out),
        ]
        .map(|(name, questions)| (name, questions.iter().map(line).collect()))
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
        for (name, lines) in self.files() {
            fs::write(folder.join(format!("{name}.jsonl")), lines)?;
        }
        Ok(())
    }
}

/// Rows with exercises of their own, half of them in the phrasings that are reserved for them.
fn examined(
    reserved: Reserved,
    taken: &mut HashSet<Exercise>,
    rng: &mut ChaCha8Rng,
) -> Vec<Question> {
    let unseen = Phrasing::reserved_for(reserved);
    let trained = Phrasing::reserved_for(Reserved::Training);
    let mut questions = Vec::new();
    for expression in 0..EXPRESSIONS.len() {
        for phrasings in [&unseen, &trained] {
            let phrasings: Vec<Phrasing> = phrasings
                .iter()
                .copied()
                .filter(|phrasing| phrasing.expression == expression)
                .collect();
            let wanted = questions.len() + UNSEEN_ROWS_PER_EXPRESSION;
            while questions.len() < wanted {
                let question = Question::draw(&phrasings, rng);
                if taken.insert(question.exercise()) {
                    questions.push(question);
                }
            }
        }
    }
    questions.shuffle(rng);
    questions
}

fn line(question: &Question) -> String {
    let mut row = json!({
        "user_prompt": question.text,
        "ground_truth": question.answer.to_string(),
    });
    if question.is_unseen_phrasing() {
        row["metadata"] = json!({"unseen_phrasing": true});
    }
    format!("{row}\n")
}
