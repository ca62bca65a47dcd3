//! What happens before a run begins: what is told, and what is left behind when it can't.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use osmosis_testkit::python_environment;

use crate::workspace::{CHECKSUM, ECHO_SCRIPT, PLAIN, Ran, Workspace, echo_rows};

const BROKEN: &str = "import no_such_module\n";

/// The paths of the machine that the test runs on are not part of what is told.
fn told(workspace: &Workspace, ran: &Ran) -> String {
    // Only root is told that its workers have no user of their own here, with a hint.
    let mut lines = ran.stderr.lines().peekable();
    let mut told = String::new();
    while let Some(line) = lines.next() {
        if line.starts_with("workers run as root") {
            lines.next_if(|hint| hint.starts_with("hint: "));
        } else {
            told.push_str(line);
            told.push('\n');
        }
    }
    told.replace(workspace.root.as_str(), "WORKSPACE")
}

/// No run, and no folder of one.
#[track_caller]
fn check_nothing_was_made(workspace: &Workspace, ran: &Ran) {
    for kind in ["evals", "training", "serve"] {
        let folder = workspace.root.join(".osmosis").join(kind);
        let runs = folder.read_dir_utf8().map_or(0, Iterator::count);
        assert_eq!(runs, 0, "{kind}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("resume"), "{}", ran.stderr);
}

#[test]
fn code_that_cannot_be_imported_makes_no_run_whatever_the_command() {
    let workspace = Workspace::new(BROKEN, ECHO_SCRIPT, &echo_rows(4));
    workspace.training("builtin/tiny", "steps = 1\n", "");
    let python = python_environment::python();
    let python = ["--python", python.as_str()];
    for command in [
        &["eval", "submit", "configs/eval/c.toml", "--name", "t"][..],
        &["train", "submit", "configs/training/c.toml", "--name", "t"],
        &["train", "serve", "configs/training/c.toml", "--name", "t"],
        &["serve", "r", "--name", "t"],
    ] {
        let ran = workspace
            .osmosis(&[command, &python[..]].concat())
            .expect(1);
        assert!(ran.stderr.contains("no_such_module"), "{}", ran.stderr);
        check_nothing_was_made(&workspace, &ran);
    }
}

#[test]
fn code_that_cannot_be_imported_makes_no_regrade_and_keeps_a_run_that_was_to_be_replaced() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    workspace.submit(&[]).expect(0);
    workspace.write("rollouts/r/main.py", BROKEN);
    let python = python_environment::python();
    let regrade = [
        "eval",
        "regrade",
        "t",
        "--name",
        "g",
        "--python",
        python.as_str(),
    ];
    let ran = workspace.osmosis(&regrade).expect(1);
    assert!(ran.stderr.contains("no_such_module"), "{}", ran.stderr);
    assert!(!workspace.run_folder("g").exists());
    workspace.submit(&["--fresh"]).expect(1);
    assert!(!workspace.root.join(".osmosis/archive").exists());
    assert_eq!(workspace.outcomes(), ["scored"]);
}

#[test]
fn a_port_that_is_taken_makes_no_run() {
    let workspace = Workspace::new(CHECKSUM, ECHO_SCRIPT, &echo_rows(4));
    workspace.training("builtin/tiny", "steps = 1\n", "");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let python = python_environment::python();
    let config = "configs/training/c.toml";
    let serve = [
        "train",
        "serve",
        config,
        "--listen",
        &address,
        "--python",
        python.as_str(),
    ];
    let ran = workspace.osmosis(&serve).expect(1);
    assert!(ran.stderr.contains("--listen"), "{}", ran.stderr);
    check_nothing_was_made(&workspace, &ran);
}

#[test]
fn what_is_being_done_is_told_step_by_step_and_not_with_json() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2));
    workspace.model("builtin/tiny", "");
    let ran = workspace.submit(&["--limit", "1"]).expect(0);
    let steps: Vec<String> = told(&workspace, &ran).lines().map(str::to_owned).collect();
    insta::assert_snapshot!(steps[..steps.len().min(5)].join("\n"));
    let ran = workspace
        .submit(&["--limit", "1", "--fresh", "--json"])
        .expect(0);
    assert_eq!(ran.stderr, "");
    assert_eq!(ran.json()["status"], "completed");
}

#[test]
fn the_first_line_comes_at_once() {
    // Its import takes longer than anything here.
    let slow = format!("import time\ntime.sleep(3)\n{PLAIN}");
    let workspace = Workspace::new(&slow, ECHO_SCRIPT, &echo_rows(1));
    let python = python_environment::python();
    let arguments = [
        "eval",
        "submit",
        "configs/eval/c.toml",
        "--python",
        python.as_str(),
    ];
    let began = Instant::now();
    let mut child = workspace
        .command(&arguments)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    let took = began.elapsed();
    assert_eq!(line, "Checking configs/eval/c.toml\n");
    // 300 ms are promised; a test machine that is busy may take longer, but not as long as the import.
    assert!(took < Duration::from_secs(2), "{took:?}");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut rest).unwrap();
    assert!(child.wait().unwrap().success(), "{rest}");
}

#[test]
fn a_run_that_is_complete_is_said_to_be_and_not_run_again() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2));
    let first = workspace.submit(&["--json"]).expect(0).json()["resource"].clone();
    assert_eq!(first["already_complete"], serde_json::Value::Null);
    let metrics = workspace.read(".osmosis/evals/t/metrics.json");

    let again = workspace.submit(&[]).expect(0);
    let head: Vec<&str> = again.stdout.lines().take(4).collect();
    insta::assert_snapshot!(head.join("\n"));
    assert!(!again.stderr.contains("Importing"), "{}", again.stderr);
    let python = python_environment::python();
    let resume = ["eval", "resume", "t", "--python", python.as_str()];
    let resumed = workspace.osmosis(&resume).expect(0);
    insta::assert_snapshot!(
        "resumed",
        resumed
            .stdout
            .lines()
            .next()
            .unwrap()
            .replace(workspace.root.as_str(), "WORKSPACE")
    );
    let json = workspace.submit(&["--json"]).expect(0).json();
    assert_eq!(json["status"], "completed");
    assert_eq!(json["resource"]["already_complete"], true);
    assert_eq!(json["resource"]["pass_rate"], 1.0);
    assert_eq!(workspace.read(".osmosis/evals/t/metrics.json"), metrics);
}

#[test]
fn a_training_that_is_complete_is_said_to_be_and_not_run_again() {
    let workspace = Workspace::new(CHECKSUM, ECHO_SCRIPT, &echo_rows(4));
    workspace.training("builtin/tiny", "steps = 1\n", "");
    workspace.train(&[]).expect(0);
    let again = workspace.train(&[]).expect(0);
    let first = again.stdout.lines().next().unwrap();
    assert_eq!(
        first,
        "`t` is already complete: nothing was run. `--fresh` runs it again."
    );
    let json = workspace.train(&["--json"]).expect(0).json();
    assert_eq!(json["resource"]["already_complete"], true);
    assert_eq!(json["resource"]["steps"], 1);
}
