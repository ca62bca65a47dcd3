//! Rewards that a grader gives to the single turns of a sample. A turn is one answer of the policy that the agent was
//! given under the sample's name; they are counted in the order in which they were given.

use std::collections::BTreeMap;

use osmosis_core::credit::{Credit, Interaction};
use osmosis_core::execution::TaskResult;
use osmosis_core::frame::TurnRewards;
use osmosis_core::{ErrorCategory, Failure, Sample, SampleId};

use crate::own_grade::check_rewards;
use crate::sessions::GivenAnswer;

/// The turns of a rollout's samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Turns(Vec<GivenAnswer>);

impl Turns {
    /// Of answers in order. Those that a retry replaced never got to the agent.
    pub(crate) fn of(answers: &[GivenAnswer]) -> Self {
        let replaced = |answer: &GivenAnswer| {
            let mut later = answers.iter().filter(|other| other.sample == answer.sample);
            !answer.calls.is_empty()
                && later.any(|other| {
                    answer
                        .calls
                        .iter()
                        .all(|call| other.replaces.contains(call))
                })
        };
        let kept = answers.iter().filter(|answer| !replaced(answer));
        Self(kept.cloned().collect())
    }

    /// How many each of these samples has.
    pub(crate) fn counts(&self, samples: &[Sample]) -> BTreeMap<SampleId, u32> {
        let count = |sample: &Sample| u32::try_from(self.of_sample(&sample.id).count());
        samples
            .iter()
            .map(|sample| (sample.id.clone(), count(sample).unwrap_or(u32::MAX)))
            .collect()
    }

    fn of_sample(&self, sample: &SampleId) -> impl Iterator<Item = &GivenAnswer> {
        self.0.iter().filter(move |answer| answer.sample == *sample)
    }
}

/// What a grader answered, with the rewards of turns put where the trainer finds them: in the extra fields of their
/// samples. Rewards that fit no turns are a failure of the grader. `turns` is `None` when they are not known.
pub(crate) fn credited(result: TaskResult, turns: Option<&Turns>) -> TaskResult {
    match result {
        TaskResult::Done {
            mut samples,
            metrics,
            interactions,
            turn_rewards,
        } => match credit(&mut samples, turn_rewards, turns) {
            Ok(()) => TaskResult::Done {
                samples,
                metrics,
                interactions,
                turn_rewards: TurnRewards::new(),
            },
            Err(failure) => TaskResult::Failed { failure },
        },
        TaskResult::Rejected { .. }
        | TaskResult::Failed { .. }
        | TaskResult::TimedOut
        | TaskResult::Cancelled
        | TaskResult::WorkerLost { .. }
        | TaskResult::NoWorker { .. }
        | TaskResult::OutOfReach { .. } => result,
    }
}

fn credit(
    samples: &mut [Sample],
    turn_rewards: TurnRewards,
    turns: Option<&Turns>,
) -> Result<(), Failure> {
    let invalid =
        |kind: &str, message: String| Failure::new(ErrorCategory::ValidationError, kind, message);
    // What a grader itself wrote where the rewards of turns are kept was checked by nobody.
    for sample in samples.iter_mut() {
        sample.extra_fields = sample.extra_fields.take().and_then(Credit::taken_off);
    }
    for (id, rewards) in turn_rewards {
        let Some(turns) = turns else {
            return Err(invalid(
                "turns_unknown",
                format!(
                    "the grader gave rewards to the turns of sample `{id}`, and the run that is graded again has no \
                     model calls to give them to: regrade the run that made the calls"
                ),
            ));
        };
        let Some(sample) = samples.iter_mut().find(|sample| sample.id == id) else {
            let message =
                format!("the grader gave rewards to the turns of `{id}`, which is no sample");
            return Err(invalid("unknown_sample", message));
        };
        let answers: Vec<&GivenAnswer> = turns.of_sample(&id).collect();
        if answers.len() != rewards.len() {
            return Err(invalid(
                "wrong_turn_count",
                format!(
                    "sample `{id}` has {} turns, and the grader gave rewards for {}: a turn is one answer of the \
                     policy, and each needs a reward (`ctx.turn_count()` is their number)",
                    answers.len(),
                    rewards.len()
                ),
            ));
        }
        check_rewards(rewards.iter().copied())?;
        let interactions: Vec<Interaction> = answers
            .into_iter()
            .zip(rewards)
            .map(|(answer, reward)| Interaction {
                completion: answer.id.clone().unwrap_or_default(),
                calls: answer.calls.clone(),
                reward,
            })
            .collect();
        let fields = Credit::with_interactions(sample.extra_fields.take(), &interactions);
        sample.extra_fields = Some(fields.map_err(|why| invalid("reserved_field", why))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use osmosis_core::Reward;

    use super::*;
    use crate::decision::fixtures::sample;

    fn answer(id: &str, sample: &str, calls: &[u32]) -> GivenAnswer {
        GivenAnswer {
            id: Some(id.to_owned()),
            sample: SampleId::new(sample).unwrap(),
            calls: calls.to_vec(),
            replaces: vec![],
        }
    }

    fn graded(rewards: &[(&str, &[f64])], turns: Option<&Turns>) -> TaskResult {
        let rewards = rewards.iter().map(|(id, rewards)| {
            let rewards = rewards.iter().map(|reward| Reward::new(*reward).unwrap());
            (SampleId::new(*id).unwrap(), rewards.collect())
        });
        let done = TaskResult::Done {
            samples: vec![sample("a", Some(1.0), false), sample("b", Some(0.0), false)],
            metrics: None,
            interactions: vec![],
            turn_rewards: rewards.collect(),
        };
        credited(done, turns)
    }

    fn turns() -> Turns {
        Turns::of(&[
            answer("x", "a", &[0]),
            answer("y", "b", &[0]),
            answer("z", "a", &[1, 2]),
        ])
    }

    #[track_caller]
    fn failure(result: TaskResult) -> Failure {
        match result {
            TaskResult::Failed { failure } => failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_turn_of_a_sample_gets_its_reward_in_order() {
        let TaskResult::Done { samples, .. } = graded(&[("a", &[0.5, 1.0])], Some(&turns())) else {
            panic!("it was graded");
        };
        let credit = Credit::read(samples[0].extra_fields.as_ref()).unwrap();
        let found: Vec<(&str, &[u32], f64)> = credit
            .interactions
            .iter()
            .map(|one| (one.completion.as_str(), &one.calls[..], one.reward.get()))
            .collect();
        assert_eq!(found, [("x", &[0][..], 0.5), ("z", &[1, 2], 1.0)]);
        assert_eq!(samples[1].extra_fields, None, "nobody gave it any");
    }

    #[test]
    fn a_wrong_count_is_a_failure_that_tells_the_right_one() {
        let told = failure(graded(&[("a", &[0.5, 1.0, 1.0])], Some(&turns())));
        assert_eq!(told.kind, "wrong_turn_count");
        let expected = "sample `a` has 2 turns, and the grader gave rewards for 3";
        assert!(told.message.starts_with(expected), "{}", told.message);
        let told = failure(graded(&[("c", &[0.5])], Some(&turns())));
        assert_eq!(told.kind, "unknown_sample");
        let told = failure(graded(&[("a", &[0.5, 1.0])], None));
        assert_eq!(told.kind, "turns_unknown");
        assert!(matches!(graded(&[], None), TaskResult::Done { .. }));
    }

    #[test]
    fn an_answer_that_a_retry_replaced_is_no_turn() {
        let mut retried = vec![answer("x", "a", &[0]), answer("y", "a", &[1])];
        retried[1].replaces = vec![0];
        let turns = Turns::of(&retried);
        let samples = [sample("a", None, false), sample("b", None, false)];
        let counts: Vec<u32> = turns.counts(&samples).into_values().collect();
        assert_eq!(counts, [1, 0]);
    }
}
