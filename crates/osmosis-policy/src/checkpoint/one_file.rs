//! A whole model in one safetensors file: the texts of its folder are the file's metadata.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use camino::Utf8Path;
use osmosis_tokens::{ChatFormat, ChatFormatParts};

use super::tensor_file;
use crate::{EmbeddedModel, ModelConfig, PolicyError, Weights};

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";
const GENERATION_CONFIG: &str = "generation_config.json";

pub(super) fn write(model: &EmbeddedModel) -> Result<Vec<u8>, PolicyError> {
    let parts = model.chat.parts();
    let mut texts = HashMap::from([
        (CONFIG.to_owned(), model.config.source.to_string()),
        (TOKENIZER.to_owned(), parts.tokenizer.clone()),
        (TOKENIZER_CONFIG.to_owned(), parts.tokenizer_config.clone()),
    ]);
    if let Some(template) = &parts.chat_template {
        texts.insert(CHAT_TEMPLATE.to_owned(), template.clone());
    }
    if let Some(config) = &parts.generation_config {
        texts.insert(GENERATION_CONFIG.to_owned(), config.clone());
    }
    safetensors::serialize(tensor_file::views(&model.weights), Some(texts))
        .map_err(|error| PolicyError::damaged(Utf8Path::new(&model.name), error.to_string()))
}

pub(super) fn read(name: &str, bytes: &[u8]) -> Result<EmbeddedModel, PolicyError> {
    let damaged = |message: String| PolicyError::damaged(Utf8Path::new(name), message);
    let mut texts = tensor_file::metadata(bytes).map_err(damaged)?;
    let mut text = |key: &str| {
        texts
            .remove(key)
            .ok_or_else(|| damaged(format!("its metadata has no `{key}`")))
    };
    let config = serde_json::from_str(&text(CONFIG)?)
        .map_err(|error| damaged(format!("`{CONFIG}`: {error}")))?;
    let (tokenizer, tokenizer_config) = (text(TOKENIZER)?, text(TOKENIZER_CONFIG)?);
    let config = ModelConfig::parse(config)?;
    let chat = ChatFormat::from_parts(ChatFormatParts {
        tokenizer,
        tokenizer_config,
        chat_template: texts.remove(CHAT_TEMPLATE),
        generation_config: texts.remove(GENERATION_CONFIG),
    })?;
    let mut tensors = BTreeMap::new();
    tensor_file::read(bytes, &mut tensors).map_err(damaged)?;
    let weights = Weights::checked(&config, tensors)?;
    Ok(EmbeddedModel {
        config,
        weights: Arc::new(weights),
        chat: Arc::new(chat),
        name: name.to_owned(),
    })
}
