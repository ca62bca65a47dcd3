//! `osmosis train sft` from end to end, with the model that is part of the program.

use std::process::Stdio;
use std::time::Duration;

use osmosis_policy::EmbeddedModel;
use osmosis_testkit::waiting;
use serde_json::{Value, json};

use crate::workspace::{PLAIN, Ran, Workspace};

const ADAPTERS: &str = "[sft.lora]\nrank = 4\nalpha = 8\nbase = \"bf16\"\n";

/// Conversations with a tool, as `osmosis export --format sft` writes them.
fn conversations() -> String {
    conversations_off_by(0)
}

/// Those whose numbers are wrong by this much.
fn conversations_off_by(off: i32) -> String {
    let tools = json!([{"type": "function", "function": {"name": "calculate", "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}}]);
    let rows = (1..=8).map(|n| {
        let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "call_0", "type": "function",
            "function": {"name": "calculate", "arguments": format!("{{\"a\": {}, \"b\": {}}}", n + off, 2 + off)}}]});
        let messages = json!([
            {"role": "user", "content": format!("What is {n} plus 2?")},
            call,
            {"role": "tool", "tool_call_id": "call_0", "content": (n + 2).to_string()},
            {"role": "assistant", "content": (n + 2 + off).to_string()},
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
fn adapters_learn_conversations_and_open_everywhere_as_the_same_model() {
    // PEFT's layout has no field for another type of the base.
    let adapters = ADAPTERS.replace("bf16", "f32");
    let workspace = workspace("builtin/tiny", &format!("total_epochs = 4\n{adapters}"));
    let checked = sft(&workspace, &["--dry-run", "--json"]).expect(0).json();
    let adapters = checked["resource"]["adapter_parameters"].as_u64().unwrap();
    let parameters = checked["resource"]["parameters"].as_u64().unwrap();
    assert!(0 < adapters && adapters < parameters / 4, "{checked}");

    let named = ["--name", "warm", "--set", "sft.lr=1e-2", "--json"];
    let ran = sft(&workspace, &named).expect(0).json();
    let resource = &ran["resource"];
    for curve in ["loss_curve", "held_out_curve"] {
        let (before, after) = halves(&resource[curve]);
        assert!(after < before, "{curve}: {resource}");
    }
    let checkpoints = workspace.training_folder("warm").join("checkpoints");
    let step = checkpoints.join("step_12");
    for file in [
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
        "trainer/state.json",
        "trainer/optimizer.safetensors",
    ] {
        assert!(step.join(file).is_file(), "{file}");
    }
    let base = EmbeddedModel::open(&checkpoints.join("base")).unwrap();
    let tiny = EmbeddedModel::builtin("tiny").unwrap();
    assert_eq!(base.digest(), tiny.digest(), "the base was changed");

    let expected = EmbeddedModel::open(&step).unwrap();
    assert_ne!(expected.digest(), base.digest());
    let merge = ["model", "merge", "warm@12", "--to", "merged"];
    workspace.osmosis(&merge).expect(0);
    let export = [
        "model", "export", "warm@12", "--to", "peft", "--format", "peft",
    ];
    workspace.osmosis(&export).expect(0);
    for folder in ["merged", "peft"] {
        let opened = EmbeddedModel::open(&workspace.root.join(folder)).unwrap();
        assert_eq!(opened.digest(), expected.digest(), "{folder}");
    }
    let verified = workspace.osmosis(&["run", "verify", "warm", "--json"]);
    let verified = verified.expect(0).json();
    assert_eq!(verified["resource"]["checked"]["checkpoints"], 6);

    // The next run begins with what this one learned.
    let flags = [
        "--name",
        "next",
        "--model",
        "run:warm@12",
        "--steps",
        "1",
        "--json",
    ];
    let next = sft(&workspace, &flags).expect(0).json();
    let last = resource["held_out_curve"].as_array().unwrap().last();
    let last = last.unwrap()["loss"].as_f64().unwrap();
    let first = &next["resource"]["held_out_curve"][0]["loss"];
    let distance = (first.as_f64().unwrap() - last).abs();
    assert!(distance < 1e-4, "{first} after {last}");
}

#[test]
fn adapters_killed_and_resumed_have_the_same_bits() {
    let settings = format!("total_epochs = 6\n{ADAPTERS}");
    let whole = workspace("builtin/tiny", &settings);
    sft(&whole, &["--name", "warm"]).expect(0);
    let killed = workspace("builtin/tiny", &settings);
    let command = ["train", "sft", "configs/sft/c.toml", "--name", "warm"];
    let mut child = killed
        .command(&command)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let checkpoints = killed.training_folder("warm").join("checkpoints");
    waiting::wait_until("step 4", Duration::from_mins(2), || {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        checkpoints.join("step_4").is_dir()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!checkpoints.join("step_18").exists(), "it was too fast");
    let resumed = killed.osmosis(&["train", "resume", "warm", "--json"]);
    assert_eq!(resumed.expect(0).json()["resource"]["resumed"], true);
    // Other files name the base, which lies in another folder.
    for file in ["adapter_model.safetensors", "trainer/optimizer.safetensors"] {
        let of = |workspace: &Workspace| {
            let folder = workspace.training_folder("warm");
            std::fs::read(folder.join("checkpoints/step_18").join(file)).unwrap()
        };
        assert!(of(&whole) == of(&killed), "{file} differs");
    }

    // Other adapters are another run.
    let config = killed.read("configs/sft/c.toml");
    killed.write(
        "configs/sft/c.toml",
        &config.replace("rank = 4", "rank = 8"),
    );
    let refused = sft(&killed, &["--name", "warm"]).expect(1);
    assert!(
        refused.stderr.contains("sft.lora: was"),
        "{}",
        refused.stderr
    );
}

#[test]
fn the_best_checkpoint_is_the_one_with_the_lowest_held_out_loss() {
    // Held-out answers contradict those to train on: the format is learned first, then the wrong numbers.
    let settings = format!("total_epochs = 6\n{ADAPTERS}");
    let workspace = workspace("builtin/tiny", &settings);
    workspace.write("data/held_out.jsonl", &conversations_off_by(5));
    let config = workspace.read("configs/sft/c.toml");
    let config = config.replace("eval_fraction = 0.25", "eval_dataset = \"held_out\"");
    workspace.write("configs/sft/c.toml", &config);
    let flags = [
        "--name",
        "warm",
        "--set",
        "sft.lr=3e-3",
        "--set",
        "checkpoints.keep_best=1",
        "--json",
    ];
    let ran = sft(&workspace, &flags).expect(0).json();
    let resource = &ran["resource"];
    let curve: Vec<(u64, f64)> = resource["held_out_curve"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| {
            (
                point["step"].as_u64().unwrap(),
                point["loss"].as_f64().unwrap(),
            )
        })
        .collect();
    let (lowest, _) = *curve[1..]
        .iter()
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .unwrap();
    let (latest, _) = *curve.last().unwrap();
    assert!(lowest < latest, "no case for this test: {curve:?}");
    assert_eq!(resource["best"]["step"], lowest, "{resource}");
    let saved: Vec<u64> = resource["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|saved| saved["step"].as_u64().unwrap())
        .collect();
    assert_eq!(saved, [lowest, latest]);

    let digest = |of: &str, folder: &str| {
        workspace
            .osmosis(&["model", "merge", of, "--to", folder])
            .expect(0);
        EmbeddedModel::open(&workspace.root.join(folder))
            .unwrap()
            .digest()
    };
    let best = digest("warm@best", "best");
    assert_eq!(best, digest(&format!("warm@{lowest}"), "lowest"));
    assert_ne!(best, digest("warm@latest", "latest"));
    let shown = workspace.osmosis(&["train", "info", "warm"]).expect(0);
    let told = format!("step {lowest} (`@best`)");
    assert!(shown.stdout.contains(&told), "{}", shown.stdout);
}

#[test]
fn what_can_not_be_the_best_or_an_adapter_is_refused() {
    let workspace = workspace("builtin/tiny", &format!("steps = 2\n{ADAPTERS}"));
    let config = workspace.read("configs/sft/c.toml");
    let without = config.replace("eval_fraction = 0.25\n", "");
    workspace.write("configs/sft/c.toml", &without);
    let kept = sft(&workspace, &["--set", "checkpoints.keep_best=1"]).expect(1);
    assert!(
        kept.stderr
            .contains("`--set checkpoints.keep_best=1`: `keep_best` in `[checkpoints]`"),
        "{}",
        kept.stderr
    );
    sft(&workspace, &["--name", "warm"]).expect(0);
    let best = sft(&workspace, &["--model", "run:warm@best"]).expect(1);
    for part in [
        "has no checkpoint that was evaluated on held-out rows; it has steps 2",
        "set `eval_dataset` or `eval_fraction`",
    ] {
        assert!(best.stderr.contains(part), "{part}: {}", best.stderr);
    }

    let wrong = config
        .replace("bf16", "q4")
        .replace("rank = 4", "rank = 0\ndropout = 0.1");
    workspace.write("configs/sft/c.toml", &wrong);
    let refused = sft(&workspace, &[]).expect(1);
    for part in [
        "configs/sft/c.toml:10:8: `rank` in `[sft.lora]` must be at least 1",
        "configs/sft/c.toml:11:11: `dropout` in `[sft.lora]`: embedded models are trained without dropout",
        "configs/sft/c.toml:13:8: `base` in `[sft.lora]`: unknown value `q4`",
    ] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
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
