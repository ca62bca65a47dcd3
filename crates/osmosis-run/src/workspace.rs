//! Where things are: the workspace, its rollouts, datasets and runs.

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_store::{RunKind, StoreUrl};

use crate::{RunError, RunErrorKind, io_error as io};

/// The folder that holds `rollouts/`, and where the records of its runs are.
#[derive(Debug, Clone)]
pub struct Workspace {
    pub root: Utf8PathBuf,
    /// A database; `None`: the folder itself.
    pub store: Option<StoreUrl>,
}

/// The workspace that a command works on, as its user chose it: `--workspace` and `--store`.
#[derive(Debug, Clone, Default)]
pub struct WorkspaceChoice {
    /// `None`: the nearest one.
    folder: Option<Utf8PathBuf>,
    /// Where its runs are kept and looked for; `None`: in its folder.
    store: Option<StoreUrl>,
}

impl WorkspaceChoice {
    pub fn new(folder: Option<Utf8PathBuf>, store: Option<StoreUrl>) -> Result<Self, RunError> {
        // A folder is the workspace's own place, which `--workspace` names.
        if let Some(url) = store.as_ref().filter(|url| !url.is_postgres()) {
            let message =
                format!("`{url}` is no store for runs: `--store` takes `postgres://HOST/DATABASE`");
            return Err(RunError::usage(RunErrorKind::Usage, message)
                .hint("for runs in a folder, name the workspace with `--workspace`"));
        }
        Ok(Self { folder, store })
    }

    /// The folder that was named.
    pub fn named(&self) -> Option<&Utf8Path> {
        self.folder.as_deref()
    }

    /// The workspace that was named, else the nearest one above `start` (or the working directory).
    pub fn find(&self, start: Option<&Utf8Path>) -> Result<Workspace, RunError> {
        Workspace::root_of(self.named(), start).map(|root| self.at(root))
    }

    /// This folder as the workspace, with the chosen store.
    pub fn at(&self, root: Utf8PathBuf) -> Workspace {
        Workspace {
            root,
            store: self.store.clone(),
        }
    }
}

impl Workspace {
    /// The workspace in a folder, with runs in that folder.
    pub fn at(root: Utf8PathBuf) -> Self {
        Self { root, store: None }
    }

    /// This workspace, chosen again.
    pub fn chosen(&self) -> WorkspaceChoice {
        WorkspaceChoice {
            folder: Some(self.root.clone()),
            store: self.store.clone(),
        }
    }

    fn root_of(
        named: Option<&Utf8Path>,
        start: Option<&Utf8Path>,
    ) -> Result<Utf8PathBuf, RunError> {
        if let Some(root) = named {
            let root = absolute(root)?;
            if !root.join("rollouts").is_dir() {
                return Err(RunError::usage(
                    RunErrorKind::WorkspaceInvalid,
                    format!("`{root}` is no workspace: it holds no `rollouts/` folder"),
                ));
            }
            return Ok(root);
        }
        let start = match start {
            Some(path) => absolute(path)?,
            None => current_dir()?,
        };
        start
            .ancestors()
            .find(|folder| folder.join("rollouts").is_dir())
            .map(Utf8Path::to_owned)
            .ok_or_else(|| {
                RunError::usage(
                    RunErrorKind::WorkspaceNotFound,
                    format!("no folder above `{start}` holds `rollouts/`"),
                )
                .hint("run inside a workspace, name one with `--workspace`, or make one with `osmosis rollout init NAME`")
            })
    }

    pub fn rollout_dir(&self, name: &str) -> Utf8PathBuf {
        self.root.join("rollouts").join(name)
    }

    /// Where runs of this kind are.
    pub fn runs_dir(&self, kind: RunKind) -> Utf8PathBuf {
        self.root.join(".osmosis").join(match kind {
            RunKind::Evaluation => "evals",
            RunKind::Training => "training",
            RunKind::Serving => "serve",
        })
    }

    /// Where archived runs are.
    pub(crate) fn archive_dir(&self) -> Utf8PathBuf {
        self.root.join(".osmosis").join("archive")
    }

    /// The rollouts of the workspace, by name.
    pub fn rollouts(&self) -> Vec<String> {
        let Ok(entries) = self.root.join("rollouts").read_dir_utf8() else {
            return vec![];
        };
        let mut names: Vec<String> = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.path().is_dir() && !entry.file_name().starts_with('.'))
            .map(|entry| entry.file_name().to_owned())
            .collect();
        names.sort();
        names
    }
}

/// Where a config file is, from the root, and its text.
pub fn read_config(file: &Utf8Path) -> Result<(Utf8PathBuf, String), RunError> {
    let path = absolute(file)?;
    let text = std::fs::read_to_string(&path).map_err(|error| io(&path, &error).into_usage())?;
    Ok((path, text))
}

pub fn current_dir() -> Result<Utf8PathBuf, RunError> {
    let folder = std::env::current_dir().map_err(|error| {
        RunError::failed(RunErrorKind::Io, format!("no working directory: {error}"))
    })?;
    Utf8PathBuf::from_path_buf(folder).map_err(|folder| {
        RunError::failed(
            RunErrorKind::Io,
            format!("the working directory `{}` is not UTF-8", folder.display()),
        )
    })
}

/// The path from the root, whether or not anything is there.
pub fn absolute(path: &Utf8Path) -> Result<Utf8PathBuf, RunError> {
    let joined = if path.is_absolute() {
        path.to_owned()
    } else {
        current_dir()?.join(path)
    };
    // Without touching the disk, so that a missing file is reported as what the user typed.
    let mut clean = Utf8PathBuf::new();
    for part in joined.components() {
        match part {
            camino::Utf8Component::CurDir => {}
            camino::Utf8Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(url: &str) -> StoreUrl {
        StoreUrl::parse(url).unwrap()
    }

    /// Nothing of it is the process's: two commands in one process may use two stores.
    #[test]
    fn each_choice_has_a_store_of_its_own() {
        let keep = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
        std::fs::create_dir(root.join("rollouts")).unwrap();
        let url = "postgres://db.example.org/evaluations";
        let shared = WorkspaceChoice::new(Some(root.clone()), Some(store(url))).unwrap();
        let own = WorkspaceChoice::new(Some(root.clone()), None).unwrap();
        let found = shared.find(None).unwrap();
        assert_eq!(found.store.as_ref().unwrap().to_string(), url);
        assert!(own.find(None).unwrap().store.is_none());
        // What is chosen again keeps it.
        let again = found.chosen().find(None).unwrap();
        assert_eq!(again.store.unwrap().to_string(), url);
        assert_eq!(again.root, root);
    }

    #[test]
    fn a_folder_is_no_store() {
        let refused = WorkspaceChoice::new(None, Some(store("file:///runs"))).unwrap_err();
        assert_eq!(refused.kind(), RunErrorKind::Usage);
        assert!(refused.hint_text().unwrap().contains("--workspace"));
    }
}
