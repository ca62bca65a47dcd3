//! The shape of `builtin/tiny` and the weights it starts from.

use std::error::Error;

use osmosis_policy::{ModelConfig, NamedTensor, Weights};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

pub(crate) const CONTEXT: usize = 1024;
const WIDTH: usize = 96;
const LAYERS: usize = 3;

/// A Qwen3 in small: its normalised queries and keys keep a high learning rate from doing harm.
pub(crate) fn config(
    vocabulary: usize,
    end_of_turn: u32,
) -> Result<ModelConfig, Box<dyn Error + Send + Sync>> {
    Ok(ModelConfig::parse(json!({
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 32,
        "intermediate_size": 256,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": false,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": true,
        "torch_dtype": "float32",
        "use_cache": true,
        "use_sliding_window": false,
        "eos_token_id": end_of_turn,
        "pad_token_id": 0,
    }))?)
}

/// Norms start at 1, matrices at a normal distribution of variance 1 / inputs; those that write into the
/// residual stream are scaled down by the number of writers.
pub(crate) fn initial_weights(config: &ModelConfig, rng: &mut ChaCha8Rng) -> Weights {
    let mut weights = Weights::default();
    for (name, shape) in config.tensors() {
        let count = shape.iter().product();
        let deviation = match shape[..] {
            [_] => None,
            _ if name.contains("embed_tokens") => Some(0.05),
            _ => {
                let inputs = (shape[1] as f32).sqrt();
                let writes = name.contains("o_proj") || name.contains("down_proj");
                let writers = if writes {
                    (2.0 * LAYERS as f32).sqrt()
                } else {
                    1.0
                };
                Some(1.0 / inputs / writers)
            }
        };
        let values: Vec<f32> = match deviation {
            None => vec![1.0; count],
            Some(deviation) => (0..count).map(|_| normal(rng) * deviation).collect(),
        };
        weights.tensors.insert(
            name,
            NamedTensor {
                shape,
                values: values.into(),
            },
        );
    }
    weights
}

/// Box and Muller's.
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    let radius: f32 = 1.0 - rng.random::<f32>();
    let angle: f32 = rng.random::<f32>() * std::f32::consts::TAU;
    (-2.0 * radius.ln()).sqrt() * angle.cos()
}
