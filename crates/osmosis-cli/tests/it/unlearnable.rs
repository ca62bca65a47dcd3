//! Trainings that can't learn: what they conclude, where they stop, and how they end.

use serde_json::Value;

use crate::training::workspace;
use crate::workspace::Workspace;

/// An agent that fails in one place.
const FAILING: &str = r#"
from osmosis_ai.rollout import AgentWorkflow, Grader

def load(path):
    raise FileNotFoundError(f"no database at {path}")

class Failing(AgentWorkflow):
    async def run(self, ctx):
        load("shop.db")

class Grade(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"#;

/// An agent that answers in so many tokens, and gets this reward for it.
fn answering(tokens: u32, reward: &str) -> String {
    format!(
        r#"
import httpx
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context

class Answer(AgentWorkflow):
    async def run(self, ctx):
        rollout = get_rollout_context()
        async with httpx.AsyncClient(timeout=60) as client:
            reply = await client.post(
                f"{{rollout.chat_completions_url}}/chat/completions",
                headers={{"Authorization": f"Bearer {{rollout.api_key}}"}},
                json={{"model": "osmosis-rollout", "messages": ctx.prompt, "max_tokens": {tokens}}},
            )
            reply.raise_for_status()
            return [*ctx.prompt, reply.json()["choices"][0]["message"]]

class Grade(Grader):
    async def grade(self, ctx):
        ctx.set_reward({reward})
"#
    )
}

fn with_agent(main_py: &str, training: &str) -> Workspace {
    let workspace = workspace();
    workspace.write("rollouts/r/main.py", main_py);
    workspace.training("builtin/tiny", training, "");
    workspace
}

/// What a training says from its failures on, or from its last line of numbers.
fn conclusion(stdout: &str) -> &str {
    let at = stdout
        .find("\n  failures")
        .or_else(|| stdout.find("\n  No update"));
    at.map_or(stdout, |at| stdout[at..].trim_matches('\n'))
}

#[test]
fn a_training_whose_attempts_all_fail_alike_stops_names_the_error_and_can_be_resumed() {
    let workspace = with_agent(FAILING, "steps = 10\n");
    let ran = workspace.train(&[]).expect(3);
    insta::assert_snapshot!(conclusion(&ran.stdout));
    let warnings: Vec<&str> = ran
        .stderr
        .lines()
        .filter(|line| line.starts_with("warning:") || line.starts_with("step "))
        .collect();
    insta::assert_snapshot!(warnings.join("\n"));
    assert!(!ran.stdout.contains("Serve it"), "{}", ran.stdout);
    assert!(!workspace.training_folder("t").join("checkpoints").exists());

    let info = workspace.osmosis(&["train", "info", "t"]).expect(0);
    assert!(
        info.stdout
            .contains("No update was made: all 8 attempts failed in the same way"),
        "{}",
        info.stdout
    );
    let python = osmosis_testkit::python_environment::python();
    let again = workspace
        .osmosis(&[
            "train",
            "resume",
            "t",
            "--json",
            "--python",
            python.as_str(),
        ])
        .expect(3);
    let envelope = again.json();
    assert_eq!(envelope["status"], "no_update");
    let resource = &envelope["resource"];
    assert_eq!(resource["conclusion"]["cause"], "failed_alike");
    assert_eq!(resource["conclusion"]["updates"], 0);
    assert_eq!(resource["failures"][0]["count"], 8, "{resource}");
    assert_eq!(resource["steps"], 0);
}

/// Trains to the end, without an update and without a checkpoint of the start model.
fn without_update(workspace: &Workspace) -> (String, Value) {
    let ran = workspace.train(&[]).expect(3);
    for word in ["Serve it", "run:t@latest"] {
        assert!(!ran.stdout.contains(word), "{word}: {}", ran.stdout);
    }
    assert!(!workspace.training_folder("t").join("checkpoints").exists());
    let info = workspace
        .osmosis(&["train", "info", "t", "--json"])
        .expect(0)
        .json();
    let told = conclusion(&ran.stdout).to_owned();
    (told, info["data"]["conclusion"].clone())
}

#[test]
fn rewards_that_are_all_0_are_told_with_what_to_do() {
    let workspace = with_agent(&answering(200, "0.0"), "steps = 2\n");
    let (told, concluded) = without_update(&workspace);
    assert_eq!(concluded["cause"], "too_hard", "{concluded}");
    insta::assert_snapshot!(told);
}

#[test]
fn answers_that_were_cut_are_told_apart_from_a_task_that_is_too_hard() {
    let workspace = with_agent(&answering(1, "0.0"), "steps = 2\n");
    let (told, concluded) = without_update(&workspace);
    assert_eq!(concluded["cause"], "answers_cut", "{concluded}");
    insta::assert_snapshot!(told);
}

#[test]
fn a_task_that_is_solved_already_is_told_so() {
    let workspace = with_agent(&answering(200, "1.0"), "steps = 1\n");
    let (told, concluded) = without_update(&workspace);
    assert_eq!(concluded["cause"], "too_easy", "{concluded}");
    insta::assert_snapshot!(told);
}

#[test]
fn a_training_that_learned_something_says_how_many_steps_did() {
    let workspace = workspace();
    let ran = workspace.train(&["--json"]).expect(0);
    let resource = &ran.json()["resource"];
    assert!(resource["conclusion"]["cause"].is_null(), "{resource}");
    assert!(resource["conclusion"]["updates"].as_u64().unwrap() > 0);
    assert_eq!(resource["failures"], serde_json::json!([]));
}
