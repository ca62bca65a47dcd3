//! The folder of one run, and the files in it that people and programs read. Its records are in a store (see
//! [`runs::stores`](crate::runs::stores)).

use std::io::{BufWriter, Write};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::RunName;
use osmosis_store::{ArchivedRun, RolloutPages, RunKey, RunKind, RunLabels, Store, StoreError};
use serde::Serialize;

use crate::private_files;
use crate::reports::RolloutLine;
use crate::runs::stores::{self, RunRecords};
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

/// `.osmosis/{evals,training,serve}/<run>/`: where a run's files are, and with it, where its records are.
#[derive(Debug, Clone)]
pub struct RunFolder {
    pub path: Utf8PathBuf,
    pub(crate) records: RunRecords,
}

impl RunFolder {
    /// The folder of a run of the workspace, whether it is there or not.
    pub fn of(workspace: &Workspace, kind: RunKind, name: &RunName) -> Self {
        let run = RunKey {
            kind,
            name: name.clone(),
        };
        Self {
            path: workspace.runs_dir(kind).join(name.as_str()),
            records: RunRecords::Listed {
                workspace: workspace.clone(),
                run,
            },
        }
    }

    /// The folder of an archived run.
    pub fn of_archived(workspace: &Workspace, run: &ArchivedRun) -> Self {
        Self {
            path: workspace.archive_dir().join(&run.id),
            records: RunRecords::Archived {
                workspace: workspace.clone(),
                run: run.clone(),
            },
        }
    }

    /// A folder that is no run of a workspace: a temporary one, or one that somebody named. The records are in it.
    pub fn unlisted(path: Utf8PathBuf) -> Self {
        Self {
            records: RunRecords::Unlisted(path.clone()),
            path,
        }
    }

    /// The folder of a run that must be there, named as people do: `NAME`, `KIND/NAME`, `latest`, the beginning of a
    /// name (see [`FoundRun::among`]).
    pub async fn existing(
        workspace: &Workspace,
        kind: RunKind,
        name: &str,
    ) -> Result<Self, RunError> {
        Ok(FoundRun::among(&[kind], workspace, name).await?.folder)
    }

    /// The folder of the run that has exactly this name, or had it before it was renamed: for names that were written
    /// down, which must not come to mean another run.
    pub async fn recorded(
        workspace: &Workspace,
        kind: RunKind,
        name: &str,
    ) -> Result<Self, RunError> {
        let folder = RunName::new(name).map(|name| Self::of(workspace, kind, &name));
        if let Ok(folder) = folder
            && folder.holds_run().await?
        {
            return Ok(folder);
        }
        match kept::renamed_from(workspace, kind, name).await? {
            Some(now) => Ok(Self::of(workspace, kind, &now)),
            None => Err(Self::missing(workspace, kind, name).await),
        }
    }

    /// There is no run of this name.
    pub(crate) async fn missing(workspace: &Workspace, kind: RunKind, name: &str) -> RunError {
        let word = command_word(kind);
        // What is missing matters more than why the others can't be listed.
        let runs = FoundRun::all(workspace, &[kind]).await.unwrap_or_default();
        let near = runs
            .iter()
            .map(|run| (strsim::jaro_winkler(name, run.name.as_str()), &run.name))
            .filter(|(likeness, _)| *likeness > 0.85)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let hint = match (near, runs.first()) {
            (Some((_, near)), _) => {
                format!("did you mean `{near}`? `osmosis {word} list` lists the runs")
            }
            (None, None) => {
                format!("there are no runs yet; `osmosis {word} submit CFG` makes one")
            }
            (None, Some(newest)) => {
                let newest = &newest.name;
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
        match &self.records {
            RunRecords::Listed { workspace, .. } | RunRecords::Archived { workspace, .. } => {
                workspace.clone()
            }
            RunRecords::Unlisted(path) => {
                let root = path.ancestors().nth(3).unwrap_or(path);
                Workspace {
                    root: root.to_owned(),
                    store: None,
                }
            }
        }
    }

    /// Whether there are records of a run.
    pub async fn holds_run(&self) -> Result<bool, RunError> {
        Ok(self.records.exist().await?)
    }

    /// Archives the run of the workspace that is here, if there is one, and returns where it is then.
    pub(crate) async fn archive(&self) -> Result<Option<Self>, RunError> {
        let RunRecords::Listed { workspace, run } = &self.records else {
            return Ok(None);
        };
        if !self.holds_run().await? {
            return Ok(None);
        }
        match stores::catalogue(workspace)?.archive(run).await {
            Ok(archived) => Ok(Some(Self::of_archived(workspace, &archived))),
            Err(StoreError::Held { holder, .. }) => Err(RunError::failed(
                RunErrorKind::RunHeld,
                format!("`{}` is held by {holder}", self.path),
            )
            .hint("stop that process first")),
            Err(error) => Err(error.into()),
        }
    }

    /// What people noted on the run.
    pub(crate) async fn labels(&self) -> RunLabels {
        self.records.labels().await
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
        put_in_place(file, &temporary, &path)
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
    write(&mut file).map_err(|error| io(path, &error))?;
    put_in_place(file, &temporary, path)
}

/// Gives a file that is written its name. Its content is durable before, or a power cut could leave half of it under
/// that name, and a run that is complete writes its files no more.
fn put_in_place(
    mut file: BufWriter<std::fs::File>,
    temporary: &Utf8Path,
    path: &Utf8Path,
) -> Result<(), RunError> {
    file.flush()
        .and_then(|()| file.get_ref().sync_data())
        .and_then(|()| std::fs::rename(temporary, path))
        .map_err(|error| io(path, &error))
}
