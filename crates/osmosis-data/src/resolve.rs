use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::{DATASET_EXTENSIONS, DatasetRef};

use crate::{DataError, pattern, saved_folder};

/// What a dataset found by name may be compressed as.
const COMPRESSED: [&str; 4] = ["jsonl.gz", "jsonl.zst", "csv.gz", "csv.zst"];

/// How many names an error offers instead.
const MAX_INSTEAD: usize = 5;

/// The file, pattern or folder that a config means.
pub fn resolve(reference: &DatasetRef, workspace: &Utf8Path) -> Result<Utf8PathBuf, DataError> {
    let candidates: Vec<Utf8PathBuf> = match reference {
        DatasetRef::Path(path) => vec![workspace.join(path)],
        DatasetRef::Name(name) => endings()
            .map(|ending| workspace.join("data").join(format!("{name}.{ending}")))
            .chain([workspace.join("data").join(name)])
            .collect(),
    };
    let is_dataset = |path: &&Utf8PathBuf| {
        path.is_file()
            || saved_folder::is_saved(path)
            || (pattern::is_pattern(path) && !pattern::files(path).is_empty())
    };
    let files: Vec<&Utf8PathBuf> = candidates.iter().filter(is_dataset).collect();
    match files.as_slice() {
        [] => {}
        [file] => return Ok((*file).clone()),
        several => {
            return Err(DataError::Ambiguous {
                name: reference.to_string(),
                files: several.iter().map(|path| within(workspace, path)).collect(),
            });
        }
    }
    if let Some(folder) = candidates.iter().find(|path| path.is_dir()) {
        return Err(DataError::NotAFile {
            path: within(workspace, folder),
        });
    }
    Err(DataError::NotFound {
        reference: reference.to_string(),
        // The plain ones stand for the compressed ones too.
        looked_at: candidates
            .iter()
            .take(DATASET_EXTENSIONS.len())
            .map(|path| within(workspace, path))
            .collect(),
        instead: instead(reference, workspace),
    })
}

fn endings() -> impl Iterator<Item = &'static str> {
    DATASET_EXTENSIONS.into_iter().chain(COMPRESSED)
}

/// What a file would be called by name; `None` for one that is no dataset.
fn name_of(file: &str) -> Option<&str> {
    endings().find_map(|ending| file.strip_suffix(ending)?.strip_suffix('.'))
}

/// A path as somebody who stands in the workspace would write it.
fn within(workspace: &Utf8Path, path: &Utf8Path) -> Utf8PathBuf {
    path.strip_prefix(workspace).unwrap_or(path).to_owned()
}

/// What the user may have meant, written the way the reference was, the nearest first.
fn instead(reference: &DatasetRef, workspace: &Utf8Path) -> Vec<String> {
    let folder = match reference {
        DatasetRef::Path(path) => workspace.join(path).parent().map(Utf8Path::to_owned),
        DatasetRef::Name(_) => None,
    };
    let folder = folder
        .filter(|folder| folder.is_dir())
        .unwrap_or_else(|| workspace.join("data"));
    let Ok(entries) = folder.read_dir_utf8() else {
        return Vec::new();
    };
    let wanted = reference.to_string();
    let mut names: Vec<(f64, String)> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let name = name_of(entry.file_name())?;
            let name = match reference {
                DatasetRef::Path(_) => within(workspace, entry.path()).into_string(),
                DatasetRef::Name(_) => name.to_owned(),
            };
            Some((strsim::jaro_winkler(&name, &wanted), name))
        })
        .collect();
    names.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    names.dedup_by(|a, b| a.1 == b.1);
    names
        .into_iter()
        .take(MAX_INSTEAD)
        .map(|(_, name)| name)
        .collect()
}
