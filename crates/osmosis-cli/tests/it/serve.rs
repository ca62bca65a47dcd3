//! `osmosis serve` as a training controller meets it, and the same behind `create_rollout_server()`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use osmosis_testkit::model_server::{Behaviour, Gate, ModelServer};
use osmosis_testkit::python_environment;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::processes::{children_below, is_alive};
use crate::workspace::{AGENT, Ran, Workspace, cache_dir};

const KEYS: [&str; 2] = ["controller-key-not-to-be-seen", "llm-key-not-to-be-seen"];

/// The multiply agent, or one that raises when it is told to.
fn workspace() -> Workspace {
    let head = "    async def run(self, ctx):\n";
    let raising = "        if (ctx.metadata or {}).get('do') == 'raise':\n            \
                   raise ValueError('as asked')\n";
    let main = AGENT.replacen(head, &format!("{head}{raising}"), 1);
    Workspace::new(&main, "", "")
}

pub(crate) struct Serving {
    pub(crate) child: Child,
    resource: Value,
}

impl Serving {
    /// Without a key, unless one is given.
    pub(crate) fn start(workspace: &Workspace, more: &[&str]) -> Self {
        let mut arguments = more.to_vec();
        if !more.contains(&"--api-key-env") {
            arguments.push("--no-key");
        }
        Self::start_with_key(workspace, &arguments)
    }

    pub(crate) fn start_with_key(workspace: &Workspace, more: &[&str]) -> Self {
        let python = python_environment::python();
        let mut arguments = vec!["serve", "r", "--json", "--name", "s", "--python"];
        arguments.push(python.as_str());
        arguments.extend(more);
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
        assert_eq!(envelope["operation"], "serve");
        Self {
            child,
            resource: envelope["resource"].clone(),
        }
    }

    pub(crate) fn url(&self) -> &str {
        self.resource["url"].as_str().unwrap()
    }

    pub(crate) fn resource(&self) -> &Value {
        &self.resource
    }

    pub(crate) fn terminate(&self) {
        terminate(self.child.id());
    }

    /// Waits for the end, and sees that nothing is left behind.
    pub(crate) fn ended(self, workspace: &Workspace) -> Ran {
        let below = children_below(self.child.id());
        let ran = Ran::of(&self.child.wait_with_output().unwrap());
        for pid in below {
            assert!(!is_alive(pid), "{pid} was left behind");
        }
        let folder = workspace.root.join(".osmosis/serve/s");
        assert_eq!(self.resource["output_path"], folder.as_str());
        for file in ["run.db", "logs.txt", "index.jsonl"] {
            let bytes = std::fs::read(folder.join(file)).unwrap();
            for key in KEYS {
                let found = String::from_utf8_lossy(&bytes).contains(key);
                assert!(!found, "{key} is in {file}");
            }
        }
        ran
    }
}

fn terminate(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
}

pub(crate) fn controller(scenario: &str, url: &str, model: &ModelServer) -> Command {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/controller.py");
    let mut command = Command::new(python_environment::python());
    command.args([script, scenario, url, model.url()]);
    command
}

pub(crate) fn result_of(scenario: &str, url: &str, model: &ModelServer) -> Value {
    let output = controller(scenario, url, model).output().unwrap();
    Ran::of(&output).expect(0).json()
}

pub(crate) fn model(behaviour: Behaviour) -> (tokio::runtime::Runtime, ModelServer) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(ModelServer::start(behaviour)).unwrap();
    (runtime, server)
}

#[test]
fn whoever_serves_a_project_that_makes_no_server_of_its_own_is_told() {
    let workspace = workspace();
    let python = python_environment::python();
    let arguments = ["serve", "r", "--name", "s", "--no-key", "--python"];
    let mut child = workspace
        .command(&[&arguments[..], &[python.as_str()]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("warning: `main.py` never calls `create_rollout_server()`") {
        assert!(stderr.read_line(&mut said).unwrap() > 0, "{said}");
    }
    terminate(child.id());
    std::io::copy(&mut stderr, &mut std::io::sink()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_controller_has_rollouts_run_graded_and_told() {
    let workspace = workspace();
    let (_runtime, model) = model(Behaviour::Answers);
    let serving = Serving::start(&workspace, &["--workers", "1"]);
    let said = result_of("whole", serving.url(), &model);
    assert_eq!(said["sent"], json!([202, 202, 202, 202, 202, 202, 202]));
    for (n, told) in said["told"].as_array().unwrap().iter().enumerate() {
        let id = format!("r-{n}");
        assert_eq!(
            told["completion"],
            json!({"rollout_id": id, "status": "success"})
        );
        let grader = &told["grader"];
        assert_eq!(grader["status"], "success", "{grader}");
        assert_eq!(grader["samples"]["calc"]["reward"], 1.0);
        assert_eq!(grader["sample"], grader["samples"]["calc"]);
        assert_eq!(grader["sample"]["label"], "42");
    }
    for told in [&said["raised"]["completion"], &said["raised"]["grader"]] {
        assert_eq!(told["status"], "failure");
        assert_eq!(told["err_category"], "validation_error");
        assert_eq!(told["err_message"], "ValueError: as asked");
    }
    assert_eq!(said["order"], json!(["completion", "grader"]));
    assert_eq!((&said["again"], &said["other"]), (&json!(202), &json!(409)));
    assert_eq!(said["wrong"], 422);
    assert_eq!(said["status"], "success");
    assert_eq!(said["unknown"], "unknown");
    assert_eq!(said["health"]["status"], "ok");
    assert_eq!(said["health"]["capacity"]["running"], 0);
    for call in model.requests() {
        assert_eq!(call.headers["authorization"], format!("Bearer {}", KEYS[1]));
        assert!(
            call.headers["x-rollout-id"]
                .to_str()
                .unwrap()
                .starts_with("r-")
        );
        assert_eq!(call.headers["x-sample-id"], "calc");
    }
    serving.terminate();
    serving.ended(&workspace).expect(0);
    let index = workspace.read(".osmosis/serve/s/index.jsonl");
    assert_eq!(index.lines().count(), 7);
}

#[test]
fn a_full_server_says_so_and_what_it_has_can_be_cancelled() {
    let workspace = workspace();
    let gate = Gate::default();
    let (_runtime, model) = model(Behaviour::Held(gate));
    let more = ["--max-in-flight", "1", "--max-queued", "1"];
    let serving = Serving::start(&workspace, &more);
    let said = result_of("crowded", serving.url(), &model);
    assert_eq!(said["sent"], json!([202, 202]));
    assert_eq!(said["refused"], 429);
    assert_eq!(said["retry_after"], "5");
    assert_eq!(
        said["cancelled"],
        json!({"a-2": "cancelled_queued", "nobody": "not_found"})
    );
    assert_eq!(said["prefix"], json!({"a-1": "cancelled_running"}));
    for told in said["told"].as_array().unwrap() {
        assert_eq!(told["completion"]["status"], "cancelled");
        assert_eq!(told["grader"]["status"], "failure");
    }
    serving.terminate();
    serving.ended(&workspace).expect(0);
}

#[test]
fn a_receiver_that_was_away_is_told_when_it_is_back() {
    let workspace = workspace();
    let (_runtime, model) = model(Behaviour::Answers);
    let serving = Serving::start(&workspace, &["--workers", "1"]);
    let said = result_of("away", serving.url(), &model);
    assert_eq!(said["sent"], 202);
    assert_eq!(said["told"]["completion"]["status"], "success");
    assert_eq!(said["told"]["grader"]["sample"]["reward"], 1.0);
    serving.terminate();
    serving.ended(&workspace).expect(0);
}

/// Starts the scenario `drained` and returns when its rollout is at the model.
pub(crate) fn last_rollout(
    url: &str,
    runtime: &tokio::runtime::Runtime,
    model: &ModelServer,
) -> Child {
    let mut controller = controller("drained", url, model)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 5];
    std::io::Read::read_exact(controller.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert_eq!(&said, b"sent\n");
    runtime.block_on(model.wait_for_requests(1));
    controller
}

#[test]
fn a_signal_drains_and_a_second_one_stops_now() {
    let workspace = workspace();
    let gate = Gate::default();
    let (runtime, model) = model(Behaviour::Held(gate.clone()));
    let serving = Serving::start(&workspace, &["--workers", "1"]);
    let controller = last_rollout(serving.url(), &runtime, &model);
    serving.terminate();
    gate.open();
    serving.ended(&workspace).expect(0);
    let said = Ran::of(&controller.wait_with_output().unwrap()).expect(0);
    let said = said.json();
    assert_eq!(said["told"]["grader"]["sample"]["reward"], 1.0);

    let (runtime, model) = self::model(Behaviour::Held(Gate::default()));
    let mut other = Workspace::new(AGENT, "", "");
    other.variable("OSMOSIS_LOG", "error");
    let serving = Serving::start(&other, &["--workers", "1"]);
    let mut controller = last_rollout(serving.url(), &runtime, &model);
    serving.terminate();
    // Two signals of one kind can become one, until the first has been seen.
    let address = serving.url().strip_prefix("http://").unwrap();
    while !health(address).contains("draining") {}
    serving.terminate();
    serving.ended(&other).expect(130);
    controller.kill().unwrap();
    controller.wait().unwrap();
}

fn health(address: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream
        .write_all(format!("GET /health HTTP/1.0\r\nhost: {address}\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn what_is_wrong_with_the_command_is_said() {
    let mut workspace = workspace();
    let check = |workspace: &Workspace, arguments: &[&str], code: i32, words: &str| {
        let arguments = [&["serve"], arguments].concat();
        let ran = workspace.osmosis(&arguments).expect(code);
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    };
    check(&workspace, &[], 2, "<ROLLOUT>");
    check(&workspace, &["nobody"], 1, "the workspace has: r");
    check(&workspace, &["a/b"], 2, "one path segment");
    check(&workspace, &["r", "--entrypoint", "../x.py"], 2, "leaves");
    check(
        &workspace,
        &["r", "--entrypoint", "other.py"],
        1,
        "other.py",
    );
    check(
        &workspace,
        &["r", "--api-key-env", "NO_SUCH_KEY"],
        2,
        "NO_SUCH_KEY",
    );
    check(&workspace, &["--attach"], 2, "OSMOSIS_SERVE_TOKEN");
    let open = ["r", "--no-key", "--listen", "0.0.0.0:0"];
    check(&workspace, &open, 2, "--no-key");
    let both = ["r", "--no-key", "--api-key-env", "HOME"];
    check(&workspace, &both, 2, "cannot be used with");
    check(
        &workspace,
        &["r", "--allow-url", "ftp://a"],
        2,
        "--allow-url",
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let python = python_environment::python();
    let listen = ["r", "--python", python.as_str()];
    workspace.variable("_OSMOSIS_ROLLOUT_PORT", &address.port().to_string());
    check(&workspace, &listen, 1, &address.to_string());
    workspace.variable("_OSMOSIS_ROLLOUT_PORT", "http");
    check(&workspace, &listen, 2, "which is no port");
}

/// The façade: the same agent and grader in a process of uvicorn's.
pub(crate) struct Facade {
    pub(crate) child: Child,
    pub(crate) url: String,
}

impl Facade {
    fn start(workspace: &Workspace, backend: &str) -> Self {
        Self::start_of(workspace, AGENT, backend)
    }

    pub(crate) fn start_of(workspace: &Workspace, agent: &str, backend: &str) -> Self {
        Self::start_keyed(workspace, agent, backend, "")
    }

    /// With a key that every request must bring.
    pub(crate) fn start_keyed(
        workspace: &Workspace,
        agent: &str,
        backend: &str,
        key: &str,
    ) -> Self {
        let app = format!(
            "import os\nos.environ['OSMOSIS_ROLLOUT_KEY'] = '{key}'\n{agent}\n\nfrom osmosis_ai.rollout import LocalBackend\n\
             from osmosis_ai.rollout.server import create_rollout_server\n\n\
             backend = LocalBackend({backend})\n\
             app = create_rollout_server(backend=backend)\n"
        );
        let sdk = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");
        let python = python_environment::python();
        Self::start_app(workspace, &app, python.as_str(), sdk)
    }

    /// Whatever app this is, under uvicorn.
    pub(crate) fn start_app(
        workspace: &Workspace,
        app: &str,
        python: &str,
        python_path: &str,
    ) -> Self {
        workspace.write("facade/app.py", app);
        let mut child = Command::new(python)
            .args(["-m", "uvicorn", "app:app", "--port", "0"])
            .current_dir(workspace.root.join("facade"))
            .env("PYTHONPATH", python_path)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("OSMOSIS_BIN", env!("CARGO_BIN_EXE_osmosis"))
            .env("TMPDIR", &workspace.root)
            .env("XDG_STATE_HOME", cache_dir())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let url = loop {
            let mut line = String::new();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "{said}");
            if let Some((_, after)) = line.split_once("running on ") {
                break after.split_whitespace().next().unwrap().to_owned();
            }
            said += &line;
        };
        // Its later lines must go somewhere.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Self { child, url }
    }

    pub(crate) fn end(mut self) {
        let below = children_below(self.child.id());
        assert_eq!(below.len(), 1, "one osmosis serves it");
        terminate(self.child.id());
        self.child.wait().unwrap();
        assert!(!is_alive(below[0]), "the binary was left behind");
    }
}

#[test]
fn the_facade_under_uvicorn_serves_the_same_protocol() {
    let workspace = workspace();
    let (_runtime, model) = model(Behaviour::Answers);
    let facade = Facade::start(&workspace, "workflow=Multiply, grader=Exact");
    let said = result_of("away", &facade.url, &model);
    assert_eq!(said["sent"], 202);
    assert_eq!(said["told"]["grader"]["status"], "success", "{said}");
    assert_eq!(said["told"]["grader"]["samples"]["calc"]["reward"], 1.0);
    for call in model.requests() {
        assert_eq!(call.headers["authorization"], format!("Bearer {}", KEYS[1]));
        assert_eq!(call.headers["x-rollout-id"], "patient");
    }
    facade.end();
}

#[test]
fn without_a_grader_the_facade_tells_samples_without_rewards() {
    let workspace = workspace();
    let (_runtime, model) = model(Behaviour::Answers);
    let facade = Facade::start(&workspace, "workflow=Multiply");
    let told = result_of("away", &facade.url, &model)["told"].clone();
    assert_eq!(told["completion"]["status"], "success");
    assert_eq!(told["grader"]["status"], "failure");
    assert_eq!(told["grader"]["sample"]["id"], "calc");
    assert_eq!(told["grader"]["sample"]["reward"], Value::Null);
    let message = told["grader"]["err_message"].as_str().unwrap();
    assert!(message.contains("no grader"), "{message}");
    facade.end();
}

#[test]
fn a_facade_that_is_killed_takes_its_binary_along() {
    let workspace = workspace();
    let (runtime, model) = model(Behaviour::Held(Gate::default()));
    let mut facade = Facade::start(&workspace, "workflow=Multiply, grader=Exact");
    let controller = last_rollout(&facade.url, &runtime, &model);
    let below = children_below(facade.child.id());
    facade.child.kill().unwrap();
    facade.child.wait().unwrap();
    // What was accepted is told all the same: that it failed.
    let said = Ran::of(&controller.wait_with_output().unwrap()).expect(0);
    let told = said.json()["told"]["grader"].clone();
    assert_eq!(told["status"], "failure");
    let message = told["err_message"].as_str().unwrap();
    assert!(message.contains("attached process"), "{message}");
    while below.iter().any(|pid| is_alive(*pid)) {
        std::thread::yield_now();
    }
}
