//! `osmosis serve` killed at random points: everything it accepted is run and called back, each time with the
//! same result, and no key is ever on the disk in clear. `KILLS` and `KILL_SEED` in the environment make it
//! longer or repeat one.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write as _};
use std::process::Stdio;

use camino::Utf8Path;
use osmosis_testkit::model_server::{Behaviour, Gate};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::processes::children_below;
use crate::serve::{Facade, Serving, controller, last_rollout, model};
use crate::workspace::{PLAIN, Ran, Workspace, cache_dir};

const CANARIES: [&str; 4] = [
    "controller-key-not-to-be-seen",
    "llm-key-not-to-be-seen",
    "server-key-not-to-be-seen",
    "state-key-not-to-be-seen-0123456789",
];

fn number(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |text| text.parse().unwrap())
}

/// Slow enough that kills find rollouts in every phase.
fn workspace() -> Workspace {
    let main = PLAIN
        .replacen("import httpx", "import asyncio\nimport httpx", 1)
        .replacen(
            "        return [*ctx.prompt",
            "        await asyncio.sleep(0.05)\n        return [*ctx.prompt",
            1,
        )
        .replacen(
            "        ctx.set_reward",
            "        await asyncio.sleep(0.05)\n        ctx.set_reward",
            1,
        );
    let mut workspace = Workspace::new(&main, "", "");
    workspace.variable("SERVER_KEY", CANARIES[2]);
    workspace
}

/// No canary is in any file below, as it is in the moment.
fn nothing_in_clear(folder: &Utf8Path) {
    // What goes away meanwhile holds nothing any more.
    let Ok(entries) = std::fs::read_dir(folder) else {
        assert!(!folder.exists(), "{folder} can't be read");
        return;
    };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        let path = entry.path();
        if kind.is_dir() {
            nothing_in_clear(Utf8Path::from_path(&path).unwrap());
        } else if kind.is_file()
            && let Ok(bytes) = std::fs::read(&path)
        {
            let text = String::from_utf8_lossy(&bytes);
            for canary in CANARIES {
                assert!(!text.contains(canary), "{canary} is in {}", path.display());
            }
        }
    }
}

#[test]
fn everything_accepted_is_called_back_however_often_the_server_is_killed() {
    let seed = number("KILL_SEED", rand::random());
    let kills = usize::try_from(number("KILLS", 4)).unwrap();
    let rollouts = 12 * (kills as u64 + 1);
    eprintln!("KILL_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let workspace = workspace();
    let (_runtime, model) = model(Behaviour::Answers);
    let more = [
        "--workers",
        "1",
        "--api-key-env",
        "SERVER_KEY",
        "--max-in-flight",
        "4",
    ];
    let mut serving = Serving::start(&workspace, &more);
    let address = serving.url().strip_prefix("http://").unwrap().to_owned();
    let mut controller = controller("over_restarts", serving.url(), &model)
        .env("ROLLOUT_KEY", CANARIES[2])
        .env("ROLLOUTS", rollouts.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // A kill after so many lines: acceptances and callbacks.
    let lines = 3 * rollouts;
    let mut moments: BTreeSet<u64> = BTreeSet::new();
    while moments.len() < kills {
        moments.insert(random.random_range(1..lines - 10));
    }
    let mut said = BufReader::new(controller.stdout.take().unwrap()).lines();
    let mut seen = 0;
    let result: Value = loop {
        let line = said.next().unwrap().unwrap();
        if line.starts_with('{') {
            break serde_json::from_str(&line).unwrap();
        }
        seen += 1;
        if moments.remove(&seen) {
            serving.child.kill().unwrap();
            serving.child.wait().unwrap();
            nothing_in_clear(&workspace.root);
            let again = [&more[..], &["--listen", &address]].concat();
            serving = Serving::start(&workspace, &again);
        }
    };
    assert!(controller.wait().unwrap().success());
    assert!(moments.is_empty(), "not every kill happened: {moments:?}");
    assert_eq!(result["ids"], rollouts);
    assert_eq!(result["kinds"], 2 * rollouts, "each has both callbacks");
    assert_eq!(
        result["distinct"],
        json!([1]),
        "and each always the same body"
    );
    assert_eq!(result["statuses"], json!(["success"]), "seed {seed}");
    serving.terminate();
    serving.ended(&workspace).expect(0);
    nothing_in_clear(&workspace.root);
}

#[test]
fn a_binary_that_is_killed_under_the_facade_is_started_again_and_goes_on() {
    let workspace = workspace();
    let gate = Gate::default();
    let (runtime, model) = model(Behaviour::Held(gate.clone()));
    let facade = Facade::start_of(&workspace, PLAIN, "workflow=Plain, grader=Exact");
    let controller = last_rollout(&facade.url, &runtime, &model);
    let binary = children_below(facade.child.id())[0];
    let binary = Pid::from_raw(i32::try_from(binary).unwrap()).unwrap();
    kill_process(binary, Signal::KILL).unwrap();
    gate.open();
    let said = Ran::of(&controller.wait_with_output().unwrap()).expect(0);
    let told = &said.json()["told"];
    assert_eq!(told["completion"]["status"], "success", "{told}");
    assert_eq!(told["grader"]["status"], "success", "{told}");
    nothing_in_clear(&workspace.root);
    facade.end();
}

#[test]
fn with_another_state_key_rollouts_wait_until_they_are_sent_again() {
    let mut workspace = workspace();
    workspace.variable("OSMOSIS_STATE_KEY", CANARIES[3]);
    let gate = Gate::default();
    let (_runtime, model) = model(Behaviour::Held(gate.clone()));
    let mut serving = Serving::start(&workspace, &["--workers", "1"]);
    let address = serving.url().strip_prefix("http://").unwrap().to_owned();
    let mut controller = controller("lost_key", serving.url(), &model)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(controller.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "running");
    serving.child.kill().unwrap();
    serving.child.wait().unwrap();
    nothing_in_clear(&workspace.root);
    gate.open();
    workspace.variable(
        "OSMOSIS_STATE_KEY",
        "another key, which opens nothing of it",
    );
    let serving = Serving::start(&workspace, &["--workers", "1", "--listen", &address]);
    controller.stdin.take().unwrap().write_all(b"\n").unwrap();
    let result: Value = serde_json::from_str(&said.next().unwrap().unwrap()).unwrap();
    assert!(controller.wait().unwrap().success());
    assert_eq!(result["status"], "queued");
    // It may have begun by the time the answer is made.
    let again = result["again"].as_str().unwrap();
    assert!(["queued", "running"].contains(&again), "{again}");
    assert_eq!(result["told"]["completion"]["status"], "success");
    assert_eq!(result["told"]["grader"]["status"], "success");
    serving.terminate();
    serving.ended(&workspace).expect(0);
}

#[test]
fn the_state_key_is_in_a_file_of_the_users_own_that_nobody_else_reads() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let mut workspace = workspace();
    let state = tempfile::tempdir_in(cache_dir()).unwrap();
    let state = Utf8Path::from_path(state.path()).unwrap();
    workspace.variable("XDG_STATE_HOME", state.as_str());
    let serving = Serving::start(&workspace, &["--workers", "1"]);
    let path = state.join("osmosis/state.key");
    let made = std::fs::read(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let entries = std::fs::read_dir(state.join("osmosis")).unwrap();
    let files = entries.filter(|entry| entry.as_ref().unwrap().path().is_file());
    assert_eq!(files.count(), 1, "no half-written key is left");
    serving.terminate();
    serving.ended(&workspace).expect(0);

    let refused = |words: &str| {
        let python = osmosis_testkit::python_environment::python();
        let command = ["serve", "r", "--name", "s", "--python", python.as_str()];
        let ran: Ran = workspace.osmosis(&command).expect(1);
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains("hint:"), "{}", ran.stderr);
    };
    let readable = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&path, readable).unwrap();
    refused("others can read");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&path, "").unwrap();
    refused("holds no key");
    std::fs::write(&path, &made).unwrap();
    let serving = Serving::start(&workspace, &["--workers", "1"]);
    assert_eq!(
        std::fs::read(&path).unwrap(),
        made,
        "the same key each time"
    );
    serving.terminate();
    serving.ended(&workspace).expect(0);
    workspace.variable("OSMOSIS_STATE_KEY", "short");
    let ran = workspace.osmosis(&["serve", "r"]).expect(2);
    assert!(ran.stderr.contains("OSMOSIS_STATE_KEY"), "{}", ran.stderr);
}
