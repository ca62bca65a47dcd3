//! A tokenizer from the metadata of a GGUF file.

use serde_json::{Map, Value, json};

use crate::{ChatFormat, ChatFormatParts, ChatSettings, TokensError};

/// The vocabulary as GGUF files carry it in their metadata (`tokenizer.ggml.*`).
#[derive(Debug, Clone, PartialEq)]
pub struct GgufVocabulary {
    /// `tokenizer.ggml.model`, like `gpt2`.
    pub model: String,
    /// `tokenizer.ggml.pre`, like `smollm` or `qwen2`.
    pub pre: Option<String>,
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: 3 is control, 4 user-defined.
    pub token_types: Vec<i32>,
    pub merges: Vec<String>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unknown: Option<u32>,
    pub add_bos: bool,
    pub chat_template: Option<String>,
}

const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What a `pre` means: the steps before the merges.
struct Steps {
    normalizer: Value,
    pre_tokenizer: Value,
    ignore_merges: bool,
}

impl ChatFormat {
    /// Builds the tokenizer that a GGUF file describes: byte-level BPE, with the splitting rules that its
    /// `pre` names.
    pub fn from_gguf(vocabulary: GgufVocabulary) -> Result<Self, TokensError> {
        Self::from_gguf_with(vocabulary, &ChatSettings::default())
    }

    pub fn from_gguf_with(
        vocabulary: GgufVocabulary,
        settings: &ChatSettings,
    ) -> Result<Self, TokensError> {
        let steps = steps(&vocabulary)?;
        let added = added_tokens(&vocabulary)?;
        let mut ids = Map::with_capacity(vocabulary.tokens.len());
        for (id, token) in vocabulary.tokens.iter().enumerate() {
            if let Some(earlier) = ids.insert(token.clone(), json!(id)) {
                return Err(bad(format!(
                    "token `{token}` stands there twice, as {earlier} and {id}"
                )));
            }
        }
        let merges: Result<Vec<Value>, TokensError> = vocabulary
            .merges
            .iter()
            .map(|merge| match merge.split_once(' ') {
                Some((left, right)) => Ok(json!([left, right])),
                None => Err(bad(format!("merge `{merge}` is not two tokens"))),
            })
            .collect();
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": steps.normalizer,
            "pre_tokenizer": steps.pre_tokenizer,
            "post_processor": null,
            "decoder": byte_level(true),
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": null,
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": false,
                "byte_fallback": false,
                "ignore_merges": steps.ignore_merges,
                "vocab": ids,
                "merges": merges?,
            },
        });

        let mut config = Map::new();
        for (name, id) in [
            ("bos_token", vocabulary.bos),
            ("eos_token", vocabulary.eos),
            ("unk_token", vocabulary.unknown),
        ] {
            if let Some(id) = id {
                let token = vocabulary.tokens.get(id as usize).ok_or_else(|| {
                    bad(format!(
                        "`{name}` is {id}, and there are {} tokens",
                        vocabulary.tokens.len()
                    ))
                })?;
                config.insert(name.to_owned(), json!(token));
            }
        }
        config.insert("add_bos_token".to_owned(), json!(vocabulary.add_bos));
        if let Some(template) = vocabulary.chat_template {
            config.insert("chat_template".to_owned(), json!(template));
        }
        let parts = ChatFormatParts {
            tokenizer: tokenizer.to_string(),
            tokenizer_config: Value::Object(config).to_string(),
            chat_template: None,
            generation_config: None,
        };
        Self::from_parts_with(parts, settings)
    }
}

fn steps(vocabulary: &GgufVocabulary) -> Result<Steps, TokensError> {
    if vocabulary.model != "gpt2" {
        return Err(bad(format!(
            "tokenizer model `{}` is not known; byte-level BPE (`gpt2`) is",
            vocabulary.model
        )));
    }
    let split = |pattern: &str| {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            byte_level(false),
        ]})
    };
    let (normalizer, pre_tokenizer, ignore_merges) = match vocabulary.pre.as_deref() {
        Some("gpt-2" | "gpt2") => (Value::Null, byte_level(true), false),
        Some("smollm") => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            let both = json!({"type": "Sequence", "pretokenizers": [digits, byte_level(true)]});
            (Value::Null, both, false)
        }
        Some("qwen2") => (json!({"type": "NFC"}), split(QWEN2), false),
        Some("llama-bpe" | "llama3" | "llama-v3") => (Value::Null, split(LLAMA3), true),
        Some(other) => {
            return Err(bad(format!(
                "splitting rules `{other}` are not known; `gpt-2`, `smollm`, `qwen2` and `llama-bpe` are"
            )));
        }
        None => {
            return Err(bad(
                "it does not name its splitting rules (`tokenizer.ggml.pre`)",
            ));
        }
    };
    Ok(Steps {
        normalizer,
        pre_tokenizer,
        ignore_merges,
    })
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn added_tokens(vocabulary: &GgufVocabulary) -> Result<Vec<Value>, TokensError> {
    if vocabulary.token_types.len() != vocabulary.tokens.len() {
        return Err(bad(format!(
            "{} tokens have {} types",
            vocabulary.tokens.len(),
            vocabulary.token_types.len()
        )));
    }
    let typed = vocabulary.tokens.iter().zip(&vocabulary.token_types);
    Ok(typed
        .enumerate()
        .filter(|(_, (_, kind))| matches!(**kind, CONTROL | USER_DEFINED))
        .map(|(id, (token, kind))| {
            json!({
                "id": id,
                "content": token,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": *kind == CONTROL,
            })
        })
        .collect())
}

fn bad(message: impl Into<String>) -> TokensError {
    TokensError::Vocabulary {
        message: message.into(),
    }
}
