//! A digest of a rollout's source, so that a resume notices when the code changed.

use std::fmt::Write as _;

use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest, Sha256};

use crate::{RunError, io_error as io};

/// Folders that hold nothing the user wrote.
const SKIPPED: [&str; 6] = [
    ".venv",
    "__pycache__",
    ".git",
    "target",
    "node_modules",
    ".mypy_cache",
];

/// SHA-256 over the paths and contents of all files of the rollout, in order.
pub fn source_digest(folder: &Utf8Path) -> Result<String, RunError> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let name = file.strip_prefix(folder).unwrap_or(&file);
        let bytes = std::fs::read(&file).map_err(|error| io(&file, &error))?;
        hash.update((name.as_str().len() as u64).to_le_bytes());
        hash.update(name.as_str());
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(&bytes);
    }
    Ok(hex(&hash.finalize()))
}

fn collect(folder: &Utf8Path, files: &mut Vec<Utf8PathBuf>) -> Result<(), RunError> {
    let entries = folder.read_dir_utf8().map_err(|error| io(folder, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| io(folder, &error))?;
        let kind = entry.file_type().map_err(|error| io(folder, &error))?;
        let name = entry.file_name();
        if kind.is_dir() {
            if !SKIPPED.contains(&name) {
                collect(entry.path(), files)?;
            }
        } else if kind.is_file() && entry.path().extension() != Some("pyc") {
            files.push(entry.into_path());
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// SHA-256 of one text.
pub fn text_digest(text: &str) -> String {
    bytes_digest(text.as_bytes())
}

pub fn bytes_digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}
