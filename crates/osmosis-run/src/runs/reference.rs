//! How people name a run: by its name or the beginning of it, as `latest` (the newest) or `latest~1` (the one before
//! it), and with its kind (`train/NAME`) where runs of two kinds have the name.
//!
//! A whole name goes before everything else, so that no new run changes what an old name means.

use std::fmt::Write as _;

use osmosis_core::RunName;
use osmosis_store::{RunEntry, RunKind};

use super::kept::{self, KINDS};
use super::stores;
use crate::run_folder::{RunFolder, command_word};
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// The newest run.
const LATEST: &str = "latest";
/// Runs that an error lists.
const MOST_CANDIDATES: usize = 10;

/// The word for a kind in `KIND/NAME`.
pub fn kind_word(kind: RunKind) -> &'static str {
    match kind {
        RunKind::Evaluation => "eval",
        RunKind::Training => "train",
        RunKind::Serving => "serve",
    }
}

/// A run as it was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunReference<'t> {
    pub kind: Option<RunKind>,
    pub name: &'t str,
}

impl<'t> RunReference<'t> {
    pub fn parse(text: &'t str) -> Result<Self, RunError> {
        let Some((word, name)) = text.split_once('/') else {
            return Ok(Self {
                kind: None,
                name: text,
            });
        };
        // Also as the folders are named.
        let kind = match word {
            "eval" | "evals" => RunKind::Evaluation,
            "train" | "training" => RunKind::Training,
            "serve" | "gateway" => RunKind::Serving,
            _ => {
                return Err(RunError::usage(
                    RunErrorKind::RunNotFound,
                    format!("`{text}` names no run: `{word}` is no kind of run"),
                )
                .hint("write NAME, or eval/NAME, train/NAME or serve/NAME"));
            }
        };
        Ok(Self {
            kind: Some(kind),
            name,
        })
    }
}

/// A run that is there.
#[derive(Debug, Clone)]
pub struct FoundRun {
    pub kind: RunKind,
    pub name: RunName,
    pub folder: RunFolder,
}

impl FoundRun {
    /// The run of one of these kinds that `text` names: by its whole name, as `latest` or `latest~N`, or by a
    /// beginning that no other run has. An error when there are several, or none.
    pub async fn among(
        kinds: &[RunKind],
        workspace: &Workspace,
        text: &str,
    ) -> Result<Self, RunError> {
        let reference = RunReference::parse(text)?;
        let kinds: Vec<RunKind> = match reference.kind {
            None => kinds.to_vec(),
            Some(kind) if kinds.contains(&kind) => vec![kind],
            Some(_) => return Err(of_other_kind(text, kinds)),
        };
        if let Some(found) = exactly_named(&kinds, workspace, &reference).await? {
            return Ok(found);
        }
        if let Some(found) = renamed(&kinds, workspace, &reference).await? {
            return Ok(found);
        }
        if let Some(back) = steps_back(reference.name) {
            return nth_newest(&kinds, workspace, text, back).await;
        }
        match &beginning_with(&kinds, workspace, reference.name).await?[..] {
            [] => {
                let kind = kinds.first().copied().unwrap_or(RunKind::Evaluation);
                Err(RunFolder::missing(workspace, kind, reference.name).await)
            }
            [only] => Ok(only.clone()),
            several => Err(ambiguous(
                &format!("`{text}` is the beginning of {} runs", several.len()),
                several,
                kinds.len() > 1,
            )
            .hint("write more of the name")),
        }
    }

    /// The run of any kind that `text` names.
    pub async fn of_any_kind(workspace: &Workspace, text: &str) -> Result<Self, RunError> {
        Self::among(&KINDS, workspace, text).await
    }

    /// The runs of these kinds, newest first.
    pub async fn all(workspace: &Workspace, kinds: &[RunKind]) -> Result<Vec<Self>, RunError> {
        let catalogue = stores::catalogue(workspace)?;
        let mut runs: Vec<RunEntry> = vec![];
        for kind in kinds {
            runs.extend(catalogue.list(*kind).await?);
        }
        runs.sort_by(|a, b| {
            (b.made_at, b.key.name.as_str()).cmp(&(a.made_at, a.key.name.as_str()))
        });
        let found = |run: RunEntry| Self::of(workspace, run.key.kind, run.key.name);
        Ok(runs.into_iter().map(found).collect())
    }

    fn of(workspace: &Workspace, kind: RunKind, name: RunName) -> Self {
        Self {
            folder: RunFolder::of(workspace, kind, &name),
            kind,
            name,
        }
    }
}

async fn exactly_named(
    kinds: &[RunKind],
    workspace: &Workspace,
    reference: &RunReference<'_>,
) -> Result<Option<FoundRun>, RunError> {
    let Ok(name) = RunName::new(reference.name) else {
        return Ok(None);
    };
    let mut found: Vec<FoundRun> = vec![];
    for kind in kinds {
        let run = FoundRun::of(workspace, *kind, name.clone());
        if run.folder.holds_run().await? {
            found.push(run);
        }
    }
    if found.len() > 1 {
        let what = format!("`{name}` is the name of {} runs", found.len());
        return Err(ambiguous(&what, &found, true).hint("write one of these instead"));
    }
    Ok(found.pop())
}

/// The run that had this name before it was renamed.
async fn renamed(
    kinds: &[RunKind],
    workspace: &Workspace,
    reference: &RunReference<'_>,
) -> Result<Option<FoundRun>, RunError> {
    let mut found: Vec<FoundRun> = vec![];
    for kind in kinds {
        if let Some(name) = kept::renamed_from(workspace, *kind, reference.name).await? {
            found.push(FoundRun::of(workspace, *kind, name));
        }
    }
    if found.len() > 1 {
        let what = format!("`{}` was the name of {} runs", reference.name, found.len());
        return Err(ambiguous(&what, &found, true).hint("write one of these instead"));
    }
    Ok(found.pop())
}

/// How many runs `latest` or `latest~N` goes back; `None` for every other name.
fn steps_back(name: &str) -> Option<usize> {
    match name.strip_prefix(LATEST)? {
        "" => Some(0),
        rest => rest.strip_prefix('~')?.parse().ok(),
    }
}

async fn nth_newest(
    kinds: &[RunKind],
    workspace: &Workspace,
    text: &str,
    back: usize,
) -> Result<FoundRun, RunError> {
    let runs = FoundRun::all(workspace, kinds).await?;
    let count = runs.len();
    if let Some(run) = runs.into_iter().nth(back) {
        return Ok(run);
    }
    let kind = kinds.first().copied().unwrap_or(RunKind::Evaluation);
    if count == 0 {
        return Err(RunFolder::missing(workspace, kind, text).await);
    }
    Err(RunError::failed(
        RunErrorKind::RunNotFound,
        format!("`{text}` names no run: there are {count}, and `latest` is the first of them"),
    )
    .hint(format!(
        "`osmosis {} list` lists the runs",
        command_word(kind)
    )))
}

async fn beginning_with(
    kinds: &[RunKind],
    workspace: &Workspace,
    beginning: &str,
) -> Result<Vec<FoundRun>, RunError> {
    if beginning.is_empty() {
        return Ok(vec![]);
    }
    let mut runs = FoundRun::all(workspace, kinds).await?;
    runs.retain(|run| run.name.as_str().starts_with(beginning));
    Ok(runs)
}

fn ambiguous(what: &str, runs: &[FoundRun], with_kind: bool) -> RunError {
    let shown = runs.iter().take(MOST_CANDIDATES).map(|run| {
        if with_kind {
            format!("`{run}`")
        } else {
            format!("`{}`", run.name)
        }
    });
    let mut names = shown.collect::<Vec<_>>().join(", ");
    if runs.len() > MOST_CANDIDATES {
        let _ = write!(names, " and {} more", runs.len() - MOST_CANDIDATES);
    }
    RunError::usage(RunErrorKind::RunAmbiguous, format!("{what}: {names}"))
}

fn of_other_kind(text: &str, kinds: &[RunKind]) -> RunError {
    let words: Vec<String> = kinds
        .iter()
        .map(|kind| format!("{}/NAME", kind_word(*kind)))
        .collect();
    RunError::usage(
        RunErrorKind::RunNotFound,
        format!(
            "`{text}` is no run of this kind; this command takes {}",
            words.join(" or ")
        ),
    )
}

impl std::fmt::Display for FoundRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", kind_word(self.kind), self.name)
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;

    use super::*;

    struct Runs {
        _keep: tempfile::TempDir,
        workspace: Workspace,
    }

    impl Runs {
        /// Runs of these names, `eval/NAME` or `train/NAME`, the last one the newest.
        async fn new(names: &[&str]) -> Self {
            let keep = tempfile::tempdir().unwrap();
            let root = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
            let workspace = Workspace::at(root);
            for name in names {
                let run = RunReference::parse(name).unwrap();
                let kind = run.kind.unwrap();
                let folder = workspace.runs_dir(kind).join(run.name);
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(folder.join("run.db"), "").unwrap();
                // The clock of a file system may be coarse.
                while FoundRun::all(&workspace, &KINDS).await.unwrap()[0].to_string() != *name {
                    std::fs::remove_file(folder.join("run.db")).unwrap();
                    std::fs::write(folder.join("run.db"), "").unwrap();
                }
            }
            Self {
                _keep: keep,
                workspace,
            }
        }

        /// The run that is found, or the error and its hint.
        async fn found(&self, kinds: &[RunKind], text: &str) -> String {
            match FoundRun::among(kinds, &self.workspace, text).await {
                Ok(run) => run.to_string(),
                Err(error) => {
                    let hint = error.hint_text().unwrap_or_default();
                    format!("{} ({hint})", error.message())
                        .replace(self.workspace.root.as_str(), "WORKSPACE")
                }
            }
        }

        async fn evaluation(&self, text: &str) -> String {
            self.found(&[RunKind::Evaluation], text).await
        }
    }

    #[tokio::test]
    async fn a_kind_stands_before_the_name() {
        let parsed = RunReference::parse("train/a").unwrap();
        assert_eq!((parsed.kind, parsed.name), (Some(RunKind::Training), "a"));
        let parsed = RunReference::parse("a").unwrap();
        assert_eq!((parsed.kind, parsed.name), (None, "a"));
        RunReference::parse("other/a").unwrap_err();
        let runs = Runs::new(&["eval/a"]).await;
        assert_eq!(runs.evaluation("eval/a").await, "eval/a");
        insta::assert_snapshot!(
            runs.evaluation("train/a").await,
            @"`train/a` is no run of this kind; this command takes eval/NAME ()"
        );
    }

    #[tokio::test]
    async fn latest_counts_back_from_the_newest_run() {
        let runs = Runs::new(&["eval/b", "train/c", "eval/a"]).await;
        assert_eq!(runs.evaluation("latest").await, "eval/a");
        assert_eq!(runs.evaluation("latest~0").await, "eval/a");
        assert_eq!(runs.evaluation("latest~1").await, "eval/b");
        assert_eq!(runs.evaluation("eval/latest").await, "eval/a");
        assert_eq!(runs.found(&KINDS, "latest~1").await, "train/c");
        insta::assert_snapshot!(
            runs.evaluation("latest~2").await,
            @"`latest~2` names no run: there are 2, and `latest` is the first of them (`osmosis eval list` lists the runs)"
        );
        insta::assert_snapshot!(
            Runs::new(&[]).await.evaluation("latest").await,
            @"no run `latest` in `WORKSPACE/.osmosis/evals` (there are no runs yet; `osmosis eval submit CFG` makes one)"
        );
    }

    #[tokio::test]
    async fn a_beginning_will_do_when_one_run_has_it() {
        let runs = Runs::new(&["eval/sql-1", "eval/sql-10", "eval/math", "train/mate"]).await;
        assert_eq!(runs.evaluation("m").await, "eval/math");
        assert_eq!(runs.evaluation("sql-10").await, "eval/sql-10");
        assert_eq!(
            runs.evaluation("sql-1").await,
            "eval/sql-1",
            "whole names go first"
        );
        insta::assert_snapshot!(
            runs.evaluation("sql").await,
            @"`sql` is the beginning of 2 runs: `sql-10`, `sql-1` (write more of the name)"
        );
        insta::assert_snapshot!(
            runs.found(&KINDS, "mat").await,
            @"`mat` is the beginning of 2 runs: `train/mate`, `eval/math` (write more of the name)"
        );
        insta::assert_snapshot!(
            runs.evaluation("nath").await,
            @"no run `nath` in `WORKSPACE/.osmosis/evals` (`osmosis eval list` lists the runs; the newest is `math`)"
        );
        assert!(runs.evaluation("").await.starts_with("no run ``"));
    }

    #[tokio::test]
    async fn a_run_that_is_named_latest_is_that_run() {
        let runs = Runs::new(&["eval/latest", "eval/newer"]).await;
        assert_eq!(runs.evaluation("latest").await, "eval/latest");
        assert_eq!(runs.evaluation("latest~0").await, "eval/newer");
    }
}
