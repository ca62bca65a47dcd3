//! `[training.lora]` from end to end, and `osmosis model`.

use osmosis_policy::EmbeddedModel;

use crate::training::{OFTEN, SHORT};
use crate::workspace::{CHECKSUM, Workspace, echo_rows};

#[test]
fn adapters_are_trained_evaluated_trained_on_and_written_for_others() {
    let workspace = Workspace::new(CHECKSUM, "[[reply]]\ntext = \"x\"\n", &echo_rows(8));
    let lora = format!("{OFTEN}[training.lora]\nrank = 4\nalpha = 8\n");
    workspace.training("builtin/tiny", SHORT, &lora);
    let checked = workspace.train(&["--dry-run", "--json"]).expect(0).json();
    let resource = &checked["resource"];
    let adapters = resource["adapter_parameters"].as_u64().unwrap();
    assert!(adapters < resource["parameters"].as_u64().unwrap() / 4);
    let one = resource["disk"]["checkpoint_bytes"].as_u64().unwrap();
    assert!(one > 12 * adapters, "{resource}");
    assert_eq!(resource["disk"]["checkpoints_kept"], 2, "{resource}");
    assert_eq!(resource["disk"]["kept_bytes"], 2 * one, "{resource}");
    assert!(resource["memory"]["fixed_bytes"].as_u64().unwrap() > 0);

    workspace.train(&["--json"]).expect(0);
    let checkpoints = workspace.training_folder("t").join("checkpoints");
    let step = checkpoints.join("step_2");
    for file in [
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
        "trainer/state.json",
        "trainer/optimizer.safetensors",
    ] {
        assert!(step.join(file).is_file(), "{file}");
    }
    assert!(checkpoints.join("base/config.json").is_file());
    let verified = workspace.osmosis(&["run", "verify", "t", "--json"]);
    let verified = verified.expect(0).json();
    assert_eq!(verified["resource"]["checked"]["checkpoints"], 2);

    workspace.model("run:t@2", "");
    let ran = workspace.submit(&["--fresh", "--json"]).expect(0).json();
    assert_eq!(ran["resource"]["outcomes"]["scored"], 8, "{ran}");

    // The same model, in every way in which it can be had.
    let expected = EmbeddedModel::open(&step).unwrap();
    let merge = ["model", "merge", "t@2", "--to", "merged", "--json"];
    let merged = workspace.osmosis(&merge).expect(0).json();
    assert_eq!(merged["operation"], "model merge");
    assert_eq!(merged["resource"]["format"], "hf", "{merged}");
    let opened = EmbeddedModel::open(&workspace.root.join("merged")).unwrap();
    assert_eq!(opened.digest(), expected.digest());
    let export = ["model", "export", "t@2", "--to", "peft", "--format", "peft"];
    workspace.osmosis(&export).expect(0);
    let opened = EmbeddedModel::open(&workspace.root.join("peft")).unwrap();
    assert_eq!(opened.digest(), expected.digest());

    let again = workspace.osmosis(&merge).expect(1);
    assert!(again.stderr.contains("is not empty"), "{}", again.stderr);
    let none = [
        "model", "export", "./merged", "--to", "none", "--format", "peft",
    ];
    let none = workspace.osmosis(&none).expect(1);
    assert!(none.stderr.contains("no adapters"), "{}", none.stderr);
    assert!(!workspace.root.join("none").exists());
}
