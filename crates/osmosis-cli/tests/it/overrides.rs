//! Keys of a config that are set on the command line, several models, and runs without a config.

use osmosis_testkit::python_environment;

use crate::workspace::{CHECKSUM, ECHO_SCRIPT, PLAIN, Ran, Workspace, echo_rows};

/// Answers wrongly.
const WRONG_SCRIPT: &str = "[[reply]]\ntext = \"nothing\"\n";

/// An agent that needs a setting.
fn styled() -> String {
    PLAIN.replace(
        "class Plain(AgentWorkflow):\n",
        "from osmosis_ai.rollout import AgentWorkflowConfig\n\n\
         config = AgentWorkflowConfig(name=\"plain\", style=\"long\")\n\n\
         class Plain(AgentWorkflow):\n",
    )
}

fn without_a_config(workspace: &Workspace, more: &[&str]) -> Ran {
    let python = python_environment::python();
    let submit = ["eval", "submit", "--python", python.as_str()];
    workspace.osmosis(&[&submit[..], more].concat())
}

#[test]
fn settings_are_checked_pinned_and_shown_like_the_config() {
    let workspace = Workspace::new(&styled(), ECHO_SCRIPT, &echo_rows(3));
    let settings = [
        "--n",
        "2",
        "--limit",
        "2",
        "--set",
        "evaluation.pass_threshold=0.5",
        "--set",
        "workflow.style=short",
    ];
    let report = workspace.submit_json(&settings);
    assert_eq!(report["total_rollouts"], 4);
    let info = workspace
        .osmosis(&["eval", "info", "t", "--json"])
        .expect(0)
        .json();
    let data = &info["data"];
    insta::assert_snapshot!(data["config"].as_str().unwrap());
    assert_eq!(data["pinned"]["workflow.style"], "short");
    assert_eq!(data["pinned"]["evaluation.pass_threshold"], 0.5);

    let shown = workspace.osmosis(&["eval", "info", "t"]).expect(0).stdout;
    let set = shown.lines().find(|line| line.starts_with("  set"));
    assert_eq!(
        set.unwrap().trim_start_matches("  set").trim(),
        "evaluation.n=2, evaluation.limit=2, evaluation.pass_threshold=0.5, workflow.style=\"short\""
    );

    // The same again is the same run; anything else is refused by name.
    let same = workspace.submit_json(&settings);
    assert_eq!(same["already_complete"], true);
    let python = python_environment::python();
    let resume = ["eval", "resume", "t", "--json", "--python", python.as_str()];
    let resumed = workspace.osmosis(&resume).expect(0).json();
    assert_eq!(resumed["resource"]["already_complete"], true);
    let other = workspace
        .submit(&["--n", "2", "--set", "workflow.style=\"terse\""])
        .expect(1);
    insta::assert_snapshot!("refused", other.stderr.split_once("error: ").unwrap().1);

    // A regrade, which goes by the file as it is now, keeps them.
    let regrade = [
        "eval",
        "regrade",
        "t",
        "--name",
        "g",
        "--json",
        "--python",
        python.as_str(),
    ];
    let regraded = workspace.osmosis(&regrade).expect(0).json();
    assert_eq!(regraded["resource"]["changes"], serde_json::json!({}));
}

#[test]
fn a_setting_that_is_wrong_is_told_by_its_flag() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    let wrong = [
        "--set",
        "evaluation.n=none",
        "--set",
        "evaluation.limt=3",
        "--model",
        "run:",
    ];
    let ran = workspace.submit(&wrong).expect(1);
    let usage = workspace.submit(&["--set", "n=4"]).expect(2);
    let told = format!("{}\n{}", ran.stderr, usage.stderr.lines().next().unwrap());
    insta::assert_snapshot!(told.replace(workspace.root.as_str(), "WORKSPACE"));
}

#[test]
fn several_models_make_several_runs_and_one_table() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(8));
    workspace.write("policies/wrong.toml", WRONG_SCRIPT);
    let models = "script:policies/p.toml,script:policies/wrong.toml";
    let ran = workspace.submit(&["--model", models]).expect(0);
    let table: Vec<&str> = ran.stdout.trim().lines().collect();
    // The time of the runs is not part of what is shown.
    let shown: Vec<String> = table
        .iter()
        .map(|line| {
            let without_time = line.rsplit_once("  -  ").map_or(*line, |(start, _)| start);
            without_time.trim_end().to_owned()
        })
        .collect();
    insta::assert_snapshot!(shown.join("\n"));

    let json = workspace
        .submit(&["--model", models, "--json"])
        .expect(0)
        .json();
    let resource = &json["resource"];
    assert_eq!(resource["runs"][0]["run_name"], "t-1");
    assert_eq!(resource["runs"][0]["already_complete"], true);
    assert_eq!(resource["runs"][1]["model"], "script:policies/wrong.toml");
    assert_eq!(resource["runs"][1]["pass_rate"], 0.0);
    assert_eq!(resource["comparisons"][0]["first"], "t-1");
    assert_eq!(resource["comparisons"][0]["run_name"], "t-2");
    assert_eq!(resource["comparisons"][0]["verdict"], "worse");

    let gate = ["--model", models, "--fail-under", "pass_rate=0.5"];
    workspace.submit(&gate).expect(4);
    let twice = format!("{models},script:policies/p.toml");
    let ran = workspace.submit(&["--model", &twice]).expect(2);
    assert!(ran.stderr.contains("given twice"), "{}", ran.stderr);
    // All are checked before the first is run.
    let missing = [
        "--fresh",
        "--model",
        "script:policies/p.toml,script:policies/none.toml",
    ];
    let ran = workspace.submit(&missing).expect(1);
    assert!(ran.stderr.contains("none.toml"), "{}", ran.stderr);
    assert!(!workspace.root.join(".osmosis/archive").exists());
}

#[test]
fn no_config_is_needed_for_a_quick_look() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2));
    let flags = [
        "--rollout",
        "r",
        "--dataset",
        "data/d.jsonl",
        "--model",
        "script:policies/p.toml",
    ];
    let ran = without_a_config(&workspace, &[&flags[..], &["--name", "t"]].concat()).expect(0);
    assert!(ran.stdout.contains("2 passed of 2"), "{}", ran.stdout);
    let info = workspace
        .osmosis(&["eval", "info", "t", "--json"])
        .expect(0)
        .json();
    insta::assert_snapshot!(info["data"]["config"].as_str().unwrap());
    let python = python_environment::python();
    let regrade = ["eval", "regrade", "t", "--python", python.as_str()];
    workspace.osmosis(&regrade).expect(0);
    let unnamed = without_a_config(&workspace, &[&flags[..], &["--json"]].concat()).expect(0);
    let name = unnamed.json()["resource"]["run_name"].clone();
    assert!(name.as_str().unwrap().starts_with("r-2"), "{name}");
}

#[test]
fn without_a_config_every_flag_that_is_missing_is_named() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2));
    let ran = without_a_config(&workspace, &["--rollout", "r"]).expect(2);
    let nothing = workspace.osmosis(&["eval", "submit"]).expect(2);
    insta::assert_snapshot!(format!("{}\n{}", ran.stderr, nothing.stderr));
}

#[test]
fn a_training_takes_settings_and_needs_no_config() {
    let workspace = Workspace::new(CHECKSUM, ECHO_SCRIPT, &echo_rows(4));
    let python = python_environment::python();
    let mut train = vec!["train", "submit", "--rollout", "r", "--dataset", "d"];
    train.extend([
        "--model",
        "builtin/tiny",
        "--steps",
        "1",
        "--n",
        "2",
        "--name",
        "t",
    ]);
    train.extend(["--set", "training.rollout_batch_size=2", "--json"]);
    train.extend(["--python", python.as_str()]);
    let ran = workspace.osmosis(&train).expect(0);
    assert_eq!(ran.json()["resource"]["steps"], 1);
    let info = workspace
        .osmosis(&["train", "info", "t", "--json"])
        .expect(0)
        .json();
    insta::assert_snapshot!(info["data"]["config"].as_str().unwrap());
    let pinned = &info["data"]["pinned"];
    assert_eq!(pinned["training.n_samples_per_prompt"], 2);
    train.extend(["--set", "training.lr=0.5"]);
    let other = workspace.osmosis(&train).expect(1);
    let differences = &other.error()["details"]["differences"];
    assert_eq!(differences[0]["fact"], "training.lr");
}
