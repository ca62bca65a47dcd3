//! Subprocess mode: what a rollout's process started ends with the rollout, however that ends.

use std::process::Stdio;
use std::time::Duration;

use osmosis_testkit::{python_environment, waiting};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::processes::is_alive;
use crate::workspace::Workspace;

/// Starts a child, says which processes there are, and never ends by itself.
const ENDLESS: &str = r#"
import os, subprocess, time

class Endless:
    async def run(self, data, **extra):
        child = subprocess.Popen(["sleep", "1000"])
        with open("../../pids.new", "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        os.rename("../../pids.new", "../../pids")
        time.sleep(1000)
"#;

fn workspace(more: &str) -> Workspace {
    let rows = json!({"ask": "6 times 7?"}).to_string() + "\n";
    let workspace = Workspace::new(ENDLESS, "[[reply]]\ntext = \"hi\"\n", &rows);
    workspace.config(&format!("{more}[workflow]\nmode = \"subproc\"\n"));
    workspace
}

#[track_caller]
fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    waiting::wait_until(what, Duration::from_mins(1), is_so);
}

#[track_caller]
fn check_gone(workspace: &Workspace) {
    let pids = workspace.read("pids");
    let pids: Vec<u32> = pids.split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2);
    wait_until("the processes end", || {
        pids.iter().all(|pid| !is_alive(*pid))
    });
}

#[test]
fn a_rollout_that_takes_too_long_leaves_no_process_behind() {
    let workspace = workspace("[evaluation]\nagent_workflow_timeout_s = 3\n");
    workspace.submit(&[]).expect(0);
    assert_eq!(workspace.outcomes(), ["timed_out"]);
    check_gone(&workspace);
}

#[test]
fn ctrl_c_twice_leaves_no_process_of_a_rollout_behind() {
    let workspace = workspace("");
    let python = python_environment::python();
    let mut arguments = vec!["eval", "submit", "configs/eval/c.toml", "--name", "t"];
    arguments.extend(["--python", python.as_str()]);
    let mut command = workspace.command(&arguments);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = workspace.root.join("pids");
    wait_until("the rollout begins", || begun.exists());
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    wait_until("it ends", || {
        // Once it has ended there is nobody to tell.
        let _ = kill_process(pid, Signal::INT);
        // Two signals within this time count as one.
        waiting::pass(Duration::from_millis(200));
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(child.wait().unwrap().code(), Some(130));
    check_gone(&workspace);
}
