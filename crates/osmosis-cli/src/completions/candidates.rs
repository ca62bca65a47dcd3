//! What may come next: runs, rows, configs and projects of the workspace. Whatever can't be read is left out, because
//! there is nobody to tell at a TAB.

use std::ffi::OsStr;

use clap_complete::engine::CompletionCandidate;
use osmosis_core::Outcome;
use osmosis_run::figures::number;
use osmosis_run::runs::{FoundRun, ReadRun, kept, kind_word};
use osmosis_run::workspace::Workspace;
use osmosis_store::{RolloutQuery, RolloutRecord, RunKind};

use super::words::Words;

/// Nobody reads more.
const MOST: usize = 500;

/// The runs of a kind, newest first; of all kinds by their whole names where two have one.
pub(super) fn runs(words: &Words, kind: Option<RunKind>) -> Vec<CompletionCandidate> {
    let Some(workspace) = words.workspace() else {
        return vec![];
    };
    let names: Vec<String> = match kind {
        Some(kind) => names_of(&workspace, kind),
        None => of_all_kinds(&workspace),
    };
    in_order(names.into_iter().take(MOST).map(|name| (name, None)))
}

fn names_of(workspace: &Workspace, kind: RunKind) -> Vec<String> {
    let found = waiting(FoundRun::all(workspace, &[kind]));
    let found = found.and_then(Result::ok).unwrap_or_default();
    found.into_iter().map(|run| run.name.to_string()).collect()
}

fn of_all_kinds(workspace: &Workspace) -> Vec<String> {
    let all: Vec<(RunKind, String)> = kept::KINDS
        .into_iter()
        .flat_map(|kind| {
            let names = names_of(workspace, kind).into_iter();
            names.map(move |name| (kind, name))
        })
        .collect();
    let is_alone = |name: &str| all.iter().filter(|(_, other)| other == name).count() == 1;
    all.iter()
        .map(|(kind, name)| {
            if is_alone(name) {
                name.clone()
            } else {
                format!("{}/{name}", kind_word(*kind))
            }
        })
        .collect()
}

pub(super) fn archived(words: &Words) -> Vec<CompletionCandidate> {
    let Some(workspace) = words.workspace() else {
        return vec![];
    };
    let found = waiting(kept::archived_runs(&workspace, &kept::KINDS));
    let found = found.and_then(Result::ok).unwrap_or_default();
    in_order(found.into_iter().map(|run| {
        let what = kept::reference_of(&run.key);
        (run.id, Some(what))
    }))
}

/// The rows of the run that is named before: `3`, or `3.0` and `3.1` where a row was run several times.
pub(super) fn rows(words: &Words, kind: Option<RunKind>) -> Vec<CompletionCandidate> {
    let rollouts = rollouts_of(words, kind);
    let several = rollouts.iter().any(|rollout| rollout.run_index > 0);
    in_order(rollouts.into_iter().map(|rollout| {
        let row = if several {
            format!("{}.{}", rollout.row_index, rollout.run_index)
        } else {
            rollout.row_index.to_string()
        };
        (row, rollout.outcome.as_ref().map(outcome_text))
    }))
}

pub(super) fn rollout_ids(words: &Words, kind: Option<RunKind>) -> Vec<CompletionCandidate> {
    let rollouts = rollouts_of(words, kind).into_iter();
    in_order(rollouts.map(|rollout| {
        let outcome = rollout.outcome.as_ref().map(outcome_text);
        (rollout.id.to_string(), outcome)
    }))
}

fn rollouts_of(words: &Words, kind: Option<RunKind>) -> Vec<RolloutRecord> {
    let found = || {
        let (workspace, run) = (words.workspace()?, words.first_argument()?);
        let kinds = kind.map_or_else(|| kept::KINDS.to_vec(), |kind| vec![kind]);
        let page = waiting(async {
            let run = FoundRun::among(&kinds, &workspace, run).await.ok()?;
            let store = ReadRun::open(run.folder).await.ok()?.store;
            let query = RolloutQuery {
                limit: MOST,
                ..RolloutQuery::default()
            };
            store.rollouts(query).await.ok()
        });
        Some(page??.items)
    };
    found().unwrap_or_default()
}

/// The configs of the workspace for a command, from the working directory; and files, as what is typed leads to them.
pub(super) fn configs(
    words: &Words,
    kind: Option<RunKind>,
    current: &OsStr,
) -> Vec<CompletionCandidate> {
    let folder = match kind {
        Some(RunKind::Training) => "training",
        Some(RunKind::Evaluation | RunKind::Serving) | None => "eval",
    };
    let typed = current.to_string_lossy();
    let of_workspace: Vec<String> = words
        .workspace()
        .map(|workspace| configs_in(&workspace, folder))
        .unwrap_or_default();
    let found: Vec<String> = of_workspace
        .into_iter()
        .filter(|path| path.starts_with(&*typed))
        .collect();
    if found.is_empty() {
        use clap_complete::engine::{PathCompleter, ValueCompleter as _};
        return PathCompleter::file().complete(current);
    }
    in_order(found.into_iter().map(|path| (path, None)))
}

fn configs_in(workspace: &Workspace, folder: &str) -> Vec<String> {
    let folder = workspace.root.join("configs").join(folder);
    let here = osmosis_run::workspace::current_dir().unwrap_or_default();
    let entries = folder.read_dir_utf8().into_iter().flatten().flatten();
    let mut paths: Vec<String> = entries
        .map(|entry| entry.path().to_owned())
        .filter(|path| path.extension() == Some("toml"))
        .map(|path| path.strip_prefix(&here).unwrap_or(&path).to_string())
        .collect();
    paths.sort();
    paths
}

pub(super) fn projects(words: &Words) -> Vec<CompletionCandidate> {
    let names = words.workspace().map(|workspace| workspace.rollouts());
    in_order(
        names
            .unwrap_or_default()
            .into_iter()
            .map(|name| (name, None)),
    )
}

fn outcome_text(outcome: &Outcome) -> String {
    let kind = outcome.kind().as_str().replace('_', " ");
    match outcome.reward() {
        Some(reward) => format!("{kind} {}", number(reward.get())),
        None => kind,
    }
}

/// As they are, not by the alphabet: the newest run is the likeliest.
fn in_order(values: impl Iterator<Item = (String, Option<String>)>) -> Vec<CompletionCandidate> {
    values
        .enumerate()
        .map(|(place, (value, help))| {
            CompletionCandidate::new(value)
                .help(help.map(Into::into))
                .display_order(Some(place))
        })
        .collect()
}

/// What the store answers, without the threads of a whole program.
fn waiting<T>(work: impl Future<Output = T>) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    Some(runtime.ok()?.block_on(work))
}
