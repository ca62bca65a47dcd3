//! `osmosis doctor`, and what it is there to find.

use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_testkit::python_environment;
use serde_json::Value;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

fn workspace() -> Workspace {
    Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2))
}

/// The environment of the rollout, made by a user who borrows the packages of the test environment.
fn own_environment(workspace: &Workspace) -> Utf8PathBuf {
    let folder = workspace.root.join("rollouts/r/.venv");
    let python = python_environment::python();
    let made = Command::new(&python)
        .args(["-m", "venv", "--without-pip", folder.as_str()])
        .status()
        .unwrap();
    assert!(made.success());
    let borrowed = site_packages(python.parent().unwrap().parent().unwrap());
    std::fs::write(
        site_packages(&folder).join("borrowed.pth"),
        format!("{borrowed}\n"),
    )
    .unwrap();
    folder
}

fn site_packages(environment: &Utf8Path) -> Utf8PathBuf {
    let mut versions = environment.join("lib").read_dir_utf8().unwrap();
    let version = versions.next().unwrap().unwrap();
    version.path().join("site-packages")
}

/// Leaves the traces of an installation.
fn install(environment: &Utf8Path, distribution: &str) {
    let folder = site_packages(environment).join(format!("{distribution}.dist-info"));
    std::fs::create_dir_all(folder).unwrap();
}

fn finding(told: &Value, name: &str) -> Value {
    let findings = told["data"]["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["name"] == name);
    found
        .cloned()
        .unwrap_or_else(|| panic!("no `{name}` in {told:#}"))
}

#[test]
fn doctor_says_what_it_found() {
    let workspace = workspace();
    let ran = workspace.osmosis(&["doctor"]);
    for part in ["osmosis", "python", "workspace"] {
        assert!(ran.stdout.contains(part), "no `{part}` in\n{}", ran.stdout);
    }
}

#[test]
fn both_sdks_in_a_rollouts_environment_are_told_by_doctor_and_by_a_run() {
    let workspace = workspace();
    let folder = own_environment(&workspace);
    install(&folder, "osmosis_rs-0.1.0");
    let told = workspace.osmosis(&["doctor", "--json"]).expect(0).json();
    assert_eq!(finding(&told, "rollout r")["ok"], true, "{told:#}");

    install(&folder, "osmosis_ai-0.3.8");
    let told = workspace.osmosis(&["doctor", "--json"]).expect(1).json();
    let rollout = finding(&told, "rollout r");
    assert_eq!(rollout["ok"], false, "{told:#}");
    let text = rollout["text"].as_str().unwrap();
    assert!(
        text.contains("`osmosis-ai` 0.3.8 and `osmosis-rs` 0.1.0"),
        "{text}"
    );
    let hint = rollout["hint"].as_str().unwrap();
    assert!(
        hint.contains("pip uninstall osmosis-ai osmosis-rs"),
        "{hint}"
    );

    let ran = workspace
        .osmosis(&["eval", "submit", "configs/eval/c.toml", "--name", "t"])
        .expect(0);
    assert!(
        ran.stderr.contains("warning: `osmosis-ai` 0.3.8"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("pip uninstall"), "{}", ran.stderr);
    assert_eq!(workspace.outcomes(), ["scored"; 2]);
}

#[test]
fn a_run_uses_our_sdk_even_where_only_the_references_is_installed() {
    let workspace = workspace();
    let folder = own_environment(&workspace);
    install(&folder, "osmosis_ai-0.3.8");
    let package = site_packages(&folder).join("osmosis_ai");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(
        package.join("__init__.py"),
        "raise ImportError('the reference')\n",
    )
    .unwrap();
    let told = workspace.osmosis(&["doctor", "--json"]).expect(0).json();
    let text = finding(&told, "rollout r")["text"].to_string();
    assert!(
        text.contains("workers use the SDK of this program"),
        "{text}"
    );
    workspace
        .osmosis(&["eval", "submit", "configs/eval/c.toml", "--name", "t"])
        .expect(0);
    assert_eq!(workspace.outcomes(), ["scored"; 2]);
}

#[test]
fn doctor_looks_at_the_active_environment_too() {
    let mut workspace = workspace();
    let folder = workspace.root.join("active");
    workspace.write("active/pyvenv.cfg", "");
    workspace.write("active/lib/python3.12/site-packages/README.txt", "");
    install(&folder, "osmosis_rs-0.1.0");
    install(&folder, "osmosis_ai-0.3.8");
    workspace.variable("VIRTUAL_ENV", folder.as_str());
    let told = workspace.osmosis(&["doctor", "--json"]).expect(1).json();
    let environment = finding(&told, "environment");
    assert_eq!(environment["ok"], false, "{told:#}");
    assert!(
        environment["text"]
            .as_str()
            .unwrap()
            .contains("both installed"),
        "{told:#}"
    );
}
