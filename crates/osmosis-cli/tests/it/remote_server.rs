//! `eval submit --server`: the rollouts run at a server, everything else stays.

use std::process::{Child, Stdio};
use std::time::Duration;

use osmosis_testkit::model_server::{Behaviour, ModelServer};
use osmosis_testkit::python_environment;
use osmosis_testkit::waiting::wait_until;
use serde_json::{Value, json};

use crate::serve::{Facade, Serving};
use crate::workspace::{ECHO_SCRIPT, PLAIN, Ran, Workspace, echo_rows};

/// What goes wrong with some rows, by what they say.
const MOODY: &str = "        text = ctx.prompt[-1]['content']\n        \
     if 'raise' in text:\n            raise ValueError('as asked')\n        \
     return [*ctx.prompt";

fn moody() -> Workspace {
    let main = PLAIN.replace("        return [*ctx.prompt", MOODY).replace(
        "        ctx.set_reward(",
        "        if 'ungraded' in ctx.sample.messages[0]['content']:\n            \
         raise RuntimeError('no grade')\n        ctx.set_reward(",
    );
    Workspace::new(&main, ECHO_SCRIPT, "")
}

/// An agent that says that it has begun and waits for a file before it goes on.
fn gated() -> Workspace {
    let main = PLAIN.replace(
        "        return [*ctx.prompt",
        "        import asyncio, pathlib\n        \
         pathlib.Path('../../begun').write_text('x')\n        \
         while not pathlib.Path('../../gate').exists():\n            await asyncio.sleep(0.02)\n        \
         return [*ctx.prompt",
    );
    Workspace::new(&main, ECHO_SCRIPT, &echo_rows(4))
}

/// A workspace that has config, data and policy, but no rollout.
fn elsewhere(rows: &str) -> Workspace {
    let workspace = Workspace::new("", ECHO_SCRIPT, rows);
    std::fs::remove_dir_all(workspace.root.join("rollouts/r")).unwrap();
    workspace
}

fn arguments<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["eval", "submit", "configs/eval/c.toml", "--name", "t"];
    arguments.extend(["--server", url]);
    arguments.extend(more);
    arguments
}

fn start(workspace: &Workspace, url: &str) -> Child {
    workspace
        .command(&arguments(url, &["--max-in-flight", "2"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[track_caller]
fn wait_for_file(workspace: &Workspace, name: &str) {
    wait_until(name, Duration::from_mins(1), || {
        workspace.root.join(name).exists()
    });
}

fn rows(texts: &[&str]) -> String {
    let row = |text: &&str| {
        let label = text.split_whitespace().last();
        format!("{}\n", json!({"user_prompt": text, "ground_truth": label}))
    };
    texts.iter().map(row).collect()
}

#[test]
fn a_run_at_a_server_needs_no_rollout_here_and_tells_every_outcome() {
    let far = moody();
    let serving = Serving::start(&far, &["--workers", "1"]);
    let near = elsewhere(&rows(&["say 1", "please raise 2", "say ungraded 3"]));

    let checked = near.osmosis(&arguments(serving.url(), &["--dry-run", "--json"]));
    let checked = checked.expect(0).json()["resource"].clone();
    assert_eq!(checked["rollouts"], 3);
    assert_eq!(checked["health"]["status"], "ok");
    assert!(!near.run_folder("t").join("run.db").exists());

    let ran = near
        .osmosis(&arguments(serving.url(), &["--json"]))
        .expect(0);
    let resource = ran.json()["resource"].clone();
    assert_eq!(near.outcomes(), ["scored", "agent_failed", "ungraded"]);
    let index = near.index();
    assert_eq!(index[0]["reward"], 1.0);
    assert_eq!(index[1]["reward"], Value::Null);
    assert_eq!(index[2]["reward"], Value::Null);
    assert!(
        index[1]["error"].to_string().contains("as asked"),
        "{index:?}"
    );
    assert!(
        index[2]["error"].to_string().contains("no grade"),
        "{index:?}"
    );
    assert_eq!(resource["model_calls"], 2);
    let shown = near.osmosis(&["eval", "show", "t", "0"]).expect(0);
    assert!(shown.stdout.contains("say 1"), "{}", shown.stdout);
    serving.terminate();
    serving.ended(&far).expect(0);
}

#[test]
fn what_the_model_calls_of_a_rollout_elsewhere_suffered_decides_here() {
    let main = PLAIN.replace(
        "        return [*ctx.prompt, await ask(ctx.prompt)]",
        "        try:\n            return [*ctx.prompt, await ask(ctx.prompt)]\n        \
         except Exception:\n            return [*ctx.prompt, {'role': 'assistant', 'content': '-'}]",
    );
    let far = Workspace::new(&main, ECHO_SCRIPT, "");
    let facade = Facade::start_of(&far, &main, "workflow=Plain, grader=Exact");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let refuses = Behaviour::Refuses { status: 401 };
    let model = runtime.block_on(ModelServer::start(refuses)).unwrap();
    let mut near = elsewhere(&echo_rows(1));
    near.model("some-model", "");
    near.variable("OPENAI_BASE_URL", model.url());
    near.osmosis(&arguments(&facade.url, &["--no-probe"]))
        .expect(3);
    assert_eq!(near.outcomes(), ["infrastructure_failed"]);
    let error = near.index()[0]["error"].to_string();
    assert!(error.contains("status 401"), "{error}");
    facade.end();
}

#[test]
fn the_facade_under_uvicorn_is_such_a_server() {
    let far = Workspace::new(PLAIN, ECHO_SCRIPT, "");
    let facade = Facade::start_of(&far, PLAIN, "workflow=Plain, grader=Exact");
    let near = elsewhere(&echo_rows(3));
    near.osmosis(&arguments(&facade.url, &[])).expect(0);
    assert_eq!(near.outcomes(), ["scored"; 3]);
    facade.end();
}

#[test]
fn a_server_that_is_killed_and_started_again_costs_nothing_but_time() {
    let workspace = gated();
    let mut serving = Serving::start(&workspace, &["--workers", "1"]);
    let url = serving.url().to_owned();
    let evaluation = start(&workspace, &url);
    wait_for_file(&workspace, "begun");
    serving.child.kill().unwrap();
    serving.child.wait().unwrap();
    workspace.write("gate", "");
    let address = url.strip_prefix("http://").unwrap();
    let serving = Serving::start(&workspace, &["--workers", "1", "--listen", address]);
    let ran = Ran::of(&evaluation.wait_with_output().unwrap()).expect(0);
    assert_eq!(workspace.outcomes(), ["scored"; 4], "{}", ran.stderr);
    serving.terminate();
    serving.ended(&workspace).expect(0);
}

#[test]
fn a_killed_evaluation_is_resumed_at_the_same_server() {
    let mut workspace = gated();
    workspace.variable("SERVER_KEY", "server-key-not-to-be-seen");
    let mut serving = Serving::start(
        &workspace,
        &["--workers", "1", "--api-key-env", "SERVER_KEY"],
    );
    let more = ["--server-key-env", "SERVER_KEY", "--max-in-flight", "2"];
    let mut evaluation = workspace
        .command(&arguments(serving.url(), &more))
        .spawn()
        .unwrap();
    wait_for_file(&workspace, "begun");
    evaluation.kill().unwrap();
    evaluation.wait().unwrap();
    workspace.write("gate", "");

    let python = python_environment::python();
    let here = [
        "eval",
        "submit",
        "configs/eval/c.toml",
        "--name",
        "t",
        "--python",
    ];
    let refused = workspace.osmosis(&[&here[..], &[python.as_str()]].concat());
    assert!(refused.expect(1).stderr.contains("can't be resumed"));

    let resumed = workspace.osmosis(&["eval", "resume", "t"]).expect(0);
    assert_eq!(workspace.outcomes(), ["scored"; 4], "{}", resumed.stderr);
    for file in ["run.db", "logs.txt", "metrics.json"] {
        let bytes = std::fs::read(workspace.run_folder("t").join(file)).unwrap();
        let found = String::from_utf8_lossy(&bytes).contains("server-key-not-to-be-seen");
        assert!(!found, "the key is in {file}");
    }
    // It would go on calling the evaluation that was killed.
    serving.child.kill().unwrap();
    serving.child.wait().unwrap();
}

#[test]
fn what_is_wrong_with_the_server_is_said_before_anything_runs() {
    let workspace = elsewhere(&echo_rows(1));
    let check = |arguments: &[&str], code: i32, words: &str| {
        let ran = workspace.osmosis(arguments).expect(code);
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
        assert!(!workspace.run_folder("t").exists());
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}", taken.local_addr().unwrap());
    drop(taken);
    check(&arguments(&nobody, &[]), 1, "no rollout server at");
    check(&arguments("http://far:1", &[]), 2, "--public-url");
    check(&arguments("ftp://far", &[]), 2, "no http or https URL");
    check(&arguments("http://u:p@far", &[]), 2, "without user");
    let missing = ["--server-key-env", "NO_SUCH_KEY"];
    check(&arguments(&nobody, &missing), 2, "NO_SUCH_KEY");
    check(&arguments(&nobody, &["--workers", "2"]), 2, "--workers");
    let encrypted = ["--public-url", "https://near"];
    check(&arguments("http://far:1", &encrypted), 2, "--listen");
    let mut without = arguments(&nobody, &["--public-url", "http://near:1"]);
    without.drain(5..7);
    check(&without, 2, "--server URL");
}

/// The plain agent as the reference SDK wants it: editions before 0.3 take samples from sources only.
const REFERENCE: &str = r#"
import httpx
from osmosis_ai.rollout import context
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import RolloutSample

class Messages(context.SampleSource):
    def __init__(self, messages):
        self.messages = messages

    async def get_sample(self, name="main"):
        return RolloutSample(id=name, messages=self.messages)

class Plain(AgentWorkflow):
    async def run(self, ctx):
        if "raise" in ctx.prompt[-1]["content"]:
            raise ValueError("as asked")
        rollout = context.get_rollout_context()
        async with httpx.AsyncClient(timeout=60) as client:
            reply = await client.post(
                f"{rollout.chat_completions_url}/chat/completions",
                headers={
                    "Authorization": f"Bearer {rollout.api_key}",
                    "x-rollout-id": rollout.rollout_id,
                },
                json={"model": "openai/osmosis-rollout", "messages": ctx.prompt},
            )
            reply.raise_for_status()
        messages = [*ctx.prompt, reply.json()["choices"][0]["message"]]
        if not hasattr(rollout, "register_sample_source"):
            return messages
        rollout.register_sample_source("main", Messages(messages))

class Exact(Grader):
    async def grade(self, ctx):
        (sample,) = ctx.get_samples().values() if hasattr(ctx, "get_samples") else (ctx.sample,)
        if "ungraded" in sample.messages[0]["content"]:
            raise RuntimeError("no grade")
        reward = 1.0 if ctx.label in sample.messages[-1]["content"].split() else 0.0
        if hasattr(ctx, "set_reward"):
            ctx.set_reward(reward)
        else:
            ctx.set_sample_reward("main", reward)

app = create_rollout_server(backend=LocalBackend(workflow=Plain, grader=Exact))
"#;

/// Run it with a Python 3.12 that has `osmosis-ai[server]` and `httpx`; 0.2.29 and 0.3.8 were tried:
/// `OSMOSIS_REFERENCE_PYTHON=…/bin/python cargo nextest run -p osmosis-cli --run-ignored only reference`.
#[test]
#[ignore = "needs OSMOSIS_REFERENCE_PYTHON, a Python with the reference SDK"]
fn a_server_of_the_reference_sdk_is_such_a_server() {
    let python = std::env::var("OSMOSIS_REFERENCE_PYTHON").unwrap();
    let far = Workspace::new("", "", "");
    let mut server = Facade::start_app(&far, REFERENCE, &python, "");
    let near = elsewhere(&rows(&[
        "say 1",
        "please raise 2",
        "say ungraded 3",
        "say 4",
    ]));
    near.osmosis(&arguments(&server.url, &[])).expect(0);
    let outcomes = ["scored", "agent_failed", "ungraded", "scored"];
    assert_eq!(near.outcomes(), outcomes);
    assert_eq!(near.index()[3]["reward"], 1.0);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
}
