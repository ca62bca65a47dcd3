//! The grade that a workflow gives itself: of its samples, or of single model calls.

use std::collections::BTreeMap;

use osmosis_core::credit::{Credit, Interaction};
use osmosis_core::frame::InteractionReward;
use osmosis_core::{ErrorCategory, Failure, JsonText, Outcome, Reward, Sample, SampleId};
use osmosis_gateway::GivenCompletion;

use crate::decision::score;

/// How many ids an error names.
const MAX_NAMED: usize = 8;

/// The outcome of a rollout whose workflow is its own grader, with the samples to be recorded.
///
/// Rewards of single calls make one sample out of the calls of each sample id; its reward is their mean.
pub(crate) fn own_grade(
    samples: Vec<Sample>,
    interactions: Vec<InteractionReward>,
    given: &[GivenCompletion],
    pass_threshold: f64,
) -> (Outcome, Vec<Sample>) {
    let samples = if interactions.is_empty() {
        Ok(samples)
    } else {
        rewarded(interactions, given)
    };
    match samples {
        Ok(samples) => (score(&samples, pass_threshold), samples),
        Err(failure) => (Outcome::AgentFailed { failure }, vec![]),
    }
}

fn rewarded(
    interactions: Vec<InteractionReward>,
    given: &[GivenCompletion],
) -> Result<Vec<Sample>, Failure> {
    let mut by_sample: BTreeMap<&SampleId, Vec<Interaction>> = BTreeMap::new();
    let mut unknown = Vec::new();
    for InteractionReward { completion, reward } in interactions {
        let mut found = given.iter().filter(|given| given.id == completion);
        let Some(one) = found.next() else {
            unknown.push(completion);
            continue;
        };
        let more = found.count();
        if more > 0 {
            return Err(ambiguous_completion(&completion, more + 1));
        }
        by_sample.entry(&one.sample).or_default().push(Interaction {
            completion,
            calls: one.calls.clone(),
            reward,
        });
    }
    if !unknown.is_empty() {
        return Err(unknown_completions(&unknown, given));
    }
    by_sample
        .into_iter()
        .map(|(id, interactions)| sample(id.clone(), interactions))
        .collect()
}

fn sample(id: SampleId, interactions: Vec<Interaction>) -> Result<Sample, Failure> {
    let rewards = interactions.iter().map(|one| one.reward.get());
    let mean = rewards.sum::<f64>() / interactions.len() as f64;
    let credit = Credit {
        interactions,
        sequences: vec![],
    };
    let internal = |message: String| Failure::new(ErrorCategory::AgentError, "internal", message);
    Ok(Sample {
        id,
        messages: JsonText::of(&[(); 0]).map_err(|error| internal(error.to_string()))?,
        reward: Some(Reward::new(mean).map_err(|error| internal(error.to_string()))?),
        remove_sample: false,
        metrics: None,
        extra_fields: Some(
            credit
                .to_extra_fields()
                .map_err(|error| internal(error.to_string()))?,
        ),
    })
}

/// The policy's server gave one id to several answers, so a reward by id has no one place.
fn ambiguous_completion(id: &str, times: usize) -> Failure {
    Failure::new(
        ErrorCategory::ValidationError,
        "ambiguous_completion",
        format!(
            "`run` returned a reward for `{id}`, an id that the policy's server gave to {times} \
             answers of this rollout; return one number, or use a server whose ids differ"
        ),
    )
}

fn unknown_completions(unknown: &[String], given: &[GivenCompletion]) -> Failure {
    let listed = |ids: Vec<&str>| {
        let named: Vec<String> = ids
            .iter()
            .take(MAX_NAMED)
            .map(|id| format!("`{id}`"))
            .collect();
        let more = if ids.len() > MAX_NAMED { ", …" } else { "" };
        format!("{}{more}", named.join(", "))
    };
    let had = match given {
        [] => "it made no model call that was answered".to_owned(),
        given => format!(
            "its completions are {}",
            listed(given.iter().map(|given| given.id.as_str()).collect())
        ),
    };
    Failure::new(
        ErrorCategory::ValidationError,
        "unknown_completion",
        format!(
            "`run` returned a reward for {}, which this rollout was never given; {had}",
            listed(unknown.iter().map(String::as_str).collect())
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(completion: &str, reward: f64) -> InteractionReward {
        InteractionReward {
            completion: completion.to_owned(),
            reward: Reward::new(reward).unwrap(),
        }
    }

    fn given(id: &str, sample: &str, call: u32) -> GivenCompletion {
        GivenCompletion {
            id: id.to_owned(),
            sample: SampleId::new(sample).unwrap(),
            calls: vec![call],
        }
    }

    #[test]
    fn rewards_by_completion_go_to_the_samples_of_their_calls() {
        let calls = [
            given("a", "main", 0),
            given("b", "main", 1),
            given("c", "judge", 0),
        ];
        let rewards = vec![reward("b", 1.0), reward("a", 0.0), reward("c", 1.0)];
        let (outcome, samples) = own_grade(vec![], rewards, &calls, 1.0);
        assert_eq!(outcome.reward().unwrap().get().to_bits(), 0.75f64.to_bits());
        assert!(!outcome.passed());
        let names: Vec<&str> = samples.iter().map(|sample| sample.id.as_str()).collect();
        assert_eq!(names, ["judge", "main"]);
        let credit = Credit::read(samples[1].extra_fields.as_ref()).unwrap();
        let calls: Vec<_> = credit
            .interactions
            .iter()
            .map(|one| &one.calls[..])
            .collect();
        assert_eq!(calls, [[1], [0]]);
    }

    #[test]
    fn a_reward_for_an_unknown_completion_is_a_failure_that_names_the_known_ones() {
        let (outcome, samples) = own_grade(
            vec![],
            vec![reward("a", 1.0), reward("x", 1.0)],
            &[given("a", "main", 0)],
            1.0,
        );
        let Outcome::AgentFailed { failure } = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(failure.kind, "unknown_completion");
        assert_eq!(
            failure.message,
            "`run` returned a reward for `x`, which this rollout was never given; its completions are `a`"
        );
        assert_eq!(samples, []);
    }

    #[test]
    fn a_reward_for_an_id_that_two_answers_have_is_a_failure() {
        let calls = [
            given("a", "main", 0),
            given("b", "main", 1),
            given("a", "main", 2),
        ];
        let rewards = vec![reward("b", 1.0), reward("a", 1.0)];
        let (outcome, _) = own_grade(vec![], rewards, &calls, 1.0);
        let Outcome::AgentFailed { failure } = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(failure.kind, "ambiguous_completion");
        assert!(failure.message.contains("`a`"), "{}", failure.message);
        let (outcome, _) = own_grade(vec![], vec![reward("b", 1.0)], &calls, 1.0);
        assert!(outcome.passed());
    }
}
