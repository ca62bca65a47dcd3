//! `logs --follow`: the log of a run while it is written.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::Duration;

use osmosis_testkit::{python_environment, waiting};
use rustix::process::{Pid, Signal, kill_process};

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

/// A run whose agents say something, and wait for a file before they say more.
fn started() -> (Workspace, Child) {
    let main = PLAIN.replace(
        "        return [*ctx.prompt",
        "        import asyncio, pathlib\n        \
         print('before the gate')\n        \
         pathlib.Path('../../begun').write_text('x')\n        \
         while not pathlib.Path('../../gate').exists():\n            await asyncio.sleep(0.02)\n        \
         print('after the gate')\n        \
         return [*ctx.prompt",
    );
    let workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(2));
    let python = python_environment::python();
    let mut arguments = vec!["eval", "submit", "configs/eval/c.toml", "--name", "t"];
    arguments.extend(["--python", python.as_str()]);
    let run = workspace
        .command(&arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = workspace.root.join("begun");
    waiting::wait_until("the agent begins", Duration::from_mins(1), || {
        begun.exists()
    });
    (workspace, run)
}

fn follow(workspace: &Workspace, arguments: &[&str]) -> (Child, impl BufRead) {
    let mut following = workspace
        .command(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(following.stdout.take().unwrap());
    (following, lines)
}

/// Reads lines until one has this in it.
#[track_caller]
fn read_until(lines: &mut impl BufRead, part: &str) {
    let mut read = String::new();
    while !read.contains(part) {
        let more = lines.read_line(&mut read).unwrap();
        assert!(more > 0, "no `{part}` in\n{read}");
    }
}

#[test]
fn a_followed_log_goes_on_until_the_run_ends() {
    let (workspace, mut run) = started();
    let arguments = ["eval", "logs", "t", "--follow", "--rollout", "r1-0"];
    let (mut following, mut lines) = follow(&workspace, &arguments);
    read_until(&mut lines, "r1-0 agent | before the gate");
    workspace.write("gate", "");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(following.wait().unwrap().code(), Some(0));
    assert_eq!(run.wait().unwrap().code(), Some(0));
    assert!(rest.contains("r1-0 agent | after the gate"), "{rest}");
    assert!(!rest.contains("r0-0"), "{rest}");

    // A run that has ended has no more to tell.
    let ended = workspace.osmosis(&["run", "logs", "eval/t", "--follow", "--json"]);
    let ended = ended.expect(0).stdout;
    let last = ended.lines().last().unwrap();
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["schema_version"], 1);
    assert!(last["data"]["line"].is_string(), "{ended}");
}

#[test]
fn interrupting_who_follows_leaves_the_run_alone() {
    let (workspace, mut run) = started();
    let (mut following, mut lines) = follow(&workspace, &["eval", "logs", "t", "-f"]);
    read_until(&mut lines, "before the gate");
    let pid = Pid::from_raw(i32::try_from(following.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(following.wait().unwrap().code(), Some(130));
    workspace.write("gate", "");
    assert_eq!(run.wait().unwrap().code(), Some(0));
    assert_eq!(workspace.outcomes(), ["scored"; 2]);
}
