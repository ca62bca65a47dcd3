use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

fn workspace() -> Workspace {
    Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2))
}

/// Submits and expects a failure whose text has all these parts.
#[track_caller]
fn check(workspace: &Workspace, code: i32, parts: &[&str]) {
    let ran = workspace.submit(&[]).expect(code);
    for part in parts {
        assert!(ran.stderr.contains(part), "no `{part}` in\n{}", ran.stderr);
    }
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    assert!(!workspace.run_folder("t").join("run.db").exists());
}

#[test]
fn broken_toml_names_its_line() {
    let workspace = workspace();
    workspace.write("configs/eval/c.toml", "[experiment]\nrollout = \"r\n");
    check(&workspace, 1, &["c.toml:2:"]);
}

#[test]
fn unknown_keys_are_told_all_at_once_with_the_nearest() {
    let workspace = workspace();
    workspace.config("[evaluation]\nbatchsize = 2\npass_treshold = 0.5\n");
    check(
        &workspace,
        1,
        &[
            "c.toml:7:1",
            "batchsize",
            "batch_size",
            "c.toml:8:1",
            "pass_threshold",
        ],
    );
}

#[test]
fn a_missing_config_is_a_usage_error() {
    let ran = workspace()
        .osmosis(&["eval", "submit", "configs/eval/none.toml"])
        .expect(2);
    assert!(ran.stderr.contains("none.toml"), "{}", ran.stderr);
}

#[test]
fn broken_rows_are_named_with_their_lines() {
    let workspace = workspace();
    workspace.write(
        "data/d.jsonl",
        "{\"user_prompt\": \"say 1\", \"ground_truth\": \"1\"}\nnot json\n{\"user_prompt\": \"x\"}\n",
    );
    check(
        &workspace,
        1,
        &["2 bad rows", "d.jsonl:2", "d.jsonl:3", "ground_truth"],
    );
}

#[test]
fn a_missing_dataset_rollout_entrypoint_or_script_is_named() {
    let workspace = workspace();
    let config = workspace.read("configs/eval/c.toml");
    for (from, to, part) in [
        ("dataset = \"d\"", "dataset = \"nope\"", "nope"),
        (
            "rollout = \"r\"",
            "rollout = \"nope\"",
            "the workspace has: r",
        ),
        ("main.py", "missing.py", "missing.py"),
        (
            "policies/p.toml",
            "policies/nope.toml",
            "policies/nope.toml",
        ),
    ] {
        workspace.write("configs/eval/c.toml", &config.replace(from, to));
        check(&workspace, 1, &[part]);
    }
}

#[test]
fn rows_that_are_not_there_are_a_usage_error() {
    let workspace = workspace();
    for (rows, part) in [("9", "no row 9"), ("x", "`x`"), ("5-3", "5-3")] {
        let ran = workspace.submit(&["--rows", rows]).expect(2);
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
}

#[test]
fn a_model_that_is_nowhere_says_which_variable_is_missing() {
    let workspace = workspace();
    workspace.model("some-model", "");
    check(&workspace, 1, &["OPENAI_BASE_URL"]);
    workspace.model("groq/some-model", "");
    check(&workspace, 1, &["GROQ_API_KEY"]);
}

#[test]
fn a_missing_interpreter_is_named() {
    let workspace = workspace();
    let ran = workspace
        .osmosis(&[
            "eval",
            "submit",
            "configs/eval/c.toml",
            "--python",
            "/no/such/python",
        ])
        .expect(1);
    assert!(ran.stderr.contains("/no/such/python"), "{}", ran.stderr);
}

#[test]
fn a_package_that_cannot_be_installed_is_named() {
    let workspace = workspace();
    workspace.write(
        "rollouts/r/pyproject.toml",
        "[project]\nname = \"r\"\nversion = \"1\"\n\
         dependencies = [\"osmosis-rs\", \"no-such-package @ file:///no/such/package\"]\n",
    );
    let ran = workspace
        .osmosis(&["eval", "submit", "configs/eval/c.toml", "--name", "t"])
        .expect(1);
    assert!(ran.stderr.contains("no-such-package"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint:"), "{}", ran.stderr);
}

#[test]
fn errors_are_one_json_envelope_on_standard_error() {
    let workspace = workspace();
    workspace.config("[evaluation]\nbatchsize = 2\n");
    let ran = workspace.submit(&["--json"]).expect(1);
    assert_eq!(ran.stdout, "");
    let error = ran.error();
    assert_eq!(error["code"], "config_invalid");
    assert_eq!(error["details"]["problems"].as_array().unwrap().len(), 1);
}

#[test]
fn a_secret_that_is_missing_is_named() {
    let workspace = workspace();
    workspace.config("[secrets]\nrequired = [\"MY_SECRET_KEY\"]\n");
    check(&workspace, 1, &["MY_SECRET_KEY"]);
}
