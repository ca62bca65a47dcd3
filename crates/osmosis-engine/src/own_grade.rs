//! The grade that a workflow gives itself: of its samples, or of single model calls.

use std::collections::BTreeMap;

use osmosis_core::credit::{Credit, Interaction, Sequence};
use osmosis_core::frame::InteractionReward;
use osmosis_core::{ErrorCategory, Failure, JsonText, Outcome, Reward, Sample, SampleId};
use osmosis_tokens::{MatchError, TokenRecord, TokensError, match_sequences};

use crate::decision::score;
use crate::sessions::{GivenAnswer, SessionCalls};

/// How many ids an error names.
const MAX_NAMED: usize = 8;

/// The outcome of a rollout whose workflow is its own grader, with the samples to be recorded.
///
/// Rewards of single calls make one sample out of the calls of each sample id; its reward is their mean.
/// Sequences of tokens are held against what the policy sampled in the rollout's calls.
pub(crate) fn own_grade(
    mut samples: Vec<Sample>,
    interactions: Vec<InteractionReward>,
    through: &SessionCalls,
    pass_threshold: f64,
) -> (Outcome, Vec<Sample>) {
    let graded = if interactions.is_empty() {
        hold_against_calls(&mut samples, through).map(|()| samples)
    } else {
        rewarded(interactions, &through.answers).map_err(|failure| Outcome::AgentFailed { failure })
    };
    match graded {
        Ok(samples) => (score(&samples, pass_threshold), samples),
        Err(outcome) => (outcome, vec![]),
    }
}

/// Checks that all that is under the loss mask of a sequence was sampled by the policy, and gives it the
/// logprobs and versions that were recorded; an error is what becomes of the rollout.
fn hold_against_calls(samples: &mut [Sample], through: &SessionCalls) -> Result<(), Outcome> {
    let mut credits = Vec::new();
    let mut sequences: Vec<Sequence> = Vec::new();
    for (place, sample) in samples.iter().enumerate() {
        let credit = Credit::read(sample.extra_fields.as_ref())
            .map_err(|error| damaged(&format!("its sequences can't be read: {error}")))?;
        let rewards = credit.sequences.iter().filter_map(|one| one.reward);
        check_rewards(rewards).map_err(|failure| Outcome::AgentFailed { failure })?;
        if !credit.sequences.is_empty() {
            let from = sequences.len();
            sequences.extend(credit.sequences.iter().cloned());
            credits.push((place, from, credit));
        }
    }
    if sequences.is_empty() {
        return Ok(());
    }
    let mut records: BTreeMap<SampleId, Vec<TokenRecord>> = BTreeMap::new();
    let damaged_record = |error: &TokensError| damaged(&error.to_string());
    for (sample, bytes) in &through.token_records {
        let record = TokenRecord::decode(bytes).map_err(|error| damaged_record(&error))?;
        records.entry(sample.clone()).or_default().push(record);
    }
    match_sequences(&records, &mut sequences).map_err(|error| match error {
        MatchError::Unsampled(unsampled) => Outcome::Rejected {
            reason: format!("`arun_episode` returned what can't be trained on: {unsampled}"),
        },
        MatchError::Records(error) => damaged_record(&error),
    })?;
    for (place, from, mut credit) in credits {
        let count = credit.sequences.len();
        credit.sequences = sequences[from..from + count].to_vec();
        let fields = credit.to_extra_fields();
        samples[place].extra_fields = Some(fields.map_err(|error| damaged(&error.to_string()))?);
    }
    Ok(())
}

fn damaged(message: &str) -> Outcome {
    Outcome::InfrastructureFailed {
        failure: Failure::new(ErrorCategory::AgentError, "damaged_tokens", message),
    }
}

fn rewarded(
    interactions: Vec<InteractionReward>,
    given: &[GivenAnswer],
) -> Result<Vec<Sample>, Failure> {
    let mut by_sample: BTreeMap<&SampleId, Vec<Interaction>> = BTreeMap::new();
    let mut unknown = Vec::new();
    for InteractionReward { completion, reward } in interactions {
        let is_meant = |given: &&GivenAnswer| given.id.as_ref() == Some(&completion);
        let mut found = given.iter().filter(is_meant);
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

/// Rewards of parts are as large as rewards may be.
pub(crate) fn check_rewards(mut rewards: impl Iterator<Item = Reward>) -> Result<(), Failure> {
    rewards
        .try_for_each(|reward| Reward::new(reward.get()).map(drop))
        .map_err(|error| {
            Failure::new(
                ErrorCategory::ValidationError,
                "invalid_reward",
                error.to_string(),
            )
        })
}

fn sample(id: SampleId, interactions: Vec<Interaction>) -> Result<Sample, Failure> {
    check_rewards(interactions.iter().map(|one| one.reward))?;
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

fn unknown_completions(unknown: &[String], given: &[GivenAnswer]) -> Failure {
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
            listed(
                given
                    .iter()
                    .filter_map(|given| given.id.as_deref())
                    .collect()
            )
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
    use osmosis_core::PolicyVersion;
    use osmosis_core::generation::LogprobsOf;
    use osmosis_tokens::Origin;

    use super::*;

    fn reward(completion: &str, reward: f64) -> InteractionReward {
        InteractionReward {
            completion: completion.to_owned(),
            reward: Reward::new(reward).unwrap(),
        }
    }

    fn given(id: &str, sample: &str, call: u32) -> GivenAnswer {
        GivenAnswer {
            id: Some(id.to_owned()),
            sample: SampleId::new(sample).unwrap(),
            calls: vec![call],
            replaces: vec![],
        }
    }

    fn through(answers: &[GivenAnswer]) -> SessionCalls {
        SessionCalls {
            answers: answers.to_vec(),
            ..SessionCalls::default()
        }
    }

    /// A sample of one sequence with invented logprobs, of a rollout whose one call was `5 6 -> 7 8`.
    fn episode(ids: &[u32]) -> (Outcome, Vec<Sample>) {
        let record = TokenRecord {
            call: 0,
            origin: Origin::Root { reason: None },
            prompt_suffix: vec![5, 6],
            sampled: vec![7, 8],
            logprobs: vec![-0.5, -0.25],
            logprobs_of: LogprobsOf::Tempered,
            versions: vec![PolicyVersion(3); 2],
            temperature: 0.5,
            complete: true,
            one_of_several: false,
            replaces: vec![],
            constraint: None,
        };
        let calls = SessionCalls {
            token_records: vec![(SampleId::main(), record.encode().into())],
            ..SessionCalls::default()
        };
        let fields = serde_json::json!({"sequences": [{
            "input_ids": ids, "loss_mask": [false, false, true, true], "reward": 1.0, "id": "mine",
            "logprobs": [0.0, 0.0, -9.0, -9.0], "versions": [-1, -1, 0, 0],
        }]});
        let sample = Sample {
            id: SampleId::main(),
            messages: JsonText::parse("[]").unwrap(),
            reward: Some(Reward::new(1.0).unwrap()),
            remove_sample: false,
            metrics: None,
            extra_fields: Some(JsonText::parse(fields.to_string()).unwrap()),
        };
        own_grade(vec![sample], vec![], &calls, 1.0)
    }

    #[test]
    fn a_sequence_of_sampled_tokens_gets_the_recorded_logprobs() {
        let (outcome, samples) = episode(&[5, 6, 7, 8]);
        assert!(outcome.passed());
        let credit = Credit::read(samples[0].extra_fields.as_ref()).unwrap();
        let sequence = &credit.sequences[0];
        assert_eq!(sequence.logprobs, Some(vec![0.0, 0.0, -0.5, -0.25]));
        assert_eq!(sequence.versions, Some(vec![-1, -1, 3, 3]));
        assert_eq!(sequence.temperatures, Some(vec![1.0, 1.0, 0.5, 0.5]));
        assert_eq!(sequence.id.as_deref(), Some("mine"));
    }

    #[test]
    fn a_sequence_with_invented_tokens_is_rejected_and_named() {
        let (outcome, samples) = episode(&[5, 6, 7, 9]);
        assert_eq!(
            outcome,
            Outcome::Rejected {
                reason: "`arun_episode` returned what can't be trained on: sequence 0 is to be trained \
                         on tokens that the policy did not sample there: position 3, ids [9]; call 0 \
                         sampled [8] there"
                    .to_owned()
            }
        );
        assert_eq!(samples, []);
    }

    #[test]
    fn rewards_by_completion_go_to_the_samples_of_their_calls() {
        let calls = [
            given("a", "main", 0),
            given("b", "main", 1),
            given("c", "judge", 0),
        ];
        let rewards = vec![reward("b", 1.0), reward("a", 0.0), reward("c", 1.0)];
        let (outcome, samples) = own_grade(vec![], rewards, &through(&calls), 1.0);
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
            &through(&[given("a", "main", 0)]),
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
        let (outcome, _) = own_grade(vec![], rewards, &through(&calls), 1.0);
        let Outcome::AgentFailed { failure } = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(failure.kind, "ambiguous_completion");
        assert!(failure.message.contains("`a`"), "{}", failure.message);
        let (outcome, _) = own_grade(vec![], vec![reward("b", 1.0)], &through(&calls), 1.0);
        assert!(outcome.passed());
    }
}
