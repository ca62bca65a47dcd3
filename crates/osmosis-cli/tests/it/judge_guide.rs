//! Every block of `docs/judge.md` is executed, as those of the Python guide are.

use camino::Utf8Path;
use osmosis_testkit::python_environment;

use crate::python_guide::{guide, succeed};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/judge.md");
const SECTIONS: [&str; 3] = ["A judge in a grader", "Arguments and replies", "Regrading"];

#[track_caller]
fn run(section: &str) {
    let python = python_environment::python();
    let mut command = guide(&python, Utf8Path::new(GUIDE), &["run", section]);
    // Suggested commands are those of a user, not of somebody who builds us.
    succeed(&command.env_remove("CARGO_PKG_NAME").output().unwrap());
}

#[test]
fn a_judge_judges() {
    run(SECTIONS[0]);
}

#[test]
fn a_judge_is_asked_without_a_run() {
    run(SECTIONS[1]);
}

#[test]
fn a_run_is_graded_again() {
    run(SECTIONS[2]);
}

#[test]
fn no_section_is_left_out_and_its_python_is_typed() {
    let python = python_environment::python();
    let list = guide(&python, Utf8Path::new(GUIDE), &["list"]).output();
    let headings: Vec<String> = serde_json::from_str(&succeed(&list.unwrap())).unwrap();
    assert_eq!(headings, SECTIONS);
    let task: Vec<&str> = std::iter::once("types").chain(SECTIONS).collect();
    let cache = crate::workspace::cache_dir().join("types-judge");
    let mut command = guide(&python, Utf8Path::new(GUIDE), &task);
    succeed(&command.env("MYPY_CACHE", cache).output().unwrap());
}
