//! Training that is killed or stopped, and resumed, ends as if nothing had happened.

use std::process::{Child, Stdio};
use std::time::Duration;

use osmosis_testkit::{python_environment, waiting};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::training::{metrics, workspace};
use crate::workspace::{Ran, Workspace};

const STEPS: u64 = 6;

fn longer() -> Workspace {
    let workspace = workspace();
    let training = format!("steps = {STEPS}\neval_fraction = 0.25\ntotal_epochs = 9\n");
    let checkpoints = "[checkpoints]\neval_interval = 3\ncheckpoint_save_freq = 2\n";
    workspace.training("builtin/tiny", &training, checkpoints);
    workspace
}

/// What a run came to: rewards and losses by step, and the last weights.
fn results(workspace: &Workspace) -> (Vec<Value>, Vec<u8>) {
    let kept = [
        "step",
        "reward/mean",
        "pass_rate",
        "loss",
        "entropy",
        "eval/reward_mean",
    ];
    let lines = metrics(workspace)
        .iter()
        .map(|line| kept.iter().map(|name| line[*name].clone()).collect())
        .collect();
    let folder = workspace.training_folder("t");
    let weights = folder.join(format!("checkpoints/step_{STEPS}/model.safetensors"));
    (lines, std::fs::read(weights).unwrap())
}

#[track_caller]
fn check_equal(workspace: &Workspace, expected: &(Vec<Value>, Vec<u8>)) {
    let found = results(workspace);
    assert_eq!(found.0, expected.0);
    assert!(found.1 == expected.1, "the weights differ");
}

fn undisturbed() -> (Vec<Value>, Vec<u8>) {
    let workspace = longer();
    workspace.train(&[]).expect(0);
    results(&workspace)
}

fn start(workspace: &Workspace) -> Child {
    workspace
        .train_command(&[])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // It may have ended meanwhile.
    let _ = kill_process(pid, signal);
}

fn resume(workspace: &Workspace) -> Ran {
    let python = python_environment::python();
    workspace.osmosis(&["train", "resume", "t", "--python", python.as_str()])
}

#[track_caller]
fn wait_for_step(workspace: &Workspace, child: &mut Child, step: &str) {
    let path = workspace.training_folder("t").join("metrics.jsonl");
    let wanted = format!("\"step\":{step},");
    waiting::wait_until(&format!("step {step}"), Duration::from_mins(2), || {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::fs::read_to_string(&path).is_ok_and(|text| text.contains(&wanted))
    });
}

#[expect(clippy::print_stderr, reason = "the seed repeats a failure")]
fn seeded() -> StdRng {
    let seed =
        std::env::var("KILL_SEED").map_or_else(|_| rand::random(), |text| text.parse().unwrap());
    eprintln!("KILL_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

#[test]
fn training_killed_at_random_moments_ends_with_the_same_rewards_and_weights() {
    let mut random = seeded();
    let expected = undisturbed();
    let workspace = longer();
    let kills = std::env::var("KILLS").map_or(4, |text| text.parse().unwrap());
    for _ in 0..kills {
        let mut child = start(&workspace);
        waiting::pass(Duration::from_millis(random.random_range(300..4000)));
        send(child.id(), Signal::KILL);
        child.wait().unwrap();
    }
    let resumed = resume(&workspace);
    if resumed.stderr.contains("never begun") || resumed.stderr.contains("no run `t`") {
        // Every kill came before the run had a record.
        workspace.train(&[]).expect(0);
    } else {
        resumed.expect(0);
    }
    check_equal(&workspace, &expected);
}

/// The groups that each step was trained on.
fn trained_groups(workspace: &Workspace) -> Vec<Vec<u64>> {
    let path = workspace.training_folder("t").join("run.db");
    let database = rusqlite::Connection::open(path).unwrap();
    let mut select = database
        .prepare("SELECT content FROM batches ORDER BY number")
        .unwrap();
    let contents = select.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let groups = |content: String| {
        let content: Value = serde_json::from_str(&content).unwrap();
        let groups = content["groups"].as_array().unwrap().iter();
        groups.map(|group| group["id"].as_u64().unwrap()).collect()
    };
    contents.map(|content| groups(content.unwrap())).collect()
}

#[test]
fn training_without_waiting_that_is_killed_trains_on_nothing_twice() {
    let mut random = seeded();
    let workspace = longer();
    // Small steps: what is trained on is chance here, and a model that says one thing only would end the training.
    let training = format!(
        "steps = {STEPS}\neval_fraction = 0.25\nmax_staleness = 2\nstragglers = \"top_up\"\nlr = 1e-5\n"
    );
    let checkpoints = "[checkpoints]\neval_interval = 3\ncheckpoint_save_freq = 4\n";
    workspace.training("builtin/tiny", &training, checkpoints);
    let kills = std::env::var("KILLS").map_or(4, |text| text.parse().unwrap());
    for _ in 0..kills {
        let mut child = start(&workspace);
        waiting::pass(Duration::from_millis(random.random_range(300..3000)));
        send(child.id(), Signal::KILL);
        child.wait().unwrap();
    }
    workspace.train(&[]).expect(0);
    let steps: Vec<u64> = metrics(&workspace)
        .iter()
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, (0..=STEPS).collect::<Vec<_>>());
    let batches = trained_groups(&workspace);
    assert_eq!(batches.len() as u64, STEPS);
    assert!(
        batches.iter().all(|groups| groups.len() == 2),
        "{batches:?}"
    );
    let mut groups = batches.concat();
    groups.sort_unstable();
    groups.dedup();
    assert_eq!(groups.len() as u64, 2 * STEPS, "a group twice: {batches:?}");

    // The weights are those of the recorded batches, whoever computed them.
    let expected = results(&workspace);
    std::fs::remove_dir_all(workspace.training_folder("t").join("checkpoints")).unwrap();
    resume(&workspace).expect(0);
    check_equal(&workspace, &expected);
}

#[test]
fn ctrl_c_stops_with_a_checkpoint_and_the_printed_command_goes_on() {
    let expected = undisturbed();
    let workspace = longer();
    let mut child = start(&workspace);
    wait_for_step(&workspace, &mut child, "1");
    send(child.id(), Signal::INT);
    let ended = Ran::of(&child.wait_with_output().unwrap()).expect(130);
    assert!(
        ended.stderr.contains("osmosis train resume t"),
        "{}",
        ended.stderr
    );
    let listed = workspace.osmosis(&["train", "list"]).expect(0);
    assert!(listed.stdout.contains("interrupted"), "{}", listed.stdout);
    let end = || {
        let info = workspace.osmosis(&["train", "info", "t", "--json"]);
        info.expect(0).json()["data"]["end"]["cause"].clone()
    };
    assert_eq!(end(), "stopped");
    resume(&workspace).expect(0);
    assert_eq!(end(), "complete");
    check_equal(&workspace, &expected);
    // A run that is complete has nothing left to do.
    resume(&workspace).expect(0);
    check_equal(&workspace, &expected);
}

#[test]
fn train_stop_asks_the_process_and_waits_for_its_end() {
    let workspace = longer();
    let mut child = start(&workspace);
    wait_for_step(&workspace, &mut child, "1");
    let stopped = workspace.osmosis(&["train", "stop", "t"]).expect(0);
    assert!(
        stopped.stdout.contains("osmosis train resume t"),
        "{}",
        stopped.stdout
    );
    Ran::of(&child.wait_with_output().unwrap()).expect(130);
}

#[test]
fn a_resume_is_refused_when_the_data_changed() {
    let workspace = workspace();
    workspace.train(&[]).expect(0);
    workspace.write("data/d.jsonl", &crate::workspace::echo_rows(9));
    let refused = resume(&workspace).expect(1);
    assert!(
        refused.stderr.contains("dataset rows"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_run_says_what_it_was_begun_on_and_a_resume_elsewhere_is_warned_of() {
    let mut workspace = workspace();
    let training = "steps = 1\neval_fraction = 0.25\n";
    workspace.training("builtin/tiny", training, "");
    workspace.train(&[]).expect(0);
    let folder = workspace.training_folder("t");
    let metrics: Value =
        serde_json::from_slice(&std::fs::read(folder.join("metrics.json")).unwrap()).unwrap();
    let processor = metrics["processor"].as_str().unwrap().to_owned();
    assert!(processor.contains(" lanes"), "{processor}");
    let info = workspace.osmosis(&["train", "info", "t"]).expect(0);
    assert!(info.stdout.contains(&processor), "{}", info.stdout);

    let same = resume(&workspace).expect(0);
    assert!(!same.stderr.contains("processor"), "{}", same.stderr);
    let database = rusqlite::Connection::open(folder.join("run.db")).unwrap();
    // As if an older program had written it, which knew no checksums.
    database
        .execute_batch(
            "UPDATE run SET pinned = json_set(pinned, '$.\"remembered.processor\"', 'An abacus, 1 lanes'),
                checksum = NULL;
             UPDATE writer SET all_checksummed = 0;",
        )
        .unwrap();
    assert_eq!(database.changes(), 1);
    drop(database);
    workspace.forget_key();
    // A complete run would only be looked at: it goes on when its weights are gone.
    std::fs::remove_dir_all(folder.join("checkpoints")).unwrap();
    let other = resume(&workspace).expect(0);
    assert!(
        other
            .stderr
            .contains("begun on another kind of processor (`An abacus, 1 lanes`"),
        "{}",
        other.stderr
    );
}
