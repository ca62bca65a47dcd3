//! A run that several machines work on: a controller and nodes, as processes of their own, with a real PostgreSQL.
//! However they are killed, stopped and resumed, every outcome is that of a run without nodes.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use base64::Engine as _;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_testkit::postgres_server::PostgresServer;
use osmosis_testkit::python_environment;
use osmosis_testkit::waiting::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::workspace::{Ran, Workspace, echo_rows};

/// Starting interpreters takes its time on a busy machine.
const SOON: Duration = Duration::from_mins(2);

/// Asks the model once the gate is open.
const GATED: &str = r#"
import asyncio, os, httpx
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context

class Gated(AgentWorkflow):
    async def run(self, ctx):
        while not os.path.exists(os.environ["GATE"]):
            await asyncio.sleep(0.02)
        rollout = get_rollout_context()
        async with httpx.AsyncClient(timeout=60) as client:
            reply = await client.post(
                f"{rollout.chat_completions_url}/chat/completions",
                headers={"Authorization": f"Bearer {rollout.api_key}"},
                json={"model": "osmosis-rollout", "messages": ctx.prompt},
            )
            reply.raise_for_status()
            return [*ctx.prompt, reply.json()["choices"][0]["message"]]

class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0 if ctx.label in ctx.sample.messages[-1]["content"].split() else 0.0)
"#;

/// Right for even rows, wrong for the others.
const SCRIPT: &str = r#"
[[reply]]
when.last_user = 'say (?<word>\d*[02468])$'
text = "{word}"
delay_ms = 40

[[reply]]
text = "no"
delay_ms = 40
"#;

/// A workspace, a database, and a gate that agents wait at.
struct Cluster {
    server: PostgresServer,
    workspace: Workspace,
    gate: Utf8PathBuf,
}

/// A process of the program, which ends with the test.
struct Process {
    child: Child,
    stdout: Utf8PathBuf,
    stderr: Utf8PathBuf,
}

/// What a controller prints for nodes.
#[derive(Debug, Clone, PartialEq)]
struct Invitation {
    store: String,
    join: String,
}

impl Cluster {
    fn new(rows: u64) -> Self {
        let (mut workspace, gate) = gated_workspace(rows);
        let server = PostgresServer::start();
        let url = server.url_as("postgres:s3cret", "postgres");
        workspace.variable("OSMOSIS_STORE", &url);
        workspace.variable("OSMOSIS_LEASE_SECONDS", "3");
        Self {
            server,
            workspace,
            gate,
        }
    }

    fn open_gate(&self) {
        std::fs::write(&self.gate, "").unwrap();
    }

    fn start(&self, name: &str, arguments: &[&str]) -> Process {
        let file = |kind: &str| self.workspace.root.join(format!("{name}.{kind}"));
        let (stdout, stderr) = (file("stdout"), file("stderr"));
        let child = self
            .workspace
            .command(arguments)
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        Process {
            child,
            stdout,
            stderr,
        }
    }

    fn controller(&self, more: &[&str]) -> Process {
        let python = python_environment::python();
        let mut arguments = vec!["eval", "submit", "configs/eval/c.toml", "--name", "t"];
        arguments.extend(["--python", python.as_str(), "--json"]);
        arguments.extend(more);
        self.start("controller", &arguments)
    }

    fn resume(&self, more: &[&str]) -> Process {
        let python = python_environment::python();
        let mut arguments = vec!["eval", "resume", "t", "--python", python.as_str(), "--json"];
        arguments.extend(more);
        self.start("resumed", &arguments)
    }

    /// A node in a folder that is no workspace, with the command that the controller printed.
    fn node(&self, name: &str, invitation: &Invitation, more: &[&str]) -> Process {
        let python = python_environment::python();
        let mut arguments = vec!["node", "--store", &invitation.store, "--run", "t"];
        arguments.extend([
            "--join",
            &invitation.join,
            "--python",
            python.as_str(),
            "--json",
        ]);
        arguments.extend(more);
        let elsewhere = tempfile::tempdir().unwrap();
        let file = |kind: &str| self.workspace.root.join(format!("{name}.{kind}"));
        let (stdout, stderr) = (file("stdout"), file("stderr"));
        let child = self
            .workspace
            .command(&arguments)
            .current_dir(elsewhere.path())
            .env_remove("OSMOSIS_STORE")
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        Process {
            child,
            stdout,
            stderr,
        }
    }

    /// `eval info --json`; `null` while there is no run.
    fn info(&self) -> Value {
        let ran = self.workspace.osmosis(&["eval", "info", "t", "--json"]);
        serde_json::from_str::<Value>(&ran.stdout).map_or(Value::Null, |info| info["data"].clone())
    }

    /// Waits until a node holds so many rollouts.
    #[track_caller]
    fn until_held(&self, node: &Process, count: u64) {
        let pid = node.child.id();
        wait_until(&format!("{pid} holds {count}"), SOON, || {
            let info = self.info();
            let nodes = info["nodes"].as_array().cloned().unwrap_or_default();
            nodes
                .iter()
                .any(|node| node["pid"] == pid && node["under_way"] == count)
        });
    }

    /// Outcomes, rewards and calls of every rollout.
    fn results(&self) -> Vec<Value> {
        results(&self.workspace)
    }

    fn attempts(&self) -> Vec<u64> {
        let lines = self.workspace.index();
        lines
            .iter()
            .map(|line| line["attempts"].as_u64().unwrap())
            .collect()
    }
}

fn gated_workspace(rows: u64) -> (Workspace, Utf8PathBuf) {
    let workspace = Workspace::new(GATED, SCRIPT, &echo_rows(rows));
    let gate = workspace.root.join("gate");
    workspace.config(&format!("[env]\nGATE = \"{gate}\"\n"));
    (workspace, gate)
}

fn results(workspace: &Workspace) -> Vec<Value> {
    let lines = workspace.index();
    let facts = lines.iter().map(|line| {
        json!([
            line["rollout_id"],
            line["outcome"],
            line["reward"],
            line["samples"],
            line["model_calls"],
            line["error"]
        ])
    });
    facts.collect()
}

/// The same run without nodes and without a database.
fn undisturbed(rows: u64) -> Vec<Value> {
    let (workspace, gate) = gated_workspace(rows);
    std::fs::write(gate, "").unwrap();
    workspace.submit(&[]).expect(0);
    let results = results(&workspace);
    assert_eq!(results.len() as u64, rows);
    results
}

impl Process {
    #[track_caller]
    fn invitation(&self) -> Invitation {
        let mut found = None;
        wait_until("the controller takes nodes", SOON, || {
            let lines = self.stderr();
            let line = lines.lines().find(|line| line.contains("nodes_welcome"));
            found = line.and_then(|line| serde_json::from_str::<Value>(line).ok());
            found.is_some()
        });
        let resource = found.unwrap()["resource"].clone();
        let text = |key: &str| resource[key].as_str().unwrap().to_owned();
        let invitation = Invitation {
            store: text("store"),
            join: text("join"),
        };
        assert!(text("command").ends_with(&format!("--join {}", invitation.join)));
        invitation
    }

    fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end.
    #[track_caller]
    fn ends(mut self) -> Ran {
        let mut code = None;
        wait_until("it ends", SOON, || {
            let status = self.child.try_wait().unwrap();
            code = status.map(|status| status.code().unwrap_or(-1));
            code.is_some()
        });
        Ran {
            code: code.unwrap(),
            stdout: std::fs::read_to_string(&self.stdout).unwrap(),
            stderr: self.stderr(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Also one that is stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a node ended, and how many rollouts it finished.
#[track_caller]
fn report(node: Ran) -> (String, u64) {
    let report = node.expect(0).json()["resource"].clone();
    let end = report["end"].as_str().unwrap().to_owned();
    (end, report["finished"].as_u64().unwrap())
}

/// Role, password and key of a token.
fn secrets_of(token: &str) -> [String; 3] {
    let encoded = token.strip_prefix("osn1_").unwrap();
    let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let token: Value = serde_json::from_slice(&engine.decode(encoded).unwrap()).unwrap();
    ["role", "password", "key"].map(|key| token[key].as_str().unwrap().to_owned())
}

/// The files below a folder that hold a text.
fn files_with(folder: &Utf8Path, text: &str) -> Vec<Utf8PathBuf> {
    let mut found = vec![];
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.into_path());
            } else if std::fs::read(entry.path())
                .is_ok_and(|content| String::from_utf8_lossy(&content).contains(text))
            {
                found.push(entry.into_path());
            }
        }
    }
    found
}

#[test]
fn two_nodes_and_the_controller_share_a_run() {
    let rows = 60;
    let cluster = Cluster::new(rows);
    let controller = cluster.controller(&["--max-in-flight", "4"]);
    let invitation = controller.invitation();
    let nodes = ["a", "b"].map(|name| {
        let more = ["--max-in-flight", "4", "--metrics-listen", "127.0.0.1:0"];
        cluster.node(name, &invitation, &more)
    });
    for node in &nodes {
        cluster.until_held(node, 4);
    }
    cluster.open_gate();
    let ran = controller.ends().expect(0);
    assert_eq!(ran.json()["resource"]["outcomes"]["scored"], rows);
    let finished = nodes.map(|node| report(node.ends()));
    assert!(
        finished
            .iter()
            .all(|(end, count)| *count >= 4 && end != "drained"),
        "{finished:?}"
    );
    let elsewhere: u64 = finished.iter().map(|(_, count)| count).sum();
    assert!(
        elsewhere < rows,
        "the controller ran some too: {finished:?}"
    );
    assert_eq!(cluster.results(), undisturbed(rows));
    assert_eq!(cluster.attempts(), vec![1; 60]);

    // The log of the run tells of every rollout, wherever it ran.
    let log = cluster.workspace.read(".osmosis/evals/t/logs.txt");
    for row in 0..rows {
        assert!(log.contains(&format!(" r{row}-0 | scored")), "{row}\n{log}");
    }
    // What opens the run is in one file that its owner alone can read, beside what was printed.
    let folder = cluster.workspace.run_folder("t");
    let token = folder.join("join-token");
    let mode = token.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let [_, password, key] = secrets_of(&invitation.join);
    for secret in [&password, &key, &"s3cret".to_owned()] {
        assert_eq!(files_with(&folder, secret), [Utf8PathBuf::new(); 0]);
    }
    assert_eq!(files_with(&folder, &invitation.join), [token]);
    cluster.workspace.osmosis(&["run", "verify", "t"]).expect(0);
}

#[test]
fn a_node_that_is_killed_loses_nothing() {
    let cluster = Cluster::new(6);
    let controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let mut first = cluster.node("first", &invitation, &[]);
    cluster.until_held(&first, 6);
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let second = cluster.node("second", &invitation, &[]);
    // When the leases of the first have run out.
    cluster.until_held(&second, 6);
    cluster.open_gate();
    controller.ends().expect(0);
    assert_eq!(report(second.ends()).1, 6);
    assert_eq!(cluster.results(), undisturbed(6));
    assert_eq!(cluster.attempts(), [2; 6]);
}

#[test]
fn a_node_that_drains_finishes_what_it_has_and_leaves() {
    let cluster = Cluster::new(6);
    let controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let first = cluster.node("first", &invitation, &["--max-in-flight", "3"]);
    cluster.until_held(&first, 3);
    first.signal(Signal::TERM);
    wait_until("it drains", SOON, || {
        cluster.info()["nodes"][0]["state"] == "draining"
    });
    cluster.open_gate();
    assert_eq!(report(first.ends()), ("drained".to_owned(), 3));
    let second = cluster.node("second", &invitation, &[]);
    controller.ends().expect(0);
    assert_eq!(report(second.ends()).1, 3);
    assert_eq!(cluster.results(), undisturbed(6));
    assert_eq!(cluster.attempts(), [1; 6]);
}

#[test]
fn a_node_that_was_stopped_past_its_lease_and_comes_back_is_fenced() {
    let cluster = Cluster::new(6);
    let controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let late = cluster.node("late", &invitation, &[]);
    cluster.until_held(&late, 6);
    late.signal(Signal::STOP);
    let other = cluster.node("other", &invitation, &[]);
    cluster.until_held(&other, 6);
    // Both have agents under way at the same rollouts now.
    late.signal(Signal::CONT);
    cluster.open_gate();
    controller.ends().expect(0);
    assert_eq!(report(other.ends()).1, 6);
    assert_eq!(report(late.ends()).1, 0);
    assert_eq!(cluster.results(), undisturbed(6));
    assert_eq!(cluster.attempts(), [2; 6]);
}

#[test]
fn nodes_go_on_without_their_controller_which_resumes_the_run() {
    let cluster = Cluster::new(12);
    let mut controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let node = cluster.node("node", &invitation, &["--max-in-flight", "4"]);
    cluster.until_held(&node, 4);
    controller.child.kill().unwrap();
    controller.child.wait().unwrap();
    let resumed = cluster.resume(&["--nodes-only"]);
    assert_eq!(resumed.invitation(), invitation, "the token is the same");
    cluster.until_held(&node, 4);
    cluster.open_gate();
    resumed.ends().expect(0);
    assert_eq!(report(node.ends()).1, 12);
    assert_eq!(cluster.results(), undisturbed(12));
    assert_eq!(cluster.attempts(), [1; 12], "its leases were left alone");
}

#[test]
fn nodes_end_a_run_whose_controller_is_gone_and_a_resume_reports_it() {
    let cluster = Cluster::new(6);
    let mut controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let node = cluster.node("node", &invitation, &[]);
    cluster.until_held(&node, 6);
    controller.child.kill().unwrap();
    controller.child.wait().unwrap();
    cluster.open_gate();
    assert_eq!(report(node.ends()), ("completed".to_owned(), 6));
    cluster.resume(&[]).ends().expect(0);
    assert_eq!(cluster.results(), undisturbed(6));
}

#[test]
fn a_run_is_stopped_from_another_machine_and_resumed() {
    let cluster = Cluster::new(8);
    let controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let node = cluster.node("node", &invitation, &["--max-in-flight", "3"]);
    cluster.until_held(&node, 3);
    // A workspace that never saw the run.
    let (mut elsewhere, _) = gated_workspace(1);
    let url = cluster.server.url();
    elsewhere.variable("OSMOSIS_STORE", &url);
    elsewhere.variable("OSMOSIS_LEASE_SECONDS", "3");
    let stopping = {
        let mut command = elsewhere.command(&["eval", "stop", "t", "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    wait_until("the node drains", SOON, || {
        cluster.info()["nodes"][0]["state"] == "draining"
    });
    cluster.open_gate();
    controller.ends().expect(130);
    assert_eq!(report(node.ends()), ("run_over".to_owned(), 3));
    let stopped = Ran::of(&stopping.wait_with_output().unwrap()).expect(0);
    assert_eq!(stopped.json()["status"], "stopped");
    assert_eq!(cluster.info()["status"], "interrupted");

    // A run that is over takes no nodes, until it is resumed.
    let refused = cluster.node("refused", &invitation, &[]).ends().expect(1);
    assert_eq!(refused.error()["code"], "run_over");
    let resumed = cluster.resume(&["--nodes-only"]);
    let node = cluster.node("again", &resumed.invitation(), &[]);
    resumed.ends().expect(0);
    assert_eq!(report(node.ends()).1, 5);
    assert_eq!(cluster.results(), undisturbed(8));
    let refused = cluster.node("refused", &invitation, &[]).ends().expect(1);
    assert_eq!(refused.error()["code"], "run_over");
}

#[test]
fn a_controller_that_is_interrupted_waits_for_its_nodes() {
    let cluster = Cluster::new(8);
    let controller = cluster.controller(&["--nodes-only"]);
    let invitation = controller.invitation();
    let node = cluster.node("node", &invitation, &["--max-in-flight", "3"]);
    cluster.until_held(&node, 3);
    controller.signal(Signal::INT);
    wait_until("the node drains", SOON, || {
        cluster.info()["nodes"][0]["state"] == "draining"
    });
    cluster.open_gate();
    let interrupted = controller.ends().expect(130);
    // What the node finished meanwhile is in the controller's report.
    let report_of_run = interrupted.json()["resource"].clone();
    assert_eq!(report_of_run["outcomes"]["scored"], 3, "{report_of_run}");
    assert_eq!(report(node.ends()), ("run_over".to_owned(), 3));
}

#[test]
fn a_token_opens_its_run_and_no_other() {
    let cluster = Cluster::new(2);
    cluster.open_gate();
    let controller = cluster.controller(&[]);
    let invitation = controller.invitation();
    controller.ends().expect(0);
    let python = python_environment::python();
    let other = ["eval", "submit", "configs/eval/c.toml", "--name", "other"];
    let arguments = [&other[..], &["--python", python.as_str()]].concat();
    cluster.workspace.osmosis(&arguments).expect(0);

    let [role, password, _] = secrets_of(&invitation.join);
    let url = cluster
        .server
        .url_as(&format!("{role}:{password}"), "postgres");
    let osmosis = |arguments: &[&str]| {
        let arguments = [arguments, &["--store", &url, "--json"]].concat();
        cluster.workspace.osmosis(&arguments)
    };
    let listed = osmosis(&["eval", "list"]).expect(0).json();
    assert_eq!(listed["total_count"], 1, "{listed}");
    assert_eq!(listed["items"][0]["run_name"], "t");
    let missing = osmosis(&["eval", "info", "other"]).expect(1);
    assert_eq!(missing.error()["code"], "run_not_found");
    let refused = osmosis(&["run", "rm", "t", "--yes"]).expect(1);
    assert_eq!(refused.error()["code"], "store_denied");
    // Nor may it stop its run, or take it over.
    let refused = osmosis(&["eval", "resume", "t", "--python", python.as_str()]).expect(1);
    assert_eq!(refused.error()["code"], "store_denied");
}

#[test]
fn a_node_that_can_not_join_says_why() {
    let cluster = Cluster::new(1);
    cluster.open_gate();
    let controller = cluster.controller(&[]);
    let Invitation { store, join } = controller.invitation();
    controller.ends().expect(0);
    let [role, password, key] = secrets_of(&join);
    let forged =
        json!({"run": "t", "kind": "evaluation", "role": role, "password": "wrong", "key": key});
    let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let forged = format!("osn1_{}", engine.encode(forged.to_string()));
    let owner = cluster.server.url();
    let nowhere = "postgres://127.0.0.1:1/x";
    for (arguments, code, exit, text) in [
        (
            vec!["--store", &store, "--join", "hunter2"],
            "token_invalid",
            2,
            "osn1_",
        ),
        (
            vec!["--store", &store, "--join", &join[..60]],
            "token_invalid",
            2,
            "cut off",
        ),
        (
            vec!["--store", &store, "--join", &join, "--run", "other"],
            "token_invalid",
            2,
            "eval/t",
        ),
        (
            vec!["--store", &store, "--join", &forged],
            "store_denied",
            1,
            "token",
        ),
        (
            vec!["--store", &owner, "--run", "missing"],
            "run_not_found",
            1,
            "missing",
        ),
        (
            vec!["--store", &store, "--join", &join],
            "run_over",
            1,
            "finished",
        ),
        (
            vec!["--store", nowhere, "--join", &join],
            "store_unreachable",
            1,
            "127.0.0.1:1",
        ),
        (vec!["--join", &join], "usage", 2, "--store"),
        (vec!["--store", &owner], "usage", 2, "--run"),
    ] {
        let arguments = [&["node", "--json"], &arguments[..]].concat();
        let mut command = cluster.workspace.command(&arguments);
        let ran = Ran::of(&command.env("OSMOSIS_STORE", "").output().unwrap()).expect(exit);
        let error = ran.error();
        assert_eq!(error["code"], code, "{arguments:?}: {error}");
        assert!(error.to_string().contains(text), "{arguments:?}: {error}");
        for secret in [&password, &key] {
            assert!(!error.to_string().contains(secret), "{error}");
        }
    }
    // Without a database there is nothing that nodes could work on.
    let mut command = cluster.workspace.command(&[
        "eval",
        "submit",
        "configs/eval/c.toml",
        "--nodes-only",
        "--json",
    ]);
    let ran = Ran::of(&command.env("OSMOSIS_STORE", "").output().unwrap()).expect(2);
    assert!(
        ran.error().to_string().contains("--store"),
        "{}",
        ran.stderr
    );
}
