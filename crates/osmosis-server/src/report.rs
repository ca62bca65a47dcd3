//! What a controller is told: an outcome in its own words.

use osmosis_core::{ErrorCategory, Failure, JsonText, Outcome, Phase, Reward, RolloutId, Sample};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The failure of a rollout that was to be graded where no grader is.
const NO_GRADER: &str = "no_grader";

/// Where a rollout stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Queued,
    Running,
    Grading,
    Success,
    Failure,
    Cancelled,
    Unknown,
}

/// How a phase ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PhaseEnd {
    pub(crate) status: Status,
    pub(crate) err_message: Option<String>,
    pub(crate) err_category: Option<ErrorCategory>,
}

impl PhaseEnd {
    pub(crate) fn success() -> Self {
        Self {
            status: Status::Success,
            err_message: None,
            err_category: None,
        }
    }

    fn failure(message: impl Into<String>, category: ErrorCategory) -> Self {
        Self {
            status: Status::Failure,
            err_message: Some(message.into()),
            err_category: Some(category),
        }
    }

    fn of(failure: &Failure) -> Self {
        Self::failure(failure.to_string(), failure.category)
    }

    fn cancelled(status: Status) -> Self {
        Self {
            status,
            err_message: Some("cancelled".to_owned()),
            err_category: None,
        }
    }
}

/// How the workflow ended, of a rollout that never came to its grader.
pub(crate) fn agent_end(outcome: &Outcome) -> PhaseEnd {
    match outcome {
        Outcome::AgentFailed { failure } | Outcome::InfrastructureFailed { failure } => {
            PhaseEnd::of(failure)
        }
        Outcome::TimedOut {
            phase: Phase::Agent,
            ..
        } => timed_out(outcome),
        Outcome::Rejected { reason } => {
            PhaseEnd::failure(format!("rejected: {reason}"), ErrorCategory::AgentError)
        }
        Outcome::Cancelled => PhaseEnd::cancelled(Status::Cancelled),
        Outcome::Scored { .. }
        | Outcome::Ungraded { .. }
        | Outcome::TimedOut {
            phase: Phase::Grade,
            ..
        } => PhaseEnd::success(),
    }
}

/// How the grader ended; after a failed workflow, with the same failure. Its receiver knows two words
/// for it, so a cancelled rollout is a failure that says so.
pub(crate) fn grade_end(outcome: &Outcome, has_samples: bool) -> PhaseEnd {
    match outcome {
        Outcome::Scored { .. } => PhaseEnd::success(),
        // The grader removed every sample, which is its good right.
        Outcome::Rejected { .. } if has_samples => PhaseEnd::success(),
        Outcome::Ungraded { failure } => PhaseEnd::of(failure),
        Outcome::TimedOut { .. } => timed_out(outcome),
        Outcome::Cancelled => PhaseEnd::cancelled(Status::Failure),
        Outcome::AgentFailed { .. }
        | Outcome::InfrastructureFailed { .. }
        | Outcome::Rejected { .. } => agent_end(outcome),
    }
}

/// How the rollout ended as a whole.
pub(crate) fn rollout_end(outcome: &Outcome, has_samples: bool) -> PhaseEnd {
    match outcome {
        Outcome::Cancelled => PhaseEnd::cancelled(Status::Cancelled),
        // Its workflow succeeded, and that is all there is to it.
        Outcome::Ungraded { failure } if failure.kind == NO_GRADER => PhaseEnd::success(),
        Outcome::Scored { .. }
        | Outcome::AgentFailed { .. }
        | Outcome::TimedOut { .. }
        | Outcome::Ungraded { .. }
        | Outcome::Rejected { .. }
        | Outcome::InfrastructureFailed { .. } => grade_end(outcome, has_samples),
    }
}

fn timed_out(outcome: &Outcome) -> PhaseEnd {
    let message = outcome.explanation().unwrap_or_default();
    PhaseEnd::failure(message, ErrorCategory::Timeout)
}

#[derive(Serialize)]
struct CompletionBody<'a> {
    rollout_id: &'a RolloutId,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    err_message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    err_category: Option<ErrorCategory>,
}

#[derive(Serialize)]
struct GraderBody<'a> {
    rollout_id: &'a RolloutId,
    status: Status,
    samples: SamplesById<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<WireSample<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    err_message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    err_category: Option<ErrorCategory>,
}

/// In the order of the samples.
struct SamplesById<'a>(Vec<WireSample<'a>>);

impl Serialize for SamplesById<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|sample| (sample.id, sample)))
    }
}

#[derive(Clone, Serialize)]
struct WireSample<'a> {
    id: &'a str,
    messages: &'a JsonText,
    label: Option<&'a str>,
    reward: Option<f64>,
    remove_sample: bool,
    metrics: Value,
    extra_fields: Value,
}

impl<'a> WireSample<'a> {
    /// Receivers take any reward they see, so only one that counts is sent.
    fn new(sample: &'a Sample, label: Option<&'a str>, succeeded: bool) -> Self {
        let object = |text: Option<&JsonText>| {
            text.and_then(|text| text.read::<Map<String, Value>>().ok())
                .map_or_else(|| json!({}), Value::Object)
        };
        let counts = succeeded && !sample.remove_sample;
        Self {
            id: sample.id.as_str(),
            messages: &sample.messages,
            label,
            reward: sample.reward.filter(|_| counts).map(Reward::get),
            remove_sample: sample.remove_sample,
            metrics: object(sample.metrics.as_ref()),
            extra_fields: object(sample.extra_fields.as_ref()),
        }
    }
}

/// The body of the completion callback.
pub(crate) fn completion_body(id: &RolloutId, end: &PhaseEnd) -> serde_json::Result<String> {
    serde_json::to_string(&CompletionBody {
        rollout_id: id,
        status: end.status,
        err_message: end.err_message.as_deref(),
        err_category: end.err_category,
    })
}

/// The body of the grader callback.
pub(crate) fn grader_body(
    id: &RolloutId,
    end: &PhaseEnd,
    samples: &[Sample],
    label: Option<&str>,
) -> serde_json::Result<String> {
    let succeeded = end.status == Status::Success;
    let samples: Vec<WireSample> = samples
        .iter()
        .map(|sample| WireSample::new(sample, label, succeeded))
        .collect();
    let sample = match samples.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    };
    serde_json::to_string(&GraderBody {
        rollout_id: id,
        status: end.status,
        samples: SamplesById(samples),
        sample,
        err_message: end.err_message.as_deref(),
        err_category: end.err_category,
    })
}

/// The label of a stored row.
pub(crate) fn label_of(row: &JsonText) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Stored {
        label: Option<String>,
    }
    row.read::<Stored>().ok().and_then(|stored| stored.label)
}

#[cfg(test)]
mod tests {
    use osmosis_core::SampleId;

    use super::*;

    fn sample(id: &str, reward: Option<f64>, remove_sample: bool) -> Sample {
        Sample {
            id: SampleId::new(id).unwrap(),
            messages: JsonText::parse(r#"[{"role": "user", "content": "a \u00e9"}]"#).unwrap(),
            reward: reward.map(|reward| Reward::new(reward).unwrap()),
            remove_sample,
            metrics: None,
            extra_fields: Some(JsonText::parse(r#"{"k": [1]}"#).unwrap()),
        }
    }

    fn scored() -> Outcome {
        Outcome::Scored {
            reward: Reward::new(0.5).unwrap(),
            passed: false,
        }
    }

    fn failure(category: ErrorCategory, kind: &str) -> Failure {
        Failure::new(category, kind, "boom")
    }

    fn read(body: serde_json::Result<String>) -> Value {
        serde_json::from_str(&body.unwrap()).unwrap()
    }

    #[test]
    fn a_graded_sample_carries_its_reward_and_is_there_twice() {
        let id = RolloutId::of(0, 0);
        let end = grade_end(&scored(), true);
        let body = read(grader_body(
            &id,
            &end,
            &[sample("main", Some(0.5), false)],
            Some("7"),
        ));
        assert_eq!(body["status"], "success");
        assert_eq!(body["samples"]["main"]["reward"], 0.5);
        assert_eq!(body["sample"], body["samples"]["main"]);
        assert_eq!(body["sample"]["label"], "7");
        assert_eq!(body["sample"]["metrics"], json!({}));
        assert_eq!(body["sample"]["extra_fields"], json!({"k": [1]}));
        assert_eq!(body.get("err_message"), None);
    }

    #[test]
    fn of_several_samples_none_is_the_one_and_a_removed_one_has_no_reward() {
        let samples = [sample("b", Some(1.0), false), sample("a", Some(1.0), true)];
        let end = grade_end(&scored(), true);
        let body = read(grader_body(&RolloutId::of(0, 0), &end, &samples, None));
        assert_eq!(body.get("sample"), None);
        assert_eq!(body["samples"]["b"]["reward"], 1.0);
        assert_eq!(body["samples"]["a"]["reward"], Value::Null);
        assert_eq!(body["samples"]["a"]["remove_sample"], true);
    }

    #[test]
    fn a_failed_grade_carries_no_reward() {
        let outcome = Outcome::Ungraded {
            failure: failure(ErrorCategory::ValidationError, "ValueError"),
        };
        let end = grade_end(&outcome, true);
        let samples = [sample("main", Some(1.0), false)];
        let body = read(grader_body(&RolloutId::of(0, 0), &end, &samples, None));
        assert_eq!(body["status"], "failure");
        assert_eq!(body["samples"]["main"]["reward"], Value::Null);
        assert_eq!(body["err_message"], "ValueError: boom");
        assert_eq!(body["err_category"], "validation_error");
    }

    #[test]
    fn every_outcome_has_its_words() {
        use ErrorCategory::{AgentError, HttpError, Timeout};
        use Status::{Cancelled, Failure, Success};
        let timed_out = |phase| Outcome::TimedOut {
            phase,
            limit_ms: 1500,
        };
        let agent_failed = Outcome::AgentFailed {
            failure: failure(AgentError, "RuntimeError"),
        };
        let infrastructure = Outcome::InfrastructureFailed {
            failure: failure(HttpError, "upstream_unreachable"),
        };
        let no_grader = Outcome::Ungraded {
            failure: failure(AgentError, NO_GRADER),
        };
        let rejected = Outcome::Rejected {
            reason: "no".to_owned(),
        };
        for (outcome, agent, grade, whole, category) in [
            (scored(), Success, Success, Success, None),
            (agent_failed, Failure, Failure, Failure, Some(AgentError)),
            (infrastructure, Failure, Failure, Failure, Some(HttpError)),
            (
                timed_out(Phase::Agent),
                Failure,
                Failure,
                Failure,
                Some(Timeout),
            ),
            (
                timed_out(Phase::Grade),
                Success,
                Failure,
                Failure,
                Some(Timeout),
            ),
            (no_grader, Success, Failure, Success, Some(AgentError)),
            (rejected, Failure, Failure, Failure, Some(AgentError)),
            (Outcome::Cancelled, Cancelled, Failure, Cancelled, None),
        ] {
            assert_eq!(agent_end(&outcome).status, agent, "{outcome:?}");
            assert_eq!(grade_end(&outcome, false).status, grade, "{outcome:?}");
            assert_eq!(rollout_end(&outcome, false).status, whole, "{outcome:?}");
            assert_eq!(
                grade_end(&outcome, false).err_category,
                category,
                "{outcome:?}"
            );
        }
    }

    #[test]
    fn removing_every_sample_is_a_success_without_rewards() {
        let outcome = Outcome::Rejected {
            reason: "the grader removed every sample".to_owned(),
        };
        assert_eq!(grade_end(&outcome, true), PhaseEnd::success());
    }
}
