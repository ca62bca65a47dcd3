//! `osmosis demo` on the real agent framework, whole: it must learn.

use camino::Utf8Path;
use osmosis_testkit::python_environment;

use crate::workspace::{PLAIN, Workspace, echo_rows};

#[test]
fn the_demo_learns_what_it_is_said_to_learn() {
    let workspace = Workspace::new(PLAIN, "[[reply]]\ntext = \"x\"\n", &echo_rows(1));
    // Kept between runs of the tests: its environment is made once.
    let root = Utf8Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo");
    let _ = std::fs::remove_dir_all(root.join(".osmosis/training"));
    let python = python_environment::python();
    let arguments = ["demo", "--seed", "1", "--json"];
    let place = ["--dir", root.as_str(), "--python", python.as_str()];
    let ran = workspace
        .osmosis(&[&arguments[..], &place].concat())
        .expect(0);
    let envelope = ran.json();
    assert_eq!(envelope["operation"], "demo");
    let resource = &envelope["resource"];
    let numbers = |side: &str, decoding: &str| resource[side][decoding].clone();
    for side in ["before", "after"] {
        for decoding in ["sampled", "greedy"] {
            let unseen = &resource[side]["unseen_phrasings"][decoding];
            assert!(unseen["mean"].is_number(), "{resource}");
            let numbers = numbers(side, decoding);
            let mean = numbers["mean"].as_f64().unwrap();
            let as_promised = if side == "before" {
                mean <= 0.3
            } else {
                mean >= 0.8
            };
            assert!(as_promised, "{side}, {decoding}: {resource}");
            assert_eq!(numbers["failed"], 0, "{resource}");
            if let Some(interval) = numbers["ci95"].as_array() {
                let [low, high] = [0, 1].map(|end| interval[end].as_f64().unwrap());
                assert!((low..=high).contains(&mean), "{resource}");
            }
        }
    }
    assert_eq!(resource["seed"], 1);
    let steps = resource["steps"].as_u64().unwrap();
    assert!(resource["seconds"].as_f64().unwrap() > 0.0);
    let run = resource["run_name"].as_str().unwrap();
    let folder = root.join(".osmosis/training").join(run);
    assert_eq!(resource["output_path"], folder.as_str());
    assert!(folder.join("reward.svg").is_file());
    assert!(
        folder
            .join(format!("checkpoints/step_{steps}/model.safetensors"))
            .is_file()
    );
    // The workspace is a whole one: other commands work in it.
    let info = workspace.osmosis(&["train", "info", run, "--workspace", root.as_str()]);
    assert!(info.expect(0).stdout.contains("before"));
}
