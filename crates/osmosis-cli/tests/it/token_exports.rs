//! Recorded tokens of a real run, in the layouts of other trainers.

use std::collections::BTreeMap;

use osmosis_testkit::python_environment;
use serde_json::{Value, json};

use crate::training;
use crate::workspace::{CHECKSUM, ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

fn export(workspace: &Workspace, format: &str) -> Value {
    let ran = workspace
        .osmosis(&["export", "t", "--format", format, "--json"])
        .expect(0);
    ran.json()["resource"].clone()
}

#[test]
fn a_training_run_is_exported_for_other_trainers_without_its_held_out_rows() {
    let workspace = training::workspace();
    workspace.train(&[]).expect(0);
    // 3 steps × 2 rows × 4 samples, and 2 held-out rows at steps 0, 2 and 3, sampled and greedily.
    for format in ["areal", "verl", "slime"] {
        let resource = export(&workspace, format);
        assert_eq!(resource["rollouts"], 36, "{format}");
        assert_eq!(resource["records"], 24, "{format}");
        assert_eq!(
            resource["left_out"],
            json!({"held_out": 12, "no_reward": 0, "no_token_ids": 0, "nothing_to_train_on": 0})
        );
    }
    let sft = export(&workspace, "sft");
    assert_eq!(sft["left_out"], json!({"held_out": 12}));
    for name in ["t.areal.parquet", "t.verl.parquet"] {
        let file = std::fs::read(workspace.root.join(name)).unwrap();
        assert!(
            file.starts_with(b"PAR1") && file.ends_with(b"PAR1"),
            "{name}"
        );
    }
    let lines = workspace.read("t.slime.jsonl");
    let mut groups: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for line in lines.lines() {
        let sample: Value = serde_json::from_str(line).unwrap();
        let length = |name: &str| sample[name].as_array().unwrap().len() as u64;
        let response = sample["response_length"].as_u64().unwrap();
        assert!((1..=12).contains(&response), "{sample}");
        assert_eq!(length("loss_mask"), response);
        assert_eq!(length("rollout_log_probs"), response);
        assert!(length("tokens") > response);
        assert!(
            sample["response"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
        let group = sample["group_index"].as_u64().unwrap();
        groups.entry(group).or_default().push(sample);
    }
    assert_eq!(groups.len(), 6);
    for samples in groups.values() {
        assert_eq!(samples.len(), 4);
        assert!(
            samples
                .iter()
                .all(|sample| sample["prompt"] == samples[0]["prompt"])
        );
        let versions = &samples[0]["weight_versions"];
        assert!(
            samples
                .iter()
                .all(|sample| sample["weight_versions"] == *versions)
        );
    }
    let told = workspace
        .osmosis(&["export", "t", "--format", "slime", "-o", "-"])
        .expect(0);
    assert_eq!(told.stdout, lines);
    assert!(
        told.stderr
            .contains("left out: 12 rollouts of held-out rows"),
        "{}",
        told.stderr
    );
}

#[test]
fn an_evaluation_of_an_embedded_model_is_exported_too() {
    let workspace = Workspace::new(CHECKSUM, "[[reply]]\ntext = \"x\"\n", &echo_rows(3));
    workspace.model("builtin/tiny", "[evaluation]\nn = 2\n");
    workspace.submit(&[]).expect(0);
    let resource = export(&workspace, "slime");
    assert_eq!(
        (&resource["rollouts"], &resource["records"]),
        (&json!(6), &json!(6))
    );
    let groups: Vec<u64> = workspace
        .read("t.slime.jsonl")
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["group_index"]
                .as_u64()
                .unwrap()
        })
        .collect();
    assert_eq!(groups, [0, 0, 1, 1, 2, 2]);
}

#[test]
fn a_run_without_token_ids_is_refused_and_leaves_no_file() {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(2));
    workspace.submit(&[]).expect(0);
    for format in ["areal", "verl", "slime"] {
        let refused = workspace
            .osmosis(&["export", "t", "--format", format, "--json"])
            .expect(1);
        let error = refused.error();
        assert_eq!(error["code"], "no_training_rows", "{error}");
        assert_eq!(error["details"]["left_out"]["no_token_ids"], 2);
        assert!(refused.stderr.contains("docs/gateway-tokens.md"));
    }
    for name in ["t.areal.parquet", "t.verl.parquet", "t.slime.jsonl"] {
        assert!(!workspace.root.join(name).exists(), "{name}");
    }
    let no_text = workspace
        .osmosis(&["export", "t", "--format", "verl", "-o", "-"])
        .expect(2);
    assert!(
        no_text.stderr.contains("--output FILE"),
        "{}",
        no_text.stderr
    );
}

/// Reads the exports with the packages they are for. By hand, with a Python that has `torch`, `datasets` and
/// what areal 1.0.4 and verl 0.9.1 import, and the folders of those packages:
/// `OSMOSIS_CHECK_PYTHON=… AREAL=… VERL=… cargo nextest run -p osmosis-cli trainers_read --run-ignored all`
#[test]
#[ignore = "needs packages that are not part of the test environment"]
fn the_trainers_read_what_is_exported() {
    let workspace = training::workspace();
    workspace.train(&[]).expect(0);
    for format in ["areal", "verl", "slime"] {
        export(&workspace, format);
    }
    let python = std::env::var("OSMOSIS_CHECK_PYTHON").unwrap();
    assert_ne!(python, python_environment::python().as_str());
    let checked = std::process::Command::new(python)
        .current_dir(&workspace.root)
        .args(["-c", include_str!("read_token_exports.py")])
        .output()
        .unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
}
