use osmosis_core::frame::FromWorker;
use osmosis_core::{JsonText, Sample, SampleId};
use serde_json::json;

use crate::engine::{Worker, told};

const MESSAGES: &str = r#"[{"role":"assistant",  "content":"42","logprob":-0.50}]"#;

fn sample(id: &str) -> Sample {
    Sample {
        id: SampleId::new(id).unwrap(),
        messages: JsonText::parse(MESSAGES).unwrap(),
        reward: None,
        remove_sample: false,
        metrics: None,
        extra_fields: None,
    }
}

fn graded(answer: FromWorker) -> Vec<Sample> {
    match answer {
        FromWorker::GradeDone { samples, .. } => samples,
        other => panic!("expected grades, got {other:?}"),
    }
}

fn rewards(samples: &[Sample]) -> Vec<Option<f64>> {
    samples
        .iter()
        .map(|sample| sample.reward.map(f64::from))
        .collect()
}

#[test]
fn the_only_sample_is_graded_against_the_label() {
    let mut worker = Worker::ready();
    let right = graded(worker.grade(&json!({}), Some("42"), vec![sample("main")]));
    assert_eq!(rewards(&right), [Some(1.0)]);
    // The conversation goes back as the very text it came as.
    assert_eq!(right[0].messages.as_str(), MESSAGES);
    let wrong = graded(worker.grade(&json!({}), Some("43"), vec![sample("main")]));
    assert_eq!(rewards(&wrong), [Some(0.0)]);
}

#[test]
fn each_sample_has_its_own_reward_and_metrics() {
    let mut worker = Worker::start();
    worker.load("{}", r#"{"tolerance": 0.5}"#);
    let mut second = sample("second");
    second.metrics = Some(JsonText::parse(r#"{"turns":2}"#).unwrap());
    let samples = vec![sample("first"), second];
    let samples = graded(worker.grade(&json!({"do": "grade each"}), None, samples));
    assert_eq!(rewards(&samples), [Some(1.5), Some(1.0)]);
    let metrics = samples[1].metrics.as_ref().unwrap().as_str();
    assert_eq!(metrics, r#"{"turns":2,"index":1.0}"#);
}

#[test]
fn a_removed_sample_needs_no_reward() {
    let mut worker = Worker::ready();
    let samples = vec![sample("first"), sample("second")];
    let samples = graded(worker.grade(&json!({"do": "remove the second"}), None, samples));
    assert_eq!(rewards(&samples), [Some(1.0), None]);
    assert!(samples[1].remove_sample);
}

#[test]
fn what_goes_wrong_in_grade_is_told_by_category_and_kind() {
    let mut worker = Worker::ready();
    for (what, category, kind, message) in [
        (
            "answer",
            "validation_error",
            "not_one_sample",
            "exactly one sample is needed here, there are: `first`, `second`; go through \
             `ctx.samples()` and use `ctx.set_sample_reward`",
        ),
        (
            "not a number",
            "validation_error",
            "invalid_reward",
            "a reward must be a finite number between -1e15 and 1e15, not `NaN`",
        ),
        (
            "forget",
            "agent_error",
            "ungraded_sample",
            "no reward for sample `first`, `second`; call `ctx.set_sample_reward` for every \
             sample, or `ctx.remove_sample` for one that should not count",
        ),
        (
            "somebody else",
            "validation_error",
            "unknown_sample",
            "there is no sample `third`; samples here: `first`, `second`",
        ),
    ] {
        let samples = vec![sample("first"), sample("second")];
        let answer = worker.grade(&json!({"do": what}), None, samples);
        assert_eq!(
            told(&answer),
            (category.to_owned(), kind, message),
            "{what}"
        );
    }
    let answer = worker.grade(&json!({"do": "panic"}), None, vec![]);
    assert_eq!(told(&answer).1, "panic");
}

#[test]
fn a_golden_grade_frame_is_understood() {
    let mut worker = Worker::ready();
    // `main` comes without a reward and this grader does not know its metadata.
    worker.send_body(include_bytes!(
        "../../../osmosis-core/fixtures/frames/grade_full.msgpack"
    ));
    worker.hear_started(8);
    let answer = worker.hear();
    assert_eq!(
        told(&answer).2,
        "exactly one sample is needed here, there are: `main`, `multiply agent ✓`; go through \
         `ctx.samples()` and use `ctx.set_sample_reward`"
    );
}
