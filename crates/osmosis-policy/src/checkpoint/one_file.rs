//! A whole model in one safetensors file: the texts of its folder are the file's metadata.

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::Utf8Path;
use osmosis_tokens::{ChatFormat, ChatFormatParts, ChatSettings};

use super::tensor_file;
use crate::{EmbeddedModel, ModelConfig, PolicyError, weights};

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";
const GENERATION_CONFIG: &str = "generation_config.json";

/// `notes` join the texts in the metadata.
pub(super) fn write(
    model: &EmbeddedModel,
    notes: &BTreeMap<String, String>,
) -> Result<Vec<u8>, PolicyError> {
    let damaged = |message: String| PolicyError::damaged(Utf8Path::new(&model.name), message);
    let parts = model.chat.saved_parts()?;
    let mut texts = notes.clone();
    texts.extend([
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
    let bare = safetensors::serialize(tensor_file::views(&model.weights), None)
        .map_err(|error| damaged(error.to_string()))?;
    with_metadata(&bare, &texts).ok_or_else(|| damaged("its header is not an object".to_owned()))
}

/// Inserts metadata into a file without any. `safetensors` writes the entries of a hash map in an order
/// that differs from run to run; here the same model always becomes the same bytes.
fn with_metadata(bare: &[u8], texts: &BTreeMap<String, String>) -> Option<Vec<u8>> {
    let (length, rest) = bare.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (header, tensors) = rest.split_at_checked(length)?;
    let tensor_entries = std::str::from_utf8(header).ok()?.trim_end();
    let mut header = format!(
        "{{\"__metadata__\":{},{}",
        serde_json::to_string(texts).ok()?,
        tensor_entries.strip_prefix('{')?
    );
    // The tensors start at a multiple of 8 bytes.
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = Vec::with_capacity(8 + header.len() + tensors.len());
    file.extend((header.len() as u64).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(tensors);
    Some(file)
}

pub(crate) fn read(
    name: &str,
    bytes: &[u8],
    settings: &ChatSettings,
) -> Result<EmbeddedModel, PolicyError> {
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
    let parts = ChatFormatParts {
        tokenizer,
        tokenizer_config,
        chat_template: texts.remove(CHAT_TEMPLATE),
        generation_config: texts.remove(GENERATION_CONFIG),
    };
    let chat = ChatFormat::from_parts_with(parts, settings)?;
    let mut tensors = BTreeMap::new();
    tensor_file::read(bytes, &mut tensors).map_err(damaged)?;
    let weights = weights::checked(&config, tensors)?;
    Ok(EmbeddedModel {
        config,
        weights: Arc::new(weights),
        chat: Arc::new(chat),
        name: name.to_owned(),
    })
}
