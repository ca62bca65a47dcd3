//! Adapters of frozen weights: learned, sampled with, written and read again.

use std::fs;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::PolicyVersion;
use osmosis_core::config::{Lora, LoraBase, LoraModule};
use osmosis_core::learner::{Learner, LearnerFiles, TrainableModel as _};
use osmosis_policy::{
    DecoderLearner, EmbeddedModel, GgufType, LearnerOptions, LoraModel, LossRow, Sampler,
    SamplerOptions,
};
use osmosis_testkit::for_each_learner_behaviour;
use osmosis_testkit::learner_conformance::{self, LearnerUnderTest, Verdict};
use serde_json::Value;

use crate::learner_models::{CLIPPED, row};

fn lora(base: LoraBase) -> Lora {
    Lora {
        rank: 4,
        alpha: 8.0,
        base,
        ..Lora::default()
    }
}

fn adapted(folder: &Utf8Path, base: LoraBase) -> LoraModel {
    let model = EmbeddedModel::builtin("tiny").unwrap();
    let digest = model.digest();
    LoraModel::new(model, digest, lora(base), 5, &folder.join("base")).unwrap()
}

fn under_test(folder: &Utf8Path, base: LoraBase) -> LearnerUnderTest {
    let model = adapted(folder, base);
    let options = SamplerOptions {
        max_batch: 2,
        threads: 1,
        cache_bytes: 1 << 24,
    };
    let sampler = Sampler::start_adapted(&model, PolicyVersion(0), options).unwrap();
    let sampler = Arc::new(sampler);
    LearnerUnderTest {
        vocabulary: 512,
        model: Arc::new(model),
        sink: sampler.clone(),
        engine: sampler,
        folder: folder.to_owned(),
    }
}

macro_rules! each {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() -> Verdict {
            for base in LoraBase::ALL {
                let folder = tempfile::tempdir()?;
                let path = Utf8Path::from_path(folder.path()).unwrap();
                learner_conformance::$name(&under_test(path, base))?;
            }
            Ok(())
        }
    )*};
}
for_each_learner_behaviour!(each);

fn temporary() -> (tempfile::TempDir, Utf8PathBuf) {
    let keep = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(keep.path().canonicalize().unwrap()).unwrap();
    (keep, path)
}

/// A learner that is some updates away from its base, saved below `checkpoints`.
fn trained(model: &LoraModel, checkpoints: &Utf8Path) -> (Box<dyn Learner>, Utf8PathBuf) {
    let mut learner = model.learner(0.01).unwrap();
    let rows = [row(vec![5, 9, 7, 11, 3]), row(vec![5, 9, 8, 2])];
    for _ in 0..3 {
        learner.update(&rows, CLIPPED, &mut |_| true).unwrap();
    }
    let folder = checkpoints.join("step_3");
    let optimizer = folder.join("trainer/optimizer.safetensors");
    let files = LearnerFiles {
        model: &folder,
        optimizer: &optimizer,
    };
    learner.save(files).unwrap();
    (learner, folder)
}

fn rows() -> Vec<LossRow> {
    vec![row(vec![1, 2, 3, 4, 5, 6, 7, 8, 9]), row(vec![50, 60, 70])]
}

fn apart(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let both = a.iter().flatten().zip(b.iter().flatten());
    both.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_checkpoint_is_peft_s_layout_and_opens_as_the_model_that_was_trained() {
    for base in LoraBase::ALL {
        let (_keep, path) = temporary();
        let model = adapted(&path, base);
        let untrained = model.learner(0.01).unwrap().logprobs(&rows()).unwrap();
        let (learner, folder) = trained(&model, &path);

        let text = fs::read_to_string(folder.join("adapter_config.json")).unwrap();
        let config: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(config["peft_type"], "LORA");
        assert_eq!(
            (&config["r"], &config["lora_alpha"]),
            (&4.into(), &8.into())
        );
        let base_folder = path.join("base");
        assert_eq!(config["base_model_name_or_path"], base_folder.as_str());
        let tensors = learner.weights().unwrap().tensors;
        assert_eq!(tensors.len(), 7 * 2 * 3);
        let name = "base_model.model.model.layers.2.self_attn.k_proj.lora_B.weight";
        assert_eq!(tensors[name].shape, [96, 4]);
        for file in [
            "adapter_model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ] {
            assert!(folder.join(file).is_file(), "{file}");
        }
        assert!(!folder.join("model.safetensors").exists());

        let opened = EmbeddedModel::open(&folder).unwrap();
        let options = LearnerOptions::for_rewards(0.0, &opened.config);
        let merged = DecoderLearner::new(&opened.config, &opened.weights, options).unwrap();
        let expected = learner.logprobs(&rows()).unwrap();
        let found = merged.logprobs(&rows()).unwrap();
        let distance = apart(&found, &expected);
        assert!(distance < 1e-4, "{base:?}: {distance}");
        assert!(apart(&untrained, &expected) > 1e-2, "nothing was learned");
    }
}

#[test]
fn a_run_that_is_moved_keeps_its_base_and_another_base_is_refused() {
    let (_keep, path) = temporary();
    let checkpoints = path.join("here");
    let model = adapted(&checkpoints, LoraBase::F32);
    trained(&model, &checkpoints);
    let moved = path.join("there");
    fs::rename(&checkpoints, &moved).unwrap();
    let opened = EmbeddedModel::open(&moved.join("step_3")).unwrap();

    fs::remove_dir_all(moved.join("base")).unwrap();
    let missing = EmbeddedModel::open(&moved.join("step_3")).unwrap_err();
    assert!(
        missing.to_string().contains("which is not there"),
        "{missing}"
    );
    assert!(missing.hint().unwrap().contains("base_model_name_or_path"));
    // The merged weights are another model.
    opened.save(&moved.join("base")).unwrap();
    let other = EmbeddedModel::open(&moved.join("step_3")).unwrap_err();
    assert!(other.to_string().contains("have changed"), "{other}");
}

#[test]
fn a_base_in_a_folder_is_named_and_not_copied() {
    let (_keep, path) = temporary();
    let own = path.join("own");
    EmbeddedModel::builtin("tiny").unwrap().save(&own).unwrap();
    let model = EmbeddedModel::open(&own).unwrap();
    let digest = model.digest();
    let lora = Lora {
        target_modules: vec![LoraModule::QProj, LoraModule::DownProj],
        ..lora(LoraBase::F32)
    };
    let model = LoraModel::new(model, digest, lora, 5, &path.join("base")).unwrap();
    let (learner, folder) = trained(&model, &path.join("run"));
    assert!(!path.join("base").exists());
    let text = fs::read_to_string(folder.join("adapter_config.json")).unwrap();
    assert!(text.contains(own.as_str()), "{text}");
    assert_eq!(learner.weights().unwrap().tensors.len(), 2 * 2 * 3);

    let copy = path.join("copy");
    EmbeddedModel::copy_adapters(&folder, &copy).unwrap();
    let kept: Vec<String> = copy
        .join("trainer")
        .read_dir_utf8()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_owned())
        .collect();
    assert_eq!(
        kept,
        ["base.json"],
        "what PEFT has no field for, and no state"
    );
    let (one, other) = (EmbeddedModel::open(&folder), EmbeddedModel::open(&copy));
    assert_eq!(one.unwrap().digest(), other.unwrap().digest());
    assert!(EmbeddedModel::copy_adapters(&own, &path.join("none")).is_err());
}

#[test]
fn copied_adapters_know_the_type_of_their_base() {
    let (_keep, path) = temporary();
    for base in [LoraBase::Bf16, LoraBase::Q8] {
        let path = path.join(base.name());
        let model = adapted(&path, base);
        let (_, folder) = trained(&model, &path);
        let copy = path.join("elsewhere/copy");
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        EmbeddedModel::copy_adapters(&folder, &copy).unwrap();
        let (one, other) = (EmbeddedModel::open(&folder), EmbeddedModel::open(&copy));
        assert_eq!(one.unwrap().digest(), other.unwrap().digest(), "{base:?}");
    }
}

#[test]
fn adapters_that_others_trained_in_ways_we_do_not_compute_are_refused() {
    let (_keep, path) = temporary();
    let model = adapted(&path, LoraBase::F32);
    let (_, folder) = trained(&model, &path);
    let file = folder.join("adapter_config.json");
    let text = fs::read_to_string(&file).unwrap();
    for (key, value) in [
        ("use_dora", Value::Bool(true)),
        ("bias", "all".into()),
        ("modules_to_save", vec!["lm_head"].into()),
        ("peft_type", "IA3".into()),
    ] {
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config[key] = value;
        fs::write(&file, config.to_string()).unwrap();
        let error = EmbeddedModel::open(&folder).unwrap_err().to_string();
        assert!(error.contains("is not supported"), "{key}: {error}");
    }
}

#[test]
fn compressed_bases_take_as_little_memory_as_they_should() {
    let (_keep, path) = temporary();
    let bytes = LoraBase::ALL.map(|base| adapted(&path.join(base.name()), base).base_bytes());
    let [f32, bf16, q8] = bytes;
    assert_eq!(bf16 * 2, f32);
    // A byte for each number, and a scale for 32 of them.
    assert_eq!(q8 * 32, f32 / 4 * 36, "{bytes:?}");
}

#[test]
fn a_model_written_as_gguf_is_read_as_it_was() {
    let (_keep, path) = temporary();
    let model = EmbeddedModel::open(&osmosis_testkit::published_models::smollm2_gguf()).unwrap();
    let file = path.join("f32.gguf");
    model.write_gguf(&file, GgufType::F32).unwrap();
    let back = EmbeddedModel::open(&file).unwrap();
    assert!(back.config.has_shape_of(&model.config));
    assert!(back.weights == model.weights, "other weights");
    for text in [
        "Hello, wörld 1234!",
        "<|im_start|>user\nwhy?<|im_end|>\n",
        "  \n\t x",
    ] {
        assert_eq!(
            back.chat.encode(text).unwrap(),
            model.chat.encode(text).unwrap()
        );
    }
    assert_eq!(back.chat.end_of_turn(), model.chat.end_of_turn());
    assert!(
        model.write_gguf(&file, GgufType::F32).is_err(),
        "written over"
    );
    let half = path.join("f16.gguf");
    model.write_gguf(&half, GgufType::F16).unwrap();
    let back = EmbeddedModel::open(&half).unwrap();
    let name = "model.layers.3.self_attn.q_proj.weight";
    let (a, b) = (
        &model.weights.tensors[name].values,
        &back.weights.tensors[name].values,
    );
    let distance = a
        .iter()
        .zip(&**b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(distance > 0.0 && distance < 1e-3, "{distance}");
}
