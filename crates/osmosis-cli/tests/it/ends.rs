//! What every kind of run leaves behind, whatever way it ends: a status, its files, a closed store, trackers
//! that know, and no process.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_store::{RunStatus, Store as _};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use osmosis_testkit::model_server::{Behaviour, ModelServer};
use osmosis_testkit::{python_environment, waiting};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::judge::database;
use crate::processes::{children_below, is_alive};
use crate::workspace::{ECHO_SCRIPT, PLAIN, Ran, Workspace, echo_rows, product_rows};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Evaluation,
    Regrade,
    Training,
    ServedTraining,
    Serving,
}

/// How a run is brought to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    /// One Ctrl-C.
    Drain,
    /// At once.
    Now,
}

/// Answers like `tracker.py`, and writes down what it is told.
const TRACKER: &str = "#!/bin/sh\necho '{}'\nwhile read -r line; do\n  echo \"$line\" >> ../told.jsonl\n  echo '{}'\ndone\n";

/// An agent that waits for the file `gate`, and a grader that waits for the file `grades`. Both say that they
/// have begun. The files lie outside the rollout's folder, which the run is pinned to.
fn gated() -> Workspace {
    let wait = |name: &str, file: &str| {
        format!(
            "        import asyncio, pathlib\n        pathlib.Path('../../{name}').write_text('x')\n        \
             while not pathlib.Path('../../{file}').exists():\n            await asyncio.sleep(0.02)\n"
        )
    };
    let agent = "        return [*ctx.prompt";
    let grader = "        ctx.set_reward(";
    let main = PLAIN
        .replace(agent, &format!("{}{agent}", wait("begun", "gate")))
        .replace(grader, &format!("{}{grader}", wait("grading", "grades")));
    let workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(8));
    workspace.write("grades", "");
    let training = "steps = 4\ntotal_epochs = 9\n";
    workspace.training("builtin/tiny", training, "");
    workspace.write(
        "bin/tracker.sh",
        &TRACKER.replace("..", workspace.root.as_str()),
    );
    let executable = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(workspace.root.join("bin/tracker.sh"), executable).unwrap();
    workspace
}

impl Kind {
    /// The run `t`, ready to be started; `u` for one that grades `t` again.
    fn arguments(self) -> Vec<&'static str> {
        match self {
            Self::Evaluation => vec!["eval", "submit", "configs/eval/c.toml", "--name", "t"],
            Self::Regrade => vec!["eval", "regrade", "t", "--name", "u"],
            Self::Training => vec!["train", "submit", "configs/training/c.toml", "--name", "t"],
            Self::ServedTraining => {
                vec!["train", "serve", "configs/training/c.toml", "--name", "t"]
            }
            Self::Serving => vec!["serve", "r", "--name", "t", "--no-key"],
        }
    }

    fn folder(self, workspace: &Workspace) -> Utf8PathBuf {
        let folder = match self {
            Self::Evaluation => "evals/t",
            Self::Regrade => "evals/u",
            Self::Training | Self::ServedTraining => "training/t",
            Self::Serving => "serve/t",
        };
        workspace.root.join(".osmosis").join(folder)
    }

    fn is_tracked(self) -> bool {
        matches!(self, Self::Evaluation | Self::Training)
    }

    fn start(self, workspace: &Workspace) -> Child {
        let python = python_environment::python();
        let mut arguments = self.arguments();
        arguments.extend(["--python", python.as_str(), "--max-in-flight", "2"]);
        if self.is_tracked() {
            arguments.extend(["--log", "wandb", "--log-python", "bin/tracker.sh"]);
        }
        workspace
            .command(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// A workspace in which the run can be started, and will wait once it has begun.
    fn workspace(self) -> Workspace {
        let workspace = gated();
        if self == Self::Regrade {
            workspace.write("gate", "");
            workspace.submit(&[]).expect(0);
            for file in ["grades", "grading"] {
                std::fs::remove_file(workspace.root.join(file)).unwrap();
            }
        }
        workspace
    }

    /// Where a server is, when it is one.
    fn wait_until_begun(self, workspace: &Workspace, child: &mut Child) -> String {
        let mut address = String::new();
        if self == Self::Serving {
            address = address_of(child);
            post_rollout(&address);
        }
        let file = if self == Self::Regrade {
            "grading"
        } else {
            "begun"
        };
        let begun = workspace.root.join(file);
        wait_until("user code begins", || begun.exists());
        address
    }

    /// Lets user code that waits go on.
    fn open_gates(workspace: &Workspace) {
        workspace.write("gate", "");
        workspace.write("grades", "");
    }

    fn end(self, exit: Exit, workspace: &Workspace, child: &Child, address: &str) {
        match (exit, self) {
            (Exit::Drain, _) => {
                send(child, Signal::INT);
                if matches!(self, Self::Evaluation | Self::Regrade) {
                    let logs = self.folder(workspace).join("logs.txt");
                    wait_until("it drains", || {
                        let text = std::fs::read_to_string(&logs);
                        text.is_ok_and(|text| text.contains("stopping; "))
                    });
                }
                Self::open_gates(workspace);
            }
            (Exit::Now, Self::Serving) => {
                send(child, Signal::TERM);
                wait_until("it drains", || {
                    request(address, "GET /health", "").contains("draining")
                });
                send(child, Signal::TERM);
            }
            (Exit::Now, _) => send(child, Signal::TERM),
        }
    }
}

/// `HOST:PORT` of a server that has started.
fn address_of(child: &mut Child) -> String {
    let mut url = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut url).unwrap();
    url.trim().strip_prefix("http://").unwrap().to_owned()
}

/// A rollout that nobody wants to hear of.
fn post_rollout(address: &str) {
    let body = json!({
        "rollout_id": "one",
        "initial_messages": [{"role": "user", "content": "say 1"}],
        "label": "1",
        "chat_completions_url": "http://127.0.0.1:9/v1",
        "controller_api_key": "k",
        "llm_api_key": "k",
        "completion_callback_url": "http://127.0.0.1:9/completion",
        "grader_callback_url": "http://127.0.0.1:9/grader",
    })
    .to_string();
    let answer = request(address, "POST /rollout", &body);
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
}

fn request(address: &str, what: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{what} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[track_caller]
fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    waiting::wait_until(what, Duration::from_mins(2), is_so);
}

/// Living processes that have the workspace in their environment.
fn processes_with(workspace: &Workspace) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let environment = String::from_utf8_lossy(&environment).into_owned();
        (environment.contains(workspace.root.as_str()) && is_alive(pid)).then_some(pid)
    });
    pids.collect()
}

/// The status of a run that nobody holds any more.
#[track_caller]
fn status_left(folder: &Utf8PathBuf) -> RunStatus {
    assert_eq!(SqliteStore::holder(folder), None);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(folder, SqliteOptions::default()).unwrap();
        let status = store.run().await.unwrap().unwrap().status;
        store.close().await.unwrap();
        status
    })
}

/// What the tracker was told last, when it was told anything.
fn tracker_was_told(workspace: &Workspace) -> Option<bool> {
    let told = std::fs::read_to_string(workspace.root.join("told.jsonl")).ok()?;
    let last: Value = serde_json::from_str(told.lines().last()?).unwrap();
    last["finished"].as_bool()
}

#[track_caller]
fn check_left(kind: Kind, workspace: &Workspace, status: RunStatus) {
    let folder = kind.folder(workspace);
    assert_eq!(status_left(&folder), status);
    assert!(folder.join("index.jsonl").exists());
    assert_eq!(folder.join("metrics.json").exists(), kind != Kind::Serving);
    let finished = kind.is_tracked().then_some(status == RunStatus::Finished);
    assert_eq!(tracker_was_told(workspace), finished);
}

#[track_caller]
fn check_stopped(kind: Kind, exit: Exit) {
    let workspace = kind.workspace();
    let mut child = kind.start(&workspace);
    let address = kind.wait_until_begun(&workspace, &mut child);
    let below = children_below(child.id());
    assert!(!below.is_empty(), "there are workers");
    kind.end(exit, &workspace, &child, &address);
    let ran = Ran::of(&child.wait_with_output().unwrap());
    assert_eq!(ran.code, 130, "{}", ran.stderr);
    for pid in below {
        assert!(!is_alive(pid), "{pid} was left behind");
    }
    check_left(kind, &workspace, RunStatus::Interrupted);
}

#[test]
fn a_stopped_evaluation_is_left_in_order() {
    check_stopped(Kind::Evaluation, Exit::Drain);
    check_stopped(Kind::Evaluation, Exit::Now);
}

#[test]
fn a_stopped_regrade_is_left_in_order() {
    check_stopped(Kind::Regrade, Exit::Drain);
    check_stopped(Kind::Regrade, Exit::Now);
}

#[test]
fn a_stopped_training_is_left_in_order() {
    check_stopped(Kind::Training, Exit::Drain);
    check_stopped(Kind::Training, Exit::Now);
}

#[test]
fn a_stopped_training_for_a_trainer_outside_is_left_in_order() {
    check_stopped(Kind::ServedTraining, Exit::Drain);
    check_stopped(Kind::ServedTraining, Exit::Now);
}

#[test]
fn a_stopped_server_is_left_in_order() {
    check_stopped(Kind::Serving, Exit::Now);
    // One that owes nobody anything is finished when it has drained.
    let workspace = gated();
    let mut child = Kind::Serving.start(&workspace);
    address_of(&mut child);
    send(&child, Signal::TERM);
    let ran = Ran::of(&child.wait_with_output().unwrap());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    check_left(Kind::Serving, &workspace, RunStatus::Finished);
}

/// User code that can't be loaded is found out before anything is made; a run that was there stays as it was.
#[track_caller]
fn check_failed(kind: Kind) {
    let workspace = gated();
    let main = workspace.read("rollouts/r/main.py");
    let broken = workspace.root.join("broken");
    let check = format!(
        "import pathlib\nif pathlib.Path({:?}).exists():\n    raise KeyError('no')\n",
        broken.as_str()
    );
    workspace.write("rollouts/r/main.py", &format!("{main}\n{check}"));
    let fails = || {
        workspace.write("broken", "");
        let ran = Ran::of(&kind.start(&workspace).wait_with_output().unwrap());
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert!(ran.stderr.contains("KeyError"), "{}", ran.stderr);
        ran
    };
    let ran = fails();
    assert!(!ran.stderr.contains("resume with"), "{}", ran.stderr);
    assert!(!kind.folder(&workspace).exists());
    wait_until("its processes end", || {
        processes_with(&workspace).is_empty()
    });

    std::fs::remove_file(&broken).unwrap();
    let mut child = kind.start(&workspace);
    let address = kind.wait_until_begun(&workspace, &mut child);
    kind.end(Exit::Now, &workspace, &child, &address);
    child.wait_with_output().unwrap();
    fails();
    check_left(kind, &workspace, RunStatus::Interrupted);
}

#[test]
fn code_that_can_not_be_loaded_leaves_runs_as_they_were_whatever_their_kind() {
    check_failed(Kind::Evaluation);
    check_failed(Kind::Training);
    check_failed(Kind::ServedTraining);
    check_failed(Kind::Serving);
}

#[test]
fn a_regrade_that_fails_is_interrupted() {
    let kind = Kind::Regrade;
    let workspace = kind.workspace();
    let mut child = kind.start(&workspace);
    kind.wait_until_begun(&workspace, &mut child);
    database(&workspace, "t")
        .execute_batch("DROP TABLE samples")
        .unwrap();
    Kind::open_gates(&workspace);
    let ran = Ran::of(&child.wait_with_output().unwrap());
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("resume with `osmosis eval resume u`"),
        "{}",
        ran.stderr
    );
    check_left(kind, &workspace, RunStatus::Interrupted);
}

#[test]
fn a_training_for_a_trainer_outside_that_finds_no_address_ends_its_workers() {
    let kind = Kind::ServedTraining;
    let workspace = gated();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let python = python_environment::python();
    let mut arguments = kind.arguments();
    arguments.extend(["--python", python.as_str(), "--listen", &address]);
    let ran = workspace.osmosis(&arguments).expect(1);
    assert!(ran.stderr.contains("--listen ADDR"), "{}", ran.stderr);
    // The workers had started before that.
    let templates = processes_with(&workspace);
    assert_eq!(templates, [0; 0], "these were left behind");
    assert!(
        !kind.folder(&workspace).exists(),
        "nothing is made before the address is had"
    );
}

#[test]
fn an_evaluation_that_has_cost_what_it_may_is_interrupted() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime
        .block_on(ModelServer::start(Behaviour::Answers))
        .unwrap();
    let mut workspace = gated();
    Kind::open_gates(&workspace);
    workspace.write("data/d.jsonl", &product_rows(6));
    workspace.model("m", "");
    workspace.variable("OPENAI_BASE_URL", server.url());
    let tracked = [
        "--log",
        "wandb",
        "--log-python",
        "bin/tracker.sh",
        "--no-probe",
    ];
    let cost = [
        "--price-prompt",
        "1e6",
        "--price-completion",
        "1e6",
        "--max-cost",
        "1",
    ];
    let arguments = [&tracked[..], &cost, &["--max-in-flight", "1"]].concat();
    workspace.submit(&arguments).expect(3);
    check_left(Kind::Evaluation, &workspace, RunStatus::Interrupted);
}

#[test]
fn an_evaluation_below_its_gate_is_finished() {
    let workspace = gated();
    Kind::open_gates(&workspace);
    workspace.write("policies/p.toml", "[[reply]]\ntext = \"no\"\n");
    let gate = [
        "--log",
        "wandb",
        "--log-python",
        "bin/tracker.sh",
        "--fail-under",
        "pass_rate=1",
    ];
    workspace.submit(&gate).expect(4);
    check_left(Kind::Evaluation, &workspace, RunStatus::Finished);
}
