//! Every block of `docs/failures.md` is executed, as those of `docs/python.md` are.

use camino::Utf8Path;
use osmosis_testkit::python_environment;

use crate::python_guide::{guide, succeed};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/failures.md");
const SECTION: &str = "From a bad score to its cause";

#[test]
fn a_bad_score_leads_to_its_cause() {
    let python = python_environment::python();
    let mut command = guide(&python, Utf8Path::new(GUIDE), &["run", SECTION]);
    command.env_remove("CARGO_PKG_NAME").env_remove("COLUMNS");
    succeed(&command.output().unwrap());
}

#[test]
fn no_section_of_the_guide_to_failures_is_left_out() {
    let python = python_environment::python();
    let list = guide(&python, Utf8Path::new(GUIDE), &["list"]).output();
    let headings: Vec<String> = serde_json::from_str(&succeed(&list.unwrap())).unwrap();
    assert_eq!(headings, [SECTION]);
}
