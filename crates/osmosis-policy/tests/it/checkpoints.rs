//! Models on disk: good ones, damaged ones, and disks that are full.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_policy::{EmbeddedModel, PolicyError, PolicyErrorKind};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::logits::{MODELS, folder};

fn temporary() -> (tempfile::TempDir, Utf8PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
    (folder, path)
}

fn copied(name: &str) -> (tempfile::TempDir, Utf8PathBuf) {
    let (guard, path) = temporary();
    for entry in fs::read_dir(folder(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), path.as_std_path().join(entry.file_name())).unwrap();
    }
    (guard, path)
}

fn error(path: &Utf8Path) -> PolicyError {
    EmbeddedModel::open(path).unwrap_err()
}

/// The error of a model whose config was changed.
fn error_with(name: &str, changes: &Value) -> PolicyError {
    let (_guard, path) = copied(name);
    let file = path.join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    fs::write(&file, config.to_string()).unwrap();
    error(&path)
}

#[test]
fn a_model_comes_back_from_a_folder_and_from_one_file_as_it_was() {
    for name in MODELS {
        let model = EmbeddedModel::open(&folder(name)).unwrap();
        let (_guard, path) = temporary();
        let saved = path.join("deeper/checkpoint");
        model.save(&saved).unwrap();
        let back = EmbeddedModel::open(&saved).unwrap();
        assert!(back.weights == model.weights, "{name}");
        assert_eq!(back.digest(), model.digest(), "{name}");
        // `transformers` loads in the type that is named.
        let named: Vec<&Value> = ["dtype", "torch_dtype"]
            .iter()
            .filter_map(|key| back.config.source.get(key))
            .collect();
        assert_eq!(named, ["float32"], "{name}");

        let notes = BTreeMap::from([("made by".to_owned(), "a \"test\"".to_owned())]);
        let bytes = model.to_one_file(&notes).unwrap();
        assert_eq!(bytes, model.to_one_file(&notes).unwrap(), "{name}");
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let texts = header.metadata().clone().unwrap();
        assert_eq!(texts["made by"], notes["made by"], "{name}");
        let back = EmbeddedModel::from_one_file("builtin/copy", &bytes).unwrap();
        assert_eq!(back.name, "builtin/copy");
        assert_eq!(back.digest(), model.digest(), "{name}");
    }
}

#[test]
fn two_models_have_two_digests() {
    let model = EmbeddedModel::open(&folder("llama")).unwrap();
    let mut other = model.clone();
    let mut weights = osmosis_policy::Weights::clone(&model.weights);
    let tensor = weights.tensors.get_mut("model.norm.weight").unwrap();
    tensor.values = tensor.values.iter().map(|x| x + 1e-6).collect();
    other.weights = weights.into();
    assert_ne!(other.digest(), model.digest());
    assert_eq!(model.digest().len(), 64);
}

#[test]
fn saving_takes_an_empty_folder_and_refuses_anything_else() {
    let model = EmbeddedModel::open(&folder("llama")).unwrap();
    let (_guard, path) = temporary();
    let empty = path.join("empty");
    fs::create_dir(&empty).unwrap();
    model.save(&empty).unwrap();
    let error = model.save(&empty).unwrap_err();
    assert_eq!(error.kind(), PolicyErrorKind::Unwritable);
    let file = path.join("file");
    fs::write(&file, "mine").unwrap();
    let error = model.save(&file).unwrap_err();
    assert!(
        error.to_string().contains("is not an empty folder"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    // Nothing is left lying about.
    let mut names: Vec<_> = fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["empty", "file"]);
}

/// A child process that may not write files of more than a few kilobytes saves a model: for it, the disk is
/// full.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing_that_looks_like_a_checkpoint() {
    const TARGET: &str = "OSMOSIS_TEST_SAVE_TO";
    let model = EmbeddedModel::open(&folder("llama")).unwrap();
    if let Ok(target) = std::env::var(TARGET) {
        let error = model.save(Utf8Path::new(&target)).unwrap_err();
        assert_eq!(error.kind(), PolicyErrorKind::DiskFull, "{error}");
        assert!(error.to_string().contains("model.safetensors"), "{error}");
        assert!(error.hint().unwrap().contains("disk space"));
        return;
    }
    let (_guard, path) = temporary();
    model.save(&path.join("step_1")).unwrap();
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 32; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "checkpoints::a_full_disk_leaves_nothing_that_looks_like_a_checkpoint",
        ])
        .env(TARGET, path.join("step_2"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    let names: Vec<_> = fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["step_1"]);
    assert_eq!(
        EmbeddedModel::open(&path.join("step_1")).unwrap().digest(),
        model.digest()
    );
}

#[test]
fn missing_and_misshapen_tensors_are_told_by_name_all_at_once() {
    let error = error_with("llama", &json!({"num_hidden_layers": 3}));
    assert_eq!(error.kind(), PolicyErrorKind::Unreadable);
    assert_eq!(
        error.to_string(),
        "the weights do not fit the model's config: 9 missing: \
         `model.layers.2.input_layernorm.weight` (expected [32], missing), \
         `model.layers.2.self_attn.q_proj.weight` (expected [32, 32], missing), \
         `model.layers.2.self_attn.k_proj.weight` (expected [16, 32], missing), \
         `model.layers.2.self_attn.v_proj.weight` (expected [16, 32], missing), \
         `model.layers.2.self_attn.o_proj.weight` (expected [32, 32], missing) and 4 more"
    );
    let error = error_with(
        "llama",
        &json!({"vocab_size": 97, "tie_word_embeddings": false}),
    );
    assert_eq!(
        error.to_string(),
        "the weights do not fit the model's config: 1 missing, 1 of the wrong shape: \
         `model.embed_tokens.weight` (expected [97, 32], found [96, 32]), \
         `lm_head.weight` (expected [97, 32], missing)"
    );
}

#[test]
fn what_the_decoder_cannot_do_is_refused_by_name() {
    let cases = [
        (
            "llama",
            json!({"model_type": "mamba"}),
            "model type `mamba`",
        ),
        (
            "llama",
            json!({"architectures": ["LlamaForSequenceClassification"]}),
            "`LlamaForSequenceClassification`",
        ),
        (
            "llama",
            json!({"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_parameters": null}),
            "rope scaling `yarn`",
        ),
        (
            "llama",
            json!({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}),
            "rope scaling `dynamic`",
        ),
        (
            "llama",
            json!({"rope_parameters": {"rope_type": "longrope"}}),
            "rope scaling `longrope`",
        ),
        (
            "llama",
            json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
            "partial_rotary_factor",
        ),
        (
            "llama",
            json!({"hidden_act": "gelu"}),
            "`hidden_act` \"gelu\"",
        ),
        ("llama", json!({"mlp_bias": true}), "`mlp_bias`"),
        ("llama", json!({"attention_bias": true}), "`attention_bias`"),
        (
            "llama",
            json!({"quantization_config": {"bits": 4}}),
            "quantization_config",
        ),
        (
            "qwen2",
            json!({"layer_types": ["full_attention", "sliding_attention"]}),
            "layer type \"sliding_attention\"",
        ),
        (
            "qwen2",
            json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 1, "layer_types": null}),
            "use_sliding_window",
        ),
    ];
    for (name, changes, expected) in cases {
        let error = error_with(name, &changes);
        assert_eq!(
            error.kind(),
            PolicyErrorKind::Unsupported,
            "{changes}: {error}"
        );
        assert!(error.to_string().contains(expected), "{changes}: {error}");
        assert!(error.hint().unwrap().contains("Qwen3"));
    }
}

#[test]
fn a_config_that_makes_no_sense_is_refused_by_field() {
    let cases = [
        (json!({"hidden_size": null}), "`hidden_size` is missing"),
        (
            json!({"num_hidden_layers": -1}),
            "`num_hidden_layers` is `-1`",
        ),
        (json!({"vocab_size": 1e30}), "`vocab_size` is"),
        (
            json!({"num_key_value_heads": 3}),
            "not a multiple of `num_key_value_heads` 3",
        ),
        (json!({"head_dim": 7}), "a head width of 7 is odd"),
        (json!({"rms_norm_eps": "small"}), "`rms_norm_eps`"),
        (
            json!({"rope_parameters": {"rope_type": "linear"}}),
            "`factor` is missing",
        ),
        (
            json!({"rope_parameters": {"factor": 2.0}}),
            "no `rope_type`",
        ),
        (
            json!({"tie_word_embeddings": "yes"}),
            "`tie_word_embeddings` is `\"yes\"`",
        ),
    ];
    for (changes, expected) in cases {
        let error = error_with("llama", &changes);
        assert!(error.to_string().contains(expected), "{changes}: {error}");
    }
}

#[test]
fn damaged_files_are_named() {
    let (_guard, path) = copied("llama");
    let weights = path.join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    for length in [0, 5, 100, bytes.len() - 1] {
        fs::write(&weights, &bytes[..length]).unwrap();
        let error = error(&path);
        assert!(
            error
                .to_string()
                .starts_with(&format!("`{weights}` is damaged: ")),
            "{error}"
        );
    }
    fs::write(path.join("config.json"), "{").unwrap();
    assert!(error(&path).to_string().contains("config.json` is damaged"));

    let (_guard, path) = copied("llama_llama3_untied");
    fs::remove_file(path.join("model-00002-of-00003.safetensors")).unwrap();
    assert!(
        error(&path)
            .to_string()
            .contains("model-00002-of-00003.safetensors")
    );
    fs::write(
        path.join("model.safetensors.index.json"),
        r#"{"weight_map": {"a": "../../secret"}}"#,
    )
    .unwrap();
    assert!(
        error(&path)
            .to_string()
            .contains("`../../secret` is not a file name")
    );

    let bytes = EmbeddedModel::open(&folder("llama"))
        .unwrap()
        .to_one_file(&BTreeMap::new())
        .unwrap();
    let error = EmbeddedModel::from_one_file("builtin/cut", &bytes[..bytes.len() - 7]).unwrap_err();
    assert!(
        error.to_string().starts_with("`builtin/cut` is damaged"),
        "{error}"
    );
}

#[test]
fn what_is_not_a_model_is_said_to_be_none() {
    let (_guard, path) = temporary();
    assert!(error(&path).to_string().contains("it has no `config.json`"));
    assert!(error(&path.join("nowhere")).to_string().contains("nowhere"));
    let file = path.join("notes.txt");
    fs::write(&file, "these are notes, not weights").unwrap();
    let none = error(&file);
    assert!(
        none.to_string()
            .contains("neither a folder nor a GGUF file"),
        "{none}"
    );
    assert!(none.hint().unwrap().contains(".gguf"));
    // The beginning of a GGUF file.
    fs::write(
        &file,
        b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0abc",
    )
    .unwrap();
    assert!(
        error(&file).to_string().contains("is damaged"),
        "{}",
        error(&file)
    );

    let (_guard, path) = copied("llama");
    fs::remove_file(path.join("model.safetensors")).unwrap();
    assert!(
        error(&path)
            .to_string()
            .contains("neither `model.safetensors` nor")
    );

    let error = EmbeddedModel::builtin("enormous").unwrap_err();
    assert!(error.to_string().contains("`builtin/enormous`"), "{error}");
}
