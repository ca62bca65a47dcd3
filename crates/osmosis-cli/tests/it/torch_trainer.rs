//! `[trainer] kind = "torch"`, with a server that has vLLM's routes and a trainer that learns nothing: what is loaded
//! when, which version tokens get, and what happens when one of the two dies. With the real ones: `cargo xtask torch`.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use osmosis_core::learner::TrainableModel;
use osmosis_policy::EmbeddedModel;
use osmosis_testkit::left_processes::is_alive;
use osmosis_testkit::python_environment;
use osmosis_testkit::waiting::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::training::metrics;
use crate::workspace::{CHECKSUM, Ran, Workspace, echo_rows};

const STEPS: u64 = 4;
const LORA: &str = "[training.lora]\nrank = 4\n";

/// A workspace whose model is a folder, with both fakes.
fn workspace(more: &str, training: &str) -> Workspace {
    let workspace = Workspace::new(CHECKSUM, "[[reply]]\ntext = \"x\"\n", &echo_rows(8));
    let model = EmbeddedModel::builtin("tiny").unwrap();
    let folder = workspace.root.join("models/tiny");
    std::fs::create_dir_all(folder.parent().unwrap()).unwrap();
    let weights = TrainableModel::weights(&model);
    model.files().write(&folder, &weights).unwrap();

    workspace.write("fake/fake_vllm.py", include_str!("fake_vllm.py"));
    workspace.write("fake/fake_torch.py", include_str!("fake_torch.py"));
    let (root, python) = (&workspace.root, python_environment::python());
    workspace.write(
        "fake/python",
        &format!(
            "#!/bin/sh\n[ \"$1\" = -c ] && exit 0\nexec {python} {root}/fake/fake_torch.py {root}/fake\n"
        ),
    );
    let script = root.join("fake/python");
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let trainer = format!(
        "[trainer]\nkind = \"torch\"\npython = \"{script}\"\n\
         server_command = [\"{python}\", \"{root}/fake/fake_vllm.py\", \"{root}/fake\", \"--model\", \"{{model}}\"]\n"
    );
    let training = format!(
        "steps = {STEPS}\ntotal_epochs = 9\neval_fraction = 0.25\nmax_prompt_length = 256\n\
         max_response_length = 32\n{training}"
    );
    let checkpoints = "[checkpoints]\neval_interval = 2\ncheckpoint_save_freq = 2\n";
    workspace.training(
        "./models/tiny",
        &training,
        &format!("{more}{checkpoints}{trainer}"),
    );
    workspace
}

fn lines(workspace: &Workspace, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(workspace.root.join("fake").join(file));
    text.unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// The updates that had been made when each version answered.
fn updates_by_version(workspace: &Workspace) -> BTreeMap<u64, u64> {
    let mut updates = 0;
    let of_step = |line: &Value| {
        let step = line["step"].as_u64().unwrap();
        if step > 0 && line["skipped"].is_null() {
            updates += 1;
        }
        (step, updates)
    };
    metrics(workspace).iter().map(of_step).collect()
}

/// Every answer of a rollout has the version of the weights that gave it. Returns how many there were.
#[track_caller]
fn check_versions(workspace: &Workspace) -> usize {
    let numbers: Vec<u64> = lines(workspace, "answers.jsonl")
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|answer| answer["number"].as_u64().unwrap())
        .collect();
    let updates = updates_by_version(workspace);
    let all = ["train", "show", "t", "--json", "--limit", "1000"];
    let listed = workspace.osmosis(&all).expect(0).json();
    let mut answers: BTreeMap<u64, BTreeMap<String, String>> = BTreeMap::new();
    for item in listed["items"].as_array().unwrap() {
        let text = |key: &str| item[key].as_str().unwrap().to_owned();
        let row = answers.entry(item["row_index"].as_u64().unwrap());
        row.or_default().insert(text("rollout_id"), text("answer"));
    }
    let mut checked = 0;
    for (row, answers) in answers {
        let row = row.to_string();
        let shown = workspace.osmosis(&["train", "show", "t", &row, "--json"]);
        for rollout in shown.expect(0).json()["data"].as_array().unwrap() {
            let answer = &answers[rollout["rollout_id"].as_str().unwrap()];
            // Six digits: which answer of the server's it is.
            let number = numbers[answer.parse::<usize>().unwrap()];
            let versions = &rollout["versions"];
            assert_eq!(versions["min"], versions["max"], "{rollout}");
            let version = versions["min"].as_u64().unwrap();
            assert_eq!(number, updates[&version], "version {version}: {rollout}");
            checked += 1;
        }
    }
    checked
}

fn pid_in(workspace: &Workspace, file: &str) -> Option<u32> {
    lines(workspace, file).first()?.parse().ok()
}

#[track_caller]
fn check_processes_gone(workspace: &Workspace) {
    for file in ["server.pid", "trainer.pid"] {
        let pid = pid_in(workspace, file).unwrap();
        wait_until(file, Duration::from_secs(15), || !is_alive(pid));
    }
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

#[test]
fn each_version_is_an_adapter_of_its_own_name() {
    let workspace = workspace("", LORA);
    let ran = workspace.train(&["--json"]).expect(0);
    let resource = &ran.json()["resource"];
    assert_eq!(resource["steps"], STEPS);
    assert!(resource["before"]["greedy"]["mean"].is_f64(), "{resource}");
    let orders = lines(&workspace, "orders.txt");
    assert_eq!(orders[..2], ["start", "load policy-v0-1 0"], "{orders:?}");
    let loads = orders.iter().filter(|order| order.starts_with("load"));
    let updates = updates_by_version(&workspace)[&STEPS];
    assert_eq!(loads.count() as u64, updates + 1, "{orders:?}");
    assert!(!orders.iter().any(|order| order == "pause"), "{orders:?}");
    let folder = workspace.training_folder("t");
    for file in ["server.log", "trainer.log", "checkpoints/step_4/number"] {
        assert!(folder.join(file).exists(), "{file}");
    }
    assert!(!folder.join("trainer").exists(), "states are left behind");
    check_processes_gone(&workspace);
    // 4 steps of 2 rows and 4 samples; 2 held-out rows, sampled and greedily, at steps 0, 2 and 4.
    assert_eq!(check_versions(&workspace), 32 + 12);
}

#[test]
fn whole_weights_are_exchanged_while_the_server_is_paused() {
    let workspace = workspace("", "");
    workspace.train(&[]).expect(0);
    let orders = lines(&workspace, "orders.txt");
    // The server starts with the weights that training starts with.
    assert_eq!(orders[..2], ["start", "pause"], "{orders:?}");
    let exchanges: Vec<&[String]> = orders[1..].chunks(4).collect();
    for (number, exchange) in (1..).zip(&exchanges) {
        let reload = format!("reload {number}");
        assert_eq!(
            **exchange,
            ["pause", &reload, "reset", "resume"],
            "{orders:?}"
        );
    }
    let updates = updates_by_version(&workspace)[&STEPS];
    assert_eq!(exchanges.len() as u64, updates, "{orders:?}");
    assert_eq!(check_versions(&workspace), 44);
}

#[test]
fn tokens_have_their_version_while_rollouts_go_on_during_updates() {
    for training in [LORA, ""] {
        let training = format!("max_staleness = 1\n{training}");
        let workspace = workspace("", &training);
        workspace.train(&[]).expect(0);
        assert!(check_versions(&workspace) >= 44);
        let orders = lines(&workspace, "orders.txt");
        assert!(
            !orders.iter().any(|order| order == "asked while paused"),
            "{orders:?}"
        );
    }
}

#[test]
fn a_trainer_that_dies_goes_on_from_its_last_update() {
    for when in ["before", "after"] {
        let workspace = workspace("", LORA);
        workspace.write("fake/die_update", when);
        let ran = workspace.train(&[]).expect(0);
        assert!(ran.stderr.contains("The torch trainer"), "{}", ran.stderr);
        assert!(
            ran.stderr.contains("runs again, from the start model"),
            "{}",
            ran.stderr
        );
        let trained = lines(&workspace, "trained.txt");
        let updates: Vec<&String> = trained
            .iter()
            .filter(|line| line.starts_with("update"))
            .collect();
        // Each once, whatever the dead one had written.
        let expected: Vec<String> = (1..=updates.len()).map(|n| format!("update {n}")).collect();
        assert_eq!(updates, expected.iter().collect::<Vec<_>>(), "{trained:?}");
        assert_eq!(metrics(&workspace).len() as u64, STEPS + 1);
        check_versions(&workspace);
        check_processes_gone(&workspace);
    }
}

#[test]
fn a_server_that_dies_is_started_again_with_the_weights_it_had() {
    for (when, training) in [("before", LORA), ("within", LORA), ("before", "")] {
        let workspace = workspace("", training);
        let mut child = start(&workspace);
        // Once a version other than the first answers.
        let path = workspace.training_folder("t").join("metrics.jsonl");
        wait_until("step 1", Duration::from_mins(2), || {
            assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
            std::fs::read_to_string(&path).is_ok_and(|text| text.contains("\"step\":1,"))
        });
        workspace.write("fake/die", when);
        let ran = Ran::of(&child.wait_with_output().unwrap()).expect(0);
        assert!(
            ran.stderr.contains("The inference server"),
            "{}",
            ran.stderr
        );
        assert!(
            ran.stderr.contains("runs again, with version"),
            "{}",
            ran.stderr
        );
        let orders = lines(&workspace, "orders.txt");
        assert_eq!(
            orders.iter().filter(|order| *order == "start").count(),
            2,
            "{orders:?}"
        );
        // No rollout is lost or counted against the agent.
        let outcomes: Vec<Value> = metrics(&workspace)
            .iter()
            .map(|line| line["rollouts/scored"].clone())
            .collect();
        assert!(
            outcomes[1..].iter().all(|scored| *scored == 8),
            "{outcomes:?}"
        );
        check_versions(&workspace);
        check_processes_gone(&workspace);
    }
}

#[test]
fn both_processes_end_with_the_run_however_it_ends() {
    for signals in [
        vec![Signal::INT],
        vec![Signal::INT, Signal::INT],
        vec![Signal::KILL],
    ] {
        let workspace = workspace("", LORA);
        let mut child = start(&workspace);
        wait_until("both", Duration::from_mins(1), || {
            assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
            !lines(&workspace, "answers.jsonl").is_empty()
        });
        for signal in &signals {
            send(child.id(), *signal);
        }
        child.wait().unwrap();
        check_processes_gone(&workspace);
        if signals == [Signal::KILL] {
            let python = python_environment::python();
            workspace
                .osmosis(&["train", "resume", "t", "--python", python.as_str()])
                .expect(0);
            check_processes_gone(&workspace);
        }
    }
}

#[test]
fn what_cannot_be_started_is_an_error_with_its_last_words() {
    let workspace = workspace("", LORA);
    workspace.write(
        "fake/fake_vllm.py",
        "raise SystemExit('unknown option --enable-lora')",
    );
    let ran = workspace.train(&[]).expect(1);
    assert!(
        ran.stderr.contains("unknown option --enable-lora"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("server_command"), "{}", ran.stderr);
    check_trainer_gone(&workspace);
}

#[track_caller]
fn check_trainer_gone(workspace: &Workspace) {
    if let Some(pid) = pid_in(workspace, "trainer.pid") {
        wait_until("trainer", Duration::from_secs(15), || !is_alive(pid));
    }
}
