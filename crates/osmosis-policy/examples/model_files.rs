//! Writes what others load, and our numbers to compare theirs with:
//! `cargo run --release -p osmosis-policy --example model_files MODEL DIR [BASE]`, then `benches/model_files.py DIR`.
//!
//! Below DIR: `step_1/` (LoRA adapters after a few updates), `base/` if MODEL is no folder, `merged/` (Hugging Face), `model-f32.gguf`
//! and `model-f16.gguf`, `ids.json`, and `logits.bin`: f32 logits after each id, by the sampler's kernels with the merged weights.

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::env;
use std::fs;

use camino::Utf8PathBuf;
use osmosis_core::config::{Lora, LoraBase};
use osmosis_core::learner::{
    LearnerError, LearnerErrorKind, LearnerFiles, LossFunction, LossRow, TrainableModel,
};
use osmosis_policy::{Decoder, EmbeddedModel, GgufType, PolicyError, StartModel};

fn main() -> Result<(), LearnerError> {
    let mut arguments = env::args().skip(1);
    let path = arguments.next().unwrap_or_default();
    let folder = Utf8PathBuf::from(arguments.next().unwrap_or_default());
    let base = arguments.next().and_then(|name| LoraBase::of_name(&name));
    let model = match path.strip_prefix("builtin/") {
        Some(name) => EmbeddedModel::builtin(name)?,
        None => EmbeddedModel::open(path.as_str().into())?,
    };
    let text = "The capital of France is Paris. 12 + 30 = 42.";
    let ids = model.chat.encode(text).map_err(PolicyError::from)?;
    let lora = Lora {
        base: base.unwrap_or_default(),
        ..Lora::default()
    };
    let start = StartModel::new(model, Some(lora));
    start.freeze(1, &folder.join("base"))?;
    let mut learner = start.learner(1e-3)?;
    for _ in 0..3 {
        let loss = LossFunction::Likelihood;
        learner.update(&[row(&ids)], loss, &mut |_| true)?;
    }
    let step = folder.join("step_1");
    learner.save(LearnerFiles {
        model: &step,
        optimizer: &step.join("trainer/optimizer.safetensors"),
    })?;
    let adapted = learner.logprobs(&[row(&ids)])?;
    drop(learner);

    let merged = EmbeddedModel::open(&step)?;
    merged.save(&folder.join("merged"))?;
    merged.write_gguf(&folder.join("model-f32.gguf"), GgufType::F32)?;
    merged.write_gguf(&folder.join("model-f16.gguf"), GgufType::F16)?;
    let decoder = Decoder::new(&merged.config, &merged.weights, 0)?;
    let logits = decoder.logits(&ids).map_err(fault)?;
    let farthest = logits
        .iter()
        .zip(&ids[1..])
        .zip(&adapted[0][1..])
        .map(|((logits, id), logprob)| {
            let most = logits.iter().copied().fold(f32::MIN, f32::max);
            let sum: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
            (logits[*id as usize] - most - sum.ln() - logprob).abs()
        })
        .fold(0.0, f32::max);
    println!("logprobs: adapters beside the base against merged ones: {farthest:e} apart at most");
    let bytes: Vec<u8> = logits
        .iter()
        .flatten()
        .flat_map(|logit| logit.to_le_bytes())
        .collect();
    fs::write(folder.join("logits.bin"), bytes).map_err(fault)?;
    let ids = serde_json::json!(ids).to_string();
    fs::write(folder.join("ids.json"), ids).map_err(fault)
}

fn row(ids: &[u32]) -> LossRow {
    let count = ids.len();
    let weights = (0..count).map(|token| if token == 0 { 0.0 } else { 0.1 });
    LossRow {
        ids: ids.to_vec(),
        weights: weights.collect(),
        advantages: vec![0.0; count],
        sampled_logprobs: vec![0.0; count],
        proximal_logprobs: None,
        reference_logprobs: None,
        temperatures: vec![1.0; count],
        constrained: vec![],
    }
}

fn fault(error: impl std::fmt::Display) -> LearnerError {
    LearnerError {
        kind: LearnerErrorKind::Fault,
        message: error.to_string(),
        hint: None,
    }
}
