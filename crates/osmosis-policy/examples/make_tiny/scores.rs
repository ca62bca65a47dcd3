//! Rewards of a model, drawn and greedy, with unseen phrasings apart.

use std::error::Error;
use std::fmt;

use osmosis_policy::Sampler;
use osmosis_tokens::ChatFormat;

use super::environment::{Episode, play};
use super::questions::Question;

/// Mean rewards over the rows of one file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Scores {
    pub(crate) sampled: f32,
    pub(crate) greedy: f32,
    pub(crate) unseen_sampled: f32,
    pub(crate) unseen_greedy: f32,
    /// The share of rows for which the most likely operation is the right one.
    pub(crate) right_mode: f32,
}

impl Scores {
    /// Asks every question once at temperature 1 and once at temperature 0.
    pub(crate) fn measure(
        sampler: &Sampler,
        chat: &ChatFormat,
        questions: &[Question],
        key: (u64, u64),
    ) -> Result<(Self, Vec<Episode>), Box<dyn Error + Send + Sync>> {
        let sampled = play(sampler, chat, questions, 1.0, key)?;
        let greedy = play(sampler, chat, questions, 0.0, key)?;
        let reward = |episode: &Episode| Some(episode.reward);
        let unseen = |episode: &Episode| {
            let unseen = episode.question.is_unseen_phrasing();
            unseen.then_some(episode.reward)
        };
        let right = |episode: &Episode| {
            let right = episode.operation == Some(episode.question.operation());
            Some(f32::from(u8::from(right)))
        };
        let scores = Self {
            sampled: mean(&sampled, reward),
            greedy: mean(&greedy, reward),
            unseen_sampled: mean(&sampled, unseen),
            unseen_greedy: mean(&greedy, unseen),
            right_mode: mean(&greedy, right),
        };
        Ok((scores, sampled))
    }
}

impl fmt::Display for Scores {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "sampled {:.3} greedy {:.3} (unseen phrasings {:.3} and {:.3}; right operation most likely {:.3})",
            self.sampled, self.greedy, self.unseen_sampled, self.unseen_greedy, self.right_mode
        )
    }
}

/// Of the episodes that have a value.
fn mean(episodes: &[Episode], value: impl Fn(&Episode) -> Option<f32>) -> f32 {
    let values: Vec<f32> = episodes.iter().filter_map(value).collect();
    values.iter().sum::<f32>() / values.len() as f32
}
