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
    workspace.training("builtin/tiny", SHORT, "");
    workspace.train(&[]).expect(0);
    workspace.model("run:t@99", "");
    let error = workspace.submit(&["--json"]).expect(1).error();
    assert!(error["message"].as_str().unwrap().contains("99"), "{error}");
    assert!(error["message"].as_str().unwrap().contains('3'), "{error}");
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
    workspace.training("builtin/tiny", SHORT, "");
    workspace.train(&[]).expect(0);
    let model = workspace.root.join("model");
    std::fs::rename(
        workspace.training_folder("t").join("checkpoints/step_3"),
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
    let ran = workspace.train(&["--json"]).expect(3);
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
    let info = workspace.osmosis(&["train", "info", "t", "--json"]);
    let end = &info.expect(0).json()["data"]["end"];
    assert_eq!(end["cause"], "failed");
    assert_eq!(
        (&end["step"], &end["planned_steps"]),
        (&0.into(), &1.into())
    );
    let summary = end["summary"].as_str().unwrap();
    assert!(summary.contains("never called the policy"), "{summary}");
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

#[test]
fn a_dataset_that_is_trained_on_is_not_held_out() {
    let workspace = workspace();
    workspace.training("builtin/tiny", "steps = 1\neval_dataset = \"d\"\n", "");
    for more in [&["--json"][..], &["--json", "--dry-run"]] {
        let error = workspace.train(more).expect(1).error();
        assert_eq!(error["code"], "held_out_overlap", "{error}");
        assert_eq!(error["details"]["overlap"], 8, "{error}");
        assert_eq!(error["details"]["rows"][1]["eval_line"], 2, "{error}");
        assert!(!workspace.training_folder("t").exists());
    }
    let told = workspace.train(&["--dry-run"]).expect(1).stderr;
    let told = told.replace(workspace.root.as_str(), "W");
    insta::assert_snapshot!(told);
    let meant = "steps = 1\neval_dataset = \"d\"\nallow_overlap = true\n";
    workspace.training("builtin/tiny", meant, "");
    let ran = workspace.train(&["--dry-run", "--json"]).expect(0).json();
    assert_eq!(ran["resource"]["held_out"], 8);
    // One step of equal rewards makes no update, which is not what is looked at here.
    workspace.train(&[]).expect(3);
    let pinned = workspace
        .osmosis(&["train", "info", "t", "--json"])
        .expect(0)
        .json();
    let pinned = pinned["data"]["pinned"].clone();
    assert_eq!(pinned["training.allow_overlap"], true, "{pinned}");
}

#[test]
fn a_held_out_row_is_found_however_it_is_written() {
    let workspace = workspace();
    let config = "steps = 1\neval_dataset = \"e\"\n";
    workspace.training("builtin/tiny", config, "");
    // Other order of columns, another number format, another file format, columns that nobody sees.
    workspace.write(
        "data/e.csv",
        "id,ground_truth,user_prompt\n1,77,say 77\n2,3.0,say  3\n",
    );
    let error = workspace.train(&["--json"]).expect(1).error();
    assert_eq!(error["code"], "held_out_overlap", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("1 of 2 held-out rows"), "{message}");
    assert!(
        message.contains("d.jsonl:4 is held out at") && message.contains("e.csv:3"),
        "{message}"
    );
    std::fs::remove_file(workspace.root.join("data/e.csv")).unwrap();
    workspace.write(
        "data/e.jsonl",
        "{\"user_prompt\": \"say 77\", \"ground_truth\": 77}\n",
    );
    workspace.train(&["--dry-run"]).expect(0);
}

#[test]
fn equal_rows_are_held_out_together() {
    // Each row twice.
    let rows = echo_rows(4).repeat(2);
    let workspace = Workspace::new(CHECKSUM, "[[reply]]\ntext = \"x\"\n", &rows);
    workspace.training("builtin/tiny", SHORT, "");
    workspace.train(&[]).expect(0);
    let mut held_out = std::collections::BTreeSet::new();
    for line in workspace.read(".osmosis/training/t/index.jsonl").lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let row = line["row_index"].as_u64().unwrap();
        if line["rollout_id"].as_str().unwrap().contains("greedy") {
            held_out.insert(row);
        }
    }
    let held_out: Vec<u64> = held_out.into_iter().collect();
    assert_eq!(held_out.len(), 2, "{held_out:?}");
    assert_eq!(held_out[0] + 4, held_out[1], "both of one row");
    // Two rows, two evaluations, sampled and greedily: the export finds the same rows without the dataset.
    workspace.write("data/d.jsonl", "");
    let exported = workspace
        .osmosis(&["export", "t", "--format", "areal", "--json"])
        .expect(0)
        .json();
    assert_eq!(
        exported["resource"]["left_out"]["held_out"], 8,
        "{exported}"
    );
}

#[test]
fn a_row_of_an_unseen_phrasing_is_not_trained_on() {
    let mut rows = echo_rows(8);
    rows += "{\"user_prompt\": \"tell 9\", \"ground_truth\": \"9\", \"metadata\": {\"unseen_phrasing\": true}}\n";
    let workspace = Workspace::new(CHECKSUM, "[[reply]]\ntext = \"x\"\n", &rows);
    workspace.write(
        "data/e.jsonl",
        "{\"user_prompt\": \"say 77\", \"ground_truth\": 77}\n",
    );
    workspace.training("builtin/tiny", "steps = 1\neval_dataset = \"e\"\n", "");
    let error = workspace.train(&["--json"]).expect(1).error();
    assert_eq!(error["code"], "held_out_overlap", "{error}");
    assert!(
        error["message"].as_str().unwrap().contains("d.jsonl:9"),
        "{error}"
    );
}
