//! A model folder in Hugging Face layout, without its weights.

use std::io::{Read as _, Seek as _, SeekFrom};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_tokens::{open_model_file, read_model_text};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{RunError, RunErrorKind, io_error};

/// Of a larger file, its size, its beginning and its end stand for all of it.
const WHOLE_BYTES: u64 = 64 << 20;
const EDGE_BYTES: u64 = 1 << 20;
/// No header of tensors is larger.
const MAX_HEADER_BYTES: u64 = 256 << 20;

/// What is known of a model without loading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModelFolder {
    pub(super) path: Utf8PathBuf,
    /// Of all files in it.
    pub(super) digest: String,
    pub(super) parameters: usize,
    /// Tokens that prompt and answer may have together.
    pub(super) context: Option<usize>,
}

impl ModelFolder {
    pub(super) fn open(path: &Utf8Path) -> Result<Self, RunError> {
        let invalid = |message: String| {
            RunError::failed(
                RunErrorKind::ModelInvalid,
                format!("model folder `{path}`: {message}"),
            )
            .hint("it needs the files of a Hugging Face model: config.json, *.safetensors, tokenizer.json")
        };
        let config = read_model_text(&path.join("config.json"));
        let config = config.map_err(|error| invalid(format!("config.json: {error}")))?;
        let config: Value = serde_json::from_str(&config)
            .map_err(|error| invalid(format!("config.json: {error}")))?;
        let mut names: Vec<String> = path
            .read_dir_utf8()
            .map_err(|error| io_error(path, &error))?
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()))
            .map(|entry| entry.file_name().to_owned())
            .collect();
        names.sort();
        let tensors = names.iter().filter(|name| {
            let is_model = name.starts_with("model") || name.starts_with("pytorch_model");
            name.ends_with(".safetensors") && is_model
        });
        let mut parameters = 0;
        let mut any = false;
        for name in tensors {
            any = true;
            let counted = parameters_in(&path.join(name));
            parameters += counted.map_err(|error| invalid(format!("{name}: {error}")))?;
        }
        if !any {
            return Err(invalid("it has no model*.safetensors".to_owned()));
        }
        if let Some(other) = names.iter().find(|name| {
            name.ends_with(".safetensors")
                && !name.starts_with("model")
                && !name.starts_with("pytorch_model")
        }) {
            return Err(invalid(format!(
                "inference servers read every *.safetensors as weights, and `{other}` has none of the model"
            ))
            .hint("move it to another folder"));
        }
        let digest = digest(path, &names).map_err(|error| io_error(path, &error))?;
        let text = config.get("text_config").unwrap_or(&config);
        let context = text["max_position_embeddings"].as_u64();
        Ok(Self {
            path: path.to_owned(),
            digest,
            parameters,
            context: context.and_then(|context| usize::try_from(context).ok()),
        })
    }
}

fn digest(folder: &Utf8Path, names: &[String]) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    for name in names {
        let mut file = open_model_file(&folder.join(name))?;
        let size = file.metadata()?.len();
        hasher.update(name.as_bytes());
        hasher.update(size.to_le_bytes());
        if size <= WHOLE_BYTES {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            hasher.update(&bytes);
            continue;
        }
        for start in [0, size - EDGE_BYTES] {
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = Vec::new();
            file.by_ref().take(EDGE_BYTES).read_to_end(&mut bytes)?;
            hasher.update(&bytes);
        }
    }
    let digest = hasher.finalize();
    let mut hex = String::with_capacity(2 * digest.len());
    for byte in digest {
        for nibble in [byte >> 4, byte & 15] {
            hex.extend(char::from_digit(u32::from(nibble), 16));
        }
    }
    Ok(hex)
}

/// The numbers in a file of tensors, by its header.
fn parameters_in(path: &Utf8Path) -> Result<usize, String> {
    let mut file = open_model_file(path).map_err(|error| error.to_string())?;
    let mut length = [0; 8];
    file.read_exact(&mut length)
        .map_err(|error| error.to_string())?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err("it is no safetensors file".to_owned());
    }
    let mut header = Vec::new();
    file.take(length)
        .read_to_end(&mut header)
        .map_err(|error| error.to_string())?;
    let header: serde_json::Map<String, Value> =
        serde_json::from_slice(&header).map_err(|_| "it is no safetensors file".to_owned())?;
    let shapes = header
        .iter()
        .filter_map(|(_, tensor)| tensor["shape"].as_array());
    let sizes = shapes.map(|shape| {
        let sizes = shape.iter().filter_map(Value::as_u64);
        sizes.fold(1_u64, u64::saturating_mul)
    });
    usize::try_from(sizes.sum::<u64>()).map_err(|error| error.to_string())
}
