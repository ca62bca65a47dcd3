//! `osmosis rollout init`: what it makes, and that it runs.

use camino::Utf8Path;
use osmosis_testkit::python_environment;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace};

fn workspace() -> Workspace {
    Workspace::new(PLAIN, ECHO_SCRIPT, "")
}

/// Runs without the project's environment: the interpreter of the test environment brings the packages.
fn without_environment(workspace: &Workspace, name: &str) {
    let project = workspace
        .root
        .join(format!("rollouts/{name}/pyproject.toml"));
    std::fs::remove_file(project).unwrap();
}

#[test]
fn everything_that_was_made_is_listed_with_what_to_do_next() {
    let workspace = workspace();
    let ran = workspace
        .osmosis(&["rollout", "init", "hello", "--template", "plain"])
        .expect(0);
    insta::assert_snapshot!(ran.stdout.replace(workspace.root.as_str(), "/workspace"));
    insta::assert_snapshot!(workspace.read("configs/training/hello.toml"));
    // What is listed is there.
    let listed = ran
        .stdout
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with("  "));
    let empty: Vec<&str> = listed
        .map(str::trim)
        .filter(|path| workspace.read(path).is_empty())
        .collect();
    assert_eq!(empty, [""; 0]);
    let ignored = workspace.read(".gitignore");
    assert!(ignored.contains(".osmosis/"), "{ignored}");
    // What is there is never changed.
    workspace.write(".gitignore", "mine\n");
    let ran = workspace
        .osmosis(&["rollout", "init", "again", "--template", "plain", "--json"])
        .expect(0);
    assert_eq!(workspace.read(".gitignore"), "mine\n");
    let files = ran.json()["resource"]["files"].to_string();
    assert!(!files.contains("gitignore"), "{files}");
    let ran = workspace
        .osmosis(&["rollout", "init", "third", "--template", "plain"])
        .expect(0);
    insta::assert_snapshot!(ran.stderr);
}

/// `train submit --dry-run` of what this template makes.
fn check_training(template: &str, python: &Utf8Path) {
    let workspace = workspace();
    workspace
        .osmosis(&["rollout", "init", "t", "--template", template])
        .expect(0);
    without_environment(&workspace, "t");
    let config = "configs/training/t.toml";
    let python = python.as_str();
    workspace
        .osmosis(&["train", "submit", config, "--dry-run", "--python", python])
        .expect(0);
}

#[test]
fn the_training_config_passes_its_checks() {
    for template in ["openai-agents", "areal", "plain"] {
        check_training(template, &python_environment::python());
    }
}

#[test]
fn the_training_config_for_strands_passes_its_checks() {
    check_training("strands", &python_environment::strands_python());
}

#[test]
fn the_graders_take_the_last_number_for_the_answer() {
    let workspace = workspace();
    for template in ["openai-agents", "areal", "plain"] {
        workspace
            .osmosis(&["rollout", "init", template, "--template", template])
            .expect(0);
        without_environment(&workspace, template);
        let config = format!("configs/eval/{template}.toml");
        let python = python_environment::python();
        for (text, rate) in [
            ("42 144 72, no: it is 312", 0.0),
            ("312? 1,144? No. It is 42.", 1.0 / 3.0),
        ] {
            let policy = format!("[[reply]]\nwhen.last_user = '.'\ntext = {text:?}\n");
            workspace.write(&format!("policies/{template}.toml"), &policy);
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
            assert_eq!(
                resource["pass_rate"], rate,
                "{template}, {text}: {resource:#}"
            );
        }
    }
}
