//! Models that are part of the program.

use osmosis_tokens::ChatSettings;

use crate::checkpoint::one_file;
use crate::{EmbeddedModel, PolicyError};

/// Every built-in model: its name after `builtin/`, and its file.
const MODELS: &[(&str, &[u8])] = &[("tiny", include_bytes!("../builtin/tiny.safetensors"))];

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|(name, _)| *name)
}

/// Opens `builtin/NAME`.
pub(crate) fn open(name: &str, chat: &ChatSettings) -> Result<EmbeddedModel, PolicyError> {
    let Some((known, bytes)) = MODELS.iter().find(|(known, _)| *known == name) else {
        let known: Vec<String> = MODELS
            .iter()
            .map(|(known, _)| format!("`builtin/{known}`"))
            .collect();
        return Err(PolicyError::UnknownBuiltin {
            name: format!("builtin/{name}"),
            known: known.join(", "),
        });
    };
    one_file::read(&format!("builtin/{known}"), bytes, chat)
}
