//! An evaluation on held-out rows, as reports have it.

use osmosis_train::{ByDecoding, EvaluationReport, HeldOutNumbers};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Held-out rows, evaluated with the weights after a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HeldOutPoint {
    /// 0 before training.
    pub step: u64,
    /// At the training temperature.
    pub sampled: HeldOutScore,
    /// At temperature 0; `null` in runs from before this was evaluated.
    pub greedy: Option<HeldOutScore>,
    /// Over the rows whose phrasing is never trained on, where there are such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen_phrasings: Option<HeldOutScores>,
}

/// The same rows, decoded in two ways.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HeldOutScores {
    pub sampled: HeldOutScore,
    pub greedy: Option<HeldOutScore>,
}

/// One set of rows, decoded in one way: a rollout for each row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HeldOutScore {
    /// Mean reward over the scored rollouts.
    #[serde(rename = "mean")]
    pub reward_mean: Option<f64>,
    /// 95% interval of the mean reward, clustered by dataset row.
    #[serde(rename = "ci95")]
    pub reward_ci95: Option<[f64; 2]>,
    /// Passed / all that ran.
    pub pass_rate: Option<f64>,
    pub pass_rate_ci95: Option<[f64; 2]>,
    pub rollouts: u64,
    pub ran: u64,
    pub scored: u64,
    /// Those that ran and have no reward.
    pub failed: u64,
    pub infrastructure_failed: u64,
}

/// A score with the name of its rows and decoding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NamedScore {
    /// `greedy`, `unseen phrasings, sampled`.
    pub name: &'static str,
    pub score: HeldOutScore,
}

impl HeldOutPoint {
    pub fn of(step: u64, evaluation: &EvaluationReport) -> Self {
        let HeldOutScores { sampled, greedy } = HeldOutScores::of(&evaluation.all);
        Self {
            step,
            sampled,
            greedy,
            unseen_phrasings: evaluation.unseen_phrasings.as_ref().map(HeldOutScores::of),
        }
    }

    /// All there is, in the order in which it is shown.
    pub fn all(&self) -> Vec<NamedScore> {
        let unseen = self.unseen_phrasings.as_ref();
        let all = [
            ("sampled", Some(self.sampled)),
            ("greedy", self.greedy),
            ("unseen phrasings, sampled", unseen.map(|it| it.sampled)),
            ("unseen phrasings, greedy", unseen.and_then(|it| it.greedy)),
        ];
        all.into_iter()
            .filter_map(|(name, score)| score.map(|score| NamedScore { name, score }))
            .collect()
    }

    /// `before training`, `after step 20`.
    pub fn when(&self) -> String {
        match self.step {
            0 => "before training".to_owned(),
            step => format!("after step {step}"),
        }
    }
}

impl HeldOutScores {
    fn of(decoded: &ByDecoding) -> Self {
        Self {
            sampled: HeldOutScore::of(&decoded.sampled),
            greedy: decoded.greedy.as_ref().map(HeldOutScore::of),
        }
    }
}

impl HeldOutScore {
    fn of(numbers: &HeldOutNumbers) -> Self {
        Self {
            reward_mean: numbers.reward_mean,
            reward_ci95: numbers.reward_ci95,
            pass_rate: numbers.pass_rate,
            pass_rate_ci95: numbers.pass_rate_ci95,
            rollouts: numbers.rollouts,
            ran: numbers.ran,
            scored: numbers.scored,
            failed: numbers.failed,
            infrastructure_failed: numbers.infrastructure_failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_json_has_sampled_greedy_and_unseen_phrasings() {
        let numbers = |mean: f64| HeldOutNumbers {
            reward_mean: Some(mean),
            reward_ci95: Some([0.2, 0.3]),
            failed: 2,
            ..HeldOutNumbers::default()
        };
        let mut evaluation = EvaluationReport {
            all: ByDecoding {
                sampled: numbers(0.5),
                greedy: Some(numbers(0.25)),
            },
            ..EvaluationReport::default()
        };
        let json = |evaluation: &EvaluationReport| {
            serde_json::to_value(HeldOutPoint::of(3, evaluation)).unwrap()
        };
        let one = json(&evaluation);
        let keys: Vec<&String> = one.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["step", "sampled", "greedy"], "{one}");
        assert_eq!(one["sampled"]["mean"], 0.5);
        assert_eq!(one["greedy"]["mean"], 0.25);
        assert_eq!(one["greedy"]["ci95"], json!([0.2, 0.3]));
        assert_eq!(one["sampled"]["failed"], 2);
        evaluation.unseen_phrasings = Some(ByDecoding {
            sampled: HeldOutNumbers::default(),
            greedy: Some(HeldOutNumbers::default()),
        });
        evaluation.all.greedy = None;
        let one = json(&evaluation);
        assert_eq!(one["unseen_phrasings"]["sampled"]["ci95"], Value::Null);
        assert_eq!(one["unseen_phrasings"]["greedy"]["mean"], Value::Null);
        assert_eq!(one["greedy"], Value::Null);
    }
}
