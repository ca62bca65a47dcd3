//! How people name a run: by its name or the beginning of it, as `latest` (the newest) or `latest~1` (the one before
//! it), and with its kind (`train/NAME`) where runs of two kinds have the name.
//!
//! A whole name goes before everything else, so that no new run changes what an old name means.

use std::fmt::Write as _;
use std::time::SystemTime;

use osmosis_core::RunName;
use osmosis_store::RunKind;

use super::kept;
use crate::run_folder::{RunFolder, command_word};
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

const KINDS: [RunKind; 3] = [RunKind::Evaluation, RunKind::Training, RunKind::Serving];
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
    pub fn among(kinds: &[RunKind], workspace: &Workspace, text: &str) -> Result<Self, RunError> {
        let reference = RunReference::parse(text)?;
        let kinds: Vec<RunKind> = match reference.kind {
            None => kinds.to_vec(),
            Some(kind) if kinds.contains(&kind) => vec![kind],
            Some(_) => return Err(of_other_kind(text, kinds)),
        };
        if let Some(found) = exactly_named(&kinds, workspace, &reference)? {
            return Ok(found);
        }
        if let Some(found) = renamed(&kinds, workspace, &reference)? {
            return Ok(found);
        }
        if let Some(back) = steps_back(reference.name) {
            return nth_newest(&kinds, workspace, text, back);
        }
        match &beginning_with(&kinds, workspace, reference.name)[..] {
            [] => Err(RunFolder::missing(
                workspace,
                kinds.first().copied().unwrap_or(RunKind::Evaluation),
                reference.name,
            )),
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
    pub fn of_any_kind(workspace: &Workspace, text: &str) -> Result<Self, RunError> {
        Self::among(&KINDS, workspace, text)
    }

    /// The runs of these kinds, newest first.
    pub fn all(workspace: &Workspace, kinds: &[RunKind]) -> Vec<Self> {
        let of_kind = |kind: RunKind| {
            let made = RunFolder::made(workspace, kind).into_iter();
            made.filter_map(move |(time, name)| {
                let name = RunName::new(name).ok()?;
                let folder = RunFolder::of(workspace, kind, &name);
                Some((time, Self { kind, name, folder }))
            })
        };
        let mut runs: Vec<(SystemTime, Self)> =
            kinds.iter().flat_map(|kind| of_kind(*kind)).collect();
        runs.sort_by(|(time_a, a), (time_b, b)| {
            (time_b, b.name.as_str()).cmp(&(time_a, a.name.as_str()))
        });
        runs.into_iter().map(|(_, run)| run).collect()
    }
}

fn exactly_named(
    kinds: &[RunKind],
    workspace: &Workspace,
    reference: &RunReference<'_>,
) -> Result<Option<FoundRun>, RunError> {
    let Ok(name) = RunName::new(reference.name) else {
        return Ok(None);
    };
    let mut found: Vec<FoundRun> = kinds
        .iter()
        .map(|kind| FoundRun {
            kind: *kind,
            name: name.clone(),
            folder: RunFolder::of(workspace, *kind, &name),
        })
        .filter(|run| run.folder.exists())
        .collect();
    if found.len() > 1 {
        let what = format!("`{name}` is the name of {} runs", found.len());
        return Err(ambiguous(&what, &found, true).hint("write one of these instead"));
    }
    Ok(found.pop())
}

/// The run that had this name before it was renamed.
fn renamed(
    kinds: &[RunKind],
    workspace: &Workspace,
    reference: &RunReference<'_>,
) -> Result<Option<FoundRun>, RunError> {
    let now = kinds.iter().filter_map(|kind| {
        let name = kept::renamed_from(workspace, *kind, reference.name)?;
        Some(FoundRun {
            kind: *kind,
            folder: RunFolder::of(workspace, *kind, &name),
            name,
        })
    });
    let mut found: Vec<FoundRun> = now.collect();
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

fn nth_newest(
    kinds: &[RunKind],
    workspace: &Workspace,
    text: &str,
    back: usize,
) -> Result<FoundRun, RunError> {
    let runs = FoundRun::all(workspace, kinds);
    let count = runs.len();
    runs.into_iter().nth(back).ok_or_else(|| {
        let kind = kinds.first().copied().unwrap_or(RunKind::Evaluation);
        if count == 0 {
            return RunFolder::missing(workspace, kind, text);
        }
        RunError::failed(
            RunErrorKind::RunNotFound,
            format!("`{text}` names no run: there are {count}, and `latest` is the first of them"),
        )
        .hint(format!(
            "`osmosis {} list` lists the runs",
            command_word(kind)
        ))
    })
}

fn beginning_with(kinds: &[RunKind], workspace: &Workspace, beginning: &str) -> Vec<FoundRun> {
    if beginning.is_empty() {
        return vec![];
    }
    let mut runs = FoundRun::all(workspace, kinds);
    runs.retain(|run| run.name.as_str().starts_with(beginning));
    runs
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
        fn new(names: &[&str]) -> Self {
            let keep = tempfile::tempdir().unwrap();
            let root = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
            let workspace = Workspace { root };
            for name in names {
                let run = RunReference::parse(name).unwrap();
                let kind = run.kind.unwrap();
                let folder = workspace.runs_dir(kind).join(run.name);
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(folder.join("run.db"), "").unwrap();
                // The clock of a file system may be coarse.
                let newest = || FoundRun::all(&workspace, &KINDS)[0].to_string();
                while newest() != *name {
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
        fn found(&self, kinds: &[RunKind], text: &str) -> String {
            match FoundRun::among(kinds, &self.workspace, text) {
                Ok(run) => run.to_string(),
                Err(error) => {
                    let hint = error.hint_text().unwrap_or_default();
                    format!("{} ({hint})", error.message())
                        .replace(self.workspace.root.as_str(), "WORKSPACE")
                }
            }
        }

        fn evaluation(&self, text: &str) -> String {
            self.found(&[RunKind::Evaluation], text)
        }
    }

    #[test]
    fn a_kind_stands_before_the_name() {
        let parsed = RunReference::parse("train/a").unwrap();
        assert_eq!((parsed.kind, parsed.name), (Some(RunKind::Training), "a"));
        let parsed = RunReference::parse("a").unwrap();
        assert_eq!((parsed.kind, parsed.name), (None, "a"));
        RunReference::parse("other/a").unwrap_err();
        let runs = Runs::new(&["eval/a"]);
        assert_eq!(runs.evaluation("eval/a"), "eval/a");
        insta::assert_snapshot!(
            runs.evaluation("train/a"),
            @"`train/a` is no run of this kind; this command takes eval/NAME ()"
        );
    }

    #[test]
    fn latest_counts_back_from_the_newest_run() {
        let runs = Runs::new(&["eval/b", "train/c", "eval/a"]);
        assert_eq!(runs.evaluation("latest"), "eval/a");
        assert_eq!(runs.evaluation("latest~0"), "eval/a");
        assert_eq!(runs.evaluation("latest~1"), "eval/b");
        assert_eq!(runs.evaluation("eval/latest"), "eval/a");
        assert_eq!(runs.found(&KINDS, "latest~1"), "train/c");
        insta::assert_snapshot!(
            runs.evaluation("latest~2"),
            @"`latest~2` names no run: there are 2, and `latest` is the first of them (`osmosis eval list` lists the runs)"
        );
        insta::assert_snapshot!(
            Runs::new(&[]).evaluation("latest"),
            @"no run `latest` in `WORKSPACE/.osmosis/evals` (there are no runs yet; `osmosis eval submit CFG` makes one)"
        );
    }

    #[test]
    fn a_beginning_will_do_when_one_run_has_it() {
        let runs = Runs::new(&["eval/sql-1", "eval/sql-10", "eval/math", "train/mate"]);
        assert_eq!(runs.evaluation("m"), "eval/math");
        assert_eq!(runs.evaluation("sql-10"), "eval/sql-10");
        assert_eq!(
            runs.evaluation("sql-1"),
            "eval/sql-1",
            "whole names go first"
        );
        insta::assert_snapshot!(
            runs.evaluation("sql"),
            @"`sql` is the beginning of 2 runs: `sql-10`, `sql-1` (write more of the name)"
        );
        insta::assert_snapshot!(
            runs.found(&KINDS, "mat"),
            @"`mat` is the beginning of 2 runs: `train/mate`, `eval/math` (write more of the name)"
        );
        insta::assert_snapshot!(
            runs.evaluation("nath"),
            @"no run `nath` in `WORKSPACE/.osmosis/evals` (`osmosis eval list` lists the runs; the newest is `math`)"
        );
        assert!(runs.evaluation("").starts_with("no run ``"));
    }

    #[test]
    fn a_run_that_is_named_latest_is_that_run() {
        let runs = Runs::new(&["eval/latest", "eval/newer"]);
        assert_eq!(runs.evaluation("latest"), "eval/latest");
        assert_eq!(runs.evaluation("latest~0"), "eval/newer");
    }
}
