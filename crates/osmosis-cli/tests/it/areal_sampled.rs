//! Only what the policy sampled for the agent is trained on: sequences that workflows return, seeds that
//! agents bring, and calls that are not the agent's.

use osmosis_testkit::model_server::{Behaviour, ModelServer};
use serde_json::{Value, json};

use crate::training::metrics;
use crate::workspace::{Workspace, echo_rows};

const SCRIPT: &str = "[[reply]]\ntext = \"x\"\n";

/// Continues the row's tokens, and returns them as the row says.
const EPISODE: &str = r#"
from areal.api.cli_args import GenerationHyperparameters
from areal.api.io_struct import ModelRequest
from areal.api.workflow_api import RolloutWorkflow

class Returns(RolloutWorkflow):
    async def arun_episode(self, engine, data):
        gconfig = GenerationHyperparameters(max_new_tokens=6)
        made = await engine.agenerate(ModelRequest(input_ids=data["ids"], gconfig=gconfig))
        prompt, output = made.input_tokens, made.output_tokens
        reward = sum(token % 5 for token in output) / len(output)
        logprobs, versions = made.output_logprobs, made.output_versions
        mask = [0] * len(prompt) + [1] * len(output)
        how = data["how"]
        if how == "invented":
            output = [(token + 1 + place) % 40 for place, token in enumerate(output)]
            logprobs = [-1.0] * len(output)
        elif how == "other logprobs":
            logprobs, versions = [-9.0] * len(output), [7] * len(output)
        elif how == "cut":
            output, logprobs, versions = output[:3], logprobs[:3], versions[:3]
            mask = mask[: len(prompt) + 3]
        elif how == "other prompt":
            prompt = [token + 1 for token in prompt]
        elif how == "prompt too":
            mask = [1] * len(mask)
        sequence = {
            "input_ids": prompt + output,
            "attention_mask": [1] * len(mask),
            "loss_mask": mask,
            "logprobs": [0.0] * len(prompt) + logprobs,
            "versions": [-1] * len(prompt) + versions,
        }
        times = 2 if how == "twice" else 1
        return {
            **{name: [values] * times for name, values in sequence.items()},
            "rewards": [reward] * times,
        }
"#;

fn returning(how: &[&str]) -> Workspace {
    let rows: Vec<String> = (5..)
        .zip(how)
        .map(|(id, how)| format!("{}\n", json!({"ids": [id, 6, 7], "how": how})))
        .collect();
    Workspace::new(EPISODE, SCRIPT, &rows.concat())
}

#[test]
fn sequences_that_the_policy_did_not_sample_are_rejected_by_name() {
    let how = [
        "true",
        "invented",
        "other logprobs",
        "cut",
        "other prompt",
        "prompt too",
        "twice",
    ];
    let workspace = returning(&how);
    workspace.model("builtin/tiny", "");
    workspace.submit(&[]).expect(0);
    let expected = [
        ("scored", ""),
        ("rejected", "position 3, ids ["),
        ("scored", ""),
        ("scored", ""),
        ("rejected", "the first difference is at position 0"),
        ("rejected", "position 0, ids [10, 6, 7, "),
        ("rejected", "trained on already"),
    ];
    for (line, (outcome, error)) in workspace.index().iter().zip(expected) {
        assert_eq!(line["outcome"], outcome, "{line}");
        let told = line["error"].as_str().unwrap_or_default();
        assert!(told.contains(error), "{line}");
    }
    // The same words where people look first.
    let shown = workspace.osmosis(&["eval", "show", "t", "1"]).expect(0);
    assert!(
        shown.stdout.contains("tokens that the policy did not"),
        "{}",
        shown.stdout
    );
}

#[test]
fn invented_tokens_are_never_trained_on() {
    let workspace = returning(&["invented", "invented"]);
    workspace.training("builtin/tiny", "steps = 1\n", "");
    let resource = workspace.train(&["--json"]).expect(3).json()["resource"].clone();
    assert_eq!(resource["failures"][0]["outcome"], "rejected", "{resource}");
    let counts = resource["failures"].as_array().unwrap().iter();
    let failed: u64 = counts.map(|group| group["count"].as_u64().unwrap()).sum();
    assert_eq!(failed, 8, "{resource}");
    assert_eq!(resource["tokens"]["trained"], 0, "{resource}");
    assert_eq!(resource["conclusion"]["cause"], "failed", "{resource}");
}

#[test]
fn true_tokens_are_trained_on_with_the_logprobs_that_were_recorded() {
    let workspace = returning(&["other logprobs", "other logprobs"]);
    workspace.training("builtin/tiny", "steps = 1\n", "");
    workspace.train(&[]).expect(0);
    let step = &metrics(&workspace)[0];
    assert_eq!(step["rollouts/scored"], 8, "{step}");
    assert!(step["tokens/trained"].as_u64().unwrap() > 0, "{step}");
    assert!(
        step["logprob_mismatch/max"].as_f64().unwrap() < 1e-4,
        "{step}"
    );
    // What others train on is the same.
    let rows = workspace
        .osmosis(&["export", "t", "--format", "slime", "-o", "-"])
        .expect(0);
    let row: Value = serde_json::from_str(rows.stdout.lines().next().unwrap()).unwrap();
    assert!(!row.to_string().contains("-9.0"), "{row}");
}

/// An agent of ours that asks for the same random numbers each time.
const SEEDED: &str = r#"
from openai import AsyncOpenAI

class Seeded:
    async def run(self, data, **extra):
        client = AsyncOpenAI(base_url=extra["base_url"], api_key=extra["api_key"])
        reply = await client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": data["user_prompt"]}],
            max_tokens=48, seed=7, temperature=0.5, extra_body={"top_k": 1},
        )
        return sum(map(ord, reply.choices[0].message.content or "")) % 5 / 4
"#;

#[test]
fn seed_and_top_k_of_an_agent_are_overridden_in_training_with_a_warning() {
    let workspace = Workspace::new(SEEDED, SCRIPT, &echo_rows(2));
    let hot = "[sampling]\nrollout_temperature = 2.0\n";
    workspace.training("builtin/tiny", "steps = 1\n", hot);
    let ran = workspace.train(&[]).expect(0);
    let step = &metrics(&workspace)[0];
    assert_eq!(step["groups/identical"], 0, "{step}");
    assert!(step["groups/used"].as_u64().unwrap() > 0, "{step}");
    assert!(step["tokens/trained"].as_u64().unwrap() > 0, "{step}");
    for field in ["temperature", "top_k", "seed"] {
        let words = format!("agents choose a `{field}` of their own");
        assert!(ran.stderr.contains(&words), "{field}: {}", ran.stderr);
    }
}

#[test]
fn identical_attempts_are_named_and_the_task_is_not_blamed() {
    let workspace = Workspace::new(SEEDED, SCRIPT, &echo_rows(2));
    let cold = "[sampling]\nrollout_temperature = 0.001\n";
    workspace.training("builtin/tiny", "steps = 1\n", cold);
    let ran = workspace.train(&[]);
    let step = &metrics(&workspace)[0];
    assert_eq!(step["groups/identical"], 2, "{step}");
    let words = "all 4 attempts at each row are identical, token for token";
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
    assert!(!ran.stderr.contains("too easy"), "{}", ran.stderr);
}

/// Asks the policy, and a judge through a client that is given no address.
const JUDGED: &str = r#"
from openai import AsyncOpenAI

class Judged:
    async def run(self, data, **extra):
        policy = AsyncOpenAI(base_url=extra["base_url"], api_key=extra["api_key"])
        ask = [{"role": "user", "content": data["user_prompt"]}]
        said = await policy.chat.completions.create(model="default", messages=ask, max_tokens=6)
        text = said.choices[0].message.content or ""
        judge = [{"role": "user", "content": "Good? " + text}]
        judged = await AsyncOpenAI().chat.completions.create(
            model="judge", messages=judge, max_tokens=6, temperature=0
        )
        assert judged.id != said.id
        return sum(map(ord, text)) % 5 / 4
"#;

#[test]
fn a_client_without_an_address_goes_where_the_variables_that_the_config_passes_say() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime
        .block_on(ModelServer::start(Behaviour::Answers))
        .unwrap();
    let mut workspace = Workspace::new(JUDGED, SCRIPT, &echo_rows(2));
    workspace.variable("OPENAI_BASE_URL", server.url());
    workspace.variable("OPENAI_API_KEY", "mine");
    let passed = "[secrets]\noptional = [\"OPENAI_BASE_URL\", \"OPENAI_API_KEY\"]\n";
    workspace.training("builtin/tiny", "steps = 1\n", passed);
    workspace.train(&[]).expect(0);
    assert_eq!(server.requests().len(), 8);
    let key = server.requests()[0].headers["authorization"].clone();
    assert_eq!(key, "Bearer mine");
    let step = &metrics(&workspace)[0];
    let sampled = step["tokens/sampled"].as_u64().unwrap();
    assert!(sampled <= 8 * 6, "{step}");
}

#[test]
fn without_variables_it_reaches_the_policys_server_and_is_never_trained_on() {
    let mut workspace = Workspace::new(JUDGED, SCRIPT, &echo_rows(2));
    // Set, and not passed by the config.
    workspace.variable("OPENAI_BASE_URL", "http://127.0.0.1:9/v1");
    workspace.variable("OPENAI_API_KEY", "mine");
    workspace.training("builtin/tiny", "steps = 1\n", "");
    workspace.train(&[]).expect(0);
    let step = &metrics(&workspace)[0];
    let (sampled, trained) = (&step["tokens/sampled"], &step["tokens/trained"]);
    assert!(sampled.as_u64().unwrap() <= 8 * 6, "{step}");
    assert!(trained.as_u64() <= sampled.as_u64(), "{step}");
    let shown = workspace
        .osmosis(&["train", "show", "t", "0", "--json"])
        .expect(0)
        .json();
    let rollout = &shown["data"][0];
    let purposes: Vec<&Value> = rollout["calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| &call["purpose"])
        .collect();
    assert_eq!(purposes, ["policy", "other"], "{rollout}");
    assert_eq!(rollout["model_calls"], 1, "{rollout}");
    // It is among the calls, and no part of what was said.
    let calls = workspace
        .osmosis(&["train", "show", "t", "0", "--calls"])
        .expect(0);
    assert!(calls.stdout.contains("  (other)  "), "{}", calls.stdout);
    let shown = workspace.osmosis(&["train", "show", "t", "0"]).expect(0);
    assert!(!shown.stdout.contains("Good? "), "{}", shown.stdout);
}
