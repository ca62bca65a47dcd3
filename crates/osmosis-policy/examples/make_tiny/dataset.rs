//! The rows of `examples/calculator`.

use std::collections::HashSet;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::questions::Question;

const SEED: u64 = 20_240_817;
const TRAINING_ROWS: usize = 640;
const HELD_OUT_ROWS: usize = 128;

/// Questions to train on and questions to be examined with; none is in both.
pub(crate) struct Dataset {
    pub(crate) training: Vec<Question>,
    pub(crate) held_out: Vec<Question>,
}

impl Dataset {
    /// Always the same.
    pub(crate) fn draw() -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        let mut taken = HashSet::new();
        let held_out = Question::distinct(HELD_OUT_ROWS, &mut taken, &mut rng);
        let training = Question::distinct(TRAINING_ROWS, &mut taken, &mut rng);
        Self { training, held_out }
    }

    /// The texts that the warm start must not see.
    pub(crate) fn held_out_texts(&self) -> HashSet<String> {
        self.held_out
            .iter()
            .map(|question| question.text.clone())
            .collect()
    }

    /// Writes `train.jsonl` and `held_out.jsonl`.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
        for (name, questions) in [("train", &self.training), ("held_out", &self.held_out)] {
            let mut lines = String::new();
            for question in questions {
                let row = json!({
                    "user_prompt": question.text,
                    "ground_truth": question.answer.to_string(),
                });
                writeln!(lines, "{row}")?;
            }
            fs::write(folder.join(format!("{name}.jsonl")), lines)?;
        }
        Ok(())
    }
}
