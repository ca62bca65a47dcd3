//! Files that are either as they were or as they should be, whatever happens in between.

use std::fs::{self, File};
use std::io::Write;

use camino::Utf8Path;

use crate::TrainError;

/// Replaces a file's content; on disk when this returns.
pub(crate) fn replace(path: &Utf8Path, content: &[u8]) -> Result<(), TrainError> {
    let beside = path.with_file_name(format!(".{}.partial", path.file_name().unwrap_or("file")));
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    written
        .and_then(|()| fs::rename(&beside, path))
        .map_err(|error| {
            let _ = fs::remove_file(&beside);
            TrainError::file(path, &error)
        })?;
    sync_parent(path)
}

/// Makes the content of a file or the names in a folder durable.
pub(crate) fn sync(path: &Utf8Path) -> Result<(), TrainError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(|error| TrainError::file(path, &error))
}

/// Makes the name of a file or folder durable.
pub(crate) fn sync_parent(path: &Utf8Path) -> Result<(), TrainError> {
    match path.parent() {
        Some(parent) if parent != "" => sync(parent),
        Some(_) | None => Ok(()),
    }
}
