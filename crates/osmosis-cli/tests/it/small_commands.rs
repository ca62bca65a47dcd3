use std::process::Command;

use osmosis_testkit::python_environment;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

fn workspace() -> Workspace {
    Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2))
}

#[test]
fn every_command_has_help_with_an_example() {
    let workspace = workspace();
    for command in [
        &["eval", "submit"][..],
        &["eval", "resume"],
        &["eval", "list"],
        &["eval", "info"],
        &["eval", "compare"],
        &["eval", "show"],
        &["eval", "logs"],
        &["eval", "stop"],
        &["train", "submit"],
        &["train", "resume"],
        &["train", "list"],
        &["train", "info"],
        &["train", "show"],
        &["train", "logs"],
        &["train", "stop"],
        &["gateway"],
        &["model", "merge"],
        &["model", "export"],
        &["demo"],
        &["rollout", "init"],
        &["rollout", "run"],
        &["run", "logs"],
        &["dataset", "preview"],
        &["dataset", "validate"],
        &["eval", "report"],
        &["export"],
        &["doctor"],
        &["completions"],
    ] {
        let ran = workspace
            .osmosis(&[command, &["--help"]].concat())
            .expect(0);
        assert!(
            ran.stdout.contains("Example:"),
            "{command:?}:\n{}",
            ran.stdout
        );
    }
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    let workspace = workspace();
    workspace.osmosis(&["eval", "sumbit"]).expect(2);
    let json = workspace.osmosis(&["eval", "submit", "--json"]).expect(2);
    assert_eq!(json.error()["code"], "usage");
}

#[test]
fn completions_are_printed_for_the_common_shells() {
    let workspace = workspace();
    for shell in ["bash", "zsh", "fish"] {
        let ran = workspace.osmosis(&["completions", shell]).expect(0);
        assert!(ran.stdout.contains("osmosis"), "{shell}");
    }
}

#[test]
fn a_dataset_is_validated_by_path_and_by_name() {
    let workspace = workspace();
    for file in ["data/d.jsonl", "d"] {
        let ran = workspace.osmosis(&["dataset", "validate", file]).expect(0);
        assert!(ran.stdout.contains("2 rows"), "{}", ran.stdout);
    }
    workspace.write(
        "data/bad.jsonl",
        "{\"user_prompt\": 3, \"ground_truth\": \"x\"}\n",
    );
    let ran = workspace.osmosis(&["dataset", "validate", "bad"]).expect(1);
    assert!(ran.stderr.contains("bad.jsonl:1"), "{}", ran.stderr);
    workspace
        .osmosis(&["dataset", "validate", "none.jsonl"])
        .expect(1);
}

#[test]
fn a_dataset_for_whole_rows_is_validated_when_that_is_asked_for() {
    let workspace = workspace();
    workspace.write("data/any.jsonl", "{\"ids\": [1]}\n{\"ids\": [2]}\n");
    let ran = workspace.osmosis(&["dataset", "validate", "any"]).expect(1);
    assert!(
        ran.stderr.contains("missing column `user_prompt`"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("`--any-columns`"), "{}", ran.stderr);
    let asked = &["dataset", "validate", "any", "--any-columns"];
    let ran = workspace.osmosis(asked).expect(0);
    assert!(ran.stdout.contains("2 rows, all good"), "{}", ran.stdout);
    workspace.write("data/any.jsonl", "{\"ids\": [1]}\n[2]\n");
    let ran = workspace.osmosis(asked).expect(1);
    assert!(ran.stderr.contains("any.jsonl:2"), "{}", ran.stderr);
    let ran = workspace.osmosis(&["dataset", "validate", "any"]).expect(1);
    assert!(!ran.stderr.contains("--any-columns"), "{}", ran.stderr);
}

#[test]
fn runs_are_listed_newest_first_and_shown() {
    let workspace = workspace();
    let none = workspace.osmosis(&["eval", "list"]).expect(0);
    assert!(none.stdout.contains("No runs yet"), "{}", none.stdout);
    workspace.submit(&[]).expect(0);
    let list = workspace
        .osmosis(&["eval", "list", "--json"])
        .expect(0)
        .json();
    assert_eq!(list["total_count"], 1);
    assert_eq!(list["items"][0]["run_name"], "t");
    assert_eq!(list["items"][0]["status"], "finished");
    let info = workspace
        .osmosis(&["eval", "info", "t", "--json"])
        .expect(0)
        .json();
    assert_eq!(info["data"]["pass_rate"], 1.0);
    let show = workspace
        .osmosis(&["eval", "show", "t", "0", "--json"])
        .expect(0)
        .json();
    assert_eq!(show["data"][0]["samples"][0]["messages"][1]["content"], "0");
    assert_eq!(show["data"][0]["calls"][0]["status"], 200);
}

#[test]
fn unknown_runs_and_rows_are_told_with_a_hint() {
    let workspace = workspace();
    let ran = workspace.osmosis(&["eval", "info", "nope"]).expect(1);
    assert!(ran.stderr.contains("no runs yet"), "{}", ran.stderr);
    workspace.submit(&[]).expect(0);
    let ran = workspace.osmosis(&["eval", "info", "nope"]).expect(1);
    assert!(ran.stderr.contains("`t`"), "{}", ran.stderr);
    let ran = workspace.osmosis(&["eval", "show", "t", "77"]).expect(1);
    assert!(ran.stderr.contains("no rollout `77`"), "{}", ran.stderr);
    workspace.osmosis(&["eval", "show", "t", "x"]).expect(2);
}

#[test]
fn rollout_init_makes_a_workspace_whose_files_are_in_order() {
    let workspace = workspace();
    for (framework, python) in [
        ("openai-agents", python_environment::python()),
        ("strands", python_environment::strands_python()),
        ("areal", python_environment::python()),
        ("plain", python_environment::python()),
    ] {
        workspace
            .osmosis(&["rollout", "init", framework, "--framework", framework])
            .expect(0);
        // All but the environment: the interpreter of the test environment brings the packages.
        let project = format!("rollouts/{framework}/pyproject.toml");
        assert!(workspace.read(&project).contains("osmosis-rs"));
        std::fs::remove_file(workspace.root.join(project)).unwrap();
        let config = format!("configs/eval/{framework}.toml");
        let ran = workspace
            .osmosis(&[
                "eval",
                "submit",
                &config,
                "--json",
                "--python",
                python.as_str(),
            ])
            .expect(0);
        let resource = ran.json()["resource"].clone();
        assert_eq!(resource["outcomes"]["scored"], 6, "{resource:#}");
        assert_eq!(resource["pass_rate"], 1.0, "{resource:#}");
    }
    workspace.osmosis(&["rollout", "init", "plain"]).expect(1);
    workspace.osmosis(&["rollout", "init", "a/b"]).expect(2);
}

#[test]
fn rollout_init_makes_a_workspace_where_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let made = Command::new(env!("CARGO_BIN_EXE_osmosis"))
        .current_dir(folder.path())
        .args(["rollout", "init", "hello"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    for file in [
        "rollouts/hello/main.py",
        "configs/eval/hello.toml",
        "data/hello.jsonl",
    ] {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
}

#[test]
fn a_run_is_exported_as_jsonl_and_parquet() {
    let workspace = workspace();
    workspace.submit(&[]).expect(0);
    workspace.osmosis(&["export", "t"]).expect(0);
    let lines = workspace.read("t.jsonl");
    assert_eq!(lines.lines().count(), 2);
    let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(first["outcome"], "scored");
    assert_eq!(first["samples"][0]["messages"][1]["content"], "0");
    let piped = workspace.osmosis(&["export", "t", "-o", "-"]).expect(0);
    assert_eq!(piped.stdout, lines);
    workspace
        .osmosis(&["export", "t", "--format", "parquet", "-o", "out.parquet"])
        .expect(0);
    let bytes = std::fs::read(workspace.root.join("out.parquet")).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    workspace
        .osmosis(&["export", "t", "--format", "parquet", "-o", "-"])
        .expect(2);
    workspace.osmosis(&["export", "nope"]).expect(1);
}
