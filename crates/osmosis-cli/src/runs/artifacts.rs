//! The files that user code left for a rollout, listed without following anything it may have
//! put there.

use std::fs::{Metadata, symlink_metadata};
use std::path::{Path, PathBuf};

use camino::Utf8Path;
use serde_json::{Value, json};

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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Artifacts {
    /// The first ones by path.
    pub(crate) listed: Vec<Artifact>,
    pub(crate) count: usize,
    /// There are more than were counted.
    pub(crate) uncounted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Artifact {
    /// Below the rollout's folder.
    path: PathBuf,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    File {
        bytes: u64,
    },
    /// A symbolic link, wherever it leads.
    Link {
        to: PathBuf,
    },
    /// A socket, a pipe, a device, or what can't be looked at.
    Other,
}

impl Artifacts {
    /// Lists the folder of a rollout, which need not be there.
    pub(crate) fn of(folder: &Utf8Path) -> Self {
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
            Ok(metadata) => found.artifacts.push(Artifact {
                path: PathBuf::from("."),
                kind: Kind::of(folder.as_std_path(), &metadata),
            }),
            Err(_) => {}
        }
        let mut listed = found.artifacts;
        let count = listed.len();
        listed.sort();
        listed.truncate(limits.listed);
        Self {
            listed,
            count,
            uncounted: found.uncounted,
        }
    }

    /// A line for each, and one for those that are not listed.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.listed.iter().map(Artifact::line).collect();
        let more = self.count - self.listed.len();
        if self.uncounted {
            lines.push(format!("and more than {more} others"));
        } else if more > 0 {
            lines.push(format!("and {more} others"));
        }
        lines
    }

    pub(crate) fn to_json(&self, folder: &Utf8Path) -> Value {
        let items: Vec<Value> = self.listed.iter().map(Artifact::to_json).collect();
        json!({
            "folder": folder, "items": items, "total_count": self.count,
            "uncounted": self.uncounted,
        })
    }
}

struct Found {
    artifacts: Vec<Artifact>,
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
                    Ok(metadata) => Kind::of(&root.join(&path), &metadata),
                    Err(_) => Kind::Other,
                };
                self.artifacts.push(Artifact { path, kind });
            }
        }
    }
}

impl Kind {
    fn of(path: &Path, metadata: &Metadata) -> Self {
        if metadata.is_symlink() {
            Self::Link {
                to: path.read_link().unwrap_or_default(),
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

impl Artifact {
    fn line(&self) -> String {
        let path = for_terminal(&self.path);
        match &self.kind {
            Kind::File { bytes } => format!("{path}  {bytes} bytes"),
            Kind::Link { to } => format!("{path}  link to {}, not followed", for_terminal(to)),
            Kind::Other => format!("{path}  no file"),
        }
    }

    fn to_json(&self) -> Value {
        let path = self.path.to_string_lossy();
        match &self.kind {
            Kind::File { bytes } => json!({"path": path, "kind": "file", "bytes": bytes}),
            Kind::Link { to } => {
                json!({"path": path, "kind": "link", "to": to.to_string_lossy()})
            }
            Kind::Other => json!({"path": path, "kind": "other"}),
        }
    }
}

/// A path that can't move the cursor, break the line or change colours.
fn for_terminal(path: &Path) -> String {
    path.to_string_lossy()
        .escape_debug()
        .to_string()
        .replace("\\'", "'")
        .replace("\\\"", "\"")
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

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

        fn lines(&self) -> Vec<String> {
            Artifacts::of(self.path()).lines()
        }
    }

    #[test]
    fn files_are_listed_with_path_and_size() {
        let folder = Folder::new();
        folder.write("b.txt", "four");
        folder.write("a/deep/er.bin", "");
        assert_eq!(folder.lines(), ["a/deep/er.bin  0 bytes", "b.txt  4 bytes"]);
        let json = Artifacts::of(folder.path()).to_json(folder.path());
        assert_eq!(json["total_count"], 2);
        assert_eq!(
            json["items"][1],
            json!({"path": "b.txt", "kind": "file", "bytes": 4})
        );
    }

    #[test]
    fn a_folder_that_is_not_there_holds_nothing() {
        let folder = Folder::new();
        let artifacts = Artifacts::of(&folder.path().join("nothing"));
        assert_eq!(artifacts, Artifacts::default());
    }

    #[test]
    fn links_are_named_and_never_followed() {
        let outside = Folder::new();
        outside.write("secret.txt", "secret");
        let folder = Folder::new();
        symlink(outside.path(), folder.path().join("out")).unwrap();
        symlink(folder.path(), folder.path().join("round")).unwrap();
        symlink(outside.path().join("secret.txt"), folder.path().join("s")).unwrap();
        assert_eq!(
            folder.lines(),
            [
                format!("out  link to {}, not followed", outside.path()),
                format!("round  link to {}, not followed", folder.path()),
                format!("s  link to {}/secret.txt, not followed", outside.path()),
            ]
        );
        // A link in place of the whole folder.
        let itself = Artifacts::of(&folder.path().join("out")).lines();
        assert_eq!(
            itself,
            [format!(".  link to {}, not followed", outside.path())]
        );
    }

    #[test]
    fn more_than_can_be_read_are_counted_up_to_a_limit() {
        let folder = Folder::new();
        for number in 0..6 {
            folder.write(format!("{number}"), "");
        }
        let lines =
            |listed, counted| Artifacts::within(Limits { listed, counted }, folder.path()).lines();
        assert_eq!(lines(6, 6).len(), 6);
        assert_eq!(lines(2, 6), ["0  0 bytes", "1  0 bytes", "and 4 others"]);
        let cut = lines(2, 5);
        assert_eq!(cut.len(), 3, "{cut:?}");
        assert_eq!(cut[2], "and more than 3 others");
    }

    #[test]
    fn names_can_not_write_to_the_terminal() {
        let folder = Folder::new();
        folder.write("a\u{1b}[2Jb\nc", "");
        folder.write(std::ffi::OsStr::from_bytes(b"\xff"), "");
        folder.write("it's \u{202e}caf\u{e9}", "");
        assert_eq!(
            folder.lines(),
            [
                "a\\u{1b}[2Jb\\nc  0 bytes",
                "it's \\u{202e}caf\u{e9}  0 bytes",
                "\u{fffd}  0 bytes",
            ]
        );
    }
}
