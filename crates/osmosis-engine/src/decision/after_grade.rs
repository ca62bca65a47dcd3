use osmosis_core::execution::TaskResult;
use osmosis_core::{ErrorCategory, Failure, Outcome, Phase, Sample};

use super::{Again, Rules, lost_elsewhere, millis, score, within_range, worker_lost};
use crate::attempts::{AfterLoss, Tried, after_loss};
use crate::sessions::ModelFault;

/// What to do after the grade phase.
#[derive(Debug, Clone, PartialEq)]
pub enum AfterGrade {
    Finish {
        outcome: Outcome,
        samples: Vec<Sample>,
    },
    Again(Again),
    /// Grade the same samples again, more alone than before.
    Alone {
        reason: String,
    },
    /// Grade the same samples again after a while: the judge, or a descriptor, could not be had.
    Later {
        reason: String,
    },
    GiveBack,
}

/// What grading a rollout has cost before.
#[derive(Debug, Clone, Copy, Default)]
pub struct Grades {
    /// The workers that grading these samples has lost.
    pub losses: u32,
    /// The infrastructure failures of the rollout.
    pub failures: u32,
    /// How often the judge, or a descriptor, could not be had in this attempt.
    pub faults: u32,
}

impl Grades {
    /// The gradings before the one at hand. They are counted apart from the attempts at the rollout.
    pub fn tried(self) -> Tried {
        Tried {
            losses: self.losses,
            failures: self.faults,
        }
    }
}

/// Decides what follows the grade phase of `samples`. `fault` is how the grader's calls to its judge failed
/// for reasons of the infrastructure. A grade that was given counts.
pub fn after_grade(
    result: TaskResult,
    samples: Vec<Sample>,
    fault: Option<&ModelFault>,
    so_far: Grades,
    rules: &Rules,
) -> AfterGrade {
    let finish = |outcome, samples| AfterGrade::Finish { outcome, samples };
    match result {
        TaskResult::Done {
            samples: graded, ..
        } => {
            let outcome = score(&graded, rules.pass_threshold);
            let outcome = within_range(outcome, &graded, rules.reward_range);
            finish(outcome, graded)
        }
        TaskResult::Rejected { reason } => finish(Outcome::Rejected { reason }, samples),
        TaskResult::Failed { failure } if failure.is_of_the_machine() && fault.is_none() => {
            if rules.allows_another(so_far.tried()) {
                return AfterGrade::Later {
                    reason: failure.to_string(),
                };
            }
            finish(Outcome::InfrastructureFailed { failure }, samples)
        }
        TaskResult::Failed { failure } => match fault {
            Some(fault) => blame_judge(fault, samples, so_far, rules),
            None => finish(Outcome::Ungraded { failure }, samples),
        },
        TaskResult::TimedOut => match fault {
            Some(fault) => blame_judge(fault, samples, so_far, rules),
            None => finish(
                Outcome::TimedOut {
                    phase: Phase::Grade,
                    limit_ms: millis(rules.grade_limit),
                },
                samples,
            ),
        },
        TaskResult::Cancelled => AfterGrade::GiveBack,
        TaskResult::WorkerLost { detail, cause } => {
            match after_loss(&detail, cause, so_far.tried()) {
                AfterLoss::Again => AfterGrade::Alone {
                    reason: format!("its grading worker {detail}"),
                },
                AfterLoss::Guilty { why } => finish(
                    Outcome::Ungraded {
                        failure: Failure::new(
                            ErrorCategory::AgentError,
                            "grader_crashed",
                            format!("the grading worker {why}"),
                        ),
                    },
                    samples,
                ),
                AfterLoss::GivenUp { why } => finish(worker_lost(&why), samples),
            }
        }
        TaskResult::NoWorker { detail } => finish(
            Outcome::InfrastructureFailed {
                failure: Failure::new(ErrorCategory::AgentError, "no_worker", detail),
            },
            samples,
        ),
        TaskResult::OutOfReach { detail, retry } => {
            let tried = Tried {
                failures: so_far.failures,
                ..Tried::default()
            };
            match lost_elsewhere(detail, retry, tried, rules) {
                Ok(again) => AfterGrade::Again(again),
                Err(outcome) => finish(outcome, samples),
            }
        }
    }
}

/// The grader came to nothing because of a judge that failed through no fault of its own.
fn blame_judge(
    fault: &ModelFault,
    samples: Vec<Sample>,
    so_far: Grades,
    rules: &Rules,
) -> AfterGrade {
    if fault.worth_retrying && rules.allows_another(so_far.tried()) {
        return AfterGrade::Later {
            reason: format!("its judge: {}", fault.message),
        };
    }
    let failure = Failure::new(
        ErrorCategory::HttpError,
        format!("judge_{}", fault.code),
        fault.message.clone(),
    );
    AfterGrade::Finish {
        outcome: Outcome::InfrastructureFailed { failure },
        samples,
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::execution::LossCause;
    use osmosis_core::frame::TurnRewards;
    use osmosis_core::{OutcomeKind, RewardRange};

    use super::*;
    use crate::decision::fixtures::{
        RULES, done, failed, fault, out_of_descriptors, raised, sample, worker_gone,
    };
    use crate::decision::{AfterAgent, after_agent};

    fn losses(losses: u32) -> Grades {
        Grades {
            losses,
            ..Grades::default()
        }
    }

    #[test]
    fn a_grader_that_ran_out_of_time_at_a_silent_judge_is_the_infrastructures_fault() {
        let silent = fault(true);
        let graded = |faults| {
            let so_far = Grades {
                faults,
                ..Grades::default()
            };
            after_grade(TaskResult::TimedOut, vec![], Some(&silent), so_far, &RULES)
        };
        assert!(matches!(graded(0), AfterGrade::Later { .. }));
        let AfterGrade::Finish { outcome, .. } = graded(2) else {
            panic!()
        };
        assert_eq!(outcome.kind(), OutcomeKind::InfrastructureFailed);
    }

    #[test]
    fn a_grader_on_a_machine_without_descriptors_grades_later() {
        let graded = |faults| {
            let so_far = Grades {
                faults,
                ..Grades::default()
            };
            after_grade(out_of_descriptors(), vec![], None, so_far, &RULES)
        };
        assert!(matches!(graded(0), AfterGrade::Later { .. }));
        let AfterGrade::Finish { outcome, .. } = graded(2) else {
            panic!()
        };
        assert_eq!(outcome.kind(), OutcomeKind::InfrastructureFailed);
    }

    #[test]
    fn a_lost_grading_worker_leads_to_grading_alone_first() {
        let outcome = |cause, before| match after_grade(
            worker_gone(cause),
            vec![],
            None,
            losses(before),
            &RULES,
        ) {
            AfterGrade::Finish { outcome, .. } => Some(outcome.kind()),
            AfterGrade::Alone { .. } => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(outcome(LossCause::Unknown, 0), None);
        assert_eq!(outcome(LossCause::Own, 1), Some(OutcomeKind::Ungraded));
        assert_eq!(outcome(LossCause::Signalled, 8), None);
        assert_eq!(
            outcome(LossCause::Signalled, 9),
            Some(OutcomeKind::Ungraded)
        );
        assert_eq!(
            outcome(LossCause::Unknown, 9),
            Some(OutcomeKind::InfrastructureFailed)
        );
    }

    #[test]
    fn what_was_lost_elsewhere_runs_again_as_a_whole_until_the_limit_and_is_never_scored() {
        let lost = |retry| TaskResult::OutOfReach {
            detail: "the server does not know it".to_owned(),
            retry,
        };
        let graded = |retry, failures| {
            let so_far = Grades {
                failures,
                ..Grades::default()
            };
            after_grade(
                lost(retry),
                vec![sample("a", None, false)],
                None,
                so_far,
                &RULES,
            )
        };
        for failures in 0..2 {
            let agent = after_agent(lost(true), None, failed(failures), &RULES);
            let AfterAgent::Again(again) = agent else {
                panic!("{agent:?}")
            };
            assert!(again.failed && !again.lost);
            assert_eq!(graded(true, failures), AfterGrade::Again(again));
        }
        for (retry, failures) in [(true, 2), (false, 0)] {
            let agent = after_agent(lost(retry), None, failed(failures), &RULES);
            let AfterAgent::Finish(outcome) = agent else {
                panic!("{agent:?}")
            };
            assert_eq!(outcome.kind(), OutcomeKind::InfrastructureFailed);
            let samples = vec![sample("a", None, false)];
            let finish = AfterGrade::Finish { outcome, samples };
            assert_eq!(graded(retry, failures), finish);
        }
    }

    #[test]
    fn a_judge_that_can_not_be_had_is_waited_for_and_then_the_infrastructures_fault() {
        let graded = |fault: Option<&ModelFault>, faults| {
            let so_far = Grades {
                faults,
                ..Grades::default()
            };
            after_grade(
                raised(),
                vec![sample("a", None, false)],
                fault,
                so_far,
                &RULES,
            )
        };
        let down = fault(true);
        for faults in 0..2 {
            let AfterGrade::Later { reason } = graded(Some(&down), faults) else {
                panic!("{faults}")
            };
            assert_eq!(reason, "its judge: upstream is down");
        }
        let refused = fault(false);
        for (fault, faults) in [(&down, 2), (&refused, 0)] {
            let AfterGrade::Finish { outcome, samples } = graded(Some(fault), faults) else {
                panic!("{fault:?}")
            };
            assert_eq!(outcome.kind(), OutcomeKind::InfrastructureFailed);
            assert_eq!(samples.len(), 1, "they can be graded later");
        }
        let AfterGrade::Finish { outcome, .. } = graded(None, 0) else {
            panic!()
        };
        assert_eq!(outcome.kind(), OutcomeKind::Ungraded);
    }

    #[test]
    fn a_grade_counts_whatever_became_of_the_judge_before_it() {
        let done = done(vec![sample("a", Some(1.0), false)]);
        let down = fault(true);
        let after = after_grade(done, vec![], Some(&down), Grades::default(), &RULES);
        let AfterGrade::Finish { outcome, .. } = after else {
            panic!("{after:?}")
        };
        assert!(outcome.passed());
    }

    #[test]
    fn a_reward_outside_the_stated_range_is_no_reward() {
        let graded = |rewards: &[(f64, bool)], range: Option<RewardRange>| {
            let samples = rewards
                .iter()
                .map(|(r, removed)| sample("a", Some(*r), *removed));
            let done = TaskResult::Done {
                samples: samples.collect(),
                metrics: None,
                interactions: vec![],
                turn_rewards: TurnRewards::new(),
            };
            let rules = Rules {
                reward_range: range,
                ..RULES
            };
            match after_grade(done, vec![], None, Grades::default(), &rules) {
                AfterGrade::Finish { outcome, .. } => outcome,
                other => panic!("{other:?}"),
            }
        };
        let range = RewardRange::new(-1.0, 1.0).ok();
        assert!(graded(&[(1.0, false)], range).passed());
        assert!(graded(&[(7.0, false)], None).passed());
        assert!(
            graded(&[(-1.0, false), (7.0, true)], range)
                .reward()
                .is_some()
        );
        let outcome = graded(&[(0.5, false), (-1.5, false)], range);
        assert_eq!(outcome.kind(), OutcomeKind::Ungraded);
        assert_eq!(
            outcome.explanation().unwrap(),
            "reward_out_of_range: sample `a` has reward -1.5, outside the config's `reward_range` of [-1, 1]"
        );
    }
}
