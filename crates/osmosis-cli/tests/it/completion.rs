//! Completion in real shells: what a TAB offers in a workspace with runs.

use std::io::Write as _;
use std::process::{Command, Stdio};

use camino::Utf8Path;
use osmosis_testkit::python_environment;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

/// A workspace with the evaluations `first` and `second` of two rows, run twice each.
fn workspace() -> Workspace {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2));
    workspace.config("[evaluation]\nn = 2\n");
    workspace.training("builtin/tiny", "", "");
    for name in ["first", "second"] {
        let python = python_environment::python();
        let arguments = ["eval", "submit", "configs/eval/c.toml", "--name", name];
        workspace
            .osmosis(&[&arguments[..], &["--python", python.as_str()]].concat())
            .expect(0);
    }
    workspace
}

/// The folder of the binary, for the PATH: scripts ask for `osmosis`.
fn binary_folder() -> &'static Utf8Path {
    Utf8Path::new(env!("CARGO_BIN_EXE_osmosis"))
        .parent()
        .unwrap()
}

/// What a script prints that gets the completions of `shell` as `completions`.
fn asked(workspace: &Workspace, shell: &str, script: &str) -> Vec<String> {
    let completions = workspace.osmosis(&["completions", shell]).expect(0).stdout;
    workspace.write("completions", &completions);
    let path = format!("{}:{}", binary_folder(), std::env::var("PATH").unwrap());
    let mut started = Command::new(shell)
        .current_dir(&workspace.root)
        .env("PATH", path)
        .env("HOME", &workspace.root)
        .env_remove("CARGO_PKG_NAME")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("{shell}: {error}; `cargo xtask ci` installs it, or `apt-get install {shell}`")
        });
    let mut stdin = started.stdin.take().unwrap();
    stdin.write_all(script.as_bytes()).unwrap();
    drop(stdin);
    let output = started.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text.lines().map(str::to_owned).collect()
}

/// What bash offers after these words, the last of which is being typed.
fn bash(workspace: &Workspace, words: &[&str]) -> Vec<String> {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let script = format!(
        "source ./completions\nCOMP_WORDS=({})\nCOMP_CWORD={}\n\
         _clap_complete_osmosis osmosis '{}' ''\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        quoted.join(" "),
        words.len() - 1,
        words.last().unwrap(),
    );
    asked(workspace, "bash", &script)
}

#[test]
fn bash_offers_runs_rows_and_configs_of_the_workspace() {
    let workspace = workspace();
    let offered = |words: &[&str]| bash(&workspace, words);
    assert_eq!(
        offered(&["osmosis", "eval", "show", ""]),
        ["second", "first"]
    );
    assert_eq!(offered(&["osmosis", "eval", "show", "f"]), ["first"]);
    assert_eq!(
        offered(&["osmosis", "eval", "show", "first", ""]),
        ["0.0", "0.1", "1.0", "1.1"]
    );
    assert_eq!(
        offered(&["osmosis", "eval", "show", "first", "1"]),
        ["1.0", "1.1"]
    );
    assert_eq!(
        offered(&["osmosis", "eval", "submit", ""]),
        ["configs/eval/c.toml"]
    );
    assert_eq!(
        offered(&["osmosis", "train", "submit", "con"]),
        ["configs/training/c.toml"]
    );
    assert_eq!(offered(&["osmosis", "run", "rename", "s"]), ["second"]);
    assert_eq!(
        offered(&["osmosis", "eval", "compare", "first", "s"]),
        ["second"]
    );
    assert_eq!(
        offered(&["osmosis", "eval", "logs", "first", "--rollout", "r1"]),
        ["r1-0", "r1-1"]
    );
    let commands = offered(&["osmosis", "eval", ""]);
    assert!(commands.iter().any(|one| one == "submit"), "{commands:?}");
    let options = offered(&["osmosis", "eval", "submit", "--dry"]);
    assert_eq!(options, ["--dry-run"]);
}

#[test]
fn completion_outside_of_a_workspace_offers_no_runs_and_does_not_fail() {
    let workspace = workspace();
    let elsewhere = tempfile::tempdir().unwrap();
    let script = format!(
        "source ./completions\ncd '{}'\nCOMP_WORDS=(osmosis eval show '')\nCOMP_CWORD=3\n\
         _clap_complete_osmosis osmosis '' show\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        elsewhere.path().display()
    );
    let offered = asked(&workspace, "bash", &script);
    assert!(
        !offered
            .iter()
            .any(|one| one == "first" || one.contains("error")),
        "{offered:?}"
    );
}

#[test]
fn fish_offers_runs_rows_and_configs_of_the_workspace() {
    let workspace = workspace();
    let offered = |line: &str| -> Vec<String> {
        let script = format!("source ./completions\ncomplete -C '{line}'\n");
        let lines = asked(&workspace, "fish", &script).into_iter();
        // What it is comes behind a tab.
        lines
            .map(|line| line.split('\t').next().unwrap_or_default().to_owned())
            .collect()
    };
    assert_eq!(offered("osmosis eval show "), ["second", "first"]);
    assert_eq!(offered("osmosis eval show first 1"), ["1.0", "1.1"]);
    assert_eq!(offered("osmosis eval submit "), ["configs/eval/c.toml"]);
}

#[test]
fn zsh_offers_runs_rows_and_configs_of_the_workspace() {
    let workspace = workspace();
    // Without a terminal there is no TAB: what the function hands to zsh is looked at.
    let offered = |words: &[&str]| -> Vec<String> {
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let script = format!(
            "autoload -Uz compinit && compinit -u -d ./zcompdump\n\
             compadd() {{ }}\n\
             _describe() {{ print -rl -- \"${{(@P)@[-1]}}\" }}\n\
             source ./completions\n\
             words=({})\nCURRENT={}\n_clap_dynamic_completer_osmosis\n",
            quoted.join(" "),
            words.len(),
        );
        let lines = asked(&workspace, "zsh", &script).into_iter();
        lines
            .map(|line| line.split(':').next().unwrap_or_default().to_owned())
            .collect()
    };
    assert_eq!(
        offered(&["osmosis", "eval", "show", ""]),
        ["second", "first"]
    );
    assert_eq!(
        offered(&["osmosis", "eval", "show", "first", "1"]),
        ["1.0", "1.1"]
    );
    assert_eq!(
        offered(&["osmosis", "eval", "submit", ""]),
        ["configs/eval/c.toml"]
    );
}
