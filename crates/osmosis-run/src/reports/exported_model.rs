//! A checkpoint that was written as a model of its own.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use osmosis_policy::GgufType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model_export::{ExportedModel, ModelFormat};

/// The `resource` of `model merge --json` and `model export --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportedModelReport {
    /// What was written, as `model_path` names it.
    pub model: String,
    /// `hf`, `gguf` or `peft`.
    pub format: String,
    /// Of the matrices in a GGUF file: `f32` or `f16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    #[schemars(with = "String")]
    pub folder: Utf8PathBuf,
    /// Bytes of each file.
    pub files: BTreeMap<String, u64>,
    pub bytes: u64,
}

impl ExportedModelReport {
    pub fn of(exported: &ExportedModel) -> Self {
        let (format, dtype) = match exported.format {
            ModelFormat::Hf => ("hf", None),
            ModelFormat::Peft => ("peft", None),
            ModelFormat::Gguf(GgufType::F32) => ("gguf", Some("f32")),
            ModelFormat::Gguf(GgufType::F16) => ("gguf", Some("f16")),
        };
        Self {
            model: exported.model.to_string(),
            format: format.to_owned(),
            dtype: dtype.map(str::to_owned),
            folder: exported.folder.clone(),
            bytes: exported.files.values().sum(),
            files: exported.files.clone(),
        }
    }
}
