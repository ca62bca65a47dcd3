//! Every block of `docs/evaluation.md` is executed, as those of `docs/python.md` are.

use camino::Utf8Path;
use osmosis_testkit::model_server::{Behaviour, ModelServer};
use osmosis_testkit::python_environment;

use crate::python_guide::{guide, succeed};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/evaluation.md");

const SECTIONS: [&str; 7] = [
    "First evaluation",
    "The config",
    "Settings on the command line",
    "A real model and its probe",
    "Tokens and cost",
    "Gates and JUnit for CI",
    "Watching a run",
];

#[track_caller]
fn run(section: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let model = runtime
        .block_on(ModelServer::start(Behaviour::Answers))
        .unwrap();
    let python = python_environment::python();
    let mut command = guide(&python, Utf8Path::new(GUIDE), &["run", section]);
    // Commands are suggested as a user has them, and not as `cargo run` does.
    command
        .env_remove("CARGO_PKG_NAME")
        .env("OPENAI_BASE_URL", model.url());
    succeed(&command.output().unwrap());
}

#[test]
fn a_first_evaluation_is_run_and_looked_at() {
    run(SECTIONS[0]);
}

#[test]
fn the_whole_config_is_taken() {
    run(SECTIONS[1]);
}

#[test]
fn keys_are_set_on_the_command_line() {
    run(SECTIONS[2]);
}

#[test]
fn a_real_model_is_probed() {
    run(SECTIONS[3]);
}

#[test]
fn the_cost_is_told_and_limited() {
    run(SECTIONS[4]);
}

#[test]
fn gates_and_junit_serve_continuous_integration() {
    run(SECTIONS[5]);
}

#[test]
fn a_run_is_watched_by_a_program() {
    run(SECTIONS[6]);
}

#[test]
fn no_section_of_the_evaluation_guide_is_left_out() {
    let python = python_environment::python();
    let list = guide(&python, Utf8Path::new(GUIDE), &["list"]).output();
    let headings: Vec<String> = serde_json::from_str(&succeed(&list.unwrap())).unwrap();
    assert_eq!(headings, SECTIONS);
}
