//! What follows from what a rollout server tells: its words as results of tasks, without I/O. A reward
//! is only ever what the server sent with a success.

use osmosis_core::execution::TaskResult;
use osmosis_core::frame::TurnRewards;
use osmosis_core::{ErrorCategory, Failure, Sample};

use super::wire::{RolloutNotice, Word};

/// What our own server writes before the reason of a rollout that was rejected.
const REJECTED: &str = "rejected";
/// What it writes of a rollout for which it had no worker.
const NO_WORKER: &str = "no_worker";
/// What it writes, without a category, of a cancelled rollout where the receiver knows no word for it.
const CANCELLED: &str = "cancelled";

/// How the workflow ended, from the completion callback.
pub(super) fn agent_result(told: &RolloutNotice) -> TaskResult {
    match told.status {
        // The samples come with the grade.
        Word::Success => TaskResult::Done {
            samples: vec![],
            metrics: None,
            interactions: vec![],
            turn_rewards: TurnRewards::new(),
        },
        Word::Failure => failure(told),
        Word::Cancelled => cancelled(),
        Word::Queued | Word::Running | Word::Grading | Word::Unknown => out_of_place(told),
    }
}

/// How the grader ended, from its callback, with the samples as they are without a grade.
pub(super) fn grade_result(told: &RolloutNotice) -> (TaskResult, Vec<Sample>) {
    let (samples, turn_rewards) = match (told.samples(), told.turn_rewards()) {
        (Ok(samples), Ok(turn_rewards)) => (samples, turn_rewards),
        (Err(message), _) | (_, Err(message)) => return (unreadable(&message), vec![]),
    };
    match told.status {
        Word::Success if samples.is_empty() => {
            let message = "the rollout server reports a success without samples";
            (failed("no_sample", message), samples)
        }
        Word::Success => {
            let ungraded = ungraded(&samples);
            let done = TaskResult::Done {
                samples,
                metrics: None,
                interactions: vec![],
                turn_rewards,
            };
            (done, ungraded)
        }
        Word::Failure => (failure(told), ungraded(&samples)),
        Word::Cancelled => (cancelled(), ungraded(&samples)),
        Word::Queued | Word::Running | Word::Grading | Word::Unknown => {
            (out_of_place(told), ungraded(&samples))
        }
    }
}

/// Whether an end that was told only once, as a whole, is the grader's: the workflow is known to have
/// ended before it, there are samples, or nothing at all is said, which is how a server reports that it
/// has no grader.
pub(super) fn is_of_the_grader(told: &RolloutNotice, grading_seen: bool) -> bool {
    let says_nothing = told.err_message.is_none() && told.err_category.is_none();
    match told.status {
        Word::Success => true,
        Word::Failure => grading_seen || told.has_samples() || says_nothing,
        Word::Queued | Word::Running | Word::Grading | Word::Cancelled | Word::Unknown => false,
    }
}

/// A callback that can't be read; what it was about is not known any more.
pub(super) fn unreadable(message: &str) -> TaskResult {
    failed(
        "unreadable_result",
        format!("what the rollout server sent can't be read: {message}"),
    )
}

pub(super) fn out_of_reach(detail: impl Into<String>) -> TaskResult {
    TaskResult::OutOfReach {
        detail: detail.into(),
        retry: true,
    }
}

pub(super) fn refused(detail: impl Into<String>) -> TaskResult {
    TaskResult::OutOfReach {
        detail: detail.into(),
        retry: false,
    }
}

fn failure(told: &RolloutNotice) -> TaskResult {
    let message = told.err_message.as_deref().unwrap_or_default();
    let category = match told.err_category.as_deref() {
        Some("timeout") => return TaskResult::TimedOut,
        // Faults of the server itself, not of the code it runs.
        Some(fault @ ("lease_expired" | "internal_error")) => {
            return out_of_reach(format!("the rollout server reports {fault}: {message}"));
        }
        Some("validation_error") => ErrorCategory::ValidationError,
        Some("http_error") => ErrorCategory::HttpError,
        None if message == CANCELLED => return cancelled(),
        Some(_) | None => ErrorCategory::AgentError,
    };
    let (kind, rest) = match message.split_once(": ") {
        Some((kind, rest)) if is_a_name(kind) => (kind, rest),
        Some(_) | None => ("", message),
    };
    match kind {
        REJECTED => TaskResult::Rejected {
            reason: rest.to_owned(),
        },
        NO_WORKER => out_of_reach(format!("the rollout server has no worker: {rest}")),
        "" => {
            let message = if rest.is_empty() {
                "the rollout server reports a failure and says nothing about it"
            } else {
                rest
            };
            let kind = told.err_category.as_deref().unwrap_or("agent_error");
            TaskResult::Failed {
                failure: Failure::new(category, kind, message),
            }
        }
        kind => TaskResult::Failed {
            failure: Failure::new(category, kind, rest),
        },
    }
}

/// Somebody else's doing, or its shutdown's: we did not ask for it.
fn cancelled() -> TaskResult {
    out_of_reach("the rollout server cancelled it")
}

fn out_of_place(told: &RolloutNotice) -> TaskResult {
    refused(format!(
        "the rollout server ended it with the status {:?}",
        told.status
    ))
}

fn failed(kind: &str, message: impl Into<String>) -> TaskResult {
    TaskResult::Failed {
        failure: Failure::new(ErrorCategory::ValidationError, kind, message),
    }
}

fn ungraded(samples: &[Sample]) -> Vec<Sample> {
    let without = |sample: &Sample| Sample {
        reward: None,
        remove_sample: false,
        ..sample.clone()
    };
    samples.iter().map(without).collect()
}

/// The name of an error class, as our own server and most frameworks write it before the message.
fn is_a_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 80
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(value: &Value) -> RolloutNotice {
        serde_json::from_str(&value.to_string()).unwrap()
    }

    /// The result in short.
    fn short(result: TaskResult) -> String {
        match result {
            TaskResult::Done { samples, .. } => {
                let rewards = samples.iter().map(|sample| {
                    let reward = sample.reward.map(osmosis_core::Reward::get);
                    format!("{}={reward:?}", sample.id)
                });
                format!("done {}", rewards.collect::<Vec<_>>().join(" "))
            }
            TaskResult::Failed { failure } => format!("failed {:?} {failure}", failure.category),
            TaskResult::Rejected { reason } => format!("rejected {reason}"),
            TaskResult::TimedOut => "timed out".to_owned(),
            TaskResult::OutOfReach { retry, .. } => format!("out of reach, retry {retry}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn every_end_of_a_workflow_has_its_result() {
        for (value, expected) in [
            (json!({"status": "success"}), "done "),
            (
                json!({"status": "failure", "err_message": "ValueError: a: b", "err_category": "validation_error"}),
                "failed ValidationError ValueError: a: b",
            ),
            (
                json!({"status": "failure", "err_message": "it broke", "err_category": "http_error"}),
                "failed HttpError http_error: it broke",
            ),
            (
                json!({"status": "failure", "err_message": "what is this: that", "err_category": "agent_error"}),
                "failed AgentError agent_error: what is this: that",
            ),
            (
                json!({"status": "failure", "err_message": null}),
                "failed AgentError agent_error: the rollout server reports a failure and says nothing about it",
            ),
            (
                json!({"status": "failure", "err_message": "late", "err_category": "timeout"}),
                "timed out",
            ),
            (
                json!({"status": "failure", "err_message": "rejected: too easy", "err_category": "agent_error"}),
                "rejected too easy",
            ),
            (
                json!({"status": "failure", "err_message": "no_worker: gone", "err_category": "agent_error"}),
                "out of reach, retry true",
            ),
            (
                json!({"status": "failure", "err_message": "x", "err_category": "lease_expired"}),
                "out of reach, retry true",
            ),
            (json!({"status": "cancelled"}), "out of reach, retry true"),
            (json!({"status": "queued"}), "out of reach, retry false"),
        ] {
            assert_eq!(short(agent_result(&told(&value))), expected, "{value}");
        }
    }

    #[test]
    fn a_grade_brings_its_rewards_and_a_failed_one_none() {
        let sample = json!({"id": "calc", "messages": [{"n": 1.50}], "reward": 0.5, "metrics": {}});
        let graded = told(&json!({"status": "success", "samples": {"calc": sample}}));
        let (result, samples) = grade_result(&graded);
        assert_eq!(short(result), "done calc=Some(0.5)");
        assert_eq!(samples[0].reward, None);
        assert_eq!(samples[0].metrics, None);

        let text = r#"{"status":"failure","err_message":"no","sample":{"reward":1,"messages":[{"n":1.50}]}}"#;
        let (result, samples) = grade_result(&serde_json::from_str(text).unwrap());
        assert_eq!(short(result), "failed AgentError agent_error: no");
        assert_eq!(samples[0].id.as_str(), "main");
        assert_eq!(samples[0].messages.as_str(), r#"[{"n":1.50}]"#);
        assert_eq!(samples[0].reward, None);

        let cancelled = told(&json!({"status": "failure", "err_message": "cancelled"}));
        let (result, _) = grade_result(&cancelled);
        assert_eq!(short(result), "out of reach, retry true");
    }

    #[test]
    fn a_success_without_samples_or_with_a_bad_one_is_no_grade() {
        let (result, _) = grade_result(&told(&json!({"status": "success", "samples": {}})));
        assert!(short(result).contains("no_sample"));
        let bad = json!({"status": "success", "samples": {"two\nlines": {"reward": 1.0}}});
        let (result, _) = grade_result(&told(&bad));
        assert!(short(result).contains("unreadable_result"));
    }

    #[test]
    fn an_end_told_as_a_whole_is_the_graders_when_something_says_so() {
        let failed = |more: Value| {
            let mut value = json!({"status": "failure", "err_category": "agent_error"});
            if let (Some(value), Value::Object(more)) = (value.as_object_mut(), more) {
                value.extend(more);
            }
            told(&value)
        };
        assert!(!is_of_the_grader(&failed(json!({})), false));
        assert!(is_of_the_grader(&failed(json!({})), true));
        assert!(is_of_the_grader(&failed(json!({"sample": {}})), false));
        let silent = failed(json!({"err_category": null}));
        assert!(is_of_the_grader(&silent, false));
    }
}
