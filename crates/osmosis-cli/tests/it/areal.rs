//! Workflows of AReaL's shape, from end to end: with the real SDKs, evaluated and trained.

use std::process::Command;

use camino::Utf8Path;
use osmosis_testkit::python_environment;
use serde_json::{Value, json};

use crate::training::metrics;
use crate::workspace::{PLAIN, Workspace};

const SCRIPT: &str = "[[reply]]\ntext = \"The answer is 42\"\n";

/// Does what its row says.
const AGENT: &str = r#"
import os
from agents import Agent, OpenAIChatCompletionsModel, Runner
from anthropic import AsyncAnthropic
from areal.api.reward_api import AsyncRewardWrapper
from areal.infra import workflow_context
from areal.utils import stats_tracker
from openai import AsyncOpenAI

def exact(answer, expected):
    return float(expected in answer)

class Obedient:
    def __init__(self, reward_fn, bonus=0.0):
        with open("../../built", "a") as file:
            file.write("once\n")
        self.reward = AsyncRewardWrapper(reward_fn)
        self.bonus = bonus

    async def run(self, data, **extra):
        given = {name: extra[name] for name in ("base_url", "api_key", "http_client")}
        ask = [{"role": "user", "content": data["ask"]}]
        if data["do"] == "anthropic":
            said = await AsyncAnthropic(**given).messages.create(
                model="default", max_tokens=99, messages=ask
            )
            return {said.id: 0.25}
        if data["do"] == "agents":
            model = OpenAIChatCompletionsModel("default", AsyncOpenAI(**given))
            ran = await Runner.run(Agent(name="a", model=model), data["ask"])
            return await self.reward(ran.final_output, "42")
        client = AsyncOpenAI() if data["do"] == "environment" else AsyncOpenAI(**given)
        replies = []
        for _ in range(2):
            replies.append(await client.chat.completions.create(model="default", messages=ask))
            ask.append({"role": "user", "content": "again"})
        match data["do"]:
            case "reject":
                return None
            case "raise":
                raise RuntimeError("on purpose")
            case "unknown":
                return {"chatcmpl-of-another": 1}
            case "each":
                return {replies[0].id: 0.0, replies[1].id: 1.0}
            case "same":
                asked = {"model": "default", "messages": ask}
                same = [await client.chat.completions.create(**asked) for _ in range(2)]
                return {same[0].id: 0.0, same[1].id: 0.5}
        assert workflow_context.get().is_eval
        stats_tracker.get(workflow_context.stat_scope()).scalar(calls=2)
        return await self.reward(replies[1].choices[0].message.content, "42") + self.bonus
"#;

/// Continues the row's tokens; the reward is the share of small ones.
const EPISODE: &str = r#"
import numpy
from areal.api.cli_args import GenerationHyperparameters
from areal.api.io_struct import ModelRequest
from areal.api.workflow_api import RolloutWorkflow

class Continues(RolloutWorkflow):
    def __init__(self, gconfig: GenerationHyperparameters):
        self.gconfig = gconfig

    async def arun_episode(self, engine, data):
        made = await engine.agenerate(ModelRequest(input_ids=data["ids"], gconfig=self.gconfig))
        if data.get("reject"):
            return None
        before, after = made.input_len, made.output_len
        reward = sum(token % 5 for token in made.output_tokens) / after
        return {
            "input_ids": numpy.array([made.input_tokens + made.output_tokens]),
            "attention_mask": numpy.ones((1, before + after)),
            "loss_mask": [[0] * before + [1] * after],
            "logprobs": [[0.0] * before + made.output_logprobs],
            "versions": [[-1] * before + made.output_versions],
            "rewards": [reward],
        }
"#;

/// Two turns, each with a reward of its own.
const TURNS: &str = r#"
from openai import AsyncOpenAI

class Turns:
    async def run(self, data, **extra):
        client = AsyncOpenAI(base_url=extra["base_url"], api_key=extra["api_key"])
        messages, rewards = [{"role": "user", "content": data["ask"]}], {}
        for _ in range(2):
            reply = await client.chat.completions.create(
                model="default", messages=messages, max_tokens=8
            )
            text = reply.choices[0].message.content or ""
            rewards[reply.id] = sum(map(ord, text)) % 5 / 4
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "?"}]
        return rewards
"#;

fn rows(rows: &[Value]) -> String {
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    lines.join("\n") + "\n"
}

fn doing(what: &[&str]) -> String {
    let each: Vec<Value> = what
        .iter()
        .map(|what| json!({"do": what, "ask": "6 times 7?"}))
        .collect();
    rows(&each)
}

fn id_rows(count: u64) -> String {
    let each: Vec<Value> = (0..count).map(|n| json!({"ids": [n + 5, 6, 7]})).collect();
    rows(&each)
}

/// Outcome and reward of each rollout.
fn results(workspace: &Workspace) -> Vec<(String, Value)> {
    let line = |line: &Value| {
        let outcome = line["outcome"].as_str().unwrap().to_owned();
        (outcome, line["reward"].clone())
    };
    workspace.index().iter().map(line).collect()
}

fn check_all_kinds_of_results(mode: &str) -> Workspace {
    let what = [
        "score",
        "reject",
        "raise",
        "unknown",
        "each",
        "anthropic",
        "agents",
        "environment",
        "same",
    ];
    let workspace = Workspace::new(AGENT, SCRIPT, &doing(&what));
    workspace.config(&format!(
        "[workflow]\nreward_fn = \"@main:exact\"\nbonus = 1\n{mode}"
    ));
    workspace.submit(&[]).expect(0);
    let scored = |reward: f64| ("scored".to_owned(), json!(reward));
    let other = |kind: &str| (kind.to_owned(), Value::Null);
    assert_eq!(
        results(&workspace),
        [
            scored(2.0),
            other("rejected"),
            other("agent_failed"),
            other("agent_failed"),
            scored(0.5),
            scored(0.25),
            scored(1.0),
            scored(2.0),
            scored(0.25),
        ]
    );
    let errors: Vec<String> = (1..4)
        .map(|row| workspace.index()[row]["error"].to_string())
        .collect();
    assert!(errors[0].contains("`run` returned None"), "{errors:?}");
    assert!(errors[1].contains("on purpose"), "{errors:?}");
    assert!(errors[2].contains("`chatcmpl-of-another`"), "{errors:?}");
    workspace
}

#[test]
fn an_agent_workflow_is_evaluated_with_every_sdk_and_every_kind_of_result() {
    let workspace = check_all_kinds_of_results("");
    assert_eq!(workspace.read("built"), "once\n");
    check_metrics(&workspace);
    check_conversations(&workspace);
}

/// What `eval show` prints of a row.
#[track_caller]
fn shown(workspace: &Workspace, row: &str) -> String {
    let ran = workspace.osmosis(&["eval", "show", "t", row]).expect(0);
    let lines: Vec<&str> = ran.stdout.lines().map(str::trim).collect();
    lines.join("\n")
}

#[track_caller]
fn check_conversations(workspace: &Workspace) {
    let turn = "user  6 times 7?\nassistant  The answer is 42";
    for (row, parts) in [
        // Two calls, of which the second leaves out the first's answer: two paths.
        ("0", &["sample main  reward 2", "path 2 of 2", turn][..]),
        (
            "1",
            &[
                "sample main  no result",
                turn,
                "rejected  `run` returned None",
            ],
        ),
        ("2", &["sample main  no result", turn, "on purpose"]),
        (
            "4",
            &[
                "reward  0\npath 2 of 2",
                "user  again\nassistant  The answer is 42\nreward  1",
            ],
        ),
        ("5", &[turn, "reward  0.25"]),
        ("6", &[turn]),
        // The same question and answer twice, worth something else each time.
        ("8", &["reward  0\npath 4 of 4", "reward  0.5"]),
    ] {
        let text = shown(workspace, row);
        for part in parts {
            assert!(text.contains(part), "row {row}: no {part:?} in\n{text}");
        }
    }
    let json = workspace
        .osmosis(&["eval", "show", "t", "5", "--json"])
        .expect(0)
        .json();
    let said = &json["data"][0]["conversations"]["main"][0];
    assert_eq!(said[1]["speaker"], "assistant", "{json}");
}

#[track_caller]
fn check_metrics(workspace: &Workspace) {
    let ran = workspace.osmosis(&["export", "t", "-o", "-"]).expect(0);
    let first: Value = serde_json::from_str(ran.stdout.lines().next().unwrap()).unwrap();
    assert_eq!(first["metrics"]["eval-rollout/calls"], 2.0, "{first}");
    assert_eq!(first["row"]["do"], "score", "{first}");
}

#[test]
fn an_agent_workflow_in_processes_of_its_own_gives_the_same() {
    let workspace = check_all_kinds_of_results("mode = \"subproc\"\n");
    // Once to see whether it can be built, and once for each rollout.
    assert_eq!(workspace.read("built").lines().count(), 10);
    check_metrics(&workspace);
}

#[test]
fn a_workflow_in_tokens_is_evaluated_on_the_model_that_is_part_of_the_program() {
    let data = format!("{}{}\n", id_rows(2), json!({"ids": [9], "reject": true}));
    let workspace = Workspace::new(EPISODE, SCRIPT, &data);
    workspace.model(
        "builtin/tiny",
        "[workflow]\ngconfig = { max_new_tokens = 6 }\n",
    );
    workspace.submit(&[]).expect(0);
    assert_eq!(workspace.outcomes(), ["scored", "scored", "rejected"]);
    assert_eq!(workspace.index()[0]["model_calls"], 1);
    let text = shown(&workspace, "0");
    assert!(text.contains("\ntokens in  "), "{text}");
    assert!(text.contains("\ntokens out  "), "{text}");
    assert!(!text.contains(" ids"), "tokens are decoded: {text}");
}

#[test]
fn a_policy_without_tokens_refuses_a_workflow_in_tokens_by_name() {
    let workspace = Workspace::new(EPISODE, SCRIPT, &id_rows(1));
    workspace.config("[workflow]\ngconfig = { max_new_tokens = 6 }\n");
    workspace.submit(&[]).expect(0);
    let error = workspace.index()[0]["error"].to_string();
    assert!(error.contains("has no token ids"), "{error}");
}

#[test]
fn a_workflow_in_tokens_trains_on_the_sequences_it_returns() {
    let workspace = Workspace::new(EPISODE, SCRIPT, &id_rows(4));
    let more = "[workflow]\ngconfig = { max_new_tokens = 6 }\n";
    workspace.training("builtin/tiny", "steps = 2\neval_fraction = 0.25\n", more);
    workspace.train(&[]).expect(0);
    let step = &metrics(&workspace)[1];
    assert_eq!(step["rows"], 8, "{step}");
    // Up to 6 of each: the model may end a sequence sooner.
    let trained = step["tokens/trained"].as_u64().unwrap();
    assert!((8..=48).contains(&trained), "{step}");
    assert!(
        step["logprob_mismatch/max"].as_f64().unwrap() < 1e-4,
        "{step}"
    );
}

#[test]
fn an_agent_workflow_trains_on_what_each_call_earned() {
    let workspace = Workspace::new(TURNS, SCRIPT, &doing(&["a", "b"]));
    for (style, rows) in [("individual", 16), ("concat", 8)] {
        let training = format!("steps = 1\nturn_discount = 0.5\nexport_style = \"{style}\"\n");
        workspace.training("builtin/tiny", &training, "");
        workspace.train(&["--fresh"]).expect(0);
        let lines = metrics(&workspace);
        let step = lines.last().unwrap();
        let (used, trained) = (&step["groups/used"], step["rows"].as_u64().unwrap());
        // A group whose rewards happen to be equal is left out with its rows.
        assert!(used.as_u64().unwrap() > 0 && trained <= rows, "{step}");
        assert!(
            step["logprob_mismatch/max"].as_f64().unwrap() < 1e-4,
            "{step}"
        );
    }
}

#[test]
fn rows_without_columns_are_refused_for_other_workflows_before_there_is_a_run() {
    let workspace = Workspace::new(PLAIN, SCRIPT, &doing(&["x"]));
    let ran = workspace.submit(&[]).expect(1);
    assert!(
        ran.stderr.contains("missing column `user_prompt`"),
        "{}",
        ran.stderr
    );
    assert!(!workspace.run_folder("t").exists());
    workspace.training("builtin/tiny", "steps = 1\n", "");
    let ran = workspace.train(&[]).expect(1);
    assert!(ran.stderr.contains("user_prompt"), "{}", ran.stderr);
    assert!(!workspace.training_folder("t").exists());
}

#[test]
fn arguments_that_do_not_fit_are_named_before_anything_runs() {
    let workspace = Workspace::new(AGENT, SCRIPT, &doing(&["score"]));
    workspace.config("[workflow]\nreward_fun = \"@main:exact\"\nbonus = \"@main:nothing\"\n");
    let ran = workspace.submit(&[]).expect(1);
    assert!(
        ran.stderr.contains("`@main:nothing` can't be had"),
        "{}",
        ran.stderr
    );
    workspace.config("[workflow]\nreward_fun = \"@main:exact\"\n");
    let ran = workspace.submit(&[]).expect(1);
    for part in ["did you mean `reward_fn`?", "`Obedient` needs `reward_fn`"] {
        assert!(ran.stderr.contains(part), "no `{part}` in {}", ran.stderr);
    }
}

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/areal.md");
const RUNNER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/guide.py");

#[track_caller]
fn guide(task: &[&str]) -> String {
    let output = Command::new(python_environment::python())
        .args([RUNNER, GUIDE])
        .args(task)
        .env("OSMOSIS_BIN", env!("CARGO_BIN_EXE_osmosis"))
        .env("OSMOSIS_CACHE_DIR", crate::workspace::cache_dir())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    said
}

#[test]
fn every_section_of_the_guide_for_areal_runs() {
    assert!(Utf8Path::new(GUIDE).is_file());
    let headings: Vec<String> = serde_json::from_str(&guide(&["list"])).unwrap();
    assert!(headings.len() >= 3, "{headings:?}");
    for heading in &headings {
        guide(&["run", heading]);
    }
}
