//! Bad input to training and embedded policies: what is wrong, where, and what to do.

use serde_json::json;

use crate::training::{SHORT, workspace};
use crate::workspace::{CHECKSUM, Workspace, echo_rows};

/// Training with this model fails at once, with these words.
#[track_caller]
fn check_refused(workspace: &Workspace, model: &str, code: &str, words: &[&str]) {
    workspace.training(model, SHORT, "");
    let error = workspace.train(&["--json"]).expect(1).error();
    assert_eq!(error["code"], code, "{error}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!workspace.training_folder("t").exists());
}

#[test]
fn a_policy_behind_an_endpoint_is_not_trained_here() {
    let workspace = workspace();
    for model in ["openai/gpt-5", "script:policies/p.toml", "Qwen/Qwen3-8B"] {
        let words = [model, "trained by its own trainer", "builtin/tiny"];
        check_refused(&workspace, model, "model_not_trainable", &words);
    }
}

#[test]
fn a_builtin_model_that_does_not_exist_is_told_with_those_that_do() {
    check_refused(
        &workspace(),
        "builtin/huge",
        "model_invalid",
        &["huge", "tiny"],
    );
}

#[test]
fn a_run_or_a_step_that_does_not_exist_is_told_with_what_there_is() {
    let workspace = workspace();
    check_refused(
        &workspace,
        "run:nothing",
        "run_not_found",
        &["nothing", "no runs yet"],
    );
    workspace.training("builtin/tiny", "steps = 1\n", "");
    workspace.train(&[]).expect(0);
    workspace.model("run:t@99", "");
    let error = workspace.submit(&["--json"]).expect(1).error();
    assert!(error["message"].as_str().unwrap().contains("99"), "{error}");
    assert!(error["message"].as_str().unwrap().contains('1'), "{error}");
    workspace.model("run:other", "");
    let error = workspace.submit(&["--json"]).expect(1).error();
    assert_eq!(error["code"], "run_not_found", "{error}");
    assert!(
        error["details"]["hint"].as_str().unwrap().contains("`t`"),
        "{error}"
    );
}

#[test]
fn a_folder_that_is_no_model_is_told() {
    let workspace = workspace();
    check_refused(&workspace, "./nowhere", "model_invalid", &["nowhere"]);
    std::fs::create_dir(workspace.root.join("empty")).unwrap();
    check_refused(
        &workspace,
        "./empty",
        "model_invalid",
        &["empty", "config.json"],
    );
}

#[test]
fn an_unknown_architecture_and_missing_tensors_are_told_by_name() {
    let workspace = workspace();
    workspace.training("builtin/tiny", "steps = 1\n", "");
    workspace.train(&[]).expect(0);
    let model = workspace.root.join("model");
    std::fs::rename(
        workspace.training_folder("t").join("checkpoints/step_1"),
        &model,
    )
    .unwrap();
    std::fs::remove_dir_all(workspace.training_folder("t")).unwrap();

    let weights = model.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    let name = b"model.norm.weight";
    let at = whole
        .windows(name.len())
        .position(|window| window == name)
        .unwrap();
    let mut other = whole.clone();
    other[at..at + name.len()].copy_from_slice(b"model.nope.weight");
    std::fs::write(&weights, other).unwrap();
    check_refused(
        &workspace,
        "./model",
        "model_invalid",
        &["model.norm.weight", "missing"],
    );

    std::fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    check_refused(
        &workspace,
        "./model",
        "model_invalid",
        &["model.safetensors"],
    );

    std::fs::write(&weights, &whole).unwrap();
    let config = model.join("config.json");
    let mut changed: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    changed["architectures"] = json!(["MambaForCausalLM"]);
    changed["model_type"] = json!("mamba");
    std::fs::write(&config, changed.to_string()).unwrap();
    check_refused(&workspace, "./model", "model_invalid", &["amba", "Qwen3"]);
}

#[test]
fn equal_rewards_teach_nothing_and_the_report_says_so() {
    let main = CHECKSUM.replace(
        "sum(map(ord, str(ctx.sample.messages[-1][\"content\"]))) % 5 / 4",
        "0.5",
    );
    let workspace = Workspace::new(&main, "[[reply]]\ntext = \"x\"\n", &echo_rows(8));
    workspace.training("builtin/tiny", SHORT, "");
    let ran = workspace.train(&["--json"]).expect(0);
    let resource = &ran.json()["resource"];
    assert_eq!(resource["steps"], 3);
    assert_eq!(resource["steps_without_update"], 3);
    assert_eq!(resource["groups"]["no_variance"], 6);
    let info = workspace.osmosis(&["train", "info", "t"]).expect(0);
    assert!(
        info.stdout.contains("3 steps made no update"),
        "{}",
        info.stdout
    );
}

#[test]
fn a_rollout_that_never_asks_the_policy_is_refused() {
    let main = "
from osmosis_ai.rollout import AgentWorkflow, Grader

class Silent(AgentWorkflow):
    async def run(self, ctx):
        return [*ctx.prompt, {'role': 'assistant', 'content': 'no model was asked'}]

class Coin(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(id(ctx) % 2))
";
    let workspace = Workspace::new(main, "[[reply]]\ntext = \"x\"\n", &echo_rows(4));
    workspace.training("builtin/tiny", "steps = 1\n", "");
    let ran = workspace.train(&[]).expect(1);
    assert!(ran.stderr.contains("policy"), "{}", ran.stderr);
}

#[test]
fn too_few_rows_to_hold_some_out_are_told() {
    let workspace = Workspace::new(CHECKSUM, "[[reply]]\ntext = \"x\"\n", &echo_rows(1));
    check_refused(
        &workspace,
        "builtin/tiny",
        "dataset_invalid",
        &["1 rows", "eval_fraction"],
    );
}
