//! `osmosis train sft` from end to end, with the model that is part of the program.

use osmosis_policy::EmbeddedModel;
use serde_json::{Value, json};

use crate::workspace::{PLAIN, Ran, Workspace};

/// Conversations with a tool, as `osmosis export --format sft` writes them.
fn conversations() -> String {
    let tools = json!([{"type": "function", "function": {"name": "calculate", "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}}]);
    let rows = (1..=8).map(|n| {
        let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "call_0", "type": "function",
            "function": {"name": "calculate", "arguments": format!("{{\"a\": {n}, \"b\": 2}}")}}]});
        let messages = json!([
            {"role": "user", "content": format!("What is {n} plus 2?")},
            call,
            {"role": "tool", "tool_call_id": "call_0", "content": (n + 2).to_string()},
            {"role": "assistant", "content": (n + 2).to_string()},
        ]);
        json!({"messages": messages, "tools": tools, "reward": 1.0}).to_string()
    });
    rows.collect::<Vec<_>>().join("\n")
}

fn workspace(model: &str, sft: &str) -> Workspace {
    let workspace = Workspace::new(PLAIN, "[[reply]]\ntext = \"x\"\n", "");
    workspace.write("data/talks.jsonl", &conversations());
    let config = format!(
        "[experiment]\nmodel_path = \"{model}\"\ndataset = \"talks\"\n[sft]\nlr = 1e-3\nbatch_size = 2\n\
         eval_fraction = 0.25\n{sft}\n[checkpoints]\neval_interval = 2\ncheckpoint_save_freq = 2\n"
    );
    workspace.write("configs/sft/c.toml", &config);
    workspace
}

fn sft(workspace: &Workspace, more: &[&str]) -> Ran {
    let command = ["train", "sft", "configs/sft/c.toml"];
    workspace.osmosis(&[&command, more].concat())
}

/// The mean over the first and the last half of a curve.
fn halves(curve: &Value) -> (f64, f64) {
    let losses: Vec<f64> = curve
        .as_array()
        .unwrap()
        .iter()
        .map(|point| point["loss"].as_f64().unwrap())
        .collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let half = losses.len() / 2;
    (mean(&losses[..half]), mean(&losses[losses.len() - half..]))
}

#[test]
fn a_model_learns_conversations_and_its_checkpoint_is_a_model() {
    let workspace = workspace("builtin/tiny", "total_epochs = 4");
    let checked = sft(&workspace, &["--dry-run", "--json"]).expect(0).json();
    assert_eq!(checked["status"], "valid");
    assert_eq!(checked["resource"]["rows"], 6);
    assert_eq!(checked["resource"]["held_out"], 2);
    assert!(!workspace.training_folder("warm").exists());

    let ran = sft(&workspace, &["--name", "warm", "--json"])
        .expect(0)
        .json();
    assert_eq!(ran["operation"], "train sft");
    assert_eq!(ran["status"], "completed");
    let resource = &ran["resource"];
    assert_eq!(resource["steps"], 12);
    for curve in ["loss_curve", "held_out_curve"] {
        let (before, after) = halves(&resource[curve]);
        assert!(after < before, "{curve}: {resource}");
    }
    assert_eq!(resource["held_out_curve"][0]["step"], 0);
    let saved = resource["checkpoints"].as_array().unwrap();
    assert_eq!(saved.last().unwrap()["step"], 12);

    let again = sft(&workspace, &["--name", "warm", "--json"])
        .expect(0)
        .json();
    assert_eq!(again["resource"]["already_complete"], true);
    let info = workspace
        .osmosis(&["train", "info", "warm", "--json"])
        .expect(0)
        .json();
    assert_eq!(info["data"]["steps"], 12);
    workspace.osmosis(&["train", "list"]).expect(0);

    // The next run begins with what this one learned.
    let next = workspace.read("configs/sft/c.toml");
    let next = next.replace("builtin/tiny", "run:warm@12");
    workspace.write("configs/sft/c.toml", &next);
    let ran = sft(&workspace, &["--name", "next", "--steps", "1", "--json"])
        .expect(0)
        .json();
    let (last, first) = (
        resource["held_out_curve"]
            .as_array()
            .unwrap()
            .last()
            .unwrap(),
        &ran["resource"]["held_out_curve"][0],
    );
    assert_eq!(first["loss"], last["loss"]);
}

#[test]
fn a_resume_ends_with_the_same_weights() {
    let whole = workspace("builtin/tiny", "total_epochs = 2");
    sft(&whole, &["--name", "warm"]).expect(0);
    let parted = workspace("builtin/tiny", "total_epochs = 2");
    sft(&parted, &["--name", "warm"]).expect(0);
    // As if it had been killed after step 4.
    let folder = parted.training_folder("warm");
    std::fs::remove_dir_all(folder.join("checkpoints/step_6")).unwrap();
    parted.osmosis(&["train", "resume", "warm"]).expect(0);
    let weights = |workspace: &Workspace| {
        let folder = workspace.training_folder("warm");
        std::fs::read(folder.join("checkpoints/step_6/model.safetensors")).unwrap()
    };
    assert!(weights(&whole) == weights(&parted), "other weights");

    let changed = parted.read("data/talks.jsonl").replace("plus", "and");
    parted.write("data/talks.jsonl", &changed);
    let refused = parted.osmosis(&["train", "resume", "warm"]).expect(1);
    assert!(refused.stderr.contains("dataset"), "{}", refused.stderr);
}

#[test]
fn tools_that_the_template_ignores_are_refused_with_a_way_out() {
    let workspace = workspace("./smol", "steps = 2");
    EmbeddedModel::builtin("tiny")
        .unwrap()
        .save(&workspace.root.join("smol"))
        .unwrap();
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    workspace.write("smol/chat_template.jinja", template);
    let refused = sft(&workspace, &["--json"]).expect(1);
    let error = refused.error();
    assert_eq!(error["code"], "dataset_invalid");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("talks.jsonl:1: it has tools, and the chat template ignores tools"),
        "{message}"
    );
    assert!(
        error["details"]["hint"]
            .as_str()
            .unwrap()
            .contains("tool_format"),
        "{error}"
    );

    sft(
        &workspace,
        &["--set", "experiment.tool_format=hermes", "--name", "warm"],
    )
    .expect(0);
}

#[test]
fn rows_without_messages_and_other_configs_are_refused() {
    let workspace = workspace("builtin/tiny", "steps = 2");
    workspace.write("data/talks.jsonl", "{\"text\": \"a\"}\n");
    let refused = sft(&workspace, &[]).expect(1);
    assert!(
        refused.stderr.contains("there is no `messages` column"),
        "{}",
        refused.stderr
    );
    workspace.training("builtin/tiny", "", "");
    let other = workspace
        .osmosis(&["train", "sft", "configs/training/c.toml"])
        .expect(1);
    assert!(
        other.stderr.contains("use `osmosis train submit`"),
        "{}",
        other.stderr
    );
}
