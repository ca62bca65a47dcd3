//! A model with random weights that speaks the letters `a` to `h`.

use std::collections::BTreeMap;
use std::sync::Arc;

use osmosis_policy::{EmbeddedModel, ModelConfig, NamedTensor, Weights};
use osmosis_tokens::{ChatFormat, ChatFormatParts};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

/// Letters, and the two marks of a message.
pub(crate) const VOCABULARY: usize = 10;
pub(crate) const CONTEXT: usize = 64;

const LETTERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

pub(crate) fn tiny() -> EmbeddedModel {
    let config = ModelConfig::parse(json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }))
    .unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let tensors: BTreeMap<String, NamedTensor> = config
        .tensors()
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product();
            let values = (0..count)
                .map(|_| {
                    // Between -0.3 and 0.3; norms are 1.
                    let [low, high, ..] = random.next_u32().to_le_bytes();
                    let unit = f32::from(u16::from_le_bytes([low, high])) / f32::from(u16::MAX);
                    if name.contains("norm") {
                        1.0
                    } else {
                        (unit - 0.5) * 0.6
                    }
                })
                .collect();
            (name, NamedTensor { shape, values })
        })
        .collect();
    EmbeddedModel {
        config,
        weights: Arc::new(Weights { tensors }),
        chat: Arc::new(chat()),
        name: "letters".to_owned(),
    }
}

pub(crate) fn chat() -> ChatFormat {
    let vocabulary: serde_json::Map<String, Value> = LETTERS
        .iter()
        .enumerate()
        .map(|(id, letter)| ((*letter).to_owned(), id.into()))
        .collect();
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false})
    };
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": false});
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [special(8, "<|im_start|>"), special(9, "<|im_end|>")],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    let template = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>\
        {% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}";
    ChatFormat::from_parts(ChatFormatParts {
        tokenizer: tokenizer.to_string(),
        tokenizer_config: json!({"eos_token": "<|im_end|>", "chat_template": template}).to_string(),
        chat_template: None,
        generation_config: None,
    })
    .unwrap()
}
