//! `osmosis train` from end to end, with the model that is part of the program.

use osmosis_testkit::python_environment;
use serde_json::Value;

use crate::workspace::{CHECKSUM, Workspace, echo_rows};

/// Three steps on six rows, two held out.
pub(crate) const SHORT: &str = "steps = 3\neval_fraction = 0.25\n";
pub(crate) const OFTEN: &str = "[checkpoints]\neval_interval = 2\ncheckpoint_save_freq = 2\n";

pub(crate) fn workspace() -> Workspace {
    let workspace = Workspace::new(CHECKSUM, "[[reply]]\ntext = \"x\"\n", &echo_rows(8));
    workspace.training("builtin/tiny", SHORT, OFTEN);
    workspace
}

/// The lines of `metrics.jsonl` of run `t`.
pub(crate) fn metrics(workspace: &Workspace) -> Vec<Value> {
    workspace
        .read(".osmosis/training/t/metrics.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn training_leaves_metrics_checkpoints_a_curve_and_a_report() {
    let workspace = workspace();
    let ran = workspace.train(&["--json"]).expect(0);
    let envelope = ran.json();
    assert_eq!(envelope["operation"], "train submit");
    assert_eq!(envelope["status"], "completed");
    let resource = &envelope["resource"];
    assert_eq!(resource["run_name"], "t");
    assert_eq!(resource["steps"], 3);
    assert_eq!(resource["resumed"], false);
    for side in ["before", "after"] {
        let keys: Vec<&String> = resource[side].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["step", "sampled", "greedy"], "{resource}");
        for decoding in ["sampled", "greedy"] {
            let numbers = &resource[side][decoding];
            assert!(numbers["mean"].is_f64(), "{resource}");
            assert!(numbers.get("ci95").is_some(), "{resource}");
            assert_eq!(numbers["ran"], 2);
            assert_eq!(numbers["failed"], 0);
        }
    }
    assert_eq!(resource["held_out_curve"].as_array().unwrap().len(), 3);
    assert_eq!(resource["held_out_curve"][0], resource["before"]);
    assert_eq!(resource["before"]["step"], 0);
    assert_eq!(resource["after"]["step"], 3);
    assert_eq!(resource["reward_curve"].as_array().unwrap().len(), 3);
    assert!(
        resource["reward_curve"][0]["pass_rate"].is_f64(),
        "{resource}"
    );
    assert_eq!(resource["reward_curve"][0]["failed"], 0);
    let note = resource["best"]["note"].as_str().unwrap();
    assert!(note.contains("optimistic"), "{resource}");
    let folder = workspace.training_folder("t");
    assert_eq!(resource["output_path"], folder.as_str());

    let steps: Vec<u64> = metrics(&workspace)
        .iter()
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [0, 1, 2, 3]);
    assert!(metrics(&workspace)[1]["reward/mean"].is_f64());
    let mismatch = metrics(&workspace)[1]["logprob_mismatch/max"]
        .as_f64()
        .unwrap();
    assert!(mismatch < 1e-4, "{mismatch}");

    for name in ["model.safetensors", "config.json", "tokenizer.json"] {
        assert!(
            folder.join("checkpoints/step_3").join(name).is_file(),
            "{name}"
        );
    }
    let curve = workspace.read(".osmosis/training/t/reward.svg");
    assert!(
        curve.starts_with("<svg") && curve.contains("<polyline"),
        "{curve}"
    );
    for name in ["metrics.json", "index.jsonl", "logs.txt", "run.db"] {
        assert!(folder.join(name).is_file(), "{name}");
    }
    // 3 steps × 2 rows × 4 samples, and 2 held-out rows at steps 0, 2 and 3, sampled and greedily.
    let index = workspace.read(".osmosis/training/t/index.jsonl");
    assert_eq!(index.lines().count(), 24 + 12);
    assert_eq!(index.matches("-greedy-").count(), 6);
    for name in [
        "eval/reward_mean",
        "eval/greedy_reward_mean",
        "eval/greedy_pass_rate",
    ] {
        let told: Vec<u64> = metrics(&workspace)
            .iter()
            .filter(|line| line[name].is_f64())
            .map(|line| line["step"].as_u64().unwrap())
            .collect();
        assert_eq!(told, [0, 2, 3], "{name}");
    }
}

#[test]
fn the_commands_around_a_training_run_tell_what_it_did() {
    let workspace = workspace();
    let by_recipe = [
        "--set",
        "training.recipe=dr_grpo",
        "--set",
        "training.dual_clip=3",
    ];
    let ran = workspace.train(&by_recipe).expect(0);
    let recipe = "dr_grpo, but dual_clip = 3.0 (dr_grpo: unset)";
    assert!(ran.stderr.contains(recipe), "{}", ran.stderr);
    for said in [
        recipe,
        "before",
        "after",
        "checkpoints",
        "run:t@latest",
        "osmosis gateway --model",
        "sampled: pass",
        "greedy: pass",
        "0 of 2 failed",
        "pass rate of each step, of all that ran",
        "so its score on them is optimistic",
    ] {
        assert!(ran.stdout.contains(said), "{said}: {}", ran.stdout);
    }
    for step in 1..=3 {
        assert!(
            ran.stderr.contains(&format!("step {step}/3  reward")),
            "{}",
            ran.stderr
        );
    }
    assert!(
        ran.stderr
            .contains("held out before training: sampled pass"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("; greedy pass"), "{}", ran.stderr);

    let listed = workspace
        .osmosis(&["train", "list", "--json"])
        .expect(0)
        .json();
    assert_eq!(listed["items"][0]["run_name"], "t");
    assert_eq!(listed["items"][0]["status"], "finished");
    assert_eq!(listed["items"][0]["steps"], 3);
    let info = workspace
        .osmosis(&["train", "info", "t", "--json"])
        .expect(0)
        .json();
    assert_eq!(info["data"]["steps"], 3);
    let of_recipe = serde_json::json!({
        "name": "dr_grpo",
        "set_beside": [{"key": "dual_clip", "recipe": null, "config": 3.0}],
    });
    assert_eq!(info["data"]["recipe"], of_recipe);
    let index = workspace.read(".osmosis/training/t/index.jsonl");
    let first: Value = serde_json::from_str(index.lines().next().unwrap()).unwrap();
    let row = first["row_index"].to_string();
    let shown = workspace.osmosis(&["train", "show", "t", &row]).expect(0);
    assert!(shown.stdout.contains("assistant"), "{}", shown.stdout);
    let id = first["rollout_id"].as_str().unwrap();
    let logs = workspace
        .osmosis(&["train", "logs", "t", "--rollout", id])
        .expect(0);
    assert!(logs.stdout.contains("reward"), "{}", logs.stdout);
    let stopped = workspace.osmosis(&["train", "stop", "t"]).expect(0);
    assert!(stopped.stdout.contains("is finished"), "{}", stopped.stdout);
    let exported = workspace
        .osmosis(&["export", "t", "--output", "-"])
        .expect(0);
    assert_eq!(exported.stdout.lines().count(), 36);
}

#[test]
fn what_is_shown_of_a_rollout_names_the_weights_that_sampled_it() {
    let workspace = workspace();
    workspace.train(&[]).expect(0);
    // Held-out rows are run twice before training, after step 2 and after 3; others four times in a step.
    let index = workspace.read(".osmosis/training/t/index.jsonl");
    let lines: Vec<Value> = index
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let times = |row: &Value| {
        lines
            .iter()
            .filter(|line| line["row_index"] == *row)
            .count()
    };
    let mut rows = lines.iter().map(|line| &line["row_index"]);
    let held_out = rows.find(|row| times(row) == 6).unwrap().to_string();
    let shown = workspace
        .osmosis(&["train", "show", "t", &held_out, "--json"])
        .expect(0)
        .json();
    let mut versions = vec![];
    for rollout in shown["data"].as_array().unwrap() {
        let of_rollout = &rollout["versions"];
        assert_eq!(of_rollout["min"], of_rollout["max"], "{rollout}");
        for call in rollout["calls"].as_array().unwrap() {
            assert_eq!(&call["versions"], of_rollout, "{rollout}");
        }
        versions.push(of_rollout["min"].as_u64().unwrap());
    }
    versions.sort_unstable();
    assert_eq!(versions, [0, 0, 2, 2, 3, 3]);
    let shown = workspace
        .osmosis(&["train", "show", "t", &held_out, "--calls"])
        .expect(0)
        .stdout;
    for version in versions {
        assert!(
            shown.contains(&format!("\npolicy version {version}\n")),
            "{shown}"
        );
        assert!(shown.contains(&format!("  version {version}\n")), "{shown}");
    }
}

#[test]
fn a_checkpoint_is_a_model_for_evaluation_and_a_start_for_training() {
    let workspace = workspace();
    workspace.train(&[]).expect(0);
    for model in [
        "run:t",
        "run:t@latest",
        "run:t@best",
        "run:t@2",
        "./.osmosis/training/t/checkpoints/step_2",
    ] {
        workspace.model(model, "");
        let ran = workspace.submit(&["--fresh", "--json"]).expect(0);
        let resource = &ran.json()["resource"];
        assert_eq!(resource["outcomes"]["scored"], 8, "{model}: {resource}");
        let is_told = ran.stderr.contains("optimistic");
        assert_eq!(is_told, model.ends_with("@best"), "{model}: {}", ran.stderr);
    }
    workspace.training("run:t@latest", "steps = 1\n", "");
    let python = python_environment::python();
    let arguments = [
        "train",
        "submit",
        "configs/training/c.toml",
        "--name",
        "second",
    ];
    let ran =
        workspace.osmosis(&[&arguments[..], &["--python", python.as_str(), "--json"]].concat());
    assert_eq!(ran.expect(0).json()["resource"]["steps"], 1);
}

#[test]
fn an_evaluation_of_an_embedded_policy_repeats_and_its_seed_is_part_of_it() {
    let workspace = workspace();
    workspace.model("builtin/tiny", "[evaluation]\nn = 2\n");
    let rewards = |more: &[&str]| {
        workspace.submit(&[&["--fresh"], more].concat()).expect(0);
        let lines = workspace.index();
        lines
            .iter()
            .map(|line| line["reward"].clone())
            .collect::<Vec<_>>()
    };
    let first = rewards(&[]);
    assert_eq!(first, rewards(&["--max-in-flight", "1"]));
    assert_ne!(first, rewards(&["--seed", "1"]));
    // Without `--fresh` this is a resume, and another seed would be another experiment.
    let refused = workspace.submit(&["--seed", "2"]).expect(1);
    assert!(refused.stderr.contains("model"), "{}", refused.stderr);
    let python = python_environment::python();
    workspace
        .osmosis(&["eval", "resume", "t", "--python", python.as_str()])
        .expect(0);
}

#[test]
fn a_dry_run_checks_and_trains_nothing() {
    let workspace = workspace();
    let by_recipe = ["--dry-run", "--json", "--set", "training.recipe=gspo"];
    let ran = workspace.train(&by_recipe).expect(0).json();
    assert_eq!(ran["resource"]["recipe"]["name"], "gspo");
    assert_eq!(ran["resource"]["rows"], 6);
    assert_eq!(ran["resource"]["held_out"], 2);
    assert!(!workspace.training_folder("t").exists());
}

#[test]
fn rows_of_unseen_phrasings_and_failures_are_reported_apart() {
    // Odd rows fail.
    let main = CHECKSUM.replace(
        "    async def grade(self, ctx):\n",
        "    async def grade(self, ctx):\n        if int(ctx.label) % 2:\n            raise ValueError(\"odd\")\n",
    );
    assert_ne!(main, CHECKSUM);
    let workspace = Workspace::new(&main, "[[reply]]\ntext = \"x\"\n", &echo_rows(8));
    let held_out = r#"{"user_prompt": "tell 10", "ground_truth": "10", "metadata": {"unseen_phrasing": true}}
{"user_prompt": "tell 11", "ground_truth": "11", "metadata": {"unseen_phrasing": true}}
{"user_prompt": "say 12", "ground_truth": "12", "metadata": {"unseen_phrasing": false}}
"#;
    workspace.write("data/held_out.jsonl", held_out);
    let training = "steps = 2\neval_dataset = \"held_out\"\nincomplete_groups = \"keep\"\n";
    workspace.training("builtin/tiny", training, "");
    let ran = workspace.train(&["--json"]).expect(0);
    let resource = &ran.json()["resource"];
    for side in ["before", "after"] {
        let all = &resource[side];
        for decoding in ["sampled", "greedy"] {
            assert_eq!(all[decoding]["ran"], 3, "{resource}");
            assert_eq!(all[decoding]["failed"], 1, "{resource}");
            let unseen = &all["unseen_phrasings"][decoding];
            assert_eq!(
                (&unseen["ran"], &unseen["scored"]),
                (&2.into(), &1.into()),
                "{resource}"
            );
        }
    }
    let info = workspace.osmosis(&["train", "info", "t"]).expect(0).stdout;
    for said in [
        "unseen phrasings, sampled: pass",
        "unseen phrasings, greedy: pass",
        "1 of 3 failed",
        "1 of 2 failed",
        "of 16 rollouts failed",
    ] {
        assert!(info.contains(said), "{said}: {info}");
    }
    let curve = workspace.read(".osmosis/training/t/reward.svg");
    assert!(
        curve.contains("greedy: pass") && curve.contains("1 of 3 failed"),
        "{curve}"
    );
}

#[test]
fn a_run_from_before_greedy_evaluations_is_readable() {
    let mut workspace = workspace();
    workspace.train(&[]).expect(0);
    let database = workspace.training_folder("t").join("run.db");
    let old = r#"{"step": 0, "version": 0, "eval/rollouts": 2, "eval/scored": 2, "eval/infrastructure_failed": 0,
        "eval/reward_mean": 0.25, "eval/reward_ci95": null, "eval/pass_rate": 0.0, "eval/pass_rate_ci95": null,
        "eval/completion_tokens": 3, "time/eval": 0.5}"#;
    let python = python_environment::python();
    let program = "import sqlite3, sys\nwith sqlite3.connect(sys.argv[1]) as db:\n    \
                   db.execute('UPDATE steps SET metrics = ? WHERE step = 0', (sys.argv[2],))";
    let changed = std::process::Command::new(python.as_str())
        .args(["-c", program, database.as_str(), old])
        .status()
        .unwrap();
    assert!(changed.success());
    workspace.forget_key();
    let info = workspace
        .osmosis(&["train", "info", "t", "--json"])
        .expect(0)
        .json();
    let before = &info["data"]["before"];
    assert_eq!(before["sampled"]["mean"], 0.25, "{before}");
    assert_eq!(before["greedy"], Value::Null, "{before}");
    let info = workspace.osmosis(&["train", "info", "t"]).expect(0).stdout;
    assert!(
        info.contains("sampled: pass 0.0% · reward 0.25 · 0 of 2 failed"),
        "{info}"
    );
}
