//! `osmosis rollout init NAME`: a rollout that runs as it is.

use std::io::ErrorKind;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::RolloutId;
use osmosis_run::reports::MadeProject;
use osmosis_run::{RunError, RunErrorKind, io_error as io};

use crate::arguments::{InitArguments, Template};
use crate::error::Exit;
use crate::output::Output;
use crate::workspace::{WorkspaceChoice, absolute, current_dir};

/// Stands for the rollout's name in the templates.
const NAME: &str = "@NAME@";
/// Stands for the folder of the Rust SDK.
const SDK: &str = "@SDK@";
/// Stands for the entrypoint in the config.
const ENTRYPOINT: &str = "@ENTRYPOINT@";

pub(crate) fn run(
    arguments: &InitArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    // A rollout's name has the rules of every path segment.
    let name = RolloutId::new(arguments.name.as_str())
        .map_err(|_| {
            RunError::usage(
                RunErrorKind::Usage,
                format!("`{}` can't be a rollout's name", arguments.name),
            )
            .hint("use letters, digits, `.`, `_` and `-`")
        })?
        .to_string();
    let root = root(workspace)?;
    let rollout = root.join("rollouts").join(&name);
    if rollout.exists() {
        return Err(RunError::failed(
            RunErrorKind::RolloutExists,
            format!("`{rollout}` is there already"),
        )
        .hint("choose another name, or remove the folder"));
    }
    let files = files(arguments.template, &name)?;
    if let Some((path, _)) = files.iter().find(|(path, _)| root.join(path).exists()) {
        return Err(RunError::failed(
            RunErrorKind::FileExists,
            format!("`{}` is there already", root.join(path)),
        )
        .hint("choose another name, or remove the file"));
    }
    for (path, text) in &files {
        write_new(&root.join(path), &text.replace(NAME, &name))?;
    }
    let mut made: Vec<Utf8PathBuf> = files.into_iter().map(|(path, _)| path).collect();
    made.extend(ignore_runs(&root, output)?);
    let config = format!("configs/eval/{name}.toml");
    let training_config = format!("configs/training/{name}.toml");
    output.line(format_args!("Made rollout `{name}` in {root}:"));
    for path in &made {
        output.line(format_args!("  {path}"));
    }
    output.line(format_args!(
        "\nRun it:\n  osmosis eval submit {}\nCheck that it can be trained:\n  osmosis train submit {} --dry-run",
        root.join(&config),
        root.join(&training_config)
    ));
    output.operation(
        "created",
        &MadeProject {
            rollout: name.clone(),
            workspace: root,
            config,
            training_config,
            files: made,
        },
    );
    Ok(Exit::Ok)
}

/// Keeps runs, environments and keys out of the workspace's repository. A `.gitignore` that is there stays as it is.
fn ignore_runs(root: &Utf8Path, output: &Output) -> Result<Option<Utf8PathBuf>, RunError> {
    const FILE: &str = ".gitignore";
    let path = root.join(FILE);
    if !path.exists() {
        write_new(&path, include_str!("../templates/gitignore"))?;
        return Ok(Some(FILE.into()));
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    let ignores_runs =
        |line: &str| matches!(line.trim().trim_matches('/'), ".osmosis" | ".*" | "*");
    if !there.lines().any(ignores_runs) {
        output.note(format_args!(
            "{FILE} is left as it is; add `.osmosis/`, which holds the runs"
        ));
    }
    Ok(None)
}

/// The workspace that was named or is around us; without one, the working directory becomes one.
fn root(workspace: &WorkspaceChoice) -> Result<Utf8PathBuf, RunError> {
    if let Some(named) = workspace.named() {
        return absolute(named);
    }
    match workspace.find(None) {
        Ok(found) => Ok(found.root),
        Err(_) => current_dir(),
    }
}

fn files(template: Template, name: &str) -> Result<Vec<(Utf8PathBuf, String)>, RunError> {
    // One policy calls the agents' tool, the other one only speaks.
    let tool_policy = include_str!("../templates/tool-policy.toml");
    let text_policy = include_str!("../templates/text-policy.toml");
    let (entrypoint, policy) = match template {
        Template::OpenaiAgents | Template::Strands => ("main.py", tool_policy),
        Template::Areal | Template::Plain => ("main.py", text_policy),
        Template::Rust => ("Cargo.toml", text_policy),
    };
    // Rows of any columns will do there.
    let (data, held_out) = match template {
        Template::Areal => (
            include_str!("../templates/areal/data.jsonl"),
            include_str!("../templates/areal/held-out.jsonl"),
        ),
        Template::OpenaiAgents | Template::Strands | Template::Plain | Template::Rust => (
            include_str!("../templates/data.jsonl"),
            include_str!("../templates/held-out.jsonl"),
        ),
    };
    let source: Vec<(&str, String)> = match template {
        Template::OpenaiAgents => python(
            include_str!("../templates/openai-agents/main.py"),
            include_str!("../templates/openai-agents/pyproject.toml"),
        ),
        Template::Strands => python(
            include_str!("../templates/strands/main.py"),
            include_str!("../templates/strands/pyproject.toml"),
        ),
        Template::Areal => python(
            include_str!("../templates/areal/main.py"),
            include_str!("../templates/areal/pyproject.toml"),
        ),
        Template::Plain => python(
            include_str!("../templates/plain/main.py"),
            include_str!("../templates/plain/pyproject.toml"),
        ),
        Template::Rust => vec![
            (
                "src/main.rs",
                include_str!("../templates/rust/main.rs").to_owned(),
            ),
            (
                "Cargo.toml",
                include_str!("../templates/rust/Cargo.toml.template").replace(SDK, &rust_sdk()?),
            ),
            (".gitignore", "/target\n".to_owned()),
        ],
    };
    let mut files: Vec<(Utf8PathBuf, String)> = source
        .into_iter()
        .map(|(path, text)| (format!("rollouts/{name}/{path}").into(), text))
        .collect();
    files.extend([
        (
            format!("configs/eval/{name}.toml").into(),
            include_str!("../templates/eval.toml").replace(ENTRYPOINT, entrypoint),
        ),
        (
            format!("configs/training/{name}.toml").into(),
            include_str!("../templates/train.toml").replace(ENTRYPOINT, entrypoint),
        ),
        (format!("data/{name}.jsonl").into(), data.to_owned()),
        (
            format!("data/{name}-held-out.jsonl").into(),
            held_out.to_owned(),
        ),
        (format!("policies/{name}.toml").into(), policy.to_owned()),
    ]);
    Ok(files)
}

fn python(main: &str, project: &str) -> Vec<(&'static str, String)> {
    vec![
        ("main.py", main.to_owned()),
        ("pyproject.toml", project.to_owned()),
    ]
}

/// Where the Rust SDK is: in the checkout that this program was built from.
fn rust_sdk() -> Result<String, RunError> {
    let built_in = Utf8Path::new(env!("CARGO_MANIFEST_DIR"));
    let sdk = built_in.with_file_name("osmosis-sdk");
    if sdk.join("Cargo.toml").is_file() {
        return Ok(sdk.to_string());
    }
    Err(RunError::failed(
        RunErrorKind::SdkNotFound,
        format!("the Rust SDK is not at `{sdk}`, where this program was built"),
    )
    .hint("keep the checkout of osmosis-rs, or build `osmosis` from another one"))
}

fn write_new(path: &Utf8Path, text: &str) -> Result<(), RunError> {
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
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(RunError::failed(
            RunErrorKind::FileExists,
            format!("`{path}` is there already"),
        )),
        Err(error) => Err(io(path, &error)),
    }
}
