//! `osmosis train serve`, and a trainer in another process.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use camino::Utf8PathBuf;
use osmosis_testkit::python_environment;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::areal_outside::TokenServer;
use crate::training::{metrics, workspace};
use crate::workspace::{Ran, Workspace};

pub(crate) const KEY: &str = "the-control-key-of-this-test";
const BATCHES: u64 = 5;

pub(crate) fn served_workspace() -> Workspace {
    let mut workspace = workspace();
    let training = format!("steps = {BATCHES}\nmax_staleness = 1\ntotal_epochs = 9\n");
    workspace.training("builtin/tiny", &training, "");
    workspace.variable("OSMOSIS_CONTROL_KEY", KEY);
    workspace
}

pub(crate) struct Engine {
    child: Child,
    pub(crate) resource: Value,
}

impl Engine {
    pub(crate) fn start(workspace: &Workspace, address: &str) -> Self {
        let python = python_environment::python();
        let mut arguments = vec!["train", "serve", "configs/training/c.toml", "--json"];
        arguments.extend([
            "--name",
            "t",
            "--listen",
            address,
            "--python",
            python.as_str(),
        ]);
        let mut child = workspace
            .command(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
        stdout.read_line(&mut said).unwrap();
        assert!(
            !said.is_empty(),
            "{}",
            Ran::of(&child.wait_with_output().unwrap()).stderr
        );
        let envelope: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(envelope["status"], "serving");
        assert_eq!(envelope["operation"], "train serve");
        assert_eq!(envelope["resource"]["control_key"], KEY);
        Self {
            child,
            resource: envelope["resource"].clone(),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn url(&self) -> &str {
        self.resource["url"].as_str().unwrap()
    }

    /// `127.0.0.1:PORT`
    pub(crate) fn address(&self) -> &str {
        let url = self.url().strip_prefix("http://").unwrap();
        url.strip_suffix("/v1").unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    pub(crate) fn ended(self) -> Ran {
        Ran::of(&self.child.wait_with_output().unwrap())
    }
}

struct Trainer<'a> {
    workspace: &'a Workspace,
    url: String,
    /// What it announces; `-` is nothing but a version.
    weights: Utf8PathBuf,
}

impl Trainer<'_> {
    fn journal(&self) -> Utf8PathBuf {
        self.workspace.root.join("journal.jsonl")
    }

    fn start(&self, order: &[(&str, u64)]) -> Child {
        let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/outside_trainer.py");
        let mut command = Command::new(python_environment::python());
        command
            .args([script, self.journal().as_str(), self.weights.as_str()])
            .env("PYTHONPATH", format!("{repository}/python"))
            .env("OSMOSIS_TRAINER_URL", &self.url)
            .env("OSMOSIS_CONTROL_KEY", KEY)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, number) in order {
            command.env(name, number.to_string());
        }
        command.spawn().unwrap()
    }

    fn run(&self, order: &[(&str, u64)], code: i32) {
        Ran::of(&self.start(order).wait_with_output().unwrap()).expect(code);
    }

    fn noted(&self) -> Vec<Value> {
        std::fs::read_to_string(self.journal())
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

fn numbers(noted: &[Value], event: &str) -> Vec<u64> {
    noted
        .iter()
        .filter(|line| line["event"] == event)
        .map(|line| line["number"].as_u64().unwrap())
        .collect()
}

/// Everything a trainer was given, by batch: the same each time, and nothing in two batches.
fn check_deliveries(noted: &[Value]) {
    let (mut groups, mut rows) = (BTreeSet::new(), BTreeSet::new());
    for number in 1..=BATCHES {
        let of_batch: Vec<&Value> = noted
            .iter()
            .filter(|line| line["number"] == number)
            .collect();
        let first = of_batch[0];
        for again in &of_batch {
            assert_eq!(again["digest"], first["digest"], "batch {number}");
            assert_eq!(again["version"], first["version"], "batch {number}");
        }
        for group in first["groups"].as_array().unwrap() {
            assert!(
                groups.insert(group.as_u64().unwrap()),
                "group {group} comes twice"
            );
        }
        for row in first["rows"].as_array().unwrap() {
            assert!(rows.insert(row.to_string()), "row {row} comes twice");
        }
        let (oldest, version) = (&first["oldest"], &first["version"]);
        assert!(
            oldest.as_u64().unwrap() + 1 >= version.as_u64().unwrap(),
            "batch {number} is stale"
        );
    }
    assert!(!rows.is_empty());
}

#[test]
fn a_trainer_that_dies_and_an_engine_that_is_killed_lose_no_batch_and_repeat_no_acknowledged_one() {
    let workspace = served_workspace();
    let engine = Engine::start(&workspace, "127.0.0.1:0");
    let address = engine.address().to_owned();
    let trainer = Trainer {
        workspace: &workspace,
        url: engine.url().to_owned(),
        // What answers first is good enough to be announced again and again.
        weights: workspace.training_folder("t").join("checkpoints/step_0"),
    };
    trainer.run(&[("DIE_RECEIVED", 2)], 9);
    trainer.run(&[("DIE_ACKNOWLEDGED", 2)], 9);

    // The engine dies while a trainer works on a batch. It is acknowledged at the next one.
    let mut third = trainer.start(&[("WAIT_RECEIVED", 3)]);
    let mut said = String::new();
    let mut stdout = BufReader::new(third.stdout.as_mut().unwrap());
    stdout.read_line(&mut said).unwrap();
    assert_eq!(said, "waiting\n");
    engine.signal(Signal::KILL);
    engine.ended();
    let engine = Engine::start(&workspace, &address);
    assert_eq!(engine.resource["acknowledged"], 2);
    assert_eq!(engine.resource["version"], 1);
    third.stdin.take().unwrap().write_all(b"\n").unwrap();
    Ran::of(&third.wait_with_output().unwrap()).expect(0);

    let ended = engine.ended().expect(0).json();
    assert_eq!(ended["status"], "completed");
    assert_eq!(ended["resource"]["steps"], BATCHES);
    let noted = trainer.noted();
    assert_eq!(numbers(&noted, "received"), [1, 2, 2, 3, 4, 5]);
    assert_eq!(numbers(&noted, "acknowledged"), [1, 2, 3, 4, 5]);
    check_deliveries(&noted);

    let steps: Vec<u64> = metrics(&workspace)
        .iter()
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [1, 2, 3, 4, 5]);
    let folder = workspace.training_folder("t");
    assert!(folder.join("checkpoints/step_5/model.safetensors").exists());
    assert!(
        !folder.join("checkpoints/step_4").exists(),
        "older copies go"
    );
    for file in ["run.db", "logs.txt", "index.jsonl", "metrics.json"] {
        let bytes = std::fs::read(folder.join(file)).unwrap();
        assert!(
            !String::from_utf8_lossy(&bytes).contains(KEY),
            "the key is in {file}"
        );
    }
    let listed = workspace.osmosis(&["train", "list"]).expect(0);
    assert!(listed.stdout.contains("finished"), "{}", listed.stdout);
}

#[test]
fn ctrl_c_stops_a_run_that_only_another_train_serve_goes_on_with() {
    let workspace = served_workspace();
    let engine = Engine::start(&workspace, "127.0.0.1:0");
    engine.signal(Signal::INT);
    let ended = engine.ended().expect(130).json();
    assert_eq!(ended["status"], "interrupted");
    // The trainer is another: this is not a run that is resumed here.
    let python = python_environment::python();
    let resumed = workspace.osmosis(&["train", "resume", "t", "--python", python.as_str()]);
    assert_ne!(resumed.code, 0);
    assert!(resumed.stderr.contains("trainer"), "{}", resumed.stderr);
    let engine = Engine::start(&workspace, "127.0.0.1:0");
    engine.signal(Signal::TERM);
    engine.ended().expect(130);
}

#[test]
fn servers_that_tell_their_token_ids_sample_and_a_restart_knows_their_version() {
    let mut workspace = served_workspace();
    let _server = TokenServer::varied(&mut workspace);
    workspace.training("m", "steps = 2\nmax_staleness = 1\n", "");
    let engine = Engine::start(&workspace, "127.0.0.1:0");
    let address = engine.address().to_owned();
    let trainer = Trainer {
        workspace: &workspace,
        url: engine.url().to_owned(),
        weights: "-".into(),
    };
    trainer.run(&[("DIE_RECEIVED", 2)], 9);
    engine.signal(Signal::TERM);
    engine.ended().expect(130);

    let engine = Engine::start(&workspace, &address);
    assert_eq!(engine.resource["acknowledged"], 1);
    assert_eq!(engine.resource["version"], 1);
    trainer.run(&[], 0);
    engine.ended().expect(0);
    let noted = trainer.noted();
    assert_eq!(numbers(&noted, "received"), [1, 2, 2]);
    assert_eq!(numbers(&noted, "acknowledged"), [1, 2]);
    assert!(
        noted.iter().all(|line| line["rows"][0].is_string()),
        "{noted:?}"
    );
}

#[test]
fn a_policy_without_token_ids_is_refused_with_what_to_do() {
    let workspace = served_workspace();
    workspace.training("script:policies/p.toml", "steps = 1\n", "");
    let python = python_environment::python();
    let refused = workspace
        .osmosis(&[
            "train",
            "serve",
            "configs/training/c.toml",
            "--python",
            python.as_str(),
        ])
        .expect(1);
    assert!(
        refused.stderr.contains("tells no token ids"),
        "{}",
        refused.stderr
    );
    assert!(
        refused.stderr.contains("OSMOSIS_ENGINE=vllm"),
        "{}",
        refused.stderr
    );
}
