//! Adapters on disk, in PEFT's layout.
//!
//! ```text
//! adapter_config.json         rank, alpha, modules, and where the base is
//! adapter_model.safetensors   the adapters
//! tokenizer.json, …           of the base, so that the folder is all a server needs beside the base
//! trainer/base.json           what PEFT has no field for: the type of the frozen weights and their digest
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::{Lora, LoraBase, LoraModule};
use osmosis_core::learner::{LearnerError, ModelFiles, Weights};
use osmosis_tokens::{ChatFormat, ChatSettings, read_model_text};
use serde_json::{Value, json};

use super::model::FrozenModel;
use super::{Half, checked, merged, name};
use crate::checkpoint::folder;
use crate::training::{finite, not_written};
use crate::{EmbeddedModel, NamedTensor, PolicyError};

pub(crate) const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
const BASE: &str = "trainer/base.json";

/// The adapters of one base.
#[derive(Debug, Clone)]
pub(crate) struct AdapterFiles {
    pub(crate) parts: EmbeddedModel,
    pub(crate) frozen: FrozenModel,
}

impl ModelFiles for AdapterFiles {
    fn read(&self, folder: &Utf8Path) -> Result<Weights, LearnerError> {
        let tensors = read_tensors(folder)?;
        let adapters = checked(&self.parts.config, &self.frozen.lora, tensors)?;
        Ok(finite(adapters)?)
    }

    fn write(&self, folder: &Utf8Path, adapters: &Weights) -> Result<(), LearnerError> {
        let files = |partial: &Utf8Path| self.write_files(folder, partial, adapters);
        folder::save_with(folder, files).map_err(not_written)
    }
}

impl AdapterFiles {
    fn write_files(
        &self,
        place: &Utf8Path,
        folder: &Utf8Path,
        adapters: &Weights,
    ) -> Result<(), PolicyError> {
        let FrozenModel { lora, origin, .. } = &self.frozen;
        folder::write_chat(&self.parts.chat, folder)?;
        let config = config_text(lora, &origin.folder);
        folder::write_text(&folder.join(CONFIG), &format!("{config:#}\n"))?;
        let layout = [("format".to_owned(), "pt".to_owned())].into();
        folder::write_tensors(&folder.join(TENSORS), adapters, Some(layout))?;
        // From the checkpoint, when the base lies beside it: a run that is moved keeps its base.
        let base = relative(&origin.folder, place);
        write_base(folder, &base, lora.base, &origin.sha256)
    }
}

fn write_base(
    folder: &Utf8Path,
    base: &Utf8Path,
    kind: LoraBase,
    sha256: &str,
) -> Result<(), PolicyError> {
    let trainer = folder.join("trainer");
    fs::create_dir(&trainer).map_err(|error| PolicyError::io(&trainer, &error))?;
    let base = json!({ "folder": base, "type": kind.name(), "model_sha256": sha256 });
    folder::write_text(&folder.join(BASE), &format!("{base:#}\n"))
}

/// `../base` for a folder beside the checkpoint, else the whole path.
fn relative(base: &Utf8Path, checkpoint: &Utf8Path) -> Utf8PathBuf {
    let beside = checkpoint.parent().and_then(|all| {
        let all = fs::canonicalize(all).ok()?;
        let name = base.file_name()?;
        (all.join(name) == base.as_std_path()).then(|| Utf8Path::new("..").join(name))
    });
    beside.unwrap_or_else(|| base.to_owned())
}

/// The fields that `peft` and vLLM read.
fn config_text(lora: &Lora, base: &Utf8Path) -> Value {
    let modules: Vec<&str> = lora
        .target_modules
        .iter()
        .map(|module| module.name())
        .collect();
    // vLLM wants a whole number, and most are.
    let whole = lora.alpha.to_string().parse::<i64>();
    let alpha = whole.map_or_else(|_| json!(lora.alpha), Value::from);
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": modules,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "modules_to_save": null,
        "layers_to_transform": null,
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_rslora": false,
        "use_dora": false,
        "revision": null,
    })
}

fn read_tensors(folder: &Utf8Path) -> Result<BTreeMap<String, NamedTensor>, PolicyError> {
    let path = folder.join(TENSORS);
    if !path.is_file() {
        return Err(PolicyError::NotAModel {
            path: folder.to_owned(),
            message: format!("it has no `{TENSORS}`"),
        });
    }
    let mut tensors = BTreeMap::new();
    folder::read_tensors(&path, &mut tensors)?;
    Ok(tensors)
}

/// Whether a folder holds adapters and no model.
pub(crate) fn is_adapter(folder: &Utf8Path) -> bool {
    folder.join(CONFIG).is_file() && !folder.join("config.json").is_file()
}

/// The base with the adapters of a folder merged into it.
pub(crate) fn open(
    folder: &Utf8Path,
    settings: &ChatSettings,
) -> Result<EmbeddedModel, PolicyError> {
    let opened = Adapters::read(folder)?;
    let base = opened.base(folder)?;
    let chat = if folder.join("tokenizer.json").is_file() {
        Arc::new(ChatFormat::load_with(folder, settings)?)
    } else {
        Arc::clone(&EmbeddedModel::open_with(&opened.base_folder(folder), settings)?.chat)
    };
    let adapters = checked(&base.config, &opened.lora, opened.tensors)?;
    let base_weights = Arc::unwrap_or_clone(base.weights);
    Ok(EmbeddedModel {
        weights: Arc::new(merged(&base.config, &opened.lora, base_weights, &adapters)?),
        config: base.config,
        chat,
        name: folder.to_string(),
    })
}

/// Copies the adapters of a checkpoint to another folder, without the state of their training.
pub(crate) fn copy(from: &Utf8Path, to: &Utf8Path) -> Result<(), PolicyError> {
    let opened = Adapters::read(from)?;
    // Checked, so that nobody carries away what can't be used.
    let base = opened.base(from)?;
    let adapters = checked(&base.config, &opened.lora, opened.tensors.clone())?;
    let chat = ChatFormat::load(from)?;
    let base_folder = base_path(&opened.base_path, from);
    let config = config_text(&opened.lora, &base_folder);
    folder::save_with(to, |folder| {
        if let Some(sha256) = &opened.sha256 {
            write_base(folder, &base_folder, opened.lora.base, sha256)?;
        }
        folder::write_chat(&chat, folder)?;
        folder::write_text(&folder.join(CONFIG), &format!("{config:#}\n"))?;
        let layout = [("format".to_owned(), "pt".to_owned())].into();
        folder::write_tensors(&folder.join(TENSORS), &adapters, Some(layout))
    })
}

/// What a folder of adapters says.
struct Adapters {
    lora: Lora,
    /// As it stands there.
    base_path: Utf8PathBuf,
    sha256: Option<String>,
    tensors: BTreeMap<String, NamedTensor>,
}

impl Adapters {
    fn read(folder: &Utf8Path) -> Result<Self, PolicyError> {
        let path = folder.join(CONFIG);
        let text = read_model_text(&path).map_err(|error| PolicyError::io(&path, &error))?;
        let config: Value = serde_json::from_str(&text)
            .map_err(|error| PolicyError::damaged(&path, error.to_string()))?;
        refuse_extras(&config)?;
        let damaged = |what: &str| PolicyError::damaged(&path, format!("it has no `{what}`"));
        let rank = config["r"]
            .as_u64()
            .and_then(|rank| u32::try_from(rank).ok());
        let rank = rank.filter(|rank| *rank > 0).ok_or_else(|| damaged("r"))?;
        let alpha = config["lora_alpha"].as_f64();
        let tensors = read_tensors(folder)?;
        // By the tensors that are there: PEFT also takes a pattern for `target_modules`.
        let target_modules = LoraModule::ALL
            .into_iter()
            .filter(|module| tensors.contains_key(&name(0, *module, Half::A)))
            .collect();
        let own = own_base(folder)?;
        let named = config["base_model_name_or_path"].as_str();
        let base_path = own
            .as_ref()
            .and_then(|own| own["folder"].as_str())
            .or(named)
            .ok_or_else(|| damaged("base_model_name_or_path"))?;
        let base = match own.as_ref().and_then(|own| own["type"].as_str()) {
            None => LoraBase::F32,
            Some(name) => LoraBase::of_name(name).ok_or_else(|| PolicyError::Unsupported {
                what: format!("a base of type `{name}`"),
            })?,
        };
        Ok(Self {
            lora: Lora {
                rank,
                alpha: alpha.ok_or_else(|| damaged("lora_alpha"))?,
                target_modules,
                base,
                dropout: 0.0,
            },
            base_path: base_path.into(),
            sha256: own.and_then(|own| own["model_sha256"].as_str().map(str::to_owned)),
            tensors,
        })
    }

    fn base_folder(&self, folder: &Utf8Path) -> Utf8PathBuf {
        base_path(&self.base_path, folder)
    }

    /// The model that the adapters were trained beside.
    fn base(&self, folder: &Utf8Path) -> Result<EmbeddedModel, PolicyError> {
        let path = self.base_folder(folder);
        if !path.exists() {
            return Err(PolicyError::NoBase {
                adapter: folder.to_owned(),
                base: path,
            });
        }
        if is_adapter(&path) {
            return Err(PolicyError::Unsupported {
                what: format!("an adapter of an adapter (`{path}`)"),
            });
        }
        let base = EmbeddedModel::open(&path)?;
        match &self.sha256 {
            Some(expected) if *expected != base.digest() => Err(PolicyError::OtherBase {
                adapter: folder.to_owned(),
                base: path,
            }),
            Some(_) | None => Ok(base),
        }
    }
}

/// From the adapter's folder, unless it is a whole path.
fn base_path(path: &Utf8Path, folder: &Utf8Path) -> Utf8PathBuf {
    let joined = folder.join(path);
    fs::canonicalize(&joined)
        .ok()
        .and_then(|whole| Utf8PathBuf::from_path_buf(whole).ok())
        .unwrap_or(joined)
}

fn own_base(folder: &Utf8Path) -> Result<Option<Value>, PolicyError> {
    let path = folder.join(BASE);
    match read_model_text(&path) {
        Ok(text) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| PolicyError::damaged(&path, error.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(PolicyError::io(&path, &error)),
    }
}

/// What would change the numbers, and is not computed here.
fn refuse_extras(config: &Value) -> Result<(), PolicyError> {
    let kind = config["peft_type"].as_str().unwrap_or("LORA");
    let unsupported = |what: String| Err(PolicyError::Unsupported { what });
    if kind != "LORA" {
        return unsupported(format!("an adapter of type `{kind}`"));
    }
    if config["bias"].as_str().is_some_and(|bias| bias != "none") {
        return unsupported("an adapter with biases".to_owned());
    }
    let is_set = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => true,
    };
    let extras = [
        "use_dora",
        "use_rslora",
        "modules_to_save",
        "layers_to_transform",
        "rank_pattern",
        "alpha_pattern",
        "fan_in_fan_out",
        "lora_bias",
    ];
    match extras.iter().find(|name| is_set(&config[**name])) {
        Some(name) => unsupported(format!("`{name}` of an adapter")),
        None => Ok(()),
    }
}
