use osmosis_core::frame::{FromWorker, ToWorker};
use osmosis_core::{Sample, SampleId};
use serde_json::{Value, json};

use crate::engine::{Worker, told, worker_command};

fn samples(answer: FromWorker) -> Vec<(String, Value)> {
    match answer {
        FromWorker::RunDone { samples, .. } => samples
            .into_iter()
            .map(|sample| (sample.id.to_string(), sample.messages.read().unwrap()))
            .collect(),
        other => panic!("expected samples, got {other:?}"),
    }
}

/// The text of the only message of the only sample.
fn said(answer: FromWorker) -> String {
    let samples = samples(answer);
    samples[0].1[0]["content"].as_str().unwrap().to_owned()
}

#[test]
fn what_run_returns_becomes_the_sample_main() {
    let mut worker = Worker::start();
    worker.load(r#"{"repeat": 2}"#, "{}");
    let answer = worker.run(&json!({}));
    let FromWorker::RunDone {
        samples, metrics, ..
    } = answer
    else {
        panic!("{answer:?}");
    };
    assert_eq!(metrics.unwrap().as_str(), r#"{"turns":1.0}"#);
    let [
        Sample {
            id,
            messages,
            reward,
            ..
        },
    ] = &samples[..]
    else {
        panic!("{samples:?}");
    };
    assert_eq!(*id, SampleId::main());
    assert_eq!(*reward, None);
    assert_eq!(
        messages.as_str(),
        r#"[{"role":"user","content":"6 × 7?"},{"role":"assistant","content":"6 × 7?6 × 7?"}]"#
    );
}

#[test]
fn registered_samples_come_in_order_and_win_over_what_run_returns() {
    let mut worker = Worker::ready();
    let message = |text: &str| json!([{"role": "assistant", "content": text}]);
    assert_eq!(
        samples(worker.run(&json!({"do": "register"}))),
        [
            ("first".to_owned(), message("1")),
            ("second".to_owned(), message("2")),
        ]
    );
}

#[test]
fn a_workflow_knows_its_rollout_and_stands_in_its_project() {
    let mut worker = Worker::ready();
    assert_eq!(
        said(worker.run(&json!({"do": "describe yourself"}))),
        format!(
            "r1-0 http://127.0.0.1:1/v1 osm-key \
             [(\"x-sample-id\", \"solver\"), (\"x-rollout-id\", \"r1-0\")] in {}",
            env!("CARGO_MANIFEST_DIR")
        )
    );
}

#[test]
fn a_workflow_may_decline_to_be_scored() {
    let mut worker = Worker::ready();
    assert_eq!(
        worker.run(&json!({"do": "reject"})),
        FromWorker::Rejected {
            task: 1,
            reason: "too hard".to_owned()
        }
    );
}

#[test]
fn what_goes_wrong_in_run_is_told_by_category_and_kind() {
    let mut worker = Worker::ready();
    for (what, category, kind, message) in [
        (
            "nothing",
            "agent_error",
            "no_sample",
            "`run` registered no sample and returned no messages; return the messages from `run`, \
             or register them with `ctx.add_sample`",
        ),
        (
            "register twice",
            "validation_error",
            "duplicate_sample",
            "a sample named `same` is already registered in rollout `r2-0`; give each \
             conversation a name of its own",
        ),
        (
            "a text",
            "validation_error",
            "invalid_return",
            "message 0 is a text; messages are JSON objects",
        ),
        (
            "parse",
            "validation_error",
            "ParseIntError",
            "invalid digit found in string",
        ),
        ("call a service", "http_error", "error", "it answered 503"),
        ("dance", "agent_error", "error", "what is `dance`?"),
    ] {
        let answer = worker.run(&json!({"do": what}));
        assert_eq!(
            told(&answer),
            (category.to_owned(), kind, message),
            "{what}"
        );
    }
}

#[test]
fn a_panic_is_told_with_its_place_and_harms_nobody_else() {
    let mut worker = Worker::ready();
    let hanging = worker.start_run(&json!({"do": "hang"}));
    let answer = worker.run(&json!({"do": "panic"}));
    let (category, kind, message) = told(&answer);
    assert_eq!((category.as_str(), kind), ("agent_error", "panic"));
    assert!(
        message.starts_with("no number here (at crates/osmosis-sdk/tests/it/guest.rs:"),
        "{message}"
    );
    let FromWorker::TaskFailed { failure, .. } = &answer else {
        panic!("{answer:?}");
    };
    let traceback = failure.traceback.as_deref().unwrap();
    assert!(traceback.ends_with("no number here"), "{traceback}");

    worker.send(&ToWorker::Cancel { task: hanging });
    assert_eq!(worker.hear(), FromWorker::TaskCancelled { task: hanging });
}

#[test]
fn tasks_run_side_by_side() {
    let mut worker = Worker::ready();
    // Neither can end without the other.
    worker.send_run(&json!({"do": "meet"}));
    worker.send_run(&json!({"do": "meet"}));
    let mut ended = 0;
    for _ in 0..4 {
        match worker.hear() {
            FromWorker::Started { .. } => {}
            FromWorker::RunDone { .. } => ended += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ended, 2);
}

#[test]
fn a_cancelled_task_is_dropped_and_answers_once() {
    let mut worker = Worker::ready();
    let task = worker.start_run(&json!({"do": "hang"}));
    assert_eq!(worker.line(), "\x1er1-0\x1fhanging");
    worker.send(&ToWorker::Cancel { task });
    worker.send(&ToWorker::Cancel { task });
    assert_eq!(worker.hear(), FromWorker::TaskCancelled { task });
    assert_eq!(worker.line(), "\x1er1-0\x1flet go");
    // Over, or never there: nothing to say.
    worker.send(&ToWorker::Cancel { task });
    worker.send(&ToWorker::Cancel { task: 99 });
    let answer = worker.run(&json!({}));
    assert!(
        matches!(answer, FromWorker::RunDone { task: 2, .. }),
        "{answer:?}"
    );
}

#[test]
fn a_destructor_that_panics_does_not_keep_a_task_from_being_cancelled() {
    let mut worker = Worker::ready();
    let task = worker.start_run(&json!({"do": "hang and panic"}));
    assert_eq!(worker.line(), "\x1er1-0\x1fhanging");
    worker.send(&ToWorker::Cancel { task });
    assert_eq!(worker.hear(), FromWorker::TaskCancelled { task });
}

#[test]
fn a_result_over_the_frame_limit_fails_its_task_only() {
    let mut worker = Worker::ready();
    let answer = worker.run(&json!({"do": "too much"}));
    let (category, kind, _) = told(&answer);
    assert_eq!(
        (category.as_str(), kind),
        ("validation_error", "result_too_large")
    );
    assert!(matches!(worker.run(&json!({})), FromWorker::RunDone { .. }));
}

#[test]
fn the_artifacts_folder_is_made_when_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = folder.path().join("runs/r1-0");
    let mut worker = Worker::ready();

    let task = worker.send_run_leaving_files(&json!({}), Some(&artifacts));
    worker.hear_started(task);
    worker.hear();
    assert!(!artifacts.exists());

    let task = worker.send_run_leaving_files(&json!({"do": "leave a file"}), Some(&artifacts));
    worker.hear_started(task);
    assert_eq!(said(worker.hear()), "left");
    assert_eq!(
        std::fs::read_to_string(artifacts.join("note")).unwrap(),
        "hello"
    );
}

#[test]
fn a_task_before_the_load_fails() {
    let mut worker = Worker::start();
    let answer = worker.run(&json!({}));
    assert_eq!(told(&answer).1, "NotLoaded");
}

#[test]
fn a_golden_run_frame_is_understood() {
    let mut worker = Worker::ready();
    worker.send_body(include_bytes!(
        "../../../osmosis-core/fixtures/frames/run_minimal.msgpack"
    ));
    worker.hear_started(7);
    let answer = worker.hear();
    assert_eq!(
        samples(answer),
        [(
            "main".to_owned(),
            json!([
                {"role": "user", "content": "6 × 7?  ", "weight": 1.5},
                {"role": "assistant", "content": "6 × 7?  "},
            ])
        )]
    );
}

#[test]
fn a_worker_may_dial_in_over_tcp() {
    let mut worker = Worker::start_over_tcp();
    worker.load("{}", "{}");
    assert!(matches!(worker.run(&json!({})), FromWorker::RunDone { .. }));
}

#[test]
fn main_may_be_async() {
    let mut command = worker_command();
    command.env("ASYNC_MAIN", "1");
    let mut worker = Worker::start_with(command);
    worker.load("{}", "{}");
    assert!(matches!(worker.run(&json!({})), FromWorker::RunDone { .. }));
}
