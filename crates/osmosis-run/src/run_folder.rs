//! The folder of one run, and the files in it that people and programs read.

use std::io::{BufWriter, Write};
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::RunName;
use osmosis_store::{RolloutPages, RunKind, Store};
use osmosis_store_sqlite::SqliteStore;
use serde::Serialize;

use crate::private_files;
use crate::reports::RolloutLine;
use crate::runs::{FoundRun, kept};
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind, io_error as io};

/// The command that a kind of run belongs to.
pub fn command_word(kind: RunKind) -> &'static str {
    match kind {
        RunKind::Evaluation => "eval",
        RunKind::Training => "train",
        RunKind::Serving => "gateway",
    }
}

/// `.osmosis/{evals,training,serve}/<run>/`.
#[derive(Debug, Clone)]
pub struct RunFolder {
    pub path: Utf8PathBuf,
}

impl RunFolder {
    pub fn of(workspace: &Workspace, kind: RunKind, name: &RunName) -> Self {
        Self {
            path: workspace.runs_dir(kind).join(name.as_str()),
        }
    }

    /// The folder of a run that must be there, named as people do: `NAME`, `KIND/NAME`, `latest`, the beginning of a
    /// name (see [`FoundRun::among`]).
    pub fn existing(workspace: &Workspace, kind: RunKind, name: &str) -> Result<Self, RunError> {
        Ok(FoundRun::among(&[kind], workspace, name)?.folder)
    }

    /// The folder of the run that has exactly this name, or had it before it was renamed: for names that were written
    /// down, which must not come to mean another run.
    pub fn recorded(workspace: &Workspace, kind: RunKind, name: &str) -> Result<Self, RunError> {
        let folder = RunName::new(name).map(|name| Self::of(workspace, kind, &name));
        if let Ok(folder) = folder
            && folder.exists()
        {
            return Ok(folder);
        }
        kept::renamed_from(workspace, kind, name)
            .map(|now| Self::of(workspace, kind, &now))
            .ok_or_else(|| Self::missing(workspace, kind, name))
    }

    /// There is no run of this name.
    pub(crate) fn missing(workspace: &Workspace, kind: RunKind, name: &str) -> RunError {
        let word = command_word(kind);
        let names = Self::names(workspace, kind);
        let near = names
            .iter()
            .map(|there| (strsim::jaro_winkler(name, there), there))
            .filter(|(likeness, _)| *likeness > 0.85)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let hint = match (near, names.first()) {
            (Some((_, near)), _) => {
                format!("did you mean `{near}`? `osmosis {word} list` lists the runs")
            }
            (None, None) => {
                format!("there are no runs yet; `osmosis {word} submit CFG` makes one")
            }
            (None, Some(newest)) => {
                format!("`osmosis {word} list` lists the runs; the newest is `{newest}`")
            }
        };
        RunError::failed(
            RunErrorKind::RunNotFound,
            format!("no run `{name}` in `{}`", workspace.runs_dir(kind)),
        )
        .hint(hint)
    }

    /// The name of the run.
    pub fn name(&self) -> &str {
        self.path.file_name().unwrap_or("run")
    }

    /// The workspace that it is in.
    pub fn workspace(&self) -> Workspace {
        let root = self.path.ancestors().nth(3).unwrap_or(&self.path);
        Workspace {
            root: root.to_owned(),
        }
    }

    /// Moves a run that is here into `.osmosis/archive/`, and returns where it is now; nothing is deleted.
    pub fn archive(&self, workspace: &Workspace) -> Result<Option<Utf8PathBuf>, RunError> {
        if !self.exists() {
            return Ok(None);
        }
        if let Some(holder) = SqliteStore::holder(&self.path) {
            return Err(RunError::failed(
                RunErrorKind::RunHeld,
                format!("`{}` is held by {holder}", self.path),
            )
            .hint("stop that process first"));
        }
        let archive = workspace.root.join(".osmosis").join("archive");
        std::fs::create_dir_all(&archive).map_err(|error| io(&archive, &error))?;
        let name = self.path.file_name().unwrap_or("run");
        let time = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S");
        let target = (1_u32..10_000)
            .map(|number| archive.join(format!("{name}.{time}.{number}")))
            .find(|target| !target.exists())
            .unwrap_or_else(|| archive.join(name));
        std::fs::rename(&self.path, &target).map_err(|error| io(&target, &error))?;
        Ok(Some(target))
    }

    pub fn exists(&self) -> bool {
        self.path.join("run.db").is_file()
    }

    /// The runs of the workspace, newest first.
    pub fn names(workspace: &Workspace, kind: RunKind) -> Vec<String> {
        let mut found = Self::made(workspace, kind);
        found.sort_by(|a, b| b.cmp(a));
        found.into_iter().map(|(_, name)| name).collect()
    }

    /// The runs of the workspace with the times at which they were made, in no order.
    pub(crate) fn made(workspace: &Workspace, kind: RunKind) -> Vec<(SystemTime, String)> {
        let Ok(entries) = workspace.runs_dir(kind).read_dir_utf8() else {
            return vec![];
        };
        entries
            .filter_map(Result::ok)
            .filter_map(|entry| {
                let made = entry.path().join("run.db").metadata().ok()?;
                let time = made.created().or_else(|_| made.modified()).ok()?;
                Some((time, entry.file_name().to_owned()))
            })
            .collect()
    }

    pub fn metrics(&self) -> Utf8PathBuf {
        self.path.join("metrics.json")
    }

    pub fn index(&self) -> Utf8PathBuf {
        self.path.join("index.jsonl")
    }

    pub fn logs(&self) -> Utf8PathBuf {
        self.path.join("logs.txt")
    }

    pub fn artifacts(&self) -> Utf8PathBuf {
        self.path.join("artifacts")
    }

    pub fn checkpoints(&self) -> Utf8PathBuf {
        self.path.join("checkpoints")
    }

    /// The reward curve of a training run.
    pub fn curve(&self) -> Utf8PathBuf {
        self.path.join("reward.svg")
    }

    /// Writes `metrics.json`.
    pub fn write_metrics(&self, report: &impl Serialize) -> Result<(), RunError> {
        replace_file(&self.metrics(), |file| {
            serde_json::to_writer_pretty(&mut *file, report)?;
            writeln!(file)
        })
    }

    /// Writes `index.jsonl`: one line per rollout that has a result, in order.
    pub async fn write_index(&self, store: &dyn Store) -> Result<(), RunError> {
        let path = self.index();
        let temporary = path.with_extension("jsonl.tmp");
        let file = std::fs::File::create(&temporary).map_err(|error| io(&temporary, &error))?;
        let mut file = BufWriter::new(file);
        let mut pages = RolloutPages::finished(store);
        while let Some(page) = pages.next().await? {
            for rollout in &page {
                serde_json::to_writer(&mut file, &RolloutLine::of(rollout))
                    .map_err(std::io::Error::from)
                    .and_then(|()| writeln!(file))
                    .map_err(|error| io(&path, &error))?;
            }
        }
        file.flush().map_err(|error| io(&path, &error))?;
        std::fs::rename(&temporary, &path).map_err(|error| io(&path, &error))
    }

    /// Copies the results into a folder of the user's.
    pub fn copy_results(&self, target: &Utf8Path) -> Result<(), RunError> {
        private_files::create_shared_folder(target).map_err(|error| io(target, &error))?;
        for name in ["metrics.json", "index.jsonl"] {
            let to = target.join(name);
            std::fs::copy(self.path.join(name), &to)
                .and_then(|_| private_files::share(&to))
                .map_err(|error| io(&to, &error))?;
        }
        Ok(())
    }
}

/// Writes a file whole or not at all.
pub fn replace_file(
    path: &Utf8Path,
    write: impl FnOnce(&mut BufWriter<std::fs::File>) -> std::io::Result<()>,
) -> Result<(), RunError> {
    let temporary = Utf8PathBuf::from(format!("{path}.tmp"));
    let file = std::fs::File::create(&temporary).map_err(|error| io(&temporary, &error))?;
    let mut file = BufWriter::new(file);
    write(&mut file)
        .and_then(|()| file.flush())
        .and_then(|()| std::fs::rename(&temporary, path))
        .map_err(|error| io(path, &error))
}
