//! Checkpoints as models of their own: merged, converted, copied.

use std::collections::BTreeMap;
use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::ModelPath;
use osmosis_policy::{EmbeddedModel, GgufType, PolicyError};

use crate::chat_choice::ChatChoice;
use crate::policy;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind, io_error};

/// What a model is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFormat {
    /// A Hugging Face folder. Adapters are merged into their base.
    Hf,
    /// A GGUF file, adapters merged.
    Gguf(GgufType),
    /// Adapters as they are, in PEFT's layout.
    Peft,
}

/// A model that was written.
#[derive(Debug)]
pub struct ExportedModel {
    pub model: ModelPath,
    pub folder: Utf8PathBuf,
    pub format: ModelFormat,
    /// Bytes of each file.
    pub files: BTreeMap<String, u64>,
}

/// `RUN@STEP`, or anything that `model_path` takes for a model that runs in this process.
pub fn model_path(text: &str) -> Result<ModelPath, RunError> {
    let is_path = text.starts_with(['.', '/', '~']);
    let path = if is_path || text.starts_with("run:") || text.starts_with("builtin/") {
        text.to_owned()
    } else {
        format!("run:{text}")
    };
    path.parse::<ModelPath>().map_err(|error| {
        RunError::failed(RunErrorKind::ModelInvalid, error.to_string())
            .hint("name a checkpoint like `RUN@20`, `RUN@best`, or a folder like `./models/NAME`")
    })
}

/// Writes a model into a folder that is not there yet, or empty. Nothing is left there if it fails.
pub async fn export(
    workspace: &Workspace,
    model: ModelPath,
    to: &Utf8Path,
    format: ModelFormat,
) -> Result<ExportedModel, RunError> {
    refuse_unless_empty(to)?;
    match format {
        ModelFormat::Peft => {
            let Some(from) = policy::model_folder(&model, workspace).await? else {
                return Err(no_adapters(&model));
            };
            if !from.join("adapter_config.json").is_file() {
                return Err(no_adapters(&model));
            }
            let to = to.to_owned();
            computed(&model, move || EmbeddedModel::copy_adapters(&from, &to)).await?;
        }
        ModelFormat::Hf => {
            let opened = policy::open_model(&model, workspace, &ChatChoice::default()).await?;
            let to = to.to_owned();
            computed(&model, move || opened.save(&to)).await?;
        }
        ModelFormat::Gguf(kind) => {
            let opened = policy::open_model(&model, workspace, &ChatChoice::default()).await?;
            let to = to.to_owned();
            computed(&model, move || write_gguf(&opened, &to, kind)).await?;
        }
    }
    Ok(ExportedModel {
        files: sizes(to)?,
        model,
        folder: to.to_owned(),
        format,
    })
}

fn write_gguf(model: &EmbeddedModel, to: &Utf8Path, kind: GgufType) -> Result<(), PolicyError> {
    let made = !to.exists();
    let io = |error: std::io::Error| PolicyError::Io {
        path: to.to_owned(),
        message: error.to_string(),
        full: false,
    };
    fs::create_dir_all(to).map_err(io)?;
    let name = match kind {
        GgufType::F32 => "model-f32.gguf",
        GgufType::F16 => "model-f16.gguf",
    };
    let written = model.write_gguf(&to.join(name), kind);
    if written.is_err() {
        let _ = fs::remove_file(to.join(name));
        if made {
            let _ = fs::remove_dir(to);
        }
    }
    written
}

/// Does something slow where it keeps nobody waiting.
async fn computed(
    model: &ModelPath,
    work: impl FnOnce() -> Result<(), PolicyError> + Send + 'static,
) -> Result<(), RunError> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|error| {
        RunError::failed(
            RunErrorKind::Internal,
            format!("a computing thread ended: {error}"),
        )
    })?;
    done.map_err(|error| policy::model_error(model, &error))
}

fn no_adapters(model: &ModelPath) -> RunError {
    RunError::failed(
        RunErrorKind::ModelInvalid,
        format!("`{model}` holds whole weights and no adapters"),
    )
    .hint("write it with `--format hf` or `--format gguf`; only a run with `[training.lora]` or `[sft.lora]` has adapters")
}

fn refuse_unless_empty(folder: &Utf8Path) -> Result<(), RunError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries.count(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(io_error(folder, &error)),
    };
    if entries == 0 {
        return Ok(());
    }
    let message = format!("`{folder}` is not empty");
    Err(RunError::failed(RunErrorKind::Io, message)
        .hint("name a folder that is not there yet: a model is never mixed with other files"))
}

fn sizes(folder: &Utf8Path) -> Result<BTreeMap<String, u64>, RunError> {
    let failed = |error: std::io::Error| io_error(folder, &error);
    let mut files = BTreeMap::new();
    for entry in folder.read_dir_utf8().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let metadata = entry.metadata().map_err(failed)?;
        files.insert(entry.file_name().to_owned(), metadata.len());
    }
    Ok(files)
}
