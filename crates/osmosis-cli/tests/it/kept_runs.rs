//! `osmosis run rm|archive|restore|rename|tag|du|prune`, and lists with archived and tagged runs.

use serde_json::Value;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Ran, Workspace, echo_rows};
use osmosis_testkit::python_environment;

fn workspace() -> Workspace {
    Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2))
}

/// Runs the evaluation under these names, one after the other.
fn evaluate(workspace: &Workspace, names: &[&str]) {
    for name in names {
        let python = python_environment::python();
        let arguments = ["eval", "submit", "configs/eval/c.toml", "--name", name];
        workspace
            .osmosis(&[&arguments[..], &["--python", python.as_str()]].concat())
            .expect(0);
    }
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| item["run_name"].as_str().unwrap())
        .collect()
}

fn listed(workspace: &Workspace, more: &[&str]) -> Value {
    workspace
        .osmosis(&[&["eval", "list", "--json"], more].concat())
        .expect(0)
        .json()
}

/// What a person sees, without sizes, times and the place of the workspace.
fn seen(ran: &Ran, workspace: &Workspace) -> String {
    let text =
        format!("{}{}", ran.stdout, ran.stderr).replace(workspace.root.as_str(), "WORKSPACE");
    let mut shown = String::new();
    for line in text.lines() {
        let words: Vec<String> = line.split(' ').map(hidden).collect();
        shown += &words.join(" ");
        shown.push('\n');
    }
    shown
}

/// `t.20260101-120000.1` and `12.3` without their digits.
fn hidden(word: &str) -> String {
    let bare = word.trim_matches(|c: char| "(),`".contains(c));
    let is_size = !bare.is_empty()
        && bare.contains('.')
        && bare.chars().all(|c| c.is_ascii_digit() || c == '.');
    if is_size {
        return word.replace(bare, "N");
    }
    let parts: Vec<&str> = word.split('.').collect();
    let timed = |part: &str| part.len() == 15 && part.as_bytes()[8] == b'-';
    if parts.iter().any(|part| timed(part)) {
        return parts
            .iter()
            .map(|part| if timed(part) { "TIME" } else { part })
            .collect::<Vec<_>>()
            .join(".");
    }
    word.to_owned()
}

#[test]
fn a_run_is_removed_only_when_somebody_said_yes() {
    let workspace = workspace();
    evaluate(&workspace, &["a", "b"]);
    let dry = workspace
        .osmosis(&["run", "rm", "a", "--dry-run"])
        .expect(0);
    insta::assert_snapshot!(seen(&dry, &workspace));
    // Nobody is there to ask.
    let refused = workspace.osmosis(&["run", "rm", "a"]).expect(2);
    insta::assert_snapshot!(seen(&refused, &workspace));
    assert_eq!(names(&listed(&workspace, &[])), ["b", "a"]);
    // All or nothing: a name that is wrong keeps the others.
    workspace
        .osmosis(&["run", "rm", "a", "nothing", "--yes"])
        .expect(1);
    assert_eq!(names(&listed(&workspace, &[])), ["b", "a"]);

    let gone = workspace
        .osmosis(&["run", "rm", "eval/a", "--yes", "--json"])
        .expect(0)
        .json();
    assert_eq!(gone["status"], "deleted");
    assert_eq!(gone["resource"]["removed"][0]["run"], "eval/a");
    assert!(gone["resource"]["bytes"].as_u64().unwrap() > 0);
    assert_eq!(names(&listed(&workspace, &[])), ["b"]);
    assert!(!workspace.run_folder("a").exists());
    assert!(!workspace.root.join(".osmosis/trash").exists());
}

#[test]
fn what_a_killed_removal_left_is_deleted_by_the_next_one_and_is_no_run() {
    let workspace = workspace();
    evaluate(&workspace, &["a", "b"]);
    // As `kill -9` between moving it aside and deleting it leaves it.
    let trash = workspace.root.join(".osmosis/trash/a.20260101-120000.1");
    std::fs::create_dir_all(trash.parent().unwrap()).unwrap();
    std::fs::rename(workspace.run_folder("a"), &trash).unwrap();
    assert_eq!(names(&listed(&workspace, &[])), ["b"]);
    workspace.osmosis(&["run", "rm", "b", "--yes"]).expect(0);
    assert!(!trash.exists());
}

#[test]
fn archived_runs_are_listed_when_asked_for_and_come_back() {
    let workspace = workspace();
    evaluate(&workspace, &["a", "b"]);
    let archived = workspace.osmosis(&["run", "archive", "a"]).expect(0);
    insta::assert_snapshot!(seen(&archived, &workspace));
    assert_eq!(names(&listed(&workspace, &[])), ["b"]);
    let list = listed(&workspace, &["--archived"]);
    assert_eq!(names(&list), ["a"]);
    let id = list["items"][0]["archive_id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("a."), "{id}");
    let shown = workspace.osmosis(&["eval", "list", "--archived"]).expect(0);
    assert!(
        shown.stdout.contains(&format!("archived as {id}")),
        "{}",
        shown.stdout
    );

    evaluate(&workspace, &["a"]);
    let taken = workspace.osmosis(&["run", "restore", "a"]).expect(1);
    insta::assert_snapshot!(seen(&taken, &workspace));
    let restored = workspace
        .osmosis(&["run", "restore", &id, "--as", "old"])
        .expect(0);
    assert_eq!(restored.stdout, "Restored `eval/old`.\n");
    assert_eq!(names(&listed(&workspace, &[])).len(), 3);
    workspace.osmosis(&["eval", "info", "old"]).expect(0);
    assert!(names(&listed(&workspace, &["--archived"])).is_empty());

    workspace.osmosis(&["run", "archive", "old"]).expect(0);
    workspace
        .osmosis(&["run", "rm", "--archived", "old", "--yes"])
        .expect(0);
    let none = workspace.osmosis(&["run", "restore", "old"]).expect(1);
    insta::assert_snapshot!(seen(&none, &workspace));
}

#[test]
fn tags_are_shown_in_lists_and_filter_them() {
    let workspace = workspace();
    evaluate(&workspace, &["a", "b"]);
    let tagged = workspace
        .osmosis(&["run", "tag", "a", "baseline", "good"])
        .expect(0);
    assert_eq!(tagged.stdout, "Run `eval/a`: baseline, good\n");
    let list = listed(&workspace, &["--tag", "good"]);
    assert_eq!(names(&list), ["a"]);
    assert_eq!(
        list["items"][0]["tags"],
        serde_json::json!(["baseline", "good"])
    );
    let shown = workspace.osmosis(&["eval", "list"]).expect(0);
    assert!(
        shown.stdout.contains("[baseline, good]"),
        "{}",
        shown.stdout
    );
    workspace
        .osmosis(&["run", "tag", "a", "--remove", "good"])
        .expect(0);
    let now = workspace
        .osmosis(&["run", "tag", "a", "--json"])
        .expect(0)
        .json();
    assert_eq!(now["resource"]["tags"], serde_json::json!(["baseline"]));
    let wrong = workspace.osmosis(&["run", "tag", "a", "no/tag"]).expect(2);
    assert!(wrong.stderr.contains("no/tag"), "{}", wrong.stderr);
}

#[test]
fn a_renamed_run_is_found_by_whoever_named_it_before() {
    let workspace = workspace();
    evaluate(&workspace, &["a", "b"]);
    let python = python_environment::python();
    let regrade = ["eval", "regrade", "a", "--name", "again"];
    workspace
        .osmosis(&[&regrade[..], &["--python", python.as_str()]].concat())
        .expect(0);
    let renamed = workspace
        .osmosis(&["run", "rename", "a", "baseline"])
        .expect(0);
    insta::assert_snapshot!(seen(&renamed, &workspace));
    // Under its new name it is a run like any other.
    let info = workspace
        .osmosis(&["eval", "info", "baseline", "--json"])
        .expect(0)
        .json();
    assert_eq!(info["data"]["run_name"], "baseline");
    let metrics: Value =
        serde_json::from_str(&workspace.read(".osmosis/evals/baseline/metrics.json")).unwrap();
    assert_eq!(metrics["run_name"], "baseline");
    assert_eq!(
        metrics["output_path"],
        workspace.run_folder("baseline").as_str()
    );
    workspace
        .osmosis(&["eval", "resume", "baseline", "--python", python.as_str()])
        .expect(0);
    assert!(!workspace.run_folder("a").exists());
    let compared = workspace
        .osmosis(&["eval", "compare", "baseline", "b", "--json"])
        .expect(0);
    assert!(
        compared.stdout.contains("\"baseline\""),
        "{}",
        compared.stdout
    );
    // By its former name, too; and a regrade finds the calls.
    workspace.osmosis(&["eval", "info", "a"]).expect(0);
    let shown = workspace
        .osmosis(&["eval", "show", "again", "0", "--json"])
        .expect(0)
        .json();
    let reasons = &shown["data"][0]["contexts"]["main"]["finish_reasons"];
    assert_eq!(*reasons, serde_json::json!(["stop"]), "{shown}");
    // Deleting needs the name that it has.
    let refused = workspace.osmosis(&["run", "rm", "a", "--yes"]).expect(2);
    assert!(refused.stderr.contains("former name"), "{}", refused.stderr);
    // The former name is free, and means whoever gets it.
    evaluate(&workspace, &["a"]);
    let info = workspace
        .osmosis(&["eval", "info", "a", "--json"])
        .expect(0)
        .json();
    assert_eq!(info["data"]["run_name"], "a");
    let taken = workspace.osmosis(&["run", "rename", "a", "b"]).expect(1);
    assert!(
        taken.stderr.contains("`b` is there already"),
        "{}",
        taken.stderr
    );
}

#[test]
fn a_training_run_is_found_by_configs_that_name_it_as_it_was_called() {
    let workspace = crate::training::workspace();
    workspace.train(&[]).expect(0);
    workspace.model("run:t@latest", "");
    let renamed = workspace
        .osmosis(&["run", "rename", "t", "calculator"])
        .expect(0);
    insta::assert_snapshot!(seen(&renamed, &workspace));
    workspace.submit(&["--limit", "1"]).expect(0);
    let uses = workspace
        .osmosis(&["run", "rm", "train/calculator", "--dry-run", "--json"])
        .expect(0)
        .json();
    let used_by = &uses["resource"]["removed"][0]["used_by"];
    assert_eq!(
        *used_by,
        serde_json::json!([
            {"kind": "model", "by": "eval/t"},
            {"kind": "config", "by": "configs/eval/c.toml"},
        ])
    );
}

#[test]
fn pruning_keeps_the_newest_the_tagged_and_what_others_need() {
    let workspace = workspace();
    evaluate(&workspace, &["a", "b", "c"]);
    let python = python_environment::python();
    let regrade = ["eval", "regrade", "c", "--name", "graded"];
    workspace
        .osmosis(&[&regrade[..], &["--python", python.as_str()]].concat())
        .expect(0);
    workspace.osmosis(&["run", "tag", "b", "keep"]).expect(0);
    let dry = workspace
        .osmosis(&["run", "prune", "--keep", "1", "--dry-run"])
        .expect(0);
    insta::assert_snapshot!(seen(&dry, &workspace));
    workspace
        .osmosis(&["run", "prune", "--keep", "1"])
        .expect(2);
    let pruned = workspace
        .osmosis(&["run", "prune", "--keep", "1", "--yes", "--json"])
        .expect(0)
        .json();
    assert_eq!(pruned["status"], "deleted");
    assert_eq!(names(&listed(&workspace, &[])), ["graded", "c", "b"]);
    // Nothing is that old.
    let young = workspace
        .osmosis(&["run", "prune", "--older-than", "1d", "--yes", "--json"])
        .expect(0)
        .json();
    assert_eq!(young["status"], "nothing_to_delete");
    workspace.osmosis(&["run", "prune", "--yes"]).expect(2);
}

#[test]
fn sizes_are_listed_with_the_largest_first() {
    let workspace = workspace();
    evaluate(&workspace, &["a", "b"]);
    std::fs::create_dir_all(workspace.run_folder("b").join("artifacts")).unwrap();
    std::fs::write(
        workspace.run_folder("b").join("artifacts/big"),
        vec![0; 50_000_000],
    )
    .unwrap();
    workspace.osmosis(&["run", "archive", "a"]).expect(0);
    let sizes = workspace.osmosis(&["run", "du", "--json"]).expect(0).json();
    assert_eq!(names(&sizes), ["b", "a"]);
    let bytes = |place: usize| sizes["items"][place]["bytes"].as_u64().unwrap();
    assert!(bytes(0) > 50_000_000 && bytes(1) > 0, "{sizes}");
    assert_eq!(sizes["items"][0]["parts"]["artifacts"], 50_000_000);
    assert!(sizes["items"][1]["archive_id"].is_string(), "{sizes}");
    let shown = workspace.osmosis(&["run", "du"]).expect(0);
    assert!(
        shown.stdout.contains("eval/b  artifacts 50.0 MB"),
        "{}",
        shown.stdout
    );
    assert!(shown.stdout.contains("2 runs in all"), "{}", shown.stdout);
}

#[test]
fn stopping_a_finished_run_says_that_it_is_finished() {
    let workspace = workspace();
    evaluate(&workspace, &["a"]);
    let ran = workspace.osmosis(&["eval", "stop", "a"]).expect(0);
    insta::assert_snapshot!(seen(&ran, &workspace), @"Run `a` is finished: there is nothing to stop.");
}
