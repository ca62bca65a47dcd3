//! `osmosis run verify` and `run salvage`, runs named by their kind, and a second engine that must not get in.

use std::process::Stdio;
use std::time::Duration;

use osmosis_testkit::python_environment;
use osmosis_testkit::waiting::wait_until;
use serde_json::Value;

use crate::gateway_command::Serving;
use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

fn results(workspace: &Workspace, run: &str) -> Vec<(String, Value, Value)> {
    let index = workspace.read(&format!(".osmosis/evals/{run}/index.jsonl"));
    let lines = index.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let id = line["rollout_id"].as_str().unwrap().to_owned();
        (id, line["outcome"].clone(), line["reward"].clone())
    });
    lines.collect()
}

/// Changes a number that people read, as a bad disk would: past the store.
fn change_a_reward(workspace: &Workspace, rollout: &str) {
    let database = workspace.run_folder("t").join("run.db");
    let connection = rusqlite::Connection::open(database).unwrap();
    let changed = connection
        .execute(
            "UPDATE rollouts SET reward = 0.25 WHERE rollout_id = ?1",
            [rollout],
        )
        .unwrap();
    assert_eq!(changed, 1);
}

/// What user code of the same user can do to the records of its run.
#[test]
fn a_reward_that_something_else_wrote_is_in_no_report_and_a_run_of_another_key_says_so() {
    let mut workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(3));
    workspace.submit(&[]).expect(0);
    let info = ["eval", "info", "t", "--json"];
    let sound = workspace.osmosis(&info).expect(0).json();
    assert_eq!(sound["data"].get("unauthenticated"), None, "{sound}");
    for folder in ["elsewhere", "again"] {
        std::fs::create_dir_all(workspace.root.join(folder).join("rollouts")).unwrap();
    }
    let copy = ["run", "copy", "t", "--to", "elsewhere"];
    workspace.osmosis(&copy).expect(0);

    change_a_reward(&workspace, "r1-0");
    for command in [
        &info[..],
        &["eval", "show", "t", "--json"],
        &["export", "t", "-o", "-"],
        &["run", "copy", "t", "--to", "again"],
    ] {
        let refused = workspace.osmosis(command).expect(1);
        let said = format!("{}{}", refused.stdout, refused.stderr);
        assert!(said.contains("rollout_id r1-0"), "{command:?}: {said}");
    }
    let refused = workspace.osmosis(&info).expect(1).error();
    assert_eq!(refused["code"], "run_altered", "{refused}");

    // Another user, or another machine.
    workspace.forget_key();
    let elsewhere = workspace.root.join("elsewhere");
    let in_copy = ["--workspace", elsewhere.as_str()];
    let read = workspace.osmosis(&[&info[..], &in_copy].concat()).expect(0);
    let why = read.json()["data"]["unauthenticated"].to_string();
    assert!(why.contains("another machine or user"), "{why}");
    let told = workspace.osmosis(&[&["run", "verify", "t"][..], &in_copy].concat());
    assert!(told.expect(0).stderr.contains("is unauthenticated"));
}

#[test]
fn a_damaged_run_is_told_refused_and_salvaged() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(5));
    workspace.submit(&[]).expect(0);
    let before = results(&workspace, "t");
    let whole = workspace.osmosis(&["run", "verify", "t"]).expect(0);
    assert!(
        whole
            .stdout
            .contains("Run `eval/t` is whole: 5 rows, 5 rollouts"),
        "{}",
        whole.stdout
    );

    change_a_reward(&workspace, "r3-0");
    let told = workspace
        .osmosis(&["run", "verify", "t", "--json"])
        .expect(1)
        .json();
    assert_eq!(
        (&told["status"], &told["resource"]["whole"]),
        (&"damaged".into(), &false.into())
    );
    let damage = &told["resource"]["damage"][0];
    assert_eq!(damage["place"], "table rollouts, rollout_id r3-0", "{told}");
    let told = workspace.osmosis(&["run", "verify", "eval/t"]).expect(1);
    assert!(
        told.stdout.contains("osmosis run salvage eval/t"),
        "{}",
        told.stdout
    );

    // It goes no further.
    let python = python_environment::python();
    let resume = ["eval", "resume", "t", "--json", "--python", python.as_str()];
    let refused = workspace.osmosis(&resume).expect(1).error();
    assert_eq!(refused["code"], "run_damaged", "{refused}");
    let hint = refused["details"]["hint"].as_str().unwrap();
    assert!(hint.contains("osmosis run salvage eval/t"), "{hint}");

    // What is whole is saved, what was lost runs again.
    let saved = workspace
        .osmosis(&["run", "salvage", "t", "--json"])
        .expect(0)
        .json();
    assert_eq!(saved["resource"]["run_name"], "t-salvaged");
    assert_eq!(saved["resource"]["kept"]["results"], 4, "{saved}");
    let lost = saved["resource"]["lost"].to_string();
    assert!(lost.contains("rollout_id r3-0"), "{lost}");
    workspace.osmosis(&["run", "salvage", "t"]).expect(1);
    workspace
        .osmosis(&["run", "verify", "t-salvaged"])
        .expect(0);
    workspace
        .osmosis(&["eval", "resume", "t-salvaged", "--python", python.as_str()])
        .expect(0);
    assert_eq!(results(&workspace, "t-salvaged"), before);
    workspace
        .osmosis(&["run", "verify", "t-salvaged"])
        .expect(0);
    // The damaged run is as it was.
    workspace.osmosis(&["run", "verify", "t"]).expect(1);
}

#[test]
fn a_name_that_two_kinds_have_needs_its_kind() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    workspace.submit(&[]).expect(0);
    let model = ["--model", "script:policies/p.toml", "--name", "t"];
    let mut serving = Serving::start(&workspace, &model);
    // Also while it runs.
    let running = workspace
        .osmosis(&["run", "verify", "serve/t", "--json"])
        .expect(0)
        .json();
    assert_eq!(running["resource"]["running"], true, "{running}");
    let pid = rustix::process::Pid::from_raw(i32::try_from(serving.child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    serving.child.wait().unwrap();

    let two = workspace
        .osmosis(&["run", "verify", "t", "--json"])
        .expect(2)
        .error();
    assert_eq!(two["code"], "run_ambiguous");
    let message = two["message"].as_str().unwrap();
    assert!(message.contains("`eval/t`, `serve/t`"), "{message}");
    for run in ["eval/t", "serve/t", "evals/t"] {
        workspace.osmosis(&["run", "verify", run]).expect(0);
    }
    workspace.osmosis(&["run", "verify", "train/t"]).expect(1);
    // Commands of one kind take the kind too, and no other.
    workspace.osmosis(&["eval", "info", "eval/t"]).expect(0);
    workspace
        .osmosis(&["eval", "show", "eval/t", "0"])
        .expect(0);
    workspace.osmosis(&["eval", "logs", "eval/t"]).expect(0);
    let exported = workspace.osmosis(&["export", "eval/t"]).expect(0);
    assert!(
        workspace.root.join("t.jsonl").exists(),
        "{}",
        exported.stdout
    );
    workspace.osmosis(&["eval", "info", "train/t"]).expect(2);
    workspace.osmosis(&["run", "verify", "other/t"]).expect(2);
    workspace.osmosis(&["run", "verify", "nothing"]).expect(1);
}

#[test]
fn a_removed_lock_file_lets_no_second_engine_in() {
    let gated = PLAIN.replace(
        "        return [*ctx.prompt",
        "        import asyncio, pathlib\n        \
         pathlib.Path('../../begun').write_text('x')\n        \
         while not pathlib.Path('../../gate').exists():\n            await asyncio.sleep(0.02)\n        \
         return [*ctx.prompt",
    );
    let workspace = Workspace::new(&gated, ECHO_SCRIPT, &echo_rows(6));
    let python = python_environment::python();
    let submit = [
        "eval",
        "submit",
        "configs/eval/c.toml",
        "--name",
        "t",
        "--python",
        python.as_str(),
    ];
    let first = workspace
        .command(&submit)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the agent begins", Duration::from_mins(1), || {
        workspace.root.join("begun").exists()
    });
    std::fs::remove_file(workspace.run_folder("t").join("run.lock")).unwrap();
    let resume = ["eval", "resume", "t", "--python", python.as_str()];
    let second = workspace.osmosis(&resume).expect(1);
    let holder = format!("process {} on", first.id());
    assert!(second.stderr.contains(&holder), "{}", second.stderr);
    workspace.write("gate", "");
    let ended = crate::workspace::Ran::of(&first.wait_with_output().unwrap()).expect(0);
    assert!(ended.stdout.contains("6 passed of 6"), "{}", ended.stdout);
    workspace.osmosis(&["run", "verify", "t"]).expect(0);
}
