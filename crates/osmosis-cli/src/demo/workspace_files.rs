//! The demo's workspace on disk. What the user changed is theirs; what they did not is kept up to date.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_run::{RunError, RunErrorKind, io_error as io};
use rust_embed::RustEmbed;

use crate::private_files;
use crate::source_digest::bytes_digest;

#[derive(RustEmbed)]
#[folder = "../../examples/calculator"]
#[exclude = "*.venv/*"]
#[exclude = "*.osmosis/*"]
#[exclude = "*__pycache__/*"]
#[exclude = "*.lock"]
struct Calculator;

/// Digests of the files as they were last written, so that changes can be told from old versions.
const WRITTEN: &str = ".osmosis/demo.json";

/// Writes the files of the workspace. Returns those that were left as the user has them.
pub(crate) fn write(root: &Utf8Path) -> Result<Vec<Utf8PathBuf>, RunError> {
    let shipped: Vec<(Utf8PathBuf, Vec<u8>)> = Calculator::iter()
        .filter_map(|name| {
            let file = Calculator::get(&name)?;
            Some((Utf8PathBuf::from(name.as_ref()), file.data.into_owned()))
        })
        .collect();
    write_files(root, &shipped)
}

fn write_files(
    root: &Utf8Path,
    shipped: &[(Utf8PathBuf, Vec<u8>)],
) -> Result<Vec<Utf8PathBuf>, RunError> {
    let list = root.join(WRITTEN);
    let mut written: BTreeMap<Utf8PathBuf, String> = std::fs::read(&list)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let mut kept = vec![];
    for (name, bytes) in shipped {
        let path = root.join(name);
        let ours = bytes_digest(bytes);
        match std::fs::read(&path) {
            Ok(found) => {
                let found = bytes_digest(&found);
                if found == ours {
                    written.insert(name.clone(), ours);
                    continue;
                }
                if written.get(name) != Some(&found) {
                    kept.push(name.clone());
                    continue;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(&path, &error)),
        }
        write_file(&path, bytes)?;
        written.insert(name.clone(), ours);
    }
    let text = serde_json::to_vec_pretty(&written)
        .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))?;
    write_file(&list, &text)?;
    Ok(kept)
}

fn write_file(path: &Utf8Path, bytes: &[u8]) -> Result<(), RunError> {
    if let Some(folder) = path.parent() {
        private_files::create_shared_folder(folder).map_err(|error| io(folder, &error))?;
    }
    std::fs::write(path, bytes)
        .and_then(|()| private_files::share(path))
        .map_err(|error| io(path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_ships_what_it_needs_and_nothing_that_was_made() {
        let names: Vec<String> = Calculator::iter()
            .map(std::borrow::Cow::into_owned)
            .collect();
        for needed in [super::super::CONFIG, "rollouts/calculator/main.py"] {
            assert!(names.iter().any(|name| name == needed), "{names:?}");
        }
        for made in [".venv", ".osmosis", "__pycache__"] {
            assert!(!names.iter().any(|name| name.contains(made)), "{names:?}");
        }
    }

    #[test]
    fn changed_files_stay_and_others_follow_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap();
        let shipped =
            |text: &str| ["a", "b"].map(|name| (Utf8PathBuf::from(name), text.as_bytes().to_vec()));
        let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
        assert!(write_files(root, &shipped("old")).unwrap().is_empty());
        std::fs::write(root.join("a"), "mine").unwrap();
        assert_eq!(write_files(root, &shipped("new")).unwrap(), ["a"]);
        assert_eq!(
            (read("a"), read("b")),
            ("mine".to_owned(), "new".to_owned())
        );
    }
}
