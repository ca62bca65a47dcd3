//! What follows from what a worker answered: pure functions, no I/O.

use std::time::Duration;

use osmosis_core::config::ModelErrors;
use osmosis_core::frame::InteractionReward;
use osmosis_core::{ErrorCategory, Failure, JsonText, Outcome, Phase, Reward, RewardRange, Sample};
use osmosis_gateway::Fault;
use osmosis_worker::{LossCause, TaskResult};

use crate::attempts::{AfterLoss, Tried, after_loss};

/// The numbers that decisions depend on.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub agent_limit: Duration,
    pub grade_limit: Duration,
    pub pass_threshold: f64,
    /// Where the rewards of samples must lie.
    pub reward_range: Option<RewardRange>,
    pub max_failures: u32,
    pub model_errors: ModelErrors,
}

impl Rules {
    /// Whether what failed because of the infrastructure may be tried again.
    fn allows_another(&self, tried: Tried) -> bool {
        tried.failures + 1 < self.max_failures && !tried.is_last()
    }
}

/// What to do after the agent phase.
#[derive(Debug, Clone, PartialEq)]
pub enum AfterAgent {
    Grade {
        samples: Vec<Sample>,
        metrics: Option<JsonText>,
        interactions: Vec<InteractionReward>,
    },
    Finish(Outcome),
    Again(Again),
    /// The run is stopping: the rollout goes back to the queue as if it had not been claimed.
    GiveBack,
}

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
    /// Grade the same samples again after a while: the judge could not be had.
    Later {
        reason: String,
    },
    GiveBack,
}

/// Another attempt at the whole rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Again {
    pub reason: String,
    /// Its worker was lost: the next attempt runs more alone, so that it can be told whose doing it was.
    pub lost: bool,
    /// An infrastructure failure that counts against the limit.
    pub failed: bool,
}

/// Decides what follows the agent phase. `fault` is how the rollout's model calls failed for reasons of the
/// infrastructure, `tried` what was tried before. What the calls suffered decides, whatever the agent made of
/// it, unless it declares that it handles them.
pub fn after_agent(
    result: TaskResult,
    fault: Option<&Fault>,
    tried: Tried,
    rules: &Rules,
) -> AfterAgent {
    let fault = fault.filter(|_| rules.model_errors == ModelErrors::Infrastructure);
    match (result, fault) {
        (
            TaskResult::Done { .. }
            | TaskResult::Rejected { .. }
            | TaskResult::Failed { .. }
            | TaskResult::TimedOut
            | TaskResult::WorkerLost {
                cause: LossCause::Own,
                ..
            },
            Some(fault),
        ) => blame_infrastructure(fault, tried, rules),
        (
            TaskResult::Done {
                samples,
                metrics,
                interactions,
            },
            None,
        ) => AfterAgent::Grade {
            samples,
            metrics,
            interactions,
        },
        (TaskResult::Rejected { reason }, None) => AfterAgent::Finish(Outcome::Rejected { reason }),
        (TaskResult::Failed { failure }, None) => {
            AfterAgent::Finish(Outcome::AgentFailed { failure })
        }
        (TaskResult::TimedOut, None) => AfterAgent::Finish(Outcome::TimedOut {
            phase: Phase::Agent,
            limit_ms: millis(rules.agent_limit),
        }),
        (TaskResult::Cancelled, _) => AfterAgent::GiveBack,
        (TaskResult::WorkerLost { detail, cause }, _) => match after_loss(&detail, cause, tried) {
            AfterLoss::Again => AfterAgent::Again(Again {
                reason: format!("its worker {detail}"),
                lost: true,
                failed: false,
            }),
            AfterLoss::Guilty { why } => AfterAgent::Finish(Outcome::AgentFailed {
                failure: Failure::new(
                    ErrorCategory::AgentError,
                    "worker_crashed",
                    format!("the worker {why}"),
                ),
            }),
            AfterLoss::GivenUp { why } => AfterAgent::Finish(worker_lost(&why)),
        },
        (TaskResult::NoWorker { detail }, _) => AfterAgent::Finish(Outcome::InfrastructureFailed {
            failure: Failure::new(ErrorCategory::AgentError, "no_worker", detail),
        }),
        (TaskResult::OutOfReach { detail, retry }, _) => {
            match lost_elsewhere(detail, retry, tried, rules) {
                Ok(again) => AfterAgent::Again(again),
                Err(outcome) => AfterAgent::Finish(outcome),
            }
        }
    }
}

/// A sample as a grader gets it for the first time: rewards and removals are a grader's alone, whatever an
/// agent, or another grader before, has written there.
pub fn without_grade(sample: Sample) -> Sample {
    Sample {
        reward: None,
        remove_sample: false,
        ..sample
    }
}

/// Another attempt at what was lost where it ran, or its end when there were enough.
fn lost_elsewhere(
    detail: String,
    retry: bool,
    tried: Tried,
    rules: &Rules,
) -> Result<Again, Outcome> {
    if retry && rules.allows_another(tried) {
        return Ok(Again {
            reason: detail,
            lost: false,
            failed: true,
        });
    }
    Err(Outcome::InfrastructureFailed {
        failure: Failure::new(ErrorCategory::HttpError, "rollout_server", detail),
    })
}

/// Its worker was lost again and again, and nothing says that this was its own doing.
fn worker_lost(why: &str) -> Outcome {
    Outcome::InfrastructureFailed {
        failure: Failure::new(
            ErrorCategory::AgentError,
            "worker_lost",
            format!("the worker {why}"),
        ),
    }
}

fn blame_infrastructure(fault: &Fault, tried: Tried, rules: &Rules) -> AfterAgent {
    if fault.kind.worth_retrying() && rules.allows_another(tried) {
        return AfterAgent::Again(Again {
            reason: fault.message.clone(),
            lost: false,
            failed: true,
        });
    }
    AfterAgent::Finish(Outcome::InfrastructureFailed {
        failure: Failure::new(
            ErrorCategory::HttpError,
            fault.kind.as_str(),
            fault.message.clone(),
        ),
    })
}

/// What grading a rollout has cost before.
#[derive(Debug, Clone, Copy, Default)]
pub struct Grades {
    /// The workers that grading these samples has lost.
    pub losses: u32,
    /// The infrastructure failures of the rollout.
    pub failures: u32,
    /// How often the judge could not be had in this attempt.
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
    fault: Option<&Fault>,
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
fn blame_judge(fault: &Fault, samples: Vec<Sample>, so_far: Grades, rules: &Rules) -> AfterGrade {
    if fault.kind.worth_retrying() && rules.allows_another(so_far.tried()) {
        return AfterGrade::Later {
            reason: format!("its judge: {}", fault.message),
        };
    }
    let failure = Failure::new(
        ErrorCategory::HttpError,
        format!("judge_{}", fault.kind.as_str()),
        fault.message.clone(),
    );
    AfterGrade::Finish {
        outcome: Outcome::InfrastructureFailed { failure },
        samples,
    }
}

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

/// The wait before attempt number `failures + 1`: doubles with each failure, up to 30 s.
pub fn retry_wait(first: Duration, failures: u32) -> Duration {
    first
        .saturating_mul(2_u32.saturating_pow(failures.min(10)))
        .min(Duration::from_secs(30))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use osmosis_core::{OutcomeKind, SampleId};
    use osmosis_gateway::FaultKind;

    use super::*;

    const RULES: Rules = Rules {
        agent_limit: Duration::from_secs(450),
        grade_limit: Duration::from_secs(150),
        pass_threshold: 1.0,
        reward_range: None,
        max_failures: 3,
        model_errors: ModelErrors::Infrastructure,
    };

    fn sample(id: &str, reward: Option<f64>, remove_sample: bool) -> Sample {
        Sample {
            id: SampleId::new(id).unwrap(),
            messages: JsonText::parse("[]").unwrap(),
            reward: reward.map(|r| Reward::new(r).unwrap()),
            remove_sample,
            metrics: None,
            extra_fields: None,
        }
    }

    fn fault(kind: FaultKind) -> Fault {
        Fault {
            kind,
            status: 502,
            message: "upstream is down".to_owned(),
        }
    }

    fn failed(failures: u32) -> Tried {
        Tried {
            losses: 0,
            failures,
        }
    }

    fn losses(losses: u32) -> Grades {
        Grades {
            losses,
            ..Grades::default()
        }
    }

    fn raised() -> TaskResult {
        TaskResult::Failed {
            failure: Failure::new(ErrorCategory::AgentError, "RuntimeError", "boom"),
        }
    }

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
    fn an_agent_that_raises_failed_by_itself() {
        let AfterAgent::Finish(outcome) = after_agent(raised(), None, failed(0), &RULES) else {
            panic!("it must finish")
        };
        assert_eq!(outcome.kind(), OutcomeKind::AgentFailed);
    }

    #[test]
    fn an_agent_that_raises_after_a_fault_is_tried_again_until_the_limit() {
        let fault = fault(FaultKind::Unreachable);
        for failures in 0..2 {
            assert!(matches!(
                after_agent(raised(), Some(&fault), failed(failures), &RULES),
                AfterAgent::Again(Again {
                    failed: true,
                    lost: false,
                    ..
                })
            ));
        }
        let AfterAgent::Finish(outcome) = after_agent(raised(), Some(&fault), failed(2), &RULES)
        else {
            panic!("it must finish")
        };
        assert_eq!(outcome.kind(), OutcomeKind::InfrastructureFailed);
        assert_eq!(outcome.reward(), None);
    }

    fn done(samples: Vec<Sample>) -> TaskResult {
        TaskResult::Done {
            samples,
            metrics: None,
            interactions: vec![],
        }
    }

    fn every_end_of_an_agent() -> Vec<TaskResult> {
        vec![
            done(vec![sample("a", Some(1.0), false)]),
            TaskResult::Rejected {
                reason: "`run` returned None".to_owned(),
            },
            raised(),
            TaskResult::TimedOut,
            TaskResult::WorkerLost {
                detail: "exited with code 3".to_owned(),
                cause: LossCause::Own,
            },
        ]
    }

    #[test]
    fn what_the_model_calls_suffered_decides_whatever_the_agent_made_of_it() {
        let fault = fault(FaultKind::TimedOut);
        for result in every_end_of_an_agent() {
            let after = after_agent(result.clone(), Some(&fault), failed(0), &RULES);
            assert!(
                matches!(after, AfterAgent::Again(Again { failed: true, .. })),
                "{result:?}: {after:?}"
            );
            let after = after_agent(result.clone(), Some(&fault), failed(2), &RULES);
            let AfterAgent::Finish(outcome) = after else {
                panic!("{result:?}: {after:?}")
            };
            assert_eq!(outcome.kind(), OutcomeKind::InfrastructureFailed);
        }
    }

    #[test]
    fn an_agent_that_handles_model_errors_is_taken_by_what_it_made_of_them() {
        let rules = Rules {
            model_errors: ModelErrors::Agent,
            ..RULES
        };
        let fault = fault(FaultKind::TimedOut);
        for result in every_end_of_an_agent() {
            assert_eq!(
                after_agent(result.clone(), Some(&fault), failed(0), &rules),
                after_agent(result, None, failed(0), &RULES)
            );
        }
    }

    #[test]
    fn a_grader_that_ran_out_of_time_at_a_silent_judge_is_the_infrastructures_fault() {
        let silent = fault(FaultKind::TimedOut);
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
    fn a_grade_is_taken_off_a_sample_and_nothing_else() {
        let bare = without_grade(sample("a", Some(1.0), true));
        assert_eq!(bare, sample("a", None, false));
    }

    #[test]
    fn a_wrong_key_is_not_tried_again() {
        let fault = fault(FaultKind::Misconfigured);
        assert!(matches!(
            after_agent(raised(), Some(&fault), failed(0), &RULES),
            AfterAgent::Finish(Outcome::InfrastructureFailed { .. })
        ));
    }

    fn worker_gone(cause: LossCause) -> TaskResult {
        TaskResult::WorkerLost {
            detail: "was killed by signal 9 (SIGKILL)".to_owned(),
            cause,
        }
    }

    #[test]
    fn only_a_crash_alone_counts_against_the_rollout() {
        for unsure in [LossCause::Unknown, LossCause::Signalled] {
            assert!(matches!(
                after_agent(worker_gone(unsure), None, failed(0), &RULES),
                AfterAgent::Again(Again {
                    lost: true,
                    failed: false,
                    ..
                })
            ));
        }
        assert!(matches!(
            after_agent(worker_gone(LossCause::Own), None, failed(0), &RULES),
            AfterAgent::Finish(Outcome::AgentFailed { .. })
        ));
    }

    #[test]
    fn a_worker_killed_again_and_again_is_the_agents_failure_when_nothing_ran_beside_it() {
        let outcome = |cause, losses| {
            let tried = Tried {
                losses,
                failures: 0,
            };
            match after_agent(worker_gone(cause), None, tried, &RULES) {
                AfterAgent::Finish(outcome) => Some(outcome.kind()),
                AfterAgent::Again(_) => None,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(outcome(LossCause::Signalled, 8), None);
        assert_eq!(
            outcome(LossCause::Signalled, 9),
            Some(OutcomeKind::AgentFailed)
        );
        assert_eq!(
            outcome(LossCause::Unknown, 9),
            Some(OutcomeKind::InfrastructureFailed)
        );
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
        let graded = |fault: Option<&Fault>, faults| {
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
        let down = fault(FaultKind::Unreachable);
        for faults in 0..2 {
            let AfterGrade::Later { reason } = graded(Some(&down), faults) else {
                panic!("{faults}")
            };
            assert_eq!(reason, "its judge: upstream is down");
        }
        let refused = fault(FaultKind::Misconfigured);
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
        let down = fault(FaultKind::Unreachable);
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

    #[test]
    fn the_wait_doubles_and_is_bounded() {
        let first = Duration::from_millis(500);
        assert_eq!(retry_wait(first, 0), first);
        assert_eq!(retry_wait(first, 2), Duration::from_secs(2));
        assert_eq!(retry_wait(first, 60), Duration::from_secs(30));
    }
}
