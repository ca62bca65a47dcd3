//! The files that user code left for a rollout, listed without following anything it may have
//! put there.

use std::fs::{Metadata, symlink_metadata};
use std::path::{Path, PathBuf};

use camino::{Utf8Path, Utf8PathBuf};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far a folder is looked at.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// So many are listed; the rest is counted.
    listed: usize,
    /// So many entries are counted, folders included: no tree, however large, holds up `show`.
    counted: usize,
}

const LIMITS: Limits = Limits {
    listed: 100,
    counted: 100_000,
};

/// What is in a rollout's folder, folders themselves left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Artifacts {
    #[schemars(with = "String")]
    pub folder: Utf8PathBuf,
    /// The first ones by path.
    pub items: Vec<Artifact>,
    pub total_count: usize,
    /// There are more than were counted.
    pub uncounted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Artifact {
    /// Below the rollout's folder; what is no Unicode in it is shown as `\u{fffd}`.
    pub path: String,
    #[serde(flatten)]
    pub kind: ArtifactKind,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ArtifactKind {
    File {
        bytes: u64,
    },
    /// A symbolic link, wherever it leads. It is not followed.
    Link {
        to: String,
    },
    /// A socket, a pipe, a device, or what can't be looked at.
    Other,
}

impl Artifacts {
    /// Lists the folder of a rollout, which need not be there.
    pub fn of(folder: &Utf8Path) -> Self {
        Self::within(LIMITS, folder)
    }

    fn within(limits: Limits, folder: &Utf8Path) -> Self {
        let mut found = Found {
            artifacts: vec![],
            uncounted: false,
        };
        // User code may have put a link in place of its folder.
        match symlink_metadata(folder) {
            Ok(metadata) if metadata.is_dir() => found.walk(folder.as_std_path(), limits.counted),
            Ok(metadata) => found.artifacts.push((
                PathBuf::from("."),
                ArtifactKind::of(folder.as_std_path(), &metadata),
            )),
            Err(_) => {}
        }
        let mut listed = found.artifacts;
        let total_count = listed.len();
        listed.sort();
        listed.truncate(limits.listed);
        let items = listed.into_iter().map(|(path, kind)| Artifact {
            path: path.to_string_lossy().into_owned(),
            kind,
        });
        Self {
            folder: folder.to_owned(),
            items: items.collect(),
            total_count,
            uncounted: found.uncounted,
        }
    }
}

struct Found {
    artifacts: Vec<(PathBuf, ArtifactKind)>,
    uncounted: bool,
}

impl Found {
    fn walk(&mut self, root: &Path, limit: usize) {
        // A list and not recursion: folders may be nested deeper than the stack allows.
        let mut folders = vec![PathBuf::new()];
        let mut seen = 0;
        while let Some(folder) = folders.pop() {
            let Ok(entries) = root.join(&folder).read_dir() else {
                continue;
            };
            for entry in entries.flatten() {
                seen += 1;
                if seen > limit {
                    self.uncounted = true;
                    return;
                }
                let path = folder.join(entry.file_name());
                // Of the entry itself: a link is not followed.
                let kind = match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => {
                        folders.push(path);
                        continue;
                    }
                    Ok(metadata) => ArtifactKind::of(&root.join(&path), &metadata),
                    Err(_) => ArtifactKind::Other,
                };
                self.artifacts.push((path, kind));
            }
        }
    }
}

impl ArtifactKind {
    fn of(path: &Path, metadata: &Metadata) -> Self {
        if metadata.is_symlink() {
            let to = path.read_link().unwrap_or_default();
            Self::Link {
                to: to.to_string_lossy().into_owned(),
            }
        } else if metadata.is_file() {
            Self::File {
                bytes: metadata.len(),
            }
        } else {
            Self::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::{Value, json};

    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self) -> &Utf8Path {
            Utf8Path::from_path(self.0.path()).unwrap()
        }

        fn write(&self, path: impl AsRef<Path>, text: &str) {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    fn items(artifacts: &Artifacts) -> Vec<Value> {
        let document = serde_json::to_value(artifacts).unwrap();
        document["items"].as_array().unwrap().clone()
    }

    fn link(path: &str, to: &Utf8Path) -> Value {
        json!({"path": path, "kind": "link", "to": to})
    }

    #[test]
    fn files_are_listed_with_path_and_size() {
        let folder = Folder::new();
        folder.write("b.txt", "four");
        folder.write("a/deep/er.bin", "");
        let artifacts = Artifacts::of(folder.path());
        assert_eq!(artifacts.total_count, 2);
        assert_eq!(
            items(&artifacts),
            [
                json!({"path": "a/deep/er.bin", "kind": "file", "bytes": 0}),
                json!({"path": "b.txt", "kind": "file", "bytes": 4}),
            ]
        );
    }

    #[test]
    fn a_folder_that_is_not_there_holds_nothing() {
        let folder = Folder::new();
        let artifacts = Artifacts::of(&folder.path().join("nothing"));
        assert_eq!((artifacts.total_count, artifacts.uncounted), (0, false));
    }

    #[test]
    fn links_are_named_and_never_followed() {
        let outside = Folder::new();
        outside.write("secret.txt", "secret");
        let folder = Folder::new();
        let secret = outside.path().join("secret.txt");
        symlink(outside.path(), folder.path().join("out")).unwrap();
        symlink(folder.path(), folder.path().join("round")).unwrap();
        symlink(&secret, folder.path().join("s")).unwrap();
        assert_eq!(
            items(&Artifacts::of(folder.path())),
            [
                link("out", outside.path()),
                link("round", folder.path()),
                link("s", &secret),
            ]
        );
        // A link in place of the whole folder.
        let itself = Artifacts::of(&folder.path().join("out"));
        assert_eq!(items(&itself), [link(".", outside.path())]);
    }

    #[test]
    fn more_than_can_be_read_are_counted_up_to_a_limit() {
        let folder = Folder::new();
        for number in 0..6 {
            folder.write(format!("{number}"), "");
        }
        let found = |listed, counted| {
            let found = Artifacts::within(Limits { listed, counted }, folder.path());
            (found.items.len(), found.total_count, found.uncounted)
        };
        assert_eq!(found(6, 6), (6, 6, false));
        assert_eq!(found(2, 6), (2, 6, false));
        assert_eq!(found(2, 5), (2, 5, true));
    }
}
