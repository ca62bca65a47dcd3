//! The identity of a model.

use std::fmt::Write as _;

use osmosis_tokens::ChatFormatParts;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{EmbeddedModel, ModelConfig};

/// Numbers converted to bytes at a time.
const PIECE: usize = 16 * 1024;

pub(super) fn digest(model: &EmbeddedModel) -> String {
    let mut hash = Sha256::new();
    // What the config means, not its text: fields that change no number (`torch_dtype`,
    // `transformers_version`) do not make another model.
    let meaning = ModelConfig {
        source: Value::Null,
        ..model.config.clone()
    };
    part(&mut hash, format!("{meaning:?}").as_bytes());
    let ChatFormatParts {
        tokenizer,
        tokenizer_config,
        chat_template,
        generation_config,
    } = model.chat.parts();
    part(&mut hash, tokenizer.as_bytes());
    part(&mut hash, tokenizer_config.as_bytes());
    part(
        &mut hash,
        chat_template.as_deref().unwrap_or_default().as_bytes(),
    );
    part(
        &mut hash,
        generation_config.as_deref().unwrap_or_default().as_bytes(),
    );
    for (name, tensor) in &model.weights.tensors {
        part(&mut hash, name.as_bytes());
        part(&mut hash, format!("{:?}", tensor.shape).as_bytes());
        let mut bytes = Vec::with_capacity(PIECE * 4);
        for values in tensor.values.chunks(PIECE) {
            bytes.clear();
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            hash.update(&bytes);
        }
    }
    hash.finalize()
        .iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            let _infallible = write!(text, "{byte:02x}");
            text
        })
}

/// With its length, so that no two lists of parts hash alike.
fn part(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}
