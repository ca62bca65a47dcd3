//! The config of one row: the project's own, with what the command line says instead.

use camino::{Utf8Path, Utf8PathBuf};
use toml_edit::{DocumentMut, Item, table, value};

use super::RowRequest;
use crate::workspace::{Workspace, read_config};
use crate::{RunError, RunErrorKind};

/// Where the config is, for messages, and its text.
pub(super) fn read(
    request: &RowRequest,
    workspace: &Workspace,
) -> Result<(Utf8PathBuf, String), RunError> {
    let (path, text) = match chosen(request, workspace)? {
        Some(path) => read_config(&path)?,
        None => (own_path(request, workspace), String::new()),
    };
    // What is no TOML is reported by whoever reads the config, with its place.
    let Ok(mut document) = text.parse::<DocumentMut>() else {
        return Ok((path, text));
    };
    let folder = workspace.rollout_dir(&request.project);
    let entrypoint = request.entrypoint.clone().or_else(|| {
        let is_new = text.is_empty();
        is_new.then(|| suggested_entrypoint(&folder).to_owned())
    });
    let changes = [
        ("rollout", Some(request.project.clone())),
        ("entrypoint", entrypoint),
        ("dataset", request.dataset.clone()),
        ("model_path", request.model.clone()),
    ];
    let experiment = document.entry("experiment").or_insert(table());
    for (key, change) in changes {
        if let (Some(change), Some(experiment)) = (change, experiment.as_table_like_mut()) {
            experiment.insert(key, value(change));
        }
    }
    // One rollout of this row, whatever the config's other numbers are.
    let evaluation = document.entry("evaluation").or_insert(table());
    if let Some(evaluation) = evaluation.as_table_like_mut() {
        evaluation.insert("n", value(1));
        evaluation.remove("limit");
    }
    Ok((path, document.to_string()))
}

fn own_path(request: &RowRequest, workspace: &Workspace) -> Utf8PathBuf {
    let folder = workspace.root.join("configs").join("eval");
    folder.join(format!("{}.toml", request.project))
}

/// The config that was named, else the one of the project; `None` when the command line says everything.
fn chosen(request: &RowRequest, workspace: &Workspace) -> Result<Option<Utf8PathBuf>, RunError> {
    if request.config.is_some() {
        return Ok(request.config.clone());
    }
    let found = configs_of(&request.project, workspace);
    let own = own_path(request, workspace);
    if let [only] = found.as_slice() {
        return Ok(Some(only.clone()));
    }
    if found.contains(&own) {
        return Ok(Some(own));
    }
    if request.dataset.is_some() && request.model.is_some() {
        return Ok(None);
    }
    let usage = |message: String| RunError::usage(RunErrorKind::Usage, message);
    if found.is_empty() {
        let message = format!(
            "no config in `{}` is for project `{}`",
            own.parent().unwrap_or(&own),
            request.project
        );
        return Err(usage(message).hint("give `--dataset` and `--model`, or `--config`"));
    }
    let names: Vec<&str> = found.iter().filter_map(|path| path.file_name()).collect();
    let message = format!(
        "several configs are for project `{}`: {}",
        request.project,
        names.join(", ")
    );
    Err(usage(message).hint("name one with `--config`"))
}

/// The evaluation configs of the workspace that name the project.
fn configs_of(project: &str, workspace: &Workspace) -> Vec<Utf8PathBuf> {
    let folder = workspace.root.join("configs").join("eval");
    let entries = folder.read_dir_utf8().into_iter().flatten().flatten();
    let mut found: Vec<Utf8PathBuf> = entries
        .map(|entry| entry.path().to_owned())
        .filter(|path| path.extension() == Some("toml") && names_project(path, project))
        .collect();
    found.sort();
    found
}

fn names_project(path: &Utf8Path, project: &str) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let document = text.parse::<DocumentMut>().unwrap_or_default();
    let experiment = document.get("experiment");
    let named = experiment.and_then(|experiment| experiment.get("rollout"));
    named.and_then(Item::as_str) == Some(project)
}

/// What a project without a config is started by.
fn suggested_entrypoint(folder: &Utf8Path) -> &'static str {
    if folder.join("Cargo.toml").is_file() && !folder.join("main.py").is_file() {
        "Cargo.toml"
    } else {
        "main.py"
    }
}
