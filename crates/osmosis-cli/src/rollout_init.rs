//! `osmosis rollout init NAME`: a rollout that runs as it is.

use std::io::ErrorKind;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::RolloutId;
use serde_json::json;

use crate::arguments::{Framework, InitArguments};
use crate::error::{CliError, Exit, io};
use crate::output::Output;
use crate::workspace::{Workspace, absolute, current_dir};

/// Stands for the rollout's name in the templates.
const NAME: &str = "@NAME@";

pub(crate) fn run(
    arguments: &InitArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, CliError> {
    // A rollout's name has the rules of every path segment.
    let name = RolloutId::new(arguments.name.as_str())
        .map_err(|_| {
            CliError::usage(
                "usage",
                format!("`{}` can't be a rollout's name", arguments.name),
            )
            .hint("use letters, digits, `.`, `_` and `-`")
        })?
        .to_string();
    let root = root(workspace)?;
    let rollout = root.join("rollouts").join(&name);
    if rollout.exists() {
        return Err(
            CliError::failed("rollout_exists", format!("`{rollout}` is there already"))
                .hint("choose another name, or remove the folder"),
        );
    }
    let files = files(arguments.framework, &name);
    if let Some((path, _)) = files.iter().find(|(path, _)| root.join(path).exists()) {
        return Err(CliError::failed(
            "file_exists",
            format!("`{}` is there already", root.join(path)),
        )
        .hint("choose another name, or remove the file"));
    }
    for (path, text) in &files {
        write_new(&root.join(path), &text.replace(NAME, &name))?;
    }
    let config = format!("configs/eval/{name}.toml");
    output.line(format_args!("Made rollout `{name}` in {root}:"));
    for (path, _) in &files {
        output.line(format_args!("  {path}"));
    }
    output.line(format_args!(
        "\nRun it:\n  osmosis eval submit {}",
        root.join(&config)
    ));
    let paths: Vec<&Utf8PathBuf> = files.iter().map(|(path, _)| path).collect();
    output.operation(
        "created",
        &json!({"rollout": name, "workspace": root, "config": config, "files": paths}),
    );
    Ok(Exit::Ok)
}

/// The workspace that was named or is around us; without one, the working directory becomes one.
fn root(workspace: Option<&Utf8Path>) -> Result<Utf8PathBuf, CliError> {
    if let Some(named) = workspace {
        return absolute(named);
    }
    match Workspace::find(None, None) {
        Ok(found) => Ok(found.root),
        Err(_) => current_dir(),
    }
}

fn files(framework: Framework, name: &str) -> Vec<(Utf8PathBuf, &'static str)> {
    let (main, project, policy) = match framework {
        Framework::OpenaiAgents => (
            include_str!("../templates/openai-agents/main.py"),
            include_str!("../templates/openai-agents/pyproject.toml"),
            include_str!("../templates/openai-agents/policy.toml"),
        ),
        Framework::Plain => (
            include_str!("../templates/plain/main.py"),
            include_str!("../templates/plain/pyproject.toml"),
            include_str!("../templates/plain/policy.toml"),
        ),
    };
    vec![
        (format!("rollouts/{name}/main.py").into(), main),
        (format!("rollouts/{name}/pyproject.toml").into(), project),
        (
            format!("configs/eval/{name}.toml").into(),
            include_str!("../templates/eval.toml"),
        ),
        (
            format!("data/{name}.jsonl").into(),
            include_str!("../templates/data.jsonl"),
        ),
        (format!("policies/{name}.toml").into(), policy),
    ]
}

fn write_new(path: &Utf8Path, text: &str) -> Result<(), CliError> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| io(folder, &error))?;
    }
    let made = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
    match made {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(CliError::failed(
            "file_exists",
            format!("`{path}` is there already"),
        )),
        Err(error) => Err(io(path, &error)),
    }
}
