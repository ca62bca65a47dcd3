//! Folders that Hugging Face's `datasets` wrote with `save_to_disk`.

use std::io::Read as _;

use camino::{Utf8Path, Utf8PathBuf};
use serde::Deserialize;

use crate::DataError;
use crate::dataset::unreadable;

const STATE: &str = "state.json";
const SPLITS: &str = "dataset_dict.json";

/// A description has a line for each file.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Deserialize)]
struct State {
    #[serde(rename = "_data_files")]
    files: Vec<DataFile>,
    #[serde(rename = "_indices_files", default)]
    indices: Option<Vec<DataFile>>,
}

#[derive(Deserialize)]
struct DataFile {
    filename: String,
}

#[derive(Deserialize)]
struct Splits {
    splits: Vec<String>,
}

/// Whether a folder holds a dataset, or several of them.
pub(crate) fn is_saved(folder: &Utf8Path) -> bool {
    folder.join(STATE).is_file() || folder.join(SPLITS).is_file()
}

/// The Arrow files of a folder, in the order of their rows.
pub(crate) fn files(folder: &Utf8Path) -> Result<Vec<Utf8PathBuf>, DataError> {
    let broken = |file: &str, message: &str| DataError::Unreadable {
        path: folder.join(file),
        message: message.to_owned(),
    };
    if folder.join(SPLITS).is_file() {
        let splits: Splits = serde_json::from_str(&read(&folder.join(SPLITS))?)
            .map_err(|error| broken(SPLITS, &error.to_string()))?;
        return Err(DataError::Splits {
            path: folder.to_owned(),
            splits: splits.splits,
        });
    }
    if !folder.join(STATE).is_file() {
        return Err(DataError::NotAFile {
            path: folder.to_owned(),
        });
    }
    let state: State = serde_json::from_str(&read(&folder.join(STATE))?)
        .map_err(|error| broken(STATE, &error.to_string()))?;
    if state.indices.is_some_and(|files| !files.is_empty()) {
        return Err(broken(
            STATE,
            "its rows are picked by an index; call `flatten_indices()` before `save_to_disk`",
        ));
    }
    let mut files = Vec::new();
    for DataFile { filename } in state.files {
        // A name, and no way out of the folder.
        if Utf8Path::new(&filename).file_name() != Some(filename.as_str()) {
            return Err(broken(STATE, "it names a file outside of the folder"));
        }
        files.push(folder.join(filename));
    }
    if files.is_empty() {
        return Err(DataError::Empty {
            path: folder.to_owned(),
        });
    }
    Ok(files)
}

fn read(path: &Utf8Path) -> Result<String, DataError> {
    let failed = |error: std::io::Error| unreadable(path, &error);
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_BYTES)
        .read_to_string(&mut text)
        .map_err(failed)?;
    Ok(text)
}
