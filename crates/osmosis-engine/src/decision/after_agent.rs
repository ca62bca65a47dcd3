use osmosis_core::config::ModelErrors;
use osmosis_core::execution::{LossCause, TaskResult};
use osmosis_core::frame::InteractionReward;
use osmosis_core::{ErrorCategory, Failure, JsonText, Outcome, Phase, Sample};

use super::{Again, Rules, lost_elsewhere, millis, worker_lost};
use crate::attempts::{AfterLoss, Tried, after_loss};
use crate::sessions::ModelFault;

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

/// Decides what follows the agent phase. `fault` is how the rollout's model calls failed for reasons of the
/// infrastructure, `tried` what was tried before. What the calls suffered decides, whatever the agent made of
/// it, unless it declares that it handles them.
pub fn after_agent(
    result: TaskResult,
    fault: Option<&ModelFault>,
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
                // Only graders give them.
                turn_rewards: _,
            },
            None,
        ) => AfterAgent::Grade {
            samples,
            metrics,
            interactions,
        },
        (TaskResult::Rejected { reason }, None) => AfterAgent::Finish(Outcome::Rejected { reason }),
        (TaskResult::Failed { failure }, None) if failure.is_of_the_machine() => {
            if rules.allows_another(tried) {
                return AfterAgent::Again(Again {
                    reason: failure.to_string(),
                    lost: false,
                    failed: true,
                });
            }
            AfterAgent::Finish(Outcome::InfrastructureFailed { failure })
        }
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

fn blame_infrastructure(fault: &ModelFault, tried: Tried, rules: &Rules) -> AfterAgent {
    if fault.worth_retrying && rules.allows_another(tried) {
        return AfterAgent::Again(Again {
            reason: fault.message.clone(),
            lost: false,
            failed: true,
        });
    }
    AfterAgent::Finish(Outcome::InfrastructureFailed {
        failure: Failure::new(ErrorCategory::HttpError, fault.code, fault.message.clone()),
    })
}

#[cfg(test)]
mod tests {
    use osmosis_core::OutcomeKind;

    use super::*;
    use crate::decision::fixtures::{
        RULES, done, failed, fault, out_of_descriptors, raised, sample, worker_gone,
    };

    #[test]
    fn an_agent_that_raises_failed_by_itself() {
        let AfterAgent::Finish(outcome) = after_agent(raised(), None, failed(0), &RULES) else {
            panic!("it must finish")
        };
        assert_eq!(outcome.kind(), OutcomeKind::AgentFailed);
    }

    #[test]
    fn an_agent_that_raises_after_a_fault_is_tried_again_until_the_limit() {
        let fault = fault(true);
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
        let fault = fault(true);
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
        let fault = fault(true);
        for result in every_end_of_an_agent() {
            assert_eq!(
                after_agent(result.clone(), Some(&fault), failed(0), &rules),
                after_agent(result, None, failed(0), &RULES)
            );
        }
    }

    #[test]
    fn a_machine_without_descriptors_is_no_fault_of_the_agent() {
        for failures in 0..2 {
            let after = after_agent(out_of_descriptors(), None, failed(failures), &RULES);
            assert!(matches!(
                after,
                AfterAgent::Again(Again { failed: true, .. })
            ));
        }
        let after = after_agent(out_of_descriptors(), None, failed(2), &RULES);
        let AfterAgent::Finish(outcome) = after else {
            panic!("{after:?}")
        };
        assert_eq!(outcome.kind(), OutcomeKind::InfrastructureFailed);
        // Also for an agent that declares that it handles what its model calls suffer.
        let rules = Rules {
            model_errors: ModelErrors::Agent,
            ..RULES
        };
        let after = after_agent(out_of_descriptors(), None, failed(0), &rules);
        assert!(matches!(after, AfterAgent::Again(_)));
    }

    #[test]
    fn a_wrong_key_is_not_tried_again() {
        let fault = fault(false);
        assert!(matches!(
            after_agent(raised(), Some(&fault), failed(0), &RULES),
            AfterAgent::Finish(Outcome::InfrastructureFailed { .. })
        ));
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
}
