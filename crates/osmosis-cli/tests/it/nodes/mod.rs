//! A run that several machines work on: a controller and nodes, as processes of their own, with a real PostgreSQL.
//! However they are killed, stopped and resumed, every outcome is that of a run without nodes.

mod environment;
mod faults;
mod model_servers;
mod refusals;
mod sharing;

use std::fs::File;
use std::process::{Child, Command};
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
        let (workspace, gate) = gated_workspace(rows);
        Self::of(workspace, gate)
    }

    fn of(mut workspace: Workspace, gate: Utf8PathBuf) -> Self {
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

    /// Does something in the database that no command does.
    #[expect(clippy::disallowed_methods, reason = "it ends with the client")]
    fn sql(&self, statements: &str) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let url = self.server.url();
            let connecting = tokio_postgres::connect(&url, tokio_postgres::NoTls);
            let (client, connection) = connecting.await.unwrap();
            tokio::spawn(connection);
            client.batch_execute(statements).await.unwrap();
        });
    }

    fn open_gate(&self) {
        std::fs::write(&self.gate, "").unwrap();
    }

    fn start(&self, name: &str, arguments: &[&str]) -> Process {
        self.begin(name, &mut self.workspace.command(arguments))
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
        let named = ["--store", &invitation.store, "--run", "t", "--join"];
        let arguments = [&named[..], &[&invitation.join, "--json"], more].concat();
        self.begin(name, &mut self.node_command(&arguments))
    }

    fn node_command(&self, more: &[&str]) -> Command {
        let python = python_environment::python();
        let arguments = [&["node", "--python", python.as_str()], more].concat();
        let mut command = self.workspace.command(&arguments);
        command.current_dir(elsewhere()).env_remove("OSMOSIS_STORE");
        command
    }

    /// Starts a process, whose output is kept under a name.
    fn begin(&self, name: &str, command: &mut Command) -> Process {
        let file = |kind: &str| self.workspace.root.join(format!("{name}.{kind}"));
        let (stdout, stderr) = (file("stdout"), file("stderr"));
        let child = command
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

/// A folder that is no workspace.
fn elsewhere() -> Utf8PathBuf {
    Utf8PathBuf::from_path_buf(std::env::temp_dir()).unwrap()
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
