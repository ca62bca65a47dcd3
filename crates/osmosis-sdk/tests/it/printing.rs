use serde_json::json;

use crate::engine::Worker;

#[test]
fn what_is_logged_is_tagged_and_what_is_printed_arrives() {
    let mut worker = Worker::ready();
    worker.run(&json!({"do": "print"}));
    let lines: Vec<String> = (0..7).map(|_| worker.line()).collect();
    assert_eq!(
        lines,
        [
            "\x1er1-0\x1flogged",
            "\x1er1-0\x1flogged",
            "\x1er1-0\x1ftwice",
            "\x1er1-0\x1fin pieces: written",
            "\x1er1-0\x1fand left over",
            "printed",
            "printed as an error",
        ]
    );
}

#[test]
fn a_tagged_line_is_never_in_the_middle_of_another() {
    let mut worker = Worker::ready();
    worker.run(&json!({"do": "half a line"}));
    assert_eq!(worker.line(), "\x1er1-0\x1fbetween");
    assert_eq!(worker.line(), "half a line");
}

#[test]
fn a_panic_is_logged_in_the_name_of_its_rollout() {
    let mut worker = Worker::ready();
    worker.run(&json!({"do": "panic"}));
    let line = worker.line();
    assert!(
        line.starts_with("\x1er1-0\x1fpanicked at crates/osmosis-sdk/tests/it/guest.rs:"),
        "{line:?}"
    );
    assert_eq!(worker.line(), "\x1er1-0\x1fno number here");
}
