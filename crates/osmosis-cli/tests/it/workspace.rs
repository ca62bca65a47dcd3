//! A workspace in a temporary folder, and the binary run in it.

use std::process::{Command, Output, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_testkit::python_environment;
use serde_json::Value;

/// The multiply agent on the OpenAI Agents SDK.
pub(crate) const AGENT: &str = r#"
from agents import Runner, function_tool
from osmosis_ai.rollout import AgentWorkflow, Grader
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel,
)

@function_tool
def multiply(a: int, b: int) -> int:
    """Return the product."""
    print(f"multiplying {a} and {b}")
    return a * b

class Multiply(AgentWorkflow):
    async def run(self, ctx):
        agent = OsmosisAgent(name="calc", model=OsmosisRolloutModel(), tools=[multiply])
        session = OsmosisMemorySession(name="calc")
        await Runner.run(agent, ctx.prompt, session=session)

class Exact(Grader):
    async def grade(self, ctx):
        text = ctx.sample.messages[-1]["content"][0]["text"]
        ctx.set_reward(1.0 if ctx.label in text.rstrip(".").split() else 0.0)
"#;

/// An agent without a framework: it starts faster, where the framework is not the point.
pub(crate) const PLAIN: &str = r#"
import httpx
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context

async def ask(messages):
    rollout = get_rollout_context()
    async with httpx.AsyncClient(timeout=60) as client:
        reply = await client.post(
            f"{rollout.chat_completions_url}/chat/completions",
            headers={"Authorization": f"Bearer {rollout.api_key}"},
            json={"model": "osmosis-rollout", "messages": messages},
        )
        reply.raise_for_status()
        return reply.json()["choices"][0]["message"]

class Plain(AgentWorkflow):
    async def run(self, ctx):
        return [*ctx.prompt, await ask(ctx.prompt)]

class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0 if ctx.label in ctx.sample.messages[-1]["content"].split() else 0.0)
"#;

/// An agent whose reward says how its text sums up: every answer earns something else, so that there is
/// always something to learn.
pub(crate) const CHECKSUM: &str = r#"
import httpx
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context

class Short(AgentWorkflow):
    async def run(self, ctx):
        rollout = get_rollout_context()
        async with httpx.AsyncClient(timeout=60) as client:
            reply = await client.post(
                f"{rollout.chat_completions_url}/chat/completions",
                headers={"Authorization": f"Bearer {rollout.api_key}"},
                json={"model": "osmosis-rollout", "messages": ctx.prompt, "max_tokens": 12},
            )
            reply.raise_for_status()
            return [*ctx.prompt, reply.json()["choices"][0]["message"]]

class Checksum(Grader):
    async def grade(self, ctx):
        ctx.set_reward(sum(map(ord, str(ctx.sample.messages[-1]["content"]))) % 5 / 4)
"#;

/// Answers the multiply agent: first a tool call, then its result.
pub(crate) const TOOL_SCRIPT: &str = r#"
[[reply]]
when.last_role = "tool"
text = "The answer is {tool_result} ."

[[reply]]
when.last_user = 'What is (?<a>\d+) times (?<b>\d+)'
tool_calls = [{ name = "multiply", arguments = { a = "{a:int}", b = "{b:int}" } }]
"#;

/// Answers the plain agent with the last number of the prompt.
pub(crate) const ECHO_SCRIPT: &str = r#"
[[reply]]
when.last_user = 'say (?<word>\S+)'
text = "{word}"
"#;

pub(crate) struct Workspace {
    _folder: tempfile::TempDir,
    pub(crate) root: Utf8PathBuf,
    variables: Vec<(String, String)>,
}

pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Workspace {
    /// A rollout `r` with this entrypoint, a dataset `d`, a script and a config `c`.
    pub(crate) fn new(main_py: &str, script: &str, rows: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The temporary folder may be a link; the program reports real paths.
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let workspace = Self {
            _folder: folder,
            root,
            variables: vec![],
        };
        workspace.write("rollouts/r/main.py", main_py);
        workspace.write("data/d.jsonl", rows);
        workspace.write("policies/p.toml", script);
        workspace.config("");
        workspace
    }

    /// The config of all tests, with more sections behind it.
    pub(crate) fn config(&self, more: &str) {
        self.write(
            "configs/eval/c.toml",
            &format!(
                "[experiment]\nrollout = \"r\"\nentrypoint = \"main.py\"\ndataset = \"d\"\n\
                 model_path = \"script:policies/p.toml\"\n{more}"
            ),
        );
    }

    pub(crate) fn model(&self, model_path: &str, more: &str) {
        self.write(
            "configs/eval/c.toml",
            &format!(
                "[experiment]\nrollout = \"r\"\nentrypoint = \"main.py\"\ndataset = \"d\"\n\
                 model_path = \"{model_path}\"\n{more}"
            ),
        );
    }

    /// A training config of `model_path`, small enough for a test.
    pub(crate) fn training(&self, model_path: &str, training: &str, more: &str) {
        let rate = if training.contains("lr = ") {
            ""
        } else {
            "lr = 1e-3\n"
        };
        self.write(
            "configs/training/c.toml",
            &format!(
                "[experiment]\nrollout = \"r\"\nentrypoint = \"main.py\"\ndataset = \"d\"\n\
                 model_path = \"{model_path}\"\n\
                 [training]\nrollout_batch_size = 2\nn_samples_per_prompt = 4\n{rate}\
                 seed = 5\n{training}\n{more}"
            ),
        );
    }

    /// `train submit` of the config, as run `t`, ready to be started.
    pub(crate) fn train_command(&self, more: &[&str]) -> Command {
        let python = python_environment::python();
        let mut arguments = vec!["train", "submit", "configs/training/c.toml", "--name", "t"];
        arguments.extend(["--python", python.as_str()]);
        arguments.extend(more);
        self.command(&arguments)
    }

    pub(crate) fn train(&self, more: &[&str]) -> Ran {
        Ran::of(&self.train_command(more).output().unwrap())
    }

    pub(crate) fn training_folder(&self, run: &str) -> Utf8PathBuf {
        self.root.join(".osmosis/training").join(run)
    }

    pub(crate) fn variable(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// From now on the key of records is another one: what a test has written to a run's database can't be told from
    /// what the engine wrote.
    pub(crate) fn forget_key(&mut self) {
        let elsewhere = self.root.join("state-of-another");
        self.variable("XDG_STATE_HOME", elsewhere.as_str());
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(path)).unwrap()
    }

    pub(crate) fn run_folder(&self, run: &str) -> Utf8PathBuf {
        self.root.join(".osmosis/evals").join(run)
    }

    /// The binary with these arguments, ready to be started in the workspace.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_osmosis"));
        command
            .current_dir(&self.root)
            .args(arguments)
            .env_remove("OPENAI_BASE_URL")
            .env_remove("OPENAI_API_KEY")
            .env_remove("VIRTUAL_ENV")
            .env_remove("CARGO_PKG_NAME")
            .env_remove("HTTP_PROXY")
            .env_remove("http_proxy")
            .env_remove("OSMOSIS_STATE_KEY")
            .env_remove("OSMOSIS_ROLLOUT_KEY")
            .env_remove("OSMOSIS_STORE")
            .env("OSMOSIS_CACHE_DIR", cache_dir())
            .env("XDG_STATE_HOME", cache_dir())
            // What a killed engine leaves behind goes with the workspace.
            .env("TMPDIR", &self.root)
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn osmosis(&self, arguments: &[&str]) -> Ran {
        Ran::of(&self.command(arguments).output().unwrap())
    }

    /// `eval submit` of the config, as run `t`, with the test environment's interpreter.
    pub(crate) fn submit(&self, more: &[&str]) -> Ran {
        let python = python_environment::python();
        let mut arguments = vec!["eval", "submit", "configs/eval/c.toml", "--name", "t"];
        arguments.extend(["--python", python.as_str()]);
        arguments.extend(more);
        self.osmosis(&arguments)
    }

    /// `eval submit --json`; its `resource`.
    pub(crate) fn submit_json(&self, more: &[&str]) -> Value {
        let ran = self.submit(&[&["--json"], more].concat());
        ran.json()["resource"].clone()
    }

    /// The lines of `index.jsonl` of run `t`.
    pub(crate) fn index(&self) -> Vec<Value> {
        self.read(".osmosis/evals/t/index.jsonl")
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Outcome kinds of run `t`, in order.
    pub(crate) fn outcomes(&self) -> Vec<String> {
        self.index()
            .iter()
            .map(|line| line["outcome"].as_str().unwrap().to_owned())
            .collect()
    }
}

impl Ran {
    pub(crate) fn of(output: &Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }

    /// The error envelope, which stands behind what was told before.
    pub(crate) fn error(&self) -> Value {
        let begin = self.stderr.rfind("\n{\n").map_or(0, |found| found + 1);
        serde_json::from_str::<Value>(&self.stderr[begin..])
            .unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))["error"]
            .clone()
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "stdout:\n{}\nstderr:\n{}",
            self.stdout, self.stderr
        );
        self
    }
}

/// Rows `What is A times B?` with their products.
pub(crate) fn product_rows(count: u64) -> String {
    rows(count, |i| {
        let (a, b) = (i + 3, 2 * i + 5);
        (format!("What is {a} times {b}?"), (a * b).to_string())
    })
}

/// Rows `say N` with label N.
pub(crate) fn echo_rows(count: u64) -> String {
    rows(count, |i| (format!("say {i}"), i.to_string()))
}

fn rows(count: u64, row: impl Fn(u64) -> (String, String)) -> String {
    let mut text = String::new();
    for i in 0..count {
        let (prompt, label) = row(i);
        text += &serde_json::json!({"user_prompt": prompt, "ground_truth": label}).to_string();
        text.push('\n');
    }
    text
}

/// Shared by all tests: the SDK is unpacked once.
pub(crate) fn cache_dir() -> &'static Utf8Path {
    Utf8Path::new(env!("CARGO_TARGET_TMPDIR"))
}
