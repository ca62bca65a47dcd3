//! Who names a run: regrades of it, evaluations of its checkpoints, configs of the workspace.

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::RunName;
use osmosis_core::config::ModelPath;
use osmosis_store::{Catalogue, RunKey, RunKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{KINDS, reference_of, renamed_from};
use crate::RunError;
use crate::runs::Pinned;
use crate::workspace::Workspace;

/// How a run is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UseKind {
    /// A run that graded its samples again, and shows its model calls.
    Regrade,
    /// A run whose model is one of its checkpoints.
    Model,
    /// A config with `run:NAME`.
    Config,
}

/// Something that names a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunUse {
    pub kind: UseKind,
    /// `KIND/NAME` of a run, or the path of a config from the workspace's folder.
    pub by: String,
}

impl std::fmt::Display for RunUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let by = &self.by;
        match self.kind {
            UseKind::Regrade => write!(f, "run `{by}` grades its samples again"),
            UseKind::Model => write!(f, "run `{by}` has one of its checkpoints as its model"),
            UseKind::Config => write!(f, "`{by}` names its checkpoints"),
        }
    }
}

/// What runs and configs of a workspace use.
#[derive(Debug)]
pub struct RunUses {
    by_runs: Vec<(RunKey, UseKind, RunKey)>,
    by_configs: Vec<(Utf8PathBuf, String)>,
    /// Of the runs that had another name.
    former_names: Vec<(RunKey, Vec<RunName>)>,
}

impl RunUses {
    /// Reads what every run is pinned to, and the configs.
    pub async fn of(workspace: &Workspace, catalogue: &dyn Catalogue) -> Result<Self, RunError> {
        let (mut by_runs, mut former_names) = (vec![], vec![]);
        for kind in KINDS {
            for entry in catalogue.list(kind).await? {
                if let Ok(labels) = catalogue.labels(&entry.key).await
                    && !labels.former_names.is_empty()
                {
                    former_names.push((entry.key.clone(), labels.former_names));
                }
                // One that can't be read uses nothing that can be told.
                let Ok(store) = catalogue.open_read_only(&entry.key).await else {
                    continue;
                };
                let Ok(Some(record)) = store.run().await else {
                    continue;
                };
                let Ok(pinned) = Pinned::read(&record.pinned) else {
                    continue;
                };
                for (how, used) in used_by(&pinned) {
                    let used = as_it_is_called_now(workspace, catalogue, used).await;
                    by_runs.push((entry.key.clone(), how, used));
                }
            }
        }
        Ok(Self {
            by_runs,
            by_configs: configs(&workspace.root),
            former_names,
        })
    }

    /// Other runs that use this one.
    pub(super) fn runs_using<'a>(&'a self, run: &'a RunKey) -> impl Iterator<Item = &'a RunKey> {
        let uses = self
            .by_runs
            .iter()
            .filter(move |(by, _, used)| used == run && by != run);
        uses.map(|(by, _, _)| by)
    }

    /// What a run is called, and was.
    fn names_of<'a>(&'a self, run: &'a RunKey) -> Vec<&'a RunName> {
        let former = self.former_names.iter().filter(|(of, _)| of == run);
        let former = former.flat_map(|(_, names)| names);
        std::iter::once(&run.name).chain(former).collect()
    }

    pub fn of_run(&self, run: &RunKey) -> Vec<RunUse> {
        let by_runs = self
            .by_runs
            .iter()
            .filter(|(by, _, used)| used == run && by != run)
            .map(|(by, kind, _)| RunUse {
                kind: *kind,
                by: reference_of(by),
            });
        let by_configs = self
            .by_configs
            .iter()
            .filter(|(_, text)| {
                let mut names = self.names_of(run).into_iter();
                run.kind == RunKind::Training && names.any(|name| names_checkpoint(text, name))
            })
            .map(|(path, _)| RunUse {
                kind: UseKind::Config,
                by: path.to_string(),
            });
        let mut uses: Vec<RunUse> = by_runs.chain(by_configs).collect();
        uses.dedup();
        uses
    }
}

/// A run that is named as it was called once, as it is called now.
async fn as_it_is_called_now(
    workspace: &Workspace,
    catalogue: &dyn Catalogue,
    run: RunKey,
) -> RunKey {
    if catalogue.contains(&run).await.unwrap_or(true) {
        return run;
    }
    match renamed_from(workspace, run.kind, run.name.as_str()).await {
        Ok(Some(name)) => RunKey { name, ..run },
        Ok(None) | Err(_) => run,
    }
}

/// The runs that a run with these facts needs.
fn used_by(pinned: &Pinned) -> Vec<(UseKind, RunKey)> {
    let mut used = vec![];
    let mut add = |how, kind, name: &str| {
        if let Ok(name) = RunName::new(name) {
            used.push((how, RunKey { kind, name }));
        }
    };
    if let Some(from) = &pinned.regraded_from {
        add(UseKind::Regrade, RunKind::Evaluation, &from.run);
        if from.calls_in != from.run {
            add(UseKind::Regrade, RunKind::Evaluation, &from.calls_in);
        }
    }
    if let Some(ModelPath::Run { name, .. }) =
        pinned.model_path().and_then(|path| path.parse().ok())
    {
        add(UseKind::Model, RunKind::Training, name.as_str());
    }
    used
}

/// Whether a config names a checkpoint of the run: `run:NAME` or `run:NAME@step`.
fn names_checkpoint(text: &str, run: &RunName) -> bool {
    let wanted = format!("run:{run}");
    text.match_indices(&wanted).any(|(at, _)| {
        let next = text[at + wanted.len()..].chars().next();
        next.is_none_or(|next| !(next.is_alphanumeric() || matches!(next, '-' | '_' | '.')))
    })
}

/// The configs of a workspace, by their paths from its folder.
fn configs(root: &Utf8Path) -> Vec<(Utf8PathBuf, String)> {
    let mut found = vec![];
    let mut folders = vec![root.join("configs")];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path.to_owned());
            } else if path.extension() == Some("toml")
                && let Ok(text) = std::fs::read_to_string(path)
            {
                let within = path.strip_prefix(root).unwrap_or(path);
                found.push((within.to_owned(), text));
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_names_a_run_as_a_whole() {
        let run = RunName::new("a").unwrap();
        for text in ["\"run:a\"", "\"run:a@latest\"", "run:a"] {
            assert!(names_checkpoint(text, &run), "{text}");
        }
        for text in ["\"run:ab\"", "\"run:a-1@best\"", "a"] {
            assert!(!names_checkpoint(text, &run), "{text}");
        }
    }
}
