//! Which files of a project a resume must find unchanged, each with its digest.
//!
//! Every file counts but those that an agent does not run: [`IGNORED`], virtual environments, and what the
//! project's own `.osmosisignore` lists. `docs/runs.md` describes both.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest, Sha256};

use crate::digested_files::DigestedFile;
use crate::source_digest::{bytes_digest, hex};
use crate::{RunError, io_error as io};

/// The file in a project's folder that lists what else does not count.
pub const IGNORE_FILE: &str = ".osmosisignore";

/// What does not count in any project, in the language of [`IGNORE_FILE`].
pub const IGNORED: &[&str] = &[
    ".*",
    "__pycache__/",
    "*.pyc",
    "*.egg-info/",
    "node_modules/",
    "target/",
    "tests/",
    "test_*.py",
    "*_test.py",
    "conftest.py",
    "*.ipynb",
    "*.log",
    "*-journal",
    "*-shm",
    "*-wal",
    "README*",
    "CHANGELOG*",
    "LICENSE*",
];

/// Folders that are not even looked into.
pub(crate) const SKIPPED: [&str; 6] = [
    ".venv",
    "__pycache__",
    ".git",
    "target",
    "node_modules",
    ".mypy_cache",
];

/// Digits of a file's digest that are kept.
const DIGITS: usize = 16;

/// The digests of a project's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectSource {
    /// Of all files together, ignored ones included. Runs from before there were digests of single files
    /// have nothing else to be compared by.
    pub sha256: String,
    /// Of each file that counts, by its path from the project's folder.
    pub files: BTreeMap<String, String>,
    /// The files that the project needs to be run: those that count, and what its build may ask for.
    pub packed: BTreeMap<String, DigestedFile>,
}

impl ProjectSource {
    pub fn read(folder: &Utf8Path) -> Result<Self, RunError> {
        let mut paths = Vec::new();
        collect(folder, &mut paths)?;
        paths.sort();
        let ignored = Ignored::of_project(folder)?;
        let mut hash = Sha256::new();
        let mut files = BTreeMap::new();
        let mut packed = BTreeMap::new();
        for file in paths {
            let name = file.strip_prefix(folder).unwrap_or(&file);
            let bytes = std::fs::read(&file).map_err(|error| io(&file, &error))?;
            hash.update((name.as_str().len() as u64).to_le_bytes());
            hash.update(name.as_str());
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(&bytes);
            let counts = !ignored.contains(folder, name);
            if !counts && !is_packed_too(name) {
                continue;
            }
            let metadata = file.metadata().map_err(|error| io(&file, &error))?;
            let digested = DigestedFile {
                sha256: bytes_digest(&bytes),
                executable: metadata.permissions().mode() & 0o100 != 0,
            };
            if counts {
                files.insert(name.to_string(), digested.sha256[..DIGITS].to_owned());
            }
            packed.insert(name.to_string(), digested);
        }
        Ok(Self {
            sha256: hex(&hash.finalize()),
            files,
            packed,
        })
    }
}

/// What the project's build may ask for beside the files that count. Not `.env` and the like: what is packed is in a
/// database.
const PACKED_TOO: &[&str] = &[
    IGNORE_FILE,
    ".python-version",
    ".cargo/config.toml",
    "README*",
    "LICENSE*",
    "CHANGELOG*",
];

fn is_packed_too(name: &Utf8Path) -> bool {
    let name = name.as_str().as_bytes();
    PACKED_TOO
        .iter()
        .any(|pattern| fits(pattern.as_bytes(), name))
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

/// What does not count in one project.
#[derive(Debug)]
pub(crate) struct Ignored(Vec<Rule>);

/// One line: later ones win over earlier ones.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    pattern: String,
    /// `!`: it counts after all.
    counts: bool,
    /// It has a `/` within: it is meant from the project's folder on.
    anchored: bool,
    /// It ends with `/`.
    folders_only: bool,
}

impl Ignored {
    pub(crate) fn of_project(folder: &Utf8Path) -> Result<Self, RunError> {
        let path = folder.join(IGNORE_FILE);
        let own = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(io(&path, &error)),
        };
        let ours = IGNORED.iter().copied();
        Ok(Self(
            ours.chain(own.lines()).filter_map(Rule::of_line).collect(),
        ))
    }

    /// Whether a file, or a folder that it is in, does not count.
    fn contains(&self, folder: &Utf8Path, file: &Utf8Path) -> bool {
        self.contains_folder_of(folder, file) || self.matches(file, false)
    }

    /// Whether a folder that a file is in does not count.
    pub(crate) fn contains_folder_of(&self, folder: &Utf8Path, file: &Utf8Path) -> bool {
        let mut parents: Vec<&Utf8Path> = file
            .ancestors()
            .skip(1)
            .filter(|parent| !parent.as_str().is_empty())
            .collect();
        parents.reverse();
        let is_environment = |parent: &&Utf8Path| folder.join(parent).join("pyvenv.cfg").is_file();
        parents
            .iter()
            .any(|parent| is_environment(parent) || self.matches(parent, true))
    }

    fn matches(&self, path: &Utf8Path, is_folder: bool) -> bool {
        let fitting = self
            .0
            .iter()
            .rev()
            .find(|rule| rule.matches(path, is_folder));
        fitting.is_some_and(|rule| !rule.counts)
    }
}

impl Rule {
    fn of_line(line: &str) -> Option<Self> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let (counts, line) = match line.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let folders_only = line.ends_with('/');
        let pattern = line.trim_end_matches('/');
        let anchored = pattern.contains('/');
        Some(Self {
            pattern: pattern.trim_start_matches('/').to_owned(),
            counts,
            anchored,
            folders_only,
        })
    }

    fn matches(&self, path: &Utf8Path, is_folder: bool) -> bool {
        if self.folders_only && !is_folder {
            return false;
        }
        let text = if self.anchored {
            path.as_str()
        } else {
            path.file_name().unwrap_or_default()
        };
        fits(self.pattern.as_bytes(), text.as_bytes())
    }
}

/// `*` and `?` stand for anything within a name, `**` for anything.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', b'*', rest @ ..] => (0..=text.len()).any(|at| fits(rest, &text[at..])),
        [b'*', rest @ ..] => (0..=text.len())
            .take_while(|at| !text[..*at].contains(&b'/'))
            .any(|at| fits(rest, &text[at..])),
        [b'?', rest @ ..] => text.first().is_some_and(|c| *c != b'/') && fits(rest, &text[1..]),
        [c, rest @ ..] => text.first() == Some(c) && fits(rest, &text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(files: &[&str], ignore: Option<&str>) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap();
        for file in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, file).unwrap();
        }
        if let Some(text) = ignore {
            std::fs::write(root.join(IGNORE_FILE), text).unwrap();
        }
        let source = ProjectSource::read(root).unwrap();
        source.files.into_keys().collect()
    }

    #[test]
    fn code_prompts_and_data_count_and_tests_caches_and_notebooks_do_not() {
        let files = [
            "main.py",
            "agent/tools.py",
            "prompts/system.md",
            "data/facts.csv",
            "pyproject.toml",
            "README.md",
            ".env",
            ".vscode/settings.json",
            "test_main.py",
            "tests/data.json",
            "agent/tests/x.py",
            "try.ipynb",
            "old_venv/pyvenv.cfg",
            "old_venv/lib/site.py",
            "data/facts.db-wal",
        ];
        assert_eq!(
            counted(&files, None),
            [
                "agent/tools.py",
                "data/facts.csv",
                "main.py",
                "prompts/system.md",
                "pyproject.toml"
            ]
        );
    }

    #[test]
    fn what_counts_and_what_builds_ask_for_is_packed_and_no_secrets_are() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap();
        for file in [
            "main.py",
            ".env",
            ".osmosisignore",
            ".cargo/config.toml",
            "README.md",
            "agent/README.md",
            "tests/x.py",
            ".venv/lib/x.py",
        ] {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let source = ProjectSource::read(root).unwrap();
        assert_eq!(
            source.packed.into_keys().collect::<Vec<_>>(),
            [
                ".cargo/config.toml",
                ".osmosisignore",
                "README.md",
                "main.py"
            ]
        );
    }

    #[test]
    fn a_project_says_what_else_does_not_count_and_what_does_after_all() {
        let files = [
            "main.py",
            "notes.txt",
            "data/a.csv",
            "data/b.json",
            "sub/data/c.csv",
            "tests/fixture.json",
            "scratch/x/y.py",
        ];
        let ignore = "# mine\nnotes.txt\n/data/*.csv\nscratch/\n!tests/\n";
        assert_eq!(
            counted(&files, Some(ignore)),
            [
                "data/b.json",
                "main.py",
                "sub/data/c.csv",
                "tests/fixture.json"
            ]
        );
    }
}
