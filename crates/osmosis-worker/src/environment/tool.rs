//! What makes environments and installs packages: `uv` when it is there, else `venv` and `pip`.

use std::collections::VecDeque;
use std::process::Stdio;

use camino::{Utf8Path, Utf8PathBuf};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::mpsc;

use super::error::EnvironmentError;
use super::{EnvironmentEvent, Surroundings};
use crate::process_group::GroupGuard;
use crate::variables;

/// How many of the last lines an error shows.
const TAIL_LINES: usize = 20;

const MAX_LINE_BYTES: u64 = 64 * 1024;

/// Which of the two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tool {
    Uv(Utf8PathBuf),
    Pip,
}

impl Tool {
    pub(super) fn choose(surroundings: &Surroundings) -> Self {
        surroundings
            .path
            .iter()
            .map(|folder| folder.join("uv"))
            .find(|path| path.is_file())
            .map_or(Self::Pip, Self::Uv)
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Uv(_) => "uv",
            Self::Pip => "pip",
        }
    }

    /// Makes an environment in a folder that exists.
    pub(super) fn create(&self, python: &Utf8Path, folder: &Utf8Path) -> Vec<String> {
        match self {
            Self::Uv(uv) => command(&[
                uv.as_str(),
                "venv",
                "--allow-existing",
                "--no-project",
                "--python",
                python.as_str(),
                folder.as_str(),
            ]),
            Self::Pip => command(&[python.as_str(), "-m", "venv", folder.as_str()]),
        }
    }

    pub(super) fn install(&self, python: &Utf8Path, packages: &[String]) -> Vec<String> {
        let mut command = match self {
            Self::Uv(uv) => command(&[uv.as_str(), "pip", "install", "--python", python.as_str()]),
            Self::Pip => command(&[
                python.as_str(),
                "-m",
                "pip",
                "install",
                "--disable-pip-version-check",
                "--no-input",
                "--progress-bar=off",
            ]),
        };
        // What follows is never taken for an option.
        command.push("--".to_owned());
        command.extend(packages.iter().cloned());
        command
    }
}

fn command(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// Runs a command to its end, telling every line. Dropping the future kills it and what it started.
pub(super) async fn run(
    words: &[String],
    folder: &Utf8Path,
    progress: &mut (dyn FnMut(EnvironmentEvent) + Send),
) -> Result<(), EnvironmentError> {
    let failed = |detail: String, output: VecDeque<String>| EnvironmentError::Tool {
        command: shown(words),
        detail,
        output: output.into(),
    };
    let (program, arguments) = words
        .split_first()
        .ok_or_else(|| failed("is no command".to_owned(), VecDeque::new()))?;
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .envs(variables::for_tools())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(format!("can't be started: {error}"), VecDeque::new()))?;
    let guard = GroupGuard::of(&child);
    let (lines, mut incoming) = mpsc::channel(64);
    let stdout = forward(child.stdout.take(), lines.clone());
    let stderr = forward(child.stderr.take(), lines);
    let mut tail = VecDeque::new();
    let listen = async {
        while let Some(line) = incoming.recv().await {
            if tail.len() == TAIL_LINES {
                tail.pop_front();
            }
            tail.push_back(line.clone());
            progress(EnvironmentEvent::OutputLine { line });
        }
    };
    let (status, (), (), ()) = tokio::join!(child.wait(), stdout, stderr, listen);
    guard.let_go();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(format!("failed ({status})"), tail)),
        Err(error) => Err(failed(format!("was lost: {error}"), tail)),
    }
}

async fn forward(source: Option<impl AsyncRead + Unpin>, lines: mpsc::Sender<String>) {
    let Some(source) = source else { return };
    let mut source = BufReader::new(source);
    let mut line = Vec::new();
    // Longer lines come in pieces.
    while let Ok(1..) = (&mut source)
        .take(MAX_LINE_BYTES)
        .read_until(b'\n', &mut line)
        .await
    {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if !text.is_empty() && lines.send(text).await.is_err() {
            return;
        }
    }
}

/// A command as a person would type it.
fn shown(words: &[String]) -> String {
    words
        .iter()
        .map(|word| {
            if word.contains([' ', ';', '<', '>', '\'', '[', '"']) {
                format!("'{word}'")
            } else {
                word.clone()
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}
