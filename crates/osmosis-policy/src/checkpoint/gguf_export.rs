//! Models written as GGUF, for llama.cpp and others.

use std::fs::File;
use std::io::BufWriter;

use camino::Utf8Path;
use candle_core::quantized::gguf_file::{self, Value as Metadata};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use osmosis_tokens::GgufVocabulary;

use super::gguf::{ROPE_FACTORS, gguf_name};
use crate::{Architecture, EmbeddedModel, ModelConfig, PolicyError, RopeScaling};

/// The type of the matrices in a file. Vectors are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufType {
    F32,
    F16,
}

/// Writes a file that is on disk when this returns.
pub(super) fn write(
    model: &EmbeddedModel,
    path: &Utf8Path,
    kind: GgufType,
) -> Result<(), PolicyError> {
    let metadata = metadata(model, kind)?;
    let tensors = tensors(model, kind).map_err(|error| PolicyError::Compute(error.to_string()))?;
    let metadata: Vec<(&str, &Metadata)> = metadata
        .iter()
        .map(|(name, value)| (name.as_str(), value))
        .collect();
    let tensors: Vec<(&str, &QTensor)> = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    let file = File::create_new(path).map_err(|error| PolicyError::io(path, &error))?;
    let mut writer = BufWriter::new(file);
    gguf_file::write(&mut writer, &metadata, &tensors).map_err(|error| match error {
        candle_core::Error::Io(error) => PolicyError::io(path, &error),
        other => PolicyError::Compute(other.to_string()),
    })?;
    let file = writer
        .into_inner()
        .map_err(|error| PolicyError::io(path, error.error()))?;
    file.sync_all()
        .map_err(|error| PolicyError::io(path, &error))
}

fn tensors(model: &EmbeddedModel, kind: GgufType) -> candle_core::Result<Vec<(String, QTensor)>> {
    let config = &model.config;
    let mut tensors = Vec::new();
    for (name, tensor) in &model.weights.tensors {
        let Some(stored) = gguf_name(name) else {
            continue;
        };
        let turned = config.architecture == Architecture::Llama
            && (name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight"));
        let values = if turned {
            pairs_from_halves(&tensor.values, config.head_width, config.width)
        } else {
            tensor.values.to_vec()
        };
        let kind = match (kind, tensor.shape.len()) {
            (GgufType::F16, 2) => GgmlDType::F16,
            (GgufType::F16 | GgufType::F32, _) => GgmlDType::F32,
        };
        let values = Tensor::from_vec(values, tensor.shape.as_slice(), &Device::Cpu)?;
        tensors.push((stored, QTensor::quantize(&values, kind)?));
    }
    if let RopeScaling::Llama3 { .. } = config.rope_scaling {
        let plain = ModelConfig {
            rope_scaling: RopeScaling::None,
            ..config.clone()
        };
        let stretched = config.rope_frequencies().into_iter();
        let factors: Vec<f32> = plain
            .rope_frequencies()
            .into_iter()
            .zip(stretched)
            .map(|(plain, stretched)| plain / stretched)
            .collect();
        let factors = Tensor::new(factors, &Device::Cpu)?;
        let factors = QTensor::quantize(&factors, GgmlDType::F32)?;
        tensors.push((ROPE_FACTORS.to_owned(), factors));
    }
    Ok(tensors)
}

/// The opposite of what is done when a file is read.
fn pairs_from_halves(values: &[f32], head_width: usize, width: usize) -> Vec<f32> {
    let mut rows = Vec::with_capacity(values.len());
    for head in values.chunks_exact(head_width * width) {
        for pair in 0..head_width / 2 {
            for half in 0..2 {
                rows.extend_from_slice(&head[(half * head_width / 2 + pair) * width..][..width]);
            }
        }
    }
    rows
}

fn metadata(model: &EmbeddedModel, kind: GgufType) -> Result<Vec<(String, Metadata)>, PolicyError> {
    let config = &model.config;
    let prefix = config.architecture.model_type();
    let text = |value: &str| Metadata::String(value.to_owned());
    let size = |value: usize| Metadata::U32(u32::try_from(value).unwrap_or(u32::MAX));
    #[expect(clippy::cast_possible_truncation, reason = "GGUF has these as f32")]
    let float = |value: f64| Metadata::F32(value as f32);
    let mut all = vec![
        ("general.architecture".to_owned(), text(prefix)),
        ("general.name".to_owned(), text(&model.name)),
        (
            "general.file_type".to_owned(),
            Metadata::U32(match kind {
                GgufType::F32 => 0,
                GgufType::F16 => 1,
            }),
        ),
    ];
    let mut of_model = |name: &str, value| all.push((format!("{prefix}.{name}"), value));
    of_model("vocab_size", size(config.vocabulary));
    of_model("context_length", size(config.context));
    of_model("embedding_length", size(config.width));
    of_model("block_count", size(config.layers));
    of_model("feed_forward_length", size(config.mlp_width));
    of_model("attention.head_count", size(config.heads));
    of_model("attention.head_count_kv", size(config.kv_heads));
    of_model("attention.key_length", size(config.head_width));
    of_model("attention.value_length", size(config.head_width));
    of_model(
        "attention.layer_norm_rms_epsilon",
        float(config.norm_epsilon),
    );
    of_model("rope.freq_base", float(config.rope_theta));
    of_model("rope.dimension_count", size(config.head_width));
    if let RopeScaling::Linear { factor } = config.rope_scaling {
        of_model("rope.scaling.type", text("linear"));
        of_model("rope.scaling.factor", float(factor));
    }
    add_vocabulary(
        GgufVocabulary::of(&model.chat, config.vocabulary)?,
        &mut all,
    );
    Ok(all)
}

fn add_vocabulary(vocabulary: GgufVocabulary, all: &mut Vec<(String, Metadata)>) {
    let strings =
        |list: Vec<String>| Metadata::Array(list.into_iter().map(Metadata::String).collect());
    let mut add = |name: &str, value| all.push((format!("tokenizer.ggml.{name}"), value));
    add("model", Metadata::String(vocabulary.model));
    if let Some(pre) = vocabulary.pre {
        add("pre", Metadata::String(pre));
    }
    add("tokens", strings(vocabulary.tokens));
    let types = vocabulary.token_types.into_iter().map(Metadata::I32);
    add("token_type", Metadata::Array(types.collect()));
    if !vocabulary.merges.is_empty() {
        add("merges", strings(vocabulary.merges));
    }
    for (name, id) in [
        ("bos_token_id", vocabulary.bos),
        ("eos_token_id", vocabulary.eos),
        ("unknown_token_id", vocabulary.unknown),
    ] {
        if let Some(id) = id {
            add(name, Metadata::U32(id));
        }
    }
    add("add_bos_token", Metadata::Bool(vocabulary.add_bos));
    if let Some(template) = vocabulary.chat_template {
        all.push((
            "tokenizer.chat_template".to_owned(),
            Metadata::String(template),
        ));
    }
}
