//! Nodes of runs whose model is the controller's: they ask it token by token. Evaluations and trainings come out bit for
//! bit as without nodes, whoever is killed meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::process::{Child, Command};
use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_testkit::postgres_server::PostgresServer;
use osmosis_testkit::python_environment;
use osmosis_testkit::waiting::wait_until;
use serde_json::{Value, json};

use crate::training::{OFTEN, SHORT, metrics};
use crate::workspace::{CHECKSUM, Ran, Workspace, echo_rows};

/// Starting interpreters takes its time on a busy machine.
const SOON: Duration = Duration::from_mins(3);

/// Steps that overlap, and enough of them to kill somebody in between. Which rollouts they are of is chance: with larger
/// steps the model may come to say one thing only, and a training that has nothing left to learn ends early.
const OVERLAPPING: &str = "steps = 6\nmax_staleness = 2\neval_fraction = 0.25\nlr = 1e-5\n";

struct Cluster {
    server: PostgresServer,
    workspace: Workspace,
    store: String,
}

/// A process of the program, which ends with the test.
struct Process {
    child: Child,
    stdout: Utf8PathBuf,
    stderr: Utf8PathBuf,
}

fn workspace(training: &str) -> Workspace {
    let workspace = Workspace::new(CHECKSUM, "[[reply]]\ntext = \"x\"\n", &echo_rows(8));
    workspace.training("builtin/tiny", training, OFTEN);
    workspace.model("builtin/tiny", "[evaluation]\nn = 3\n");
    workspace
}

impl Cluster {
    fn new(training: &str) -> Self {
        Self::of(workspace(training))
    }

    fn of(mut workspace: Workspace) -> Self {
        let server = PostgresServer::start();
        let store = server.url_as("postgres:s3cret", "postgres");
        workspace.variable("OSMOSIS_STORE", &store);
        workspace.variable("OSMOSIS_LEASE_SECONDS", "3");
        Self {
            server,
            workspace,
            store,
        }
    }

    /// A process of the program with the test environment's interpreter.
    fn start(&self, name: &str, arguments: &[&str]) -> Process {
        let python = python_environment::python();
        let arguments = [arguments, &["--python", python.as_str(), "--json"]].concat();
        self.begin(name, &mut self.workspace.command(&arguments))
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

    /// A controller that people watch, and what nodes join it with.
    #[track_caller]
    fn watched_training(&self) -> (Process, String) {
        let mut command = self.workspace.train_command(&["--nodes-only"]);
        let controller = self.begin("controller", &mut command);
        let file = self.workspace.training_folder("t").join("join-token");
        wait_until("the controller takes nodes", SOON, || file.is_file());
        (controller, std::fs::read_to_string(file).unwrap())
    }

    fn train(&self, more: &[&str]) -> Process {
        let submit = ["train", "submit", "configs/training/c.toml", "--name", "t"];
        self.start("controller", &[&submit, more].concat())
    }

    fn node(&self, name: &str, join: &str) -> Process {
        self.start(name, &["node", "--store", &self.store, "--join", join])
    }

    /// Waits until a rollout of a [`held_workspace`] waits at the gate.
    #[track_caller]
    fn until_somebody_waits(&self) {
        let count = self.workspace.root.join("count");
        wait_until("somebody waits at the gate", SOON, || {
            std::fs::read(&count).is_ok_and(|count| count.len() > MANY)
        });
    }

    /// Waits until step `step` of the training is done.
    #[track_caller]
    fn until_step(&self, step: u64) {
        let file = self.workspace.training_folder("t").join("metrics.jsonl");
        wait_until(&format!("step {step} is done"), SOON, || {
            file.is_file() && metrics(&self.workspace).len() as u64 > step
        });
    }
}

impl Process {
    /// The token that the controller prints for nodes.
    #[track_caller]
    fn token(&self) -> String {
        let mut token = None;
        wait_until("the controller takes nodes", SOON, || {
            let told = std::fs::read_to_string(&self.stderr).unwrap();
            let line = told.lines().find(|line| line.contains("nodes_welcome"));
            let line = line.and_then(|line| serde_json::from_str::<Value>(line).ok());
            token = line.map(|line| line["resource"]["join"].as_str().unwrap().to_owned());
            token.is_some()
        });
        token.unwrap()
    }

    #[track_caller]
    fn until_told(&self, what: &str) {
        wait_until(what, SOON, || {
            std::fs::read_to_string(&self.stderr)
                .unwrap()
                .contains(what)
        });
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

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
            stderr: std::fs::read_to_string(&self.stderr).unwrap(),
        }
    }

    /// How many rollouts a node finished.
    #[track_caller]
    fn finished(self) -> u64 {
        let report = self.ends().expect(0).json()["resource"].clone();
        report["finished"].as_u64().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What became of every rollout, by its id.
fn results(index: &str) -> BTreeMap<String, Value> {
    let lines = index.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let facts = json!([
            line["outcome"],
            line["reward"],
            line["model_calls"],
            line["completion_tokens"],
            line["error"]
        ]);
        (line["rollout_id"].as_str().unwrap().to_owned(), facts)
    });
    lines.collect()
}

/// Results, numbers of the steps, and weights.
#[derive(PartialEq)]
struct Trained {
    results: BTreeMap<String, Value>,
    steps: Vec<Value>,
    checkpoints: BTreeMap<String, Vec<u8>>,
}

fn trained(workspace: &Workspace) -> Trained {
    let folder = workspace.training_folder("t");
    let kept = ["step_2", "step_3"].map(|step| {
        let weights = folder
            .join("checkpoints")
            .join(step)
            .join("model.safetensors");
        (step.to_owned(), std::fs::read(weights).unwrap())
    });
    let steps = metrics(workspace).into_iter().map(|mut step| {
        let numbers = step.as_object_mut().unwrap();
        // What depends on how fast it was.
        numbers.retain(|name, _| !name.contains("time") && !name.contains("per_second"));
        step
    });
    Trained {
        results: results(&workspace.read(".osmosis/training/t/index.jsonl")),
        steps: steps.collect(),
        checkpoints: kept.into(),
    }
}

#[track_caller]
fn assert_same(ours: &Trained, plain: &Trained) {
    assert_eq!(ours.results, plain.results);
    assert_eq!(ours.steps, plain.steps);
    for (step, weights) in &plain.checkpoints {
        assert!(ours.checkpoints[step] == *weights, "other weights: {step}");
    }
}

/// The same training without nodes and without a database.
fn undisturbed() -> Trained {
    let workspace = workspace(SHORT);
    workspace.train(&[]).expect(0);
    let trained = trained(&workspace);
    assert_eq!(trained.results.len(), 24 + 12);
    trained
}

#[test]
fn a_training_has_the_same_weights_bit_for_bit_with_nodes() {
    let plain = undisturbed();

    let alone = Cluster::new(SHORT);
    let controller = alone.train(&["--nodes-only"]);
    let node = alone.node("node", &controller.token());
    controller.ends().expect(0);
    assert_eq!(node.finished(), 36, "the node ran everything");
    assert_same(&trained(&alone.workspace), &plain);

    // A controller that runs rollouts too, and somebody who joins when it likes.
    let beside = Cluster::new(SHORT);
    let controller = beside.train(&[]);
    let node = beside.node("node", &controller.token());
    controller.ends().expect(0);
    assert!(node.finished() <= 36);
    assert_same(&trained(&beside.workspace), &plain);
}

#[test]
fn a_training_whose_controller_and_node_are_killed_has_the_same_weights() {
    let cluster = Cluster::new(SHORT);
    let controller = cluster.train(&["--nodes-only"]);
    let token = controller.token();
    let first = cluster.node("first", &token);
    let second = cluster.node("second", &token);
    cluster.until_step(1);
    controller.kill();
    first.kill();
    let resumed = cluster.start("resumed", &["train", "resume", "t", "--nodes-only"]);
    assert_eq!(resumed.token(), token, "the token is the same");
    resumed.ends().expect(0);
    second.finished();
    assert_same(&trained(&cluster.workspace), &undisturbed());
}

/// Rollouts after the first `MANY` wait for a gate.
const MANY: usize = 14;
const HELD: &str = r#"
        import asyncio, os
        with open(os.environ["COUNT"], "ab") as file:
            file.write(b"x")
        late = os.path.getsize(os.environ["COUNT"]) > 14
        while late and not os.path.exists(os.environ["GATE"]):
            await asyncio.sleep(0.02)
        rollout = get_rollout_context()
"#;

fn held_workspace(training: &str) -> Workspace {
    let main = CHECKSUM.replacen("        rollout = get_rollout_context()\n", &HELD[1..], 1);
    let workspace = Workspace::new(&main, "[[reply]]\ntext = \"x\"\n", &echo_rows(8));
    let root = &workspace.root;
    let files = format!("{OFTEN}[env]\nGATE = \"{root}/gate\"\nCOUNT = \"{root}/count\"\n");
    workspace.training("builtin/tiny", training, &files);
    workspace
}

/// Takes the database away while rollouts of step 2 are under way, until the controller has given them up.
fn lose_the_database(cluster: &Cluster, controller: &Process) {
    cluster.until_somebody_waits();
    cluster.server.crash();
    controller.until_told("what was under way here is given up");
    cluster.server.start_again();
    controller.until_told("The database is back");
    cluster.workspace.write("gate", "");
}

#[test]
fn a_training_waits_for_a_lost_database_and_has_the_same_weights() {
    let cluster = Cluster::of(held_workspace(SHORT));
    let (controller, token) = cluster.watched_training();
    let node = cluster.node("node", &token);
    lose_the_database(&cluster, &controller);
    controller.ends().expect(0);
    node.finished();
    let plain = held_workspace(SHORT);
    plain.write("gate", "");
    plain.train(&[]).expect(0);
    assert_same(&trained(&cluster.workspace), &trained(&plain));
}

#[test]
fn an_asynchronous_training_waits_for_a_lost_database_too() {
    let cluster = Cluster::of(held_workspace(OVERLAPPING));
    let (controller, token) = cluster.watched_training();
    let node = cluster.node("node", &token);
    lose_the_database(&cluster, &controller);
    controller.ends().expect(0);
    node.finished();
    assert_eq!(
        metrics(&cluster.workspace).len(),
        7,
        "6 steps and the start"
    );
    cluster
        .workspace
        .osmosis(&["run", "verify", "train/t"])
        .expect(0);
}

#[test]
fn an_asynchronous_training_goes_on_when_a_node_is_killed() {
    let cluster = Cluster::of(held_workspace(OVERLAPPING));
    let controller = cluster.train(&["--nodes-only"]);
    let token = controller.token();
    let first = cluster.node("first", &token);
    cluster.until_somebody_waits();
    first.kill();
    cluster.workspace.write("gate", "");
    let second = cluster.node("second", &token);
    let ran = controller.ends().expect(0);
    assert!(second.finished() > 0);
    let report = ran.json()["resource"].clone();
    assert_eq!(report["steps"], 6, "{report}");
    let index = cluster.workspace.read(".osmosis/training/t/index.jsonl");
    let index: Vec<Value> = index
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let lost = index.iter().filter(|line| line["attempts"] != 1).count();
    let failed = index.iter().filter(|line| {
        let outcome = line["outcome"].as_str().unwrap();
        !matches!(outcome, "scored" | "cancelled")
    });
    assert_eq!(failed.count(), 0, "a lost node costs nobody a result");
    assert!(
        (1..index.len()).contains(&lost),
        "{lost} of {} ran again",
        index.len()
    );
    cluster
        .workspace
        .osmosis(&["run", "verify", "train/t"])
        .expect(0);
}

#[test]
fn an_evaluation_of_an_embedded_model_is_the_same_on_nodes() {
    let plain = workspace(SHORT);
    plain.submit(&["--seed", "7"]).expect(0);
    let cluster = Cluster::new(SHORT);
    let submit = ["eval", "submit", "configs/eval/c.toml", "--name", "t"];
    let arguments = [&submit[..], &["--seed", "7", "--nodes-only"]].concat();
    let controller = cluster.start("controller", &arguments);
    let node = cluster.node("node", &controller.token());
    controller.ends().expect(0);
    assert_eq!(node.finished(), 24);
    let index = ".osmosis/evals/t/index.jsonl";
    let expected = results(&plain.read(index));
    assert_eq!(expected.len(), 24);
    assert_eq!(results(&cluster.workspace.read(index)), expected);
    // Every token with its logprob.
    let tokens = |workspace: &Workspace| {
        let exported = workspace.osmosis(&["export", "t", "--format", "slime", "-o", "-"]);
        let exported = exported.expect(0).stdout;
        let mut lines: Vec<String> = exported.lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(lines.len(), 24);
        lines
    };
    assert_eq!(tokens(&cluster.workspace), tokens(&plain));
}

/// What the judge says decides, whatever it is: a tiny model has no opinion.
const BY_JUDGE: &str = r#"
class Judged(Grader):
    async def grade(self, ctx):
        async with httpx.AsyncClient(timeout=60) as client:
            reply = await client.post(
                f"{ctx.judge.base_url}/chat/completions",
                headers={"Authorization": f"Bearer {ctx.judge.api_key}"},
                json={"model": ctx.judge.model, "messages": ctx.sample.messages[:1], "max_tokens": 12},
            )
            reply.raise_for_status()
        said = str(reply.json()["choices"][0]["message"]["content"])
        ctx.set_reward(sum(map(ord, said)) % 1009)
"#;

/// The policy is a script, or the same embedded model.
#[test]
fn nodes_ask_an_embedded_judge_at_the_controller() {
    let (agent, _) = CHECKSUM.split_once("class Checksum").unwrap();
    for policy in ["script:policies/p.toml", "builtin/tiny"] {
        let judged = || {
            let main = format!("{agent}{BY_JUDGE}");
            let workspace = Workspace::new(&main, "[[reply]]\ntext = \"x\"\n", &echo_rows(4));
            workspace.model(policy, "[grader]\njudge_model = \"builtin/tiny\"\n");
            workspace
        };
        let plain = judged();
        let report = plain.submit_json(&["--seed", "7"]);
        assert!(report["judge"]["calls"].as_u64().unwrap() >= 4, "{report}");
        let cluster = Cluster::of(judged());
        let submit = ["eval", "submit", "configs/eval/c.toml", "--name", "t"];
        let arguments = [&submit[..], &["--seed", "7", "--nodes-only"]].concat();
        let controller = cluster.start("controller", &arguments);
        let node = cluster.node("node", &controller.token());
        let ran = controller.ends().expect(0);
        assert_eq!(ran.json()["resource"]["judge"], report["judge"]);
        assert_eq!(node.finished(), 4);
        let index = ".osmosis/evals/t/index.jsonl";
        let expected = results(&plain.read(index));
        assert_eq!(expected.len(), 4);
        let rewards: BTreeSet<String> = expected.values().map(|v| v[1].to_string()).collect();
        assert!(rewards.len() > 1, "it says the same to all: {rewards:?}");
        assert_eq!(
            results(&cluster.workspace.read(index)),
            expected,
            "{policy}"
        );
    }
}
