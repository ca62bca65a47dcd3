//! The models that can be named as things are.

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::{PROVIDERS, Provider};
use osmosis_policy::EmbeddedModel;
use osmosis_store::RunKind;
use osmosis_train::checkpoints;

use crate::policy::variable;
use crate::reports::{ReadyModel, ReadyModelKind};
use crate::runs::FoundRun;
use crate::workspace::Workspace;

/// Files below the workspace are looked for this deep.
const DEPTH: usize = 4;
/// A workspace may lie in a home with millions of files.
const MOST_ENTRIES: usize = 20_000;
/// Folders that hold no models of the user's, beside hidden ones.
const SKIPPED: [&str; 4] = ["node_modules", "target", "venv", "site-packages"];

/// The models of this machine, workspace and environment.
pub(super) async fn ready(workspace: Option<&Workspace>) -> Vec<ReadyModel> {
    let mut found: Vec<ReadyModel> = EmbeddedModel::builtin_names()
        .map(|name| {
            model(
                format!("builtin/{name}"),
                ReadyModelKind::Builtin,
                "part of this program",
            )
        })
        .collect();
    if let Some(workspace) = workspace {
        found.extend(files(workspace));
        found.extend(runs(workspace).await);
    }
    found.extend(PROVIDERS.iter().filter_map(server));
    found
}

fn model(name: String, kind: ReadyModelKind, text: impl Into<String>) -> ReadyModel {
    ReadyModel {
        model: name,
        kind,
        text: text.into(),
    }
}

/// Trainings that left a checkpoint.
async fn runs(workspace: &Workspace) -> Vec<ReadyModel> {
    let runs = FoundRun::all(workspace, &[RunKind::Training]).await;
    runs.unwrap_or_default()
        .into_iter()
        .filter_map(|run| {
            let all = checkpoints::list(&run.folder.path).ok()?;
            let name = run.name;
            let last = all.last()?;
            let text = format!(
                "{} checkpoints, the latest of step {}",
                all.len(),
                last.step
            );
            Some(model(format!("run:{name}"), ReadyModelKind::Run, text))
        })
        .collect()
}

/// A provider for which the environment says enough. Names of variables are told, never values.
fn server(provider: &Provider) -> Option<ReadyModel> {
    let set = |name: &'static str| variable(name).map(|_| name);
    let url = set(provider.base_url_variable);
    let key = set(provider.api_key_variable);
    if url.is_none() && !(provider.needs_key && key.is_some()) {
        return None;
    }
    if provider.needs_key && key.is_none() {
        // An address without the key that its models need.
        if provider.name != "openai" {
            return None;
        }
        let text = "OPENAI_BASE_URL is set; `openai/MODEL` needs OPENAI_API_KEY too";
        return Some(model("MODEL".to_owned(), ReadyModelKind::Server, text));
    }
    let variables: Vec<&str> = url.into_iter().chain(key).collect();
    let verb = if variables.len() == 1 { "is" } else { "are" };
    let text = format!("{} {verb} set", variables.join(", "));
    let name = format!("{}/MODEL", provider.name);
    Some(model(name, ReadyModelKind::Server, text))
}

/// Scripts, GGUF files and checkpoint folders of the workspace.
fn files(workspace: &Workspace) -> Vec<ReadyModel> {
    let mut found = vec![];
    let mut left = MOST_ENTRIES;
    look(
        &workspace.root,
        &workspace.root,
        DEPTH,
        &mut left,
        &mut found,
    );
    found.sort_by(|a, b| (a.kind as u8, &a.model).cmp(&(b.kind as u8, &b.model)));
    found
}

fn look(
    root: &Utf8Path,
    folder: &Utf8Path,
    depth: usize,
    left: &mut usize,
    found: &mut Vec<ReadyModel>,
) {
    let Ok(entries) = folder.read_dir_utf8() else {
        return;
    };
    let mut folders: Vec<Utf8PathBuf> = vec![];
    let (mut has_config, mut has_weights) = (false, false);
    for entry in entries.flatten() {
        if *left == 0 {
            return;
        }
        *left -= 1;
        let (path, name) = (entry.path(), entry.file_name());
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() {
            if !name.starts_with('.') && !SKIPPED.contains(&name) {
                folders.push(path.to_owned());
            }
            continue;
        }
        has_config |= name == "config.json";
        match path.extension() {
            Some("safetensors") => has_weights = true,
            Some("gguf") => {
                let size = entry.metadata().map_or(0, |found| found.len());
                let text = format!("a GGUF file of {} MB", size.div_ceil(1_000_000));
                found.push(model(within(root, path), ReadyModelKind::Gguf, text));
            }
            Some("toml") if folder == root.join("policies") => {
                let name = format!("script:policies/{name}");
                found.push(model(name, ReadyModelKind::Script, "a scripted policy"));
            }
            _ => {}
        }
    }
    if has_config && has_weights {
        let name = within(root, folder);
        found.push(model(name, ReadyModelKind::Folder, "a checkpoint folder"));
    }
    if depth > 1 {
        for folder in folders {
            look(root, &folder, depth - 1, left, found);
        }
    }
}

/// As `model_path` takes it.
fn within(root: &Utf8Path, path: &Utf8Path) -> String {
    match path.strip_prefix(root) {
        Ok(inside) => format!("./{inside}"),
        Err(_) => path.to_string(),
    }
}
