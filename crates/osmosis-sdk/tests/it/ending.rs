use std::process::{Command, Stdio};

use osmosis_core::frame::ToWorker;
use serde_json::json;

use crate::engine::{Worker, refuse_one_worker, worker_arguments, worker_command};

#[test]
fn a_worker_leaves_when_told_to_and_lets_go_of_its_tasks() {
    let mut worker = Worker::ready();
    worker.start_run(&json!({"do": "hang"}));
    assert_eq!(worker.line(), "\x1er1-0\x1fhanging");
    worker.send(&ToWorker::Shutdown {});
    assert_eq!(worker.line(), "\x1er1-0\x1flet go");
    // What was under way is lost, which is no answer.
    assert_eq!(worker.hear_or_end(), None);
    assert_eq!(worker.end().code(), Some(0));
}

#[test]
fn a_worker_ends_with_the_connection_even_when_user_code_blocks_every_thread() {
    let mut command = worker_command();
    command.env("TOKIO_WORKER_THREADS", "1");
    let mut worker = Worker::start_with(command);
    worker.load("{}", "{}");
    worker.start_run(&json!({"do": "block"}));
    assert_eq!(worker.line(), "\x1er1-0\x1fblocking");
    assert_eq!(worker.hang_up().code(), Some(1));
}

#[test]
fn a_worker_leaves_when_told_to_even_when_user_code_blocks_every_thread() {
    let mut command = worker_command();
    command.env("TOKIO_WORKER_THREADS", "1");
    let mut worker = Worker::start_with(command);
    worker.load("{}", "{}");
    worker.start_run(&json!({"do": "block"}));
    assert_eq!(worker.line(), "\x1er1-0\x1fblocking");
    worker.send(&ToWorker::Shutdown {});
    assert_eq!(worker.end().code(), Some(0));
}

#[test]
fn garbage_ends_a_worker() {
    let mut worker = Worker::ready();
    worker.send_body(b"\xc1 is no msgpack");
    assert_eq!(worker.end().code(), Some(1));
}

#[cfg(target_os = "linux")]
#[test]
fn a_worker_dies_with_its_parent() {
    // A parent in between, so that the connection outlives it.
    let mut parent = Command::new("sh");
    parent
        .args(["-c", "\"$@\" & wait", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(worker_arguments())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut worker = Worker::start_with(parent);
    worker.load("{}", "{}");
    worker.kill();
    assert_eq!(worker.hear_or_end(), None);
}

#[test]
fn a_refused_worker_says_why_it_ends() {
    let output = refuse_one_worker(worker_command());
    assert_eq!(output.status.code(), Some(3));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("refused this worker: not today"), "{told}");
}

#[test]
fn a_worker_started_by_hand_says_how_it_is_run() {
    let output = worker_command().stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr);
    for part in [
        "`osmosis` starts it",
        "entrypoint = \"Cargo.toml\"",
        "osmosis eval submit",
        "OSMOSIS_WORKER_ADDR",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}
