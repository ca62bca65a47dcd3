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

impl GgufVocabulary {
    /// The vocabulary of a byte-level BPE tokenizer, filled up to `rows` tokens: models have more rows than tokens,
    /// and readers of GGUF want as many. Other tokenizers, and splitting rules that GGUF has no name for here, are
    /// refused.
    pub fn of(chat: &ChatFormat, rows: usize) -> Result<Self, TokensError> {
        let parts = chat.saved_parts()?;
        let parse = |text: &str| -> Result<Value, TokensError> {
            serde_json::from_str(text).map_err(|error| bad(error.to_string()))
        };
        let (tokenizer, config) = (parse(&parts.tokenizer)?, parse(&parts.tokenizer_config)?);
        let model = &tokenizer["model"];
        if model["type"].as_str() != Some("BPE") || model["byte_fallback"] == json!(true) {
            return Err(bad("only byte-level BPE tokenizers can be written to GGUF"));
        }
        let mut tokens: Vec<Option<(String, i32)>> = vec![None; rows];
        let mut put = |token: &str, id: &Value, kind: i32| {
            let place = id.as_u64().and_then(|id| usize::try_from(id).ok());
            match place.and_then(|place| tokens.get_mut(place)) {
                Some(place) => {
                    *place = Some((token.to_owned(), kind));
                    Ok(())
                }
                None => Err(bad(format!(
                    "token `{token}` has id {id}, and the model has {rows} rows"
                ))),
            }
        };
        for (token, id) in model["vocab"].as_object().into_iter().flatten() {
            put(token, id, NORMAL)?;
        }
        for added in tokenizer["added_tokens"].as_array().into_iter().flatten() {
            let kind = match added["special"] {
                Value::Bool(true) => CONTROL,
                _ => USER_DEFINED,
            };
            put(
                added["content"].as_str().unwrap_or_default(),
                &added["id"],
                kind,
            )?;
        }
        let tokens = tokens.into_iter().enumerate().map(|(id, token)| {
            // As llama.cpp's converter fills the rows that have no token.
            token.unwrap_or_else(|| (format!("[PAD{id}]"), UNUSED))
        });
        let (tokens, token_types): (Vec<String>, Vec<i32>) = tokens.unzip();
        let id = |name: &str| {
            let token = config[name].as_str().or(config[name]["content"].as_str())?;
            let place = tokens.iter().position(|other| other == token)?;
            u32::try_from(place).ok()
        };
        let template = config["chat_template"].as_str().map(str::to_owned);
        Ok(Self {
            model: "gpt2".to_owned(),
            pre: Some(pre_of(&tokenizer)?.to_owned()),
            merges: merges(model)?,
            bos: id("bos_token"),
            eos: id("eos_token"),
            unknown: id("unk_token"),
            add_bos: config["add_bos_token"] == json!(true),
            chat_template: parts.chat_template.or(template),
            tokens,
            token_types,
        })
    }
}

const NORMAL: i32 = 1;
const UNUSED: i32 = 5;

fn merges(model: &Value) -> Result<Vec<String>, TokensError> {
    let merges = model["merges"].as_array().into_iter().flatten();
    merges
        .map(|merge| match merge {
            Value::String(text) => Ok(text.clone()),
            Value::Array(pair) => match &pair[..] {
                [Value::String(left), Value::String(right)] => Ok(format!("{left} {right}")),
                _ => Err(bad(format!("merge `{merge}` is not two tokens"))),
            },
            other => Err(bad(format!("merge `{other}` is not two tokens"))),
        })
        .collect()
}

/// The name of a tokenizer's splitting rules.
fn pre_of(tokenizer: &Value) -> Result<&'static str, TokensError> {
    let found = rules(&tokenizer["normalizer"], &tokenizer["pre_tokenizer"]);
    for name in ["gpt-2", "smollm", "qwen2", "llama-bpe"] {
        let known = steps(&GgufVocabulary {
            model: "gpt2".to_owned(),
            pre: Some(name.to_owned()),
            tokens: vec![],
            token_types: vec![],
            merges: vec![],
            bos: None,
            eos: None,
            unknown: None,
            add_bos: false,
            chat_template: None,
        })?;
        if rules(&known.normalizer, &known.pre_tokenizer) == found {
            return Ok(name);
        }
    }
    Err(bad(format!(
        "GGUF has no name for the tokenizer's splitting rules ({}); it has some for those of GPT-2, SmolLM, Qwen2 and \
         Llama 3",
        found.join(", ")
    )))
}

/// What decides where texts are split.
fn rules(normalizer: &Value, pre_tokenizer: &Value) -> Vec<String> {
    let mut rules = Vec::new();
    if let Some(kind) = normalizer["type"].as_str() {
        rules.push(kind.to_owned());
    }
    let steps = match pre_tokenizer["pretokenizers"].as_array() {
        Some(steps) => steps.clone(),
        None if pre_tokenizer.is_null() => vec![],
        None => vec![pre_tokenizer.clone()],
    };
    rules.extend(steps.iter().map(|step| {
        let kind = step["type"].as_str().unwrap_or_default();
        match kind {
            "ByteLevel" => {
                let prefix = step["add_prefix_space"] == json!(true);
                let regex = step["use_regex"] != json!(false);
                format!("ByteLevel prefix {prefix} regex {regex}")
            }
            "Split" => format!(
                "Split {} {} {}",
                step["pattern"]["Regex"], step["behavior"], step["invert"]
            ),
            "Digits" => format!("Digits {}", step["individual_digits"]),
            other => other.to_owned(),
        }
    }));
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_comes_back_from_the_tokenizer_that_was_made_of_it() {
        for pre in ["gpt-2", "smollm", "qwen2", "llama-bpe"] {
            let strings = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
            let vocabulary = GgufVocabulary {
                model: "gpt2".to_owned(),
                pre: Some(pre.to_owned()),
                tokens: strings(&["a", "b", "ab", "<|im_end|>"]),
                token_types: vec![NORMAL, NORMAL, NORMAL, CONTROL],
                merges: strings(&["a b"]),
                bos: None,
                eos: Some(3),
                unknown: None,
                add_bos: false,
                chat_template: Some("{{ messages[0].content }}".to_owned()),
            };
            let chat = ChatFormat::from_gguf(vocabulary.clone()).unwrap();
            assert_eq!(GgufVocabulary::of(&chat, 4).unwrap(), vocabulary, "{pre}");
            let padded = GgufVocabulary::of(&chat, 5).unwrap();
            assert_eq!(padded.tokens[4], "[PAD4]");
            assert_eq!(padded.token_types[4], UNUSED);
            let error = GgufVocabulary::of(&chat, 3).unwrap_err().to_string();
            assert!(error.contains("the model has 3 rows"), "{error}");
        }
    }
}
