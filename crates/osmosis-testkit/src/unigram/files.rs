//! Folders with one JSON file: the bits of the logits.

use std::fs;
use std::io;

use camino::Utf8Path;
use osmosis_core::learner::{LearnerError, LearnerErrorKind, ModelFiles, Weights};

use super::{error, logits, weights};

const FILE: &str = "logits.json";

#[derive(Debug)]
pub(super) struct UnigramFiles {
    pub(super) vocabulary: usize,
}

impl ModelFiles for UnigramFiles {
    fn read(&self, folder: &Utf8Path) -> Result<Weights, LearnerError> {
        let read = weights(&read_numbers(&folder.join(FILE))?);
        logits(&read, self.vocabulary)?;
        Ok(read)
    }

    fn write(&self, folder: &Utf8Path, weights: &Weights) -> Result<(), LearnerError> {
        let tensor = weights.tensors.values().next();
        let numbers = tensor.map_or(&[][..], |tensor| &*tensor.values);
        let partial = folder.with_extension("writing");
        fs::create_dir_all(&partial).map_err(|cause| unwritable(&partial, &cause))?;
        write_numbers(&partial.join(FILE), numbers)?;
        fs::rename(&partial, folder).map_err(|cause| unwritable(folder, &cause))
    }
}

/// Numbers as their bits, so that every one comes back as it was.
pub(super) fn write_numbers(path: &Utf8Path, numbers: &[f32]) -> Result<(), LearnerError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|cause| unwritable(folder, &cause))?;
    }
    let bits: Vec<u32> = numbers.iter().map(|number| number.to_bits()).collect();
    fs::write(path, serde_json::Value::from(bits).to_string())
        .map_err(|cause| unwritable(path, &cause))
}

pub(super) fn read_numbers(path: &Utf8Path) -> Result<Vec<f32>, LearnerError> {
    let unreadable =
        |cause: String| error(LearnerErrorKind::Unreadable, format!("`{path}`: {cause}"));
    let text = fs::read_to_string(path).map_err(|cause| unreadable(cause.to_string()))?;
    let bits: Vec<u32> =
        serde_json::from_str(&text).map_err(|cause| unreadable(cause.to_string()))?;
    Ok(bits.into_iter().map(f32::from_bits).collect())
}

fn unwritable(path: &Utf8Path, cause: &io::Error) -> LearnerError {
    let kind = match cause.kind() {
        io::ErrorKind::StorageFull => LearnerErrorKind::DiskFull,
        _ => LearnerErrorKind::Unwritable,
    };
    error(kind, format!("`{path}`: {cause}"))
}
