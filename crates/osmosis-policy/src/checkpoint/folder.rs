//! Checkpoint folders in Hugging Face layout.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_tokens::{ChatFormat, ChatSettings, open_model_file, read_model_text};
use safetensors::SafeTensorError;
use serde_json::Value;

use super::tensor_file;
use crate::{EmbeddedModel, ModelConfig, NamedTensor, PolicyError, Weights, weights};

const CONFIG: &str = "config.json";
const ONE_SHARD: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

pub(super) fn open(
    folder: &Utf8Path,
    settings: &ChatSettings,
) -> Result<EmbeddedModel, PolicyError> {
    let config = config(folder)?.ok_or_else(|| PolicyError::NotAModel {
        path: folder.to_owned(),
        message: format!("it has no `{CONFIG}`"),
    })?;
    let chat = ChatFormat::load_with(folder, settings)?;
    let weights = read_weights(folder, &config)?;
    Ok(EmbeddedModel {
        config,
        weights: Arc::new(weights),
        chat: Arc::new(chat),
        name: folder.to_string(),
    })
}

/// The weights of a folder, for a model of this shape. The folder need not hold anything else.
pub(super) fn weights(folder: &Utf8Path, known: &ModelConfig) -> Result<Weights, PolicyError> {
    if config(folder)?.is_some_and(|config| !config.has_shape_of(known)) {
        return Err(PolicyError::OtherShape);
    }
    read_weights(folder, known)
}

fn config(folder: &Utf8Path) -> Result<Option<ModelConfig>, PolicyError> {
    let path = folder.join(CONFIG);
    let text = match read_model_text(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(PolicyError::io(&path, &error)),
    };
    let config: Value = serde_json::from_str(&text)
        .map_err(|error| PolicyError::damaged(&path, error.to_string()))?;
    ModelConfig::parse(config).map(Some)
}

fn read_weights(folder: &Utf8Path, config: &ModelConfig) -> Result<Weights, PolicyError> {
    let mut tensors = BTreeMap::new();
    for file in weight_files(folder)? {
        read_tensors(&file, &mut tensors)?;
    }
    weights::checked(config, tensors)
}

/// The one file, or those that the index names.
fn weight_files(folder: &Utf8Path) -> Result<Vec<Utf8PathBuf>, PolicyError> {
    let one = folder.join(ONE_SHARD);
    if one.exists() {
        return Ok(vec![one]);
    }
    let index_path = folder.join(INDEX);
    let index = match read_model_text(&index_path) {
        Ok(index) => index,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(PolicyError::NotAModel {
                path: folder.to_owned(),
                message: format!("it has neither `{ONE_SHARD}` nor `{INDEX}`"),
            });
        }
        Err(error) => return Err(PolicyError::io(&index_path, &error)),
    };
    let index: Value = serde_json::from_str(&index)
        .map_err(|error| PolicyError::damaged(&index_path, error.to_string()))?;
    let map = index
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| PolicyError::damaged(&index_path, "it has no `weight_map`"))?;
    let names: BTreeSet<&str> = map.values().filter_map(Value::as_str).collect();
    // A name with a path in it could point anywhere.
    if let Some(name) = names
        .iter()
        .find(|name| Utf8Path::new(name).file_name() != Some(**name))
    {
        return Err(PolicyError::damaged(
            &index_path,
            format!("`{name}` is not a file name"),
        ));
    }
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

pub(crate) fn read_tensors(
    file: &Utf8Path,
    into: &mut BTreeMap<String, NamedTensor>,
) -> Result<(), PolicyError> {
    let mut bytes = vec![];
    open_model_file(file)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(|error| PolicyError::io(file, &error))?;
    tensor_file::read(&bytes, into).map_err(|message| PolicyError::damaged(file, message))
}

pub(super) fn save(model: &EmbeddedModel, folder: &Utf8Path) -> Result<(), PolicyError> {
    save_with(folder, |partial| write_files(model, partial))
}

/// Has `write` fill a folder that appears whole or not at all.
pub(crate) fn save_with(
    folder: &Utf8Path,
    write: impl FnOnce(&Utf8Path) -> Result<(), PolicyError>,
) -> Result<(), PolicyError> {
    refuse_unless_absent_or_empty(folder)?;
    let partial = PartialFolder::create(folder)?;
    write(&partial.path)?;
    sync(&partial.path)?;
    partial.finish(folder)
}

fn refuse_unless_absent_or_empty(folder: &Utf8Path) -> Result<(), PolicyError> {
    match fs::read_dir(folder) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(PolicyError::NotEmpty {
                path: folder.to_owned(),
            }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(PolicyError::NotEmpty {
            path: folder.to_owned(),
        }),
        Err(error) => Err(PolicyError::io(folder, &error)),
    }
}

fn write_files(model: &EmbeddedModel, folder: &Utf8Path) -> Result<(), PolicyError> {
    let config = with_f32(&model.config.source);
    write_text(&folder.join(CONFIG), &format!("{config:#}\n"))?;
    write_chat(&model.chat, folder)?;
    // `transformers` refuses files that do not say which framework's layout they have.
    let layout = [("format".to_owned(), "pt".to_owned())].into();
    write_tensors(&folder.join(ONE_SHARD), &model.weights, Some(layout))
}

/// Writes what it takes to talk to a model.
pub(crate) fn write_chat(chat: &ChatFormat, folder: &Utf8Path) -> Result<(), PolicyError> {
    let parts = chat.saved_parts()?;
    write_text(&folder.join("tokenizer.json"), &parts.tokenizer)?;
    write_text(
        &folder.join("tokenizer_config.json"),
        &parts.tokenizer_config,
    )?;
    if let Some(template) = &parts.chat_template {
        write_text(&folder.join("chat_template.jinja"), template)?;
    }
    if let Some(config) = &parts.generation_config {
        write_text(&folder.join("generation_config.json"), config)?;
    }
    Ok(())
}

/// Writes a safetensors file; on disk when this returns.
pub(crate) fn write_tensors(
    file: &Utf8Path,
    tensors: &Weights,
    metadata: Option<HashMap<String, String>>,
) -> Result<(), PolicyError> {
    safetensors::serialize_to_file(tensor_file::views(tensors), metadata, file.as_std_path())
        .map_err(|error| match error {
            SafeTensorError::IoError(error) => PolicyError::io(file, &error),
            other => PolicyError::damaged(file, other.to_string()),
        })?;
    sync(file)
}

/// `transformers` loads in the type that the config names, so it must be the one that was written.
fn with_f32(source: &Value) -> Value {
    let mut config = source.clone();
    if let Some(fields) = config.as_object_mut() {
        let key = if fields.contains_key("dtype") {
            "dtype"
        } else {
            "torch_dtype"
        };
        fields.insert(key.to_owned(), Value::from("float32"));
    }
    config
}

pub(crate) fn write_text(path: &Utf8Path, text: &str) -> Result<(), PolicyError> {
    let write = || {
        let mut file = File::create_new(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|error| PolicyError::io(path, &error))
}

/// Makes a file, or the names in a folder, survive a power cut.
fn sync(path: &Utf8Path) -> Result<(), PolicyError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(|error| PolicyError::io(path, &error))
}

/// A folder beside the one that is wanted; removed unless it was finished.
struct PartialFolder {
    path: Utf8PathBuf,
    parent: Utf8PathBuf,
}

impl PartialFolder {
    fn create(wanted: &Utf8Path) -> Result<Self, PolicyError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let parent = match wanted.parent() {
            Some(parent) if !parent.as_str().is_empty() => parent.to_owned(),
            Some(_) | None => Utf8PathBuf::from("."),
        };
        let name = wanted.file_name().unwrap_or("model");
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!(".{name}.partial-{}-{count}", std::process::id()));
        fs::create_dir_all(&parent).map_err(|error| PolicyError::io(&parent, &error))?;
        // A leftover of an earlier process with this id.
        match fs::remove_dir_all(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(PolicyError::io(&path, &error)),
        }
        fs::create_dir(&path).map_err(|error| PolicyError::io(&path, &error))?;
        Ok(Self { path, parent })
    }

    fn finish(self, wanted: &Utf8Path) -> Result<(), PolicyError> {
        // Only an empty folder can be there: `remove_dir` refuses others.
        match fs::remove_dir(wanted) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(PolicyError::io(wanted, &error)),
        }
        fs::rename(&self.path, wanted).map_err(|error| PolicyError::io(wanted, &error))?;
        sync(&self.parent)
    }
}

impl Drop for PartialFolder {
    fn drop(&mut self) {
        // After `finish` it has another name. A leftover does no harm: `open` is never pointed at it.
        if let Err(error) = fs::remove_dir_all(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path, %error, "a partial checkpoint could not be removed");
        }
    }
}
