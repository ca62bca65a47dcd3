//! Workflows of AReaL's shape with policies elsewhere, and behind `osmosis serve`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use osmosis_policy::EmbeddedModel;
use osmosis_testkit::model_server::{Behaviour, ModelServer};
use osmosis_testkit::python_environment;
use osmosis_testkit::waiting::wait_until;
use serde_json::{Value, json};

use crate::serve::{Serving, result_of};
use crate::workspace::Workspace;

/// Continues the tokens of its row, and says what it got.
const EPISODE: &str = r#"
import asyncio, os
from areal.api.cli_args import GenerationHyperparameters
from areal.api.io_struct import ModelRequest
from areal.api.workflow_api import RolloutWorkflow

class Continues(RolloutWorkflow):
    async def arun_episode(self, engine, data):
        gconfig = GenerationHyperparameters(max_new_tokens=3)
        asked = engine.agenerate(ModelRequest(input_ids=data["ids"], gconfig=gconfig))
        if data.get("cancel"):
            asked = asyncio.ensure_future(asked)
            while not os.path.exists("../../arrived"):
                await asyncio.sleep(0.01)
            asked.cancel()
            return None
        made = await asked
        assert made.output_tokens == [40, 41, 42], made
        assert made.output_logprobs == [-0.5] * 3 and made.output_versions == [3, 4, 5], made
        assert made.stop_reason == "length", made
        return {
            "input_ids": [made.input_tokens + made.output_tokens],
            "attention_mask": [[1] * (made.input_len + 3)],
            "rewards": [1.0],
        }
"#;

/// Ends with the test.
pub(crate) struct TokenServer {
    child: Child,
    url: String,
}

impl TokenServer {
    /// A server whose answers differ, with the tokenizer of `builtin/tiny`, as the model of a workspace.
    pub(crate) fn varied(workspace: &mut Workspace) -> Self {
        let server = Self::start(workspace, &["varied"]);
        server.set_variables(workspace);
        server
    }

    fn start(workspace: &Workspace, more: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/token_server.py");
        let mut child = Command::new(python_environment::python())
            .args([script, workspace.root.as_str()])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut port)
            .unwrap();
        let url = format!("http://127.0.0.1:{}/v1", port.trim());
        Self { child, url }
    }

    fn set_variables(&self, workspace: &mut Workspace) {
        let tokenizer = workspace.root.join("tokenizer");
        std::fs::create_dir(&tokenizer).unwrap();
        let model = EmbeddedModel::builtin("tiny").unwrap();
        model.chat.save(&tokenizer).unwrap();
        workspace.variable("OPENAI_BASE_URL", &self.url);
        workspace.variable("OSMOSIS_ENGINE", "sglang");
        workspace.variable("OSMOSIS_TOKENIZER", tokenizer.as_str());
    }
}

impl Drop for TokenServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A run of the episode on a server that takes token ids.
fn on_token_server(rows: &[Value], more: &str) -> (Workspace, TokenServer) {
    let rows: Vec<String> = rows.iter().map(|row| format!("{row}\n")).collect();
    let mut workspace = Workspace::new(EPISODE, "", &rows.concat());
    let server = TokenServer::start(&workspace, &[]);
    server.set_variables(&mut workspace);
    workspace.model("m", more);
    (workspace, server)
}

#[track_caller]
fn check_left(workspace: &Workspace) {
    assert!(workspace.root.join("arrived").exists());
    wait_until("the server is left", Duration::from_mins(1), || {
        workspace.root.join("left").exists()
    });
}

#[test]
fn a_workflow_in_tokens_runs_on_a_server_that_takes_them() {
    let rows = [json!({"ids": [5, 6]}), json!({"ids": [99], "cancel": true})];
    let (workspace, _server) = on_token_server(&rows, "");
    workspace.submit(&[]).expect(0);
    assert_eq!(
        workspace.outcomes(),
        ["scored", "rejected"],
        "{:?}",
        workspace.index()
    );
    // A call that nobody waits for has ended at the server too.
    check_left(&workspace);
    let shown = workspace
        .osmosis(&["eval", "show", "t", "0", "--calls"])
        .expect(0)
        .stdout;
    assert!(shown.contains("\npolicy versions 3 to 5\n"), "{shown}");
    let call = shown
        .lines()
        .find(|line| line.contains("tokens  "))
        .unwrap();
    assert!(call.ends_with("  versions 3 to 5"), "{shown}");
    let shown = workspace.osmosis(&["eval", "show", "t", "--json", "0"]);
    let shown = shown.expect(0).json();
    let rollout = &shown["data"][0];
    let versions = json!({"min": 3, "max": 5});
    assert_eq!(rollout["versions"], versions, "{shown}");
    assert_eq!(rollout["calls"][0]["versions"], versions, "{shown}");
}

#[test]
fn the_deadline_of_a_rollout_reaches_the_server_that_makes_its_tokens() {
    let more = "[evaluation]\nagent_workflow_timeout_s = 5\n";
    let (workspace, _server) = on_token_server(&[json!({"ids": [99]})], more);
    // It never answers: a failure of the infrastructure, not the agent's time-out.
    workspace.submit(&[]).expect(3);
    assert_eq!(workspace.outcomes(), ["infrastructure_failed"]);
    let error = workspace.index()[0]["error"].to_string();
    assert!(error.contains("had sent no answer"), "{error}");
    check_left(&workspace);
}

#[test]
fn a_server_that_knows_only_chat_is_refused_with_what_to_do() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime
        .block_on(ModelServer::start(Behaviour::Answers))
        .unwrap();
    let mut workspace = Workspace::new(EPISODE, "", "{\"ids\": [5]}\n");
    workspace.variable("OPENAI_BASE_URL", server.url());
    workspace.model("m", "");
    workspace.submit(&[]).expect(0);
    let error = workspace.index()[0]["error"].to_string();
    assert!(error.contains("501"), "{error}");
    assert!(error.contains("token ids"), "{error}");
}

/// Gets messages, label and metadata of a request in place of a row.
const SERVED: &str = r#"
from openai import AsyncOpenAI

class Served:
    async def run(self, data, **extra):
        if data.get("do") == "raise":
            raise ValueError("as asked")
        client = AsyncOpenAI(base_url=extra["base_url"], api_key=extra["api_key"])
        said = await client.chat.completions.create(model="default", messages=data["messages"])
        assert said.choices[0].message.content == "The answer is 42.", said
        return {said.id: float(data["label"] == "42")}
"#;

#[test]
fn a_workflow_that_grades_itself_is_served() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let model = runtime
        .block_on(ModelServer::start(Behaviour::Answers))
        .unwrap();
    let workspace = Workspace::new(SERVED, "", "");
    let serving = Serving::start(&workspace, &["--workers", "1"]);
    let said = result_of("whole", serving.url(), &model);
    let told = said["told"].as_array().unwrap();
    assert!(!told.is_empty(), "{said}");
    for told in told {
        assert_eq!(told["completion"]["status"], "success", "{told}");
        assert_eq!(told["grader"]["sample"]["reward"], 1.0, "{told}");
    }
    serving.terminate();
    serving.ended(&workspace);
}
