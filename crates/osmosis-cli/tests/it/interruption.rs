use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::Duration;

use osmosis_testkit::{python_environment, waiting};
use rustix::process::{Pid, Signal, kill_process};

use crate::processes::{children_below, is_alive};
use crate::workspace::{ECHO_SCRIPT, PLAIN, Ran, Workspace, echo_rows};

/// An agent that says that it has begun and waits for a file before it goes on. The files lie outside
/// the rollout's folder, which the run is pinned to.
fn gated() -> Workspace {
    let main = PLAIN.replace(
        "        return [*ctx.prompt",
        "        import asyncio, pathlib\n        \
         pathlib.Path('../../begun').write_text('x')\n        \
         while not pathlib.Path('../../gate').exists():\n            await asyncio.sleep(0.02)\n        \
         return [*ctx.prompt",
    );
    Workspace::new(&main, ECHO_SCRIPT, &echo_rows(6))
}

fn start(workspace: &Workspace) -> Child {
    let python = python_environment::python();
    let mut arguments = vec!["eval", "submit", "configs/eval/c.toml", "--name", "t"];
    arguments.extend(["--python", python.as_str(), "--max-in-flight", "2"]);
    workspace
        .command(&arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[track_caller]
fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    waiting::wait_until(what, Duration::from_mins(1), is_so);
}

fn wait_until_begun(workspace: &Workspace) {
    let begun = workspace.root.join("begun");
    wait_until("the agent begins", || begun.exists());
}

/// The exit code and what was said on standard error after `said`.
fn end(mut child: Child, mut stderr: impl Read, mut said: String) -> (Option<i32>, String) {
    stderr.read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

fn resume(workspace: &Workspace) -> Ran {
    let python = python_environment::python();
    workspace.osmosis(&["eval", "resume", "t", "--python", python.as_str()])
}

/// Every rollout has one result, and it is a reward.
#[track_caller]
fn check_complete(workspace: &Workspace) {
    assert_eq!(workspace.outcomes(), ["scored"; 6]);
    assert!(workspace.index().iter().all(|line| line["reward"] == 1.0));
}

#[test]
fn ctrl_c_finishes_what_runs_and_the_printed_command_runs_the_rest() {
    let workspace = gated();
    let mut child = start(&workspace);
    wait_until_begun(&workspace);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    send(&child, Signal::INT);
    // It says that it waits; only then the gate opens.
    let mut said = String::new();
    while !said.contains("stopping: waiting for 2 rollouts") {
        assert!(stderr.read_line(&mut said).unwrap() > 0, "{said}");
    }
    workspace.write("gate", "");
    let (code, said) = end(child, stderr, said);
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("osmosis eval resume t"), "{said}");
    assert_eq!(workspace.outcomes(), ["scored"; 2]);

    let resumed = resume(&workspace).expect(0);
    assert!(
        resumed.stdout.contains("6 passed of 6"),
        "{}",
        resumed.stdout
    );
    check_complete(&workspace);
    assert!(workspace.index().iter().all(|line| line["attempts"] == 1));
}

#[test]
fn a_second_ctrl_c_stops_at_once_and_loses_nothing() {
    let workspace = gated();
    let mut child = start(&workspace);
    wait_until_begun(&workspace);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    send(&child, Signal::INT);
    let mut said = String::new();
    while !said.contains("stopping: waiting") {
        assert!(stderr.read_line(&mut said).unwrap() > 0, "{said}");
    }
    send(&child, Signal::INT);
    let (code, said) = end(child, stderr, said);
    assert_eq!(code, Some(130), "{said}");
    assert_eq!(workspace.outcomes(), [""; 0]);
    workspace.write("gate", "");
    resume(&workspace).expect(0);
    check_complete(&workspace);
}

#[test]
fn sigterm_stops_at_once_and_leaves_no_process_behind() {
    let workspace = gated();
    let mut child = start(&workspace);
    wait_until_begun(&workspace);
    let workers = children_below(child.id());
    let stderr = BufReader::new(child.stderr.take().unwrap());
    send(&child, Signal::TERM);
    let (code, said) = end(child, stderr, String::new());
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("osmosis eval resume t"), "{said}");
    assert!(workers.iter().all(|pid| !is_alive(*pid)));
    workspace.write("gate", "");
    resume(&workspace).expect(0);
    check_complete(&workspace);
}

#[test]
fn eval_stop_asks_the_process_and_waits_for_its_end() {
    let workspace = gated();
    let child = start(&workspace);
    wait_until_begun(&workspace);
    let stopped = workspace
        .osmosis(&["eval", "stop", "t", "--now", "--json"])
        .expect(0);
    assert_eq!(stopped.json()["status"], "stopped");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    let again = workspace.osmosis(&["eval", "stop", "t"]).expect(0);
    assert!(again.stdout.contains("not running"), "{}", again.stdout);
    workspace.write("gate", "");
    resume(&workspace).expect(0);
    check_complete(&workspace);
}

#[test]
fn a_dataset_that_changes_under_a_run_changes_nothing_and_is_noticed_afterwards() {
    let workspace = gated();
    let child = start(&workspace);
    wait_until_begun(&workspace);
    workspace.write("data/d.jsonl", "not even json\n");
    workspace.write("gate", "");
    assert!(child.wait_with_output().unwrap().status.success());
    check_complete(&workspace);
    workspace.write("data/d.jsonl", &echo_rows(7));
    let refused = resume(&workspace).expect(1);
    assert!(
        refused.stderr.contains("dataset rows added: 6"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_run_folder_that_cannot_be_made_is_told_with_its_path() {
    let workspace = gated();
    workspace.write(".osmosis", "a file where a folder is wanted");
    let ran = workspace.submit(&[]).expect(1);
    assert!(ran.stderr.contains(".osmosis/evals/t"), "{}", ran.stderr);
}

#[test]
fn a_killed_engine_takes_its_workers_along_and_the_run_resumes() {
    let workspace = gated();
    let mut child = start(&workspace);
    wait_until_begun(&workspace);
    let workers = children_below(child.id());
    assert!(!workers.is_empty());
    send(&child, Signal::KILL);
    child.wait().unwrap();
    wait_until("the workers are gone", || {
        workers.iter().all(|pid| !is_alive(*pid))
    });
    workspace.write("gate", "");
    resume(&workspace).expect(0);
    check_complete(&workspace);
}

#[test]
fn a_second_process_on_the_same_run_is_told_who_holds_it() {
    let workspace = gated();
    let child = start(&workspace);
    wait_until_begun(&workspace);
    let refused = resume(&workspace).expect(1);
    assert!(
        refused.stderr.contains(&child.id().to_string()),
        "{}",
        refused.stderr
    );
    let listed = workspace.osmosis(&["eval", "list"]).expect(0);
    assert!(listed.stdout.contains("running"), "{}", listed.stdout);
    workspace.write("gate", "");
    assert!(child.wait_with_output().unwrap().status.success());
    check_complete(&workspace);
}

#[test]
fn a_resume_is_refused_by_the_names_of_what_changed() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2));
    workspace.submit(&[]).expect(0);
    let config = workspace.read("configs/eval/c.toml");
    let refusal = || {
        let refused = workspace.submit(&[]).expect(1);
        let error = refused.stderr.split_once("error: ").unwrap().1;
        error.to_owned()
    };
    let with = |path: &str, text: &str| {
        let before = std::fs::read_to_string(workspace.root.join(path)).ok();
        workspace.write(path, text);
        let told = refusal();
        match before {
            Some(before) => workspace.write(path, &before),
            None => std::fs::remove_file(workspace.root.join(path)).unwrap(),
        }
        told
    };
    let changed_row = echo_rows(3).replace("say 1", "say it");
    let told = [
        with("data/d.jsonl", &changed_row),
        with(
            "configs/eval/c.toml",
            &format!("{config}[evaluation]\nn = 2\n[workflow]\nstyle = \"short\"\n"),
        ),
        with("rollouts/r/main.py", &format!("{PLAIN}\n# changed\n")),
        with("rollouts/r/judged.py", "x = 1\n"),
        with("policies/p.toml", &format!("{ECHO_SCRIPT}\n# changed\n")),
    ];
    insta::assert_snapshot!(told.join("\n"));

    // What the agent does not run may change, and what the project says that it does not.
    workspace.write("rollouts/r/tests/test_main.py", "x = 1\n");
    workspace.write("rollouts/r/README.md", "mine\n");
    workspace.write("rollouts/r/notes.txt", "mine\n");
    workspace.write("rollouts/r/.osmosisignore", "notes.txt\n");
    let again = workspace.submit(&["--max-in-flight", "7"]).expect(0);
    assert!(again.stdout.contains("2 passed of 2"), "{}", again.stdout);
}
