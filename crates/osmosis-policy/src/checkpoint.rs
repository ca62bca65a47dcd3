//! Models on disk: Hugging Face folders, GGUF files, and the one-file form of built-in models.

mod digest;
pub(crate) mod folder;
pub(crate) mod gguf;
mod gguf_export;
pub(crate) mod one_file;
pub(crate) mod tensor_file;

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::Utf8Path;
use osmosis_tokens::{ChatFormat, ChatSettings};

use crate::lora::peft;
use crate::{ModelConfig, PolicyError, Weights};

pub use gguf_export::GgufType;

/// A model with the way to talk to it.
#[derive(Debug, Clone)]
pub struct EmbeddedModel {
    pub config: ModelConfig,
    pub weights: Arc<Weights>,
    pub chat: Arc<ChatFormat>,
    /// What it is, for records and messages: `builtin/tiny`, a path.
    pub name: String,
}

impl EmbeddedModel {
    /// A checkpoint folder in Hugging Face layout, a folder of adapters in PEFT's (their base is opened too, and
    /// they are merged into it), or a GGUF file.
    pub fn open(path: &Utf8Path) -> Result<Self, PolicyError> {
        Self::open_with(path, &ChatSettings::default())
    }

    /// The same, talked to in another way than its files say.
    pub fn open_with(path: &Utf8Path, chat: &ChatSettings) -> Result<Self, PolicyError> {
        let metadata = std::fs::metadata(path).map_err(|error| PolicyError::io(path, &error))?;
        if metadata.is_dir() && peft::is_adapter(path) {
            peft::open(path, chat)
        } else if metadata.is_dir() {
            folder::open(path, chat)
        } else {
            gguf::open(path, chat)
        }
    }

    /// The same model with the weights of a checkpoint folder. The folder needs no tokenizer; a config in
    /// it must have this model's shape.
    pub fn with_weights_of(&self, folder: &Utf8Path) -> Result<Self, PolicyError> {
        let weights = folder::weights(folder, &self.config)?;
        Ok(Self {
            weights: Arc::new(weights),
            ..self.clone()
        })
    }

    /// `builtin/NAME`.
    pub fn builtin(name: &str) -> Result<Self, PolicyError> {
        Self::builtin_with(name, &ChatSettings::default())
    }

    pub fn builtin_with(name: &str, chat: &ChatSettings) -> Result<Self, PolicyError> {
        crate::builtin::open(name, chat)
    }

    /// The names that [`builtin`](Self::builtin) knows.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        crate::builtin::names()
    }

    /// Writes a folder that `open` reads and `transformers` reads too: config, tokenizer, safetensors.
    /// Everything is on disk when this returns; a folder that is there already must be empty. The folder
    /// appears whole or not at all.
    pub fn save(&self, folder: &Utf8Path) -> Result<(), PolicyError> {
        folder::save(self, folder)
    }

    /// Writes a GGUF file that `open` and llama.cpp read. There must be no such file; it is on disk when this
    /// returns.
    pub fn write_gguf(&self, path: &Utf8Path, kind: GgufType) -> Result<(), PolicyError> {
        gguf_export::write(self, path, kind)
    }

    /// Copies a folder of adapters in PEFT's layout to another, without what else a checkpoint holds.
    pub fn copy_adapters(from: &Utf8Path, to: &Utf8Path) -> Result<(), PolicyError> {
        if !peft::is_adapter(from) {
            return Err(PolicyError::NotAModel {
                path: from.to_owned(),
                message: format!("it holds no adapters (`{}`)", peft::CONFIG),
            });
        }
        peft::copy(from, to)
    }

    /// The whole model as the bytes of one safetensors file, the texts and `notes` in its metadata. The
    /// same model and notes give the same bytes.
    pub fn to_one_file(&self, notes: &BTreeMap<String, String>) -> Result<Vec<u8>, PolicyError> {
        one_file::write(self, notes)
    }

    /// Reads what [`to_one_file`](Self::to_one_file) wrote.
    pub fn from_one_file(name: &str, bytes: &[u8]) -> Result<Self, PolicyError> {
        one_file::read(name, bytes, &ChatSettings::default())
    }

    /// SHA-256 over config, tokenizer and weights: the model's identity.
    pub fn digest(&self) -> String {
        digest::digest(self)
    }
}
