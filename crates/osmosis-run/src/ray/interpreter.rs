//! Which Python has Ray.

use std::process::Stdio;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use tokio::process::Command;

use crate::{RunError, RunErrorKind};

/// Ray is looked for, and not imported, which takes a second.
const QUESTION: &str =
    "import importlib.util, sys; sys.exit(importlib.util.find_spec('ray') is None)";
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
const INSTALL: &str = "install it with `pip install 'osmosis-rs[ray]'`, in the Python and the version of Ray that the \
     cluster has, or name an interpreter that has it with `--ray-python PATH`";

/// The interpreter that was named, else the first of these that has Ray: the one beside this program, that of
/// `VIRTUAL_ENV`, those in `PATH`.
pub(super) async fn find(named: Option<&Utf8Path>) -> Result<Utf8PathBuf, RunError> {
    let missing =
        |message: String| RunError::failed(RunErrorKind::ClusterUnusable, message).hint(INSTALL);
    if let Some(python) = named {
        return match has_ray(python).await {
            Some(true) => Ok(python.to_owned()),
            Some(false) => Err(missing(format!("`{python}` has no Ray"))),
            None => Err(missing(format!("`{python}` is no Python that can be run"))),
        };
    }
    let candidates = candidates();
    for python in &candidates {
        if has_ray(python).await == Some(true) {
            return Ok(python.clone());
        }
    }
    let looked: Vec<String> = candidates.iter().map(|path| format!("`{path}`")).collect();
    Err(missing(format!(
        "no Python with Ray was found among {}",
        looked.join(", ")
    )))
}

fn candidates() -> Vec<Utf8PathBuf> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|program| Utf8PathBuf::try_from(program.with_file_name("python")).ok());
    let virtual_environment = std::env::var("VIRTUAL_ENV")
        .ok()
        .filter(|folder| !folder.is_empty())
        .map(|folder| Utf8PathBuf::from(folder).join("bin").join("python"));
    let known = beside.into_iter().chain(virtual_environment);
    let known = known.filter(|path| path.is_file());
    known.chain(["python3".into(), "python".into()]).collect()
}

/// `None` when it can't be asked.
async fn has_ray(python: &Utf8Path) -> Option<bool> {
    let asking = Command::new(python)
        .args(["-c", QUESTION])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .status();
    let status = tokio::time::timeout(ANSWER_LIMIT, asking)
        .await
        .ok()?
        .ok()?;
    match status.code() {
        Some(0) => Some(true),
        Some(1) => Some(false),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn python(folder: &Utf8Path, code: u8) -> Utf8PathBuf {
        let path = folder.join(format!("python-{code}"));
        std::fs::write(&path, format!("#!/bin/sh\nexit {code}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[tokio::test]
    async fn a_python_without_ray_is_refused_with_the_fix() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        let with = python(folder, 0);
        assert_eq!(find(Some(&with)).await.unwrap(), with);
        for (path, why) in [
            (python(folder, 1), "has no Ray"),
            (folder.join("nowhere"), "no Python that can be run"),
        ] {
            let error = find(Some(&path)).await.unwrap_err();
            assert_eq!(error.kind(), RunErrorKind::ClusterUnusable);
            assert!(error.message().contains(why), "{error}");
            let hint = error.hint_text().unwrap();
            assert!(hint.contains("osmosis-rs[ray]"), "{hint}");
        }
    }
}
