use osmosis_core::frame::{Found, FromWorker, PROTOCOL_VERSION};

use crate::engine::{TOKEN, Worker};
use crate::guest::CALLED_AT_LINE;

fn found(name: &str, config: &str, max_concurrent: Option<u32>) -> Found {
    Found {
        name: name.to_owned(),
        file: "crates/osmosis-sdk/tests/it/guest.rs".to_owned(),
        line: CALLED_AT_LINE,
        config: Some(config.to_owned()),
        max_concurrent,
    }
}

fn problems(answer: FromWorker) -> Vec<(String, String)> {
    match answer {
        FromWorker::LoadFailed { problems } => problems
            .into_iter()
            .map(|problem| (problem.code, problem.message))
            .collect(),
        other => panic!("expected problems, got {other:?}"),
    }
}

#[test]
fn a_worker_introduces_itself_and_can_not_be_forked() {
    let worker = Worker::start();
    assert_eq!(worker.hello.protocol, PROTOCOL_VERSION);
    assert_eq!(worker.hello.token, TOKEN);
    assert!(
        worker.hello.sdk.starts_with("osmosis-sdk "),
        "{:?}",
        worker.hello
    );
    assert_eq!(worker.hello.features, [""; 0]);
}

#[test]
fn a_loaded_worker_says_what_it_holds() {
    let mut worker = Worker::start();
    let answer = worker.load(r#"{"limits": {"at_once": 3}, "repat": 2}"#, "{}");
    let FromWorker::Loaded { manifest } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(manifest.workflow, found("Parrot", "Settings", Some(3)));
    assert_eq!(manifest.grader, Some(found("Judge", "Tolerance", None)));
    assert_eq!(
        manifest.warnings,
        ["[workflow] `repat` is not a field of `Settings` and is ignored"]
    );
    assert!(manifest.not_forkable.is_some());
}

#[test]
fn all_problems_of_the_config_are_told_at_once() {
    let mut worker = Worker::start();
    let answer = worker.load_project(
        "/nowhere/at/all",
        r#"{"limits": {"at_once": "three"}}"#,
        r#"{"tolerance": []}"#,
    );
    let told = problems(answer);
    assert_eq!(told[0].0, "project_unreadable");
    assert!(told[0].1.starts_with("`/nowhere/at/all`: "), "{told:?}");
    assert_eq!(
        told[1..],
        [
            (
                "invalid_config".to_owned(),
                "[workflow] `limits.at_once`: invalid type: string \"three\", expected u32"
                    .to_owned()
            ),
            (
                "invalid_config".to_owned(),
                "[grader] `tolerance`: invalid type: sequence, expected f64".to_owned()
            ),
        ]
    );
}

#[test]
fn a_worker_loads_one_config_only() {
    let mut worker = Worker::start();
    let first = worker.load(r#"{"repeat": 2}"#, "{}");
    assert_eq!(worker.load(r#"{"repeat": 2}"#, "{}"), first);
    let told = problems(worker.load(r#"{"repeat": 3}"#, "{}"));
    assert_eq!(told[0].0, "already_loaded");
}

#[test]
fn a_worker_that_was_refused_a_config_can_be_given_another() {
    let mut worker = Worker::start();
    problems(worker.load(r#"{"repeat": -1}"#, "{}"));
    let answer = worker.load(r#"{"repeat": 1}"#, "{}");
    assert!(matches!(answer, FromWorker::Loaded { .. }), "{answer:?}");
}
