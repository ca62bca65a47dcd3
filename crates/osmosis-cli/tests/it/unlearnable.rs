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

/// The rollouts of run `t` that are trained on, as its database has them: all of them, and those that ran.
fn stored(workspace: &Workspace) -> (i64, i64) {
    let folder = workspace.training_folder("t");
    let database = rusqlite::Connection::open(folder.join("run.db")).unwrap();
    let ran = "'scored', 'agent_failed', 'timed_out', 'ungraded', 'rejected'";
    let query = format!(
        "SELECT count(*), count(*) FILTER (WHERE outcome IN ({ran})) FROM rollouts WHERE row_index NOT IN \
         (SELECT row_index FROM rollouts WHERE rollout_id LIKE '%greedy%')"
    );
    let counts = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    database.query_row(&query, [], counts).unwrap()
}

/// Ends early with this status, and says the same each time; what it said at first.
fn ends_early(workspace: &Workspace, status: &str) -> Value {
    let submitted = workspace.train(&["--json"]).expect(3).json();
    assert_eq!(submitted["status"], status);
    let resource = &submitted["resource"];
    assert_eq!(resource["end"]["cause"], "no_variance");
    assert_eq!(resource["end"]["evaluation"], "done");
    assert_eq!(resource["end"]["planned_steps"], 40);
    let evaluations = resource["held_out_curve"].as_array().unwrap();
    assert_eq!(evaluations.last().unwrap()["step"], resource["steps"]);
    let counts = &resource["rollouts"]["training"];
    let (rollouts, ran) = stored(workspace);
    assert_eq!(counts["rollouts"], rollouts, "{counts}");
    assert_eq!(counts["ran"], ran, "{counts}");

    let info = workspace
        .osmosis(&["train", "info", "t", "--json"])
        .expect(0);
    let python = osmosis_testkit::python_environment::python();
    let resume = [
        "train",
        "resume",
        "t",
        "--python",
        python.as_str(),
        "--json",
    ];
    let again = workspace.osmosis(&resume).expect(3).json();
    assert_eq!(again["status"], status);
    assert_eq!(
        again["resource"]["already_complete"], true,
        "nothing was run"
    );
    for key in ["end", "conclusion", "rollouts", "groups", "held_out_curve"] {
        assert_eq!(info.json()["data"][key], resource[key], "{key}");
        assert_eq!(again["resource"][key], resource[key], "{key}");
    }
    resource.clone()
}

const ASYNCHRONOUS: &str = "max_staleness = 1\nsteps = 40\neval_fraction = 0.25\n";

#[test]
fn an_asynchronous_training_without_variance_names_the_cut_answers_and_exits_as_incomplete() {
    let workspace = with_agent(&answering(1, "0.0"), ASYNCHRONOUS);
    let resource = ends_early(&workspace, "no_update");
    assert_eq!(resource["conclusion"]["cause"], "answers_cut");
    let info = workspace.osmosis(&["train", "info", "t"]).expect(0);
    // How many groups and answers there are is chance: rollouts go on while held-out rows are evaluated.
    for told in [
        "\n  Training ended after step 0 of 40, because the rewards of ",
        " groups in a row did not differ. No update was made: ",
        " answers were cut at the token limit, and all attempts at each row got the same reward.\n  - Raise \
         `max_response_length` in [training]",
        " 0 of 40 · groups: 0 used, ",
    ] {
        assert!(info.stdout.contains(told), "{told}: {}", info.stdout);
    }
    assert!(resource["groups"]["no_variance"].as_u64().unwrap() >= 20);
}

#[test]
fn a_training_that_ends_early_after_some_updates_is_incomplete() {
    // The grader does not see the number of a rollout: its agent leaves a mark.
    let agent = answering(200, "0.0 if len(ctx.sample.messages) > 2 else random.random()")
        .replace("import httpx", "import random\n\nimport httpx")
        .replace(
            "return [*ctx.prompt,",
            "late = int(rollout.rollout_id.rsplit(\"-\", 1)[1]) >= 8\n            \
             return [*ctx.prompt, *([{\"role\": \"user\", \"content\": \"late\"}] if late else []),",
        );
    let workspace = with_agent(&agent, ASYNCHRONOUS);
    let resource = ends_early(&workspace, "incomplete");
    assert!(resource["conclusion"]["updates"].as_u64().unwrap() > 0);
    assert!(resource["rollouts"]["in_no_step"].as_u64().unwrap() >= 80);
    assert_eq!(resource["after"]["step"], resource["steps"]);
    let summary = resource["conclusion"]["summary"].as_str().unwrap();
    assert!(
        summary.contains(" of 40, because the rewards of "),
        "{summary}"
    );
}
