use osmosis_core::credit::Credit;
use osmosis_core::{ErrorCategory, Failure, Outcome, Reward, RewardRange, Sample};

/// The outcome of graded samples: the mean over the kept ones; it passes when all of them do.
pub fn score(samples: &[Sample], pass_threshold: f64) -> Outcome {
    let kept: Vec<&Sample> = samples.iter().filter(|s| !s.remove_sample).collect();
    if kept.is_empty() {
        return Outcome::Rejected {
            reason: "the grader removed every sample".to_owned(),
        };
    }
    let mut rewards = Vec::with_capacity(kept.len());
    for sample in kept {
        match sample.reward.map(|reward| Reward::new(reward.get())) {
            Some(Ok(reward)) => rewards.push(reward.get()),
            Some(Err(error)) => {
                return Outcome::Ungraded {
                    failure: Failure::new(
                        ErrorCategory::ValidationError,
                        "invalid_reward",
                        format!("sample `{}`: {error}", sample.id),
                    ),
                };
            }
            None => {
                return Outcome::Ungraded {
                    failure: Failure::new(
                        ErrorCategory::ValidationError,
                        "ungraded_sample",
                        format!("the grader left sample `{}` without a reward", sample.id),
                    ),
                };
            }
        }
    }
    let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
    match Reward::new(mean) {
        Ok(reward) => Outcome::Scored {
            reward,
            passed: rewards.iter().all(|r| *r >= pass_threshold),
        },
        Err(error) => Outcome::Ungraded {
            failure: Failure::new(
                ErrorCategory::ValidationError,
                "invalid_reward",
                format!("the mean of the samples' rewards overflows: {error}"),
            ),
        },
    }
}

/// The same outcome, unless a kept sample has a reward outside the stated range: then the config is wrong
/// about the grader, or the grader is wrong, and the rollout has no reward that means anything.
pub fn within_range(outcome: Outcome, samples: &[Sample], range: Option<RewardRange>) -> Outcome {
    let (Some(range), Outcome::Scored { .. }) = (range, &outcome) else {
        return outcome;
    };
    let outside = samples.iter().filter(|s| !s.remove_sample).find_map(|s| {
        let reward = s.reward.filter(|reward| !range.contains(reward.get()))?;
        Some((&s.id, reward))
    });
    match outside {
        None => outcome,
        Some((id, reward)) => Outcome::Ungraded {
            failure: Failure::new(
                ErrorCategory::ValidationError,
                "reward_out_of_range",
                format!(
                    "sample `{id}` has reward {reward}, outside the config's `reward_range` of {range}"
                ),
            ),
        },
    }
}

/// A sample as a grader gets it for the first time: rewards and removals are a grader's alone, whatever an
/// agent, or another grader before, has written there.
pub fn without_grade(sample: Sample) -> Sample {
    Sample {
        reward: None,
        remove_sample: false,
        extra_fields: sample.extra_fields.and_then(Credit::taken_off),
        ..sample
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::{JsonText, OutcomeKind};

    use super::*;
    use crate::decision::fixtures::sample;

    #[test]
    fn the_reward_is_the_mean_of_the_kept_samples_and_all_must_pass() {
        let scored = score(
            &[
                sample("a", Some(1.0), false),
                sample("b", Some(0.5), false),
                sample("c", Some(-9.0), true),
            ],
            1.0,
        );
        assert_eq!(
            scored,
            Outcome::Scored {
                reward: Reward::new(0.75).unwrap(),
                passed: false
            }
        );
        assert!(score(&[sample("a", Some(1.0), false)], 1.0).passed());
    }

    #[test]
    fn a_kept_sample_without_a_reward_is_ungraded_and_never_zero() {
        let outcome = score(
            &[sample("a", None, false), sample("b", Some(1.0), false)],
            1.0,
        );
        assert_eq!(outcome.kind(), OutcomeKind::Ungraded);
        assert_eq!(outcome.reward(), None);
    }

    #[test]
    fn removing_every_sample_is_a_rejection() {
        let outcome = score(&[sample("a", Some(1.0), true)], 1.0);
        assert_eq!(outcome.kind(), OutcomeKind::Rejected);
    }

    #[test]
    fn a_grade_is_taken_off_a_sample_and_nothing_else() {
        let bare = without_grade(sample("a", Some(1.0), true));
        assert_eq!(bare, sample("a", None, false));
        let fields = |text: &str| Some(JsonText::parse(text).unwrap());
        let rewarded = Sample {
            extra_fields: fields(
                r#"{"interactions":[{"completion":"x","calls":[0],"reward":1.0}],"mine":1}"#,
            ),
            ..sample("a", Some(1.0), false)
        };
        assert_eq!(
            without_grade(rewarded).extra_fields,
            fields(r#"{"mine":1}"#)
        );
    }
}
