//! GGUF files, dequantised.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Seek};
use std::sync::Arc;

use camino::Utf8Path;
use candle_core::Device;
use candle_core::quantized::gguf_file::{Content, Value as Metadata};
use osmosis_tokens::{ChatFormat, ChatSettings, GgufVocabulary, open_model_file};
use serde_json::{Value, json};

use crate::{Architecture, EmbeddedModel, ModelConfig, NamedTensor, PolicyError, learner, weights};

/// The most numbers in a tensor; the largest that were published have a few billions.
const MAX_TENSOR_NUMBERS: usize = 1 << 40;

/// Stretches of single frequencies, which files of Llama 3.1 and later carry.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

pub(super) fn open(path: &Utf8Path, chat: &ChatSettings) -> Result<EmbeddedModel, PolicyError> {
    let file = open_model_file(path).map_err(|error| PolicyError::io(path, &error))?;
    read(path, BufReader::new(file), chat)
}

/// Reads what a file at `path` holds.
pub(crate) fn read<R: Read + Seek>(
    path: &Utf8Path,
    mut reader: R,
    settings: &ChatSettings,
) -> Result<EmbeddedModel, PolicyError> {
    let content = Content::read(&mut reader).map_err(|error| unreadable(path, &error))?;
    check_shapes(&content).map_err(|problem| PolicyError::damaged(path, problem))?;
    let mut gguf = Gguf {
        path,
        content,
        reader,
    };
    let architecture = gguf.architecture()?;
    let config = gguf.config(architecture)?;
    let chat = ChatFormat::from_gguf_with(gguf.vocabulary()?, settings)?;
    let weights = weights::checked(&config, gguf.tensors(&config)?)?;
    Ok(EmbeddedModel {
        config,
        weights: Arc::new(weights),
        chat: Arc::new(chat),
        name: path.to_string(),
    })
}

/// The library multiplies dimensions without a look at overflows, and makes a slice of blocks of no bytes, which is
/// not aligned.
fn check_shapes(content: &Content) -> Result<(), String> {
    for (name, info) in &content.tensor_infos {
        let dims = info.shape.dims();
        let product = dims
            .iter()
            .try_fold(1_usize, |product, size| product.checked_mul(*size));
        let sensible = product.is_some_and(|numbers| (1..=MAX_TENSOR_NUMBERS).contains(&numbers));
        if dims.is_empty() || !sensible {
            return Err(format!("tensor `{name}` has the shape {dims:?}"));
        }
    }
    Ok(())
}

/// A file without GGUF's first bytes is something else; one with them is damaged.
fn unreadable(path: &Utf8Path, error: &candle_core::Error) -> PolicyError {
    let message = error.to_string();
    if message.contains("magic") {
        PolicyError::NotAModel {
            path: path.to_owned(),
            message: "it is neither a folder nor a GGUF file".to_owned(),
        }
    } else {
        PolicyError::damaged(path, message)
    }
}

struct Gguf<'a, R> {
    path: &'a Utf8Path,
    content: Content,
    reader: R,
}

impl<R: Read + Seek> Gguf<'_, R> {
    fn architecture(&self) -> Result<Architecture, PolicyError> {
        let name = self
            .text("general.architecture")
            .ok_or_else(|| PolicyError::damaged(self.path, "it has no `general.architecture`"))?;
        Architecture::from_model_type(&name).ok_or_else(|| PolicyError::Unsupported {
            what: format!("GGUF architecture `{name}`"),
        })
    }

    /// The `config.json` that the file's metadata amount to.
    fn config(&mut self, architecture: Architecture) -> Result<ModelConfig, PolicyError> {
        let prefix = architecture.model_type();
        let number = |key: &str| {
            self.content
                .metadata
                .get(&format!("{prefix}.{key}"))
                .and_then(number)
        };
        // Not every file has `vocab_size`, and it may differ from the rows that are there.
        let vocabulary = match self.content.tensor_infos.get("token_embd.weight") {
            Some(embeddings) => Value::from(embeddings.shape.dims()[0]),
            None => number("vocab_size").unwrap_or(Value::Null),
        };
        let mut config = json!({
            "architectures": [architecture.class()],
            "model_type": prefix,
            "vocab_size": vocabulary,
            "hidden_size": number("embedding_length"),
            "num_hidden_layers": number("block_count"),
            "num_attention_heads": number("attention.head_count"),
            "num_key_value_heads": number("attention.head_count_kv"),
            "intermediate_size": number("feed_forward_length"),
            "max_position_embeddings": number("context_length"),
            "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
            "rope_theta": number("rope.freq_base"),
            "hidden_act": "silu",
            "tie_word_embeddings": !self.content.tensor_infos.contains_key("output.weight"),
            "bos_token_id": self.content.metadata.get("tokenizer.ggml.bos_token_id").and_then(self::number),
            "eos_token_id": self.content.metadata.get("tokenizer.ggml.eos_token_id").and_then(self::number),
            "torch_dtype": "float32",
        });
        if let Some(head_width) = number("attention.key_length") {
            config["head_dim"] = head_width;
        }
        let scaling = self.text(&format!("{prefix}.rope.scaling.type"));
        match scaling.as_deref() {
            None | Some("none") => {}
            Some(kind) => {
                config["rope_scaling"] =
                    json!({"rope_type": kind, "factor": number("rope.scaling.factor")});
            }
        }
        if self.content.tensor_infos.contains_key(ROPE_FACTORS) {
            let factors = self.tensor(ROPE_FACTORS)?;
            return with_rope_factors(config, &factors.values);
        }
        ModelConfig::parse(config)
    }

    fn vocabulary(&self) -> Result<GgufVocabulary, PolicyError> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let strings = |name: &str| -> Vec<String> {
            let list = self
                .content
                .metadata
                .get(&key(name))
                .and_then(|value| value.to_vec().ok());
            let strings = list
                .into_iter()
                .flatten()
                .filter_map(|value| value.to_string().ok());
            strings.cloned().collect()
        };
        let id = |name: &str| {
            let value = self.content.metadata.get(&key(name)).and_then(number)?;
            value.as_u64().and_then(|id| u32::try_from(id).ok())
        };
        let types = self
            .content
            .metadata
            .get(&key("token_type"))
            .and_then(|value| value.to_vec().ok());
        let types = types.into_iter().flatten().filter_map(number);
        Ok(GgufVocabulary {
            model: self.text(&key("model")).ok_or_else(|| {
                PolicyError::damaged(self.path, "it has no `tokenizer.ggml.model`")
            })?,
            pre: self.text(&key("pre")),
            tokens: strings("tokens"),
            token_types: types
                .map(|kind| {
                    kind.as_i64()
                        .and_then(|kind| i32::try_from(kind).ok())
                        .unwrap_or(0)
                })
                .collect(),
            merges: strings("merges"),
            bos: id("bos_token_id"),
            eos: id("eos_token_id"),
            unknown: id("unknown_token_id"),
            add_bos: matches!(
                self.content.metadata.get(&key("add_bos_token")),
                Some(Metadata::Bool(true))
            ),
            chat_template: self.text("tokenizer.chat_template"),
        })
    }

    fn tensors(
        &mut self,
        config: &ModelConfig,
    ) -> Result<BTreeMap<String, NamedTensor>, PolicyError> {
        let mut tensors = BTreeMap::new();
        for (name, _) in config.tensors() {
            let Some(stored) = gguf_name(&name) else {
                continue;
            };
            if !self.content.tensor_infos.contains_key(&stored) {
                // The check of the weights tells all that are missing at once.
                continue;
            }
            let mut tensor = self.tensor(&stored)?;
            if config.architecture == Architecture::Llama
                && (name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight"))
            {
                let values = halves_from_pairs(&tensor.values, config.head_width, config.width);
                tensor.values = learner::numbers(values, &tensor.shape);
            }
            tensors.insert(name, tensor);
        }
        Ok(tensors)
    }

    fn tensor(&mut self, name: &str) -> Result<NamedTensor, PolicyError> {
        let mut read = || {
            let tensor = self
                .content
                .tensor(&mut self.reader, name, &Device::Cpu)?
                .dequantize(&Device::Cpu)?;
            Ok(NamedTensor {
                values: learner::numbers(tensor.flatten_all()?.to_vec1()?, tensor.dims()),
                shape: tensor.dims().to_vec(),
            })
        };
        let path = self.path;
        read().map_err(|error: candle_core::Error| {
            PolicyError::damaged(path, format!("tensor `{name}`: {error}"))
        })
    }

    fn text(&self, key: &str) -> Option<String> {
        self.content.metadata.get(key)?.to_string().ok().cloned()
    }
}

/// Where GGUF keeps a tensor that Hugging Face calls `name`.
pub(super) fn gguf_name(name: &str) -> Option<String> {
    let Some(rest) = name.strip_prefix("model.layers.") else {
        let name = match name {
            "model.embed_tokens.weight" => "token_embd.weight",
            "model.norm.weight" => "output_norm.weight",
            "lm_head.weight" => "output.weight",
            _ => return None,
        };
        return Some(name.to_owned());
    };
    let (layer, rest) = rest.split_once('.')?;
    let (part, kind) = rest.rsplit_once('.')?;
    let part = match part {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "self_attn.o_proj" => "attn_output",
        "post_attention_layernorm" => "ffn_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{part}.{kind}"))
}

/// GGUF turns neighbouring channels of Llama's heads, Hugging Face the halves of a head: the rows of q and k
/// are in another order there.
fn halves_from_pairs(values: &[f32], head_width: usize, width: usize) -> Vec<f32> {
    let mut rows = Vec::with_capacity(values.len());
    for head in values.chunks_exact(head_width * width) {
        for half in 0..2 {
            for pair in 0..head_width / 2 {
                rows.extend_from_slice(&head[(2 * pair + half) * width..][..width]);
            }
        }
    }
    rows
}

/// The factors are computed from llama3's scaling when a file is made, and only they are kept. All models
/// of that family share everything but the factor itself, so it can be found again, and checked.
fn with_rope_factors(mut config: Value, factors: &[f32]) -> Result<ModelConfig, PolicyError> {
    let plain = ModelConfig::parse(config.clone())?;
    let factor = factors.iter().copied().fold(1.0, f32::max);
    config["rope_scaling"] = json!({
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    let scaled = ModelConfig::parse(config)?;
    let expected = plain
        .rope_frequencies()
        .into_iter()
        .zip(scaled.rope_frequencies())
        .map(|(a, b)| a / b);
    let explained = factors.len() == plain.head_width / 2
        && factors
            .iter()
            .zip(expected)
            .all(|(factor, expected)| (factor - expected).abs() <= 1e-3 * expected);
    if explained {
        Ok(scaled)
    } else {
        Err(PolicyError::Unsupported {
            what: format!("a GGUF file whose `{ROPE_FACTORS}` is not llama3's scaling"),
        })
    }
}

/// Any number as JSON.
fn number(value: &Metadata) -> Option<Value> {
    Some(match value {
        Metadata::U8(number) => Value::from(*number),
        Metadata::I8(number) => Value::from(*number),
        Metadata::U16(number) => Value::from(*number),
        Metadata::I16(number) => Value::from(*number),
        Metadata::U32(number) => Value::from(*number),
        Metadata::I32(number) => Value::from(*number),
        Metadata::U64(number) => Value::from(*number),
        Metadata::I64(number) => Value::from(*number),
        // By way of its text: 1e-5 stays 1e-5.
        Metadata::F32(number) => Value::from(number.to_string().parse::<f64>().ok()?),
        Metadata::F64(number) => Value::from(*number),
        Metadata::Bool(_) | Metadata::String(_) | Metadata::Array(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_llama_heads_are_put_back_in_halves() {
        // Two heads of width 4 over one input; GGUF has channel 0, 2, 1, 3 of each.
        let stored = [0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0];
        assert_eq!(
            halves_from_pairs(&stored, 4, 1),
            [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]
        );
    }

    #[test]
    fn every_tensor_of_every_architecture_has_a_place_in_gguf() {
        for model_type in ["llama", "qwen2", "qwen3"] {
            let config = ModelConfig::parse(json!({
                "model_type": model_type, "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 2,
                "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 8,
            }))
            .unwrap();
            for (name, _) in config.tensors() {
                assert!(gguf_name(&name).is_some(), "{name}");
            }
        }
    }

    fn llama(extra: &Value) -> Value {
        let mut config = json!({
            "model_type": "llama", "vocab_size": 8, "hidden_size": 128, "num_hidden_layers": 1,
            "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 131_072,
            "rope_theta": 500_000.0,
        });
        if !extra.is_null() {
            config["rope_scaling"] = extra.clone();
        }
        config
    }

    #[test]
    fn llama3_scaling_is_found_again_from_its_factors() {
        let scaling = json!({
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        });
        let plain = ModelConfig::parse(llama(&Value::Null)).unwrap();
        let scaled = ModelConfig::parse(llama(&scaling)).unwrap();
        let mut factors: Vec<f32> = plain
            .rope_frequencies()
            .iter()
            .zip(scaled.rope_frequencies())
            .map(|(a, b)| a / b)
            .collect();
        let found = with_rope_factors(llama(&Value::Null), &factors).unwrap();
        assert_eq!(found.rope_scaling, scaled.rope_scaling);
        factors[20] *= 2.0;
        let error = with_rope_factors(llama(&Value::Null), &factors).unwrap_err();
        assert!(error.to_string().contains("rope_freqs.weight"), "{error}");
    }
}
