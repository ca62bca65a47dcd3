//! The Python process that feeds a tracker's own package.

use std::process::Stdio;
use std::time::Duration;

use camino::Utf8Path;
use osmosis_worker::variables;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::TrackedRun;
use super::numbers::Point;
use crate::{RunError, RunErrorKind};

const SCRIPT: &str = include_str!("tracker.py");
/// A package that has to import half the world, on a machine with much to do.
const BEGIN_LIMIT: Duration = Duration::from_mins(2);
/// More than this and the run would wait for its tracker.
const LOG_LIMIT: Duration = Duration::from_secs(30);

/// Beginnings of the names of secrets that trackers use, for the places that they upload to too.
const OWN_SECRETS: &[&str] = &[
    "AWS_",
    "AZURE_",
    "DATABRICKS_",
    "GOOGLE_",
    "MLFLOW_",
    "WANDB_",
];

#[derive(Debug)]
pub(super) struct Process {
    pub(super) name: &'static str,
    /// Killed when this is dropped.
    _child: Child,
    stdin: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts the interpreter, and asks it for the package.
    pub(super) async fn start(name: &'static str, python: &Utf8Path) -> Result<Self, RunError> {
        let failed = |error: String| {
            RunError::failed(
                RunErrorKind::TrackerUnavailable,
                format!("`--log {name}` can't use `{python}`: {error}"),
            )
            .hint("name an interpreter that has the package with `--log-python PATH`")
        };
        let mut command = Command::new(python);
        let mut child = command
            // It runs where agents do, which can read them.
            .env_clear()
            .envs(variables::for_programs(OWN_SECRETS))
            .args(["-c", SCRIPT, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C is for the run, which still has numbers to tell.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("it has no input or output".to_owned()));
        };
        let mut process = Self {
            name,
            _child: child,
            stdin,
            answers: BufReader::new(stdout).lines(),
        };
        let answer = process.answer(LOG_LIMIT).await.map_err(failed)?;
        match answer["missing"].as_str() {
            None => Ok(process),
            Some(package) => Err(RunError::failed(
                RunErrorKind::TrackerUnavailable,
                format!("`--log {name}` needs the package `{package}`, which `{python}` has not"),
            )
            .hint(format!(
                "install it with `{python} -m pip install {package}`, or name an interpreter that has \
                 it with `--log-python PATH`"
            ))),
        }
    }

    /// Begins a run; returns where it is kept.
    pub(super) async fn begin(&mut self, run: &TrackedRun<'_>) -> Result<String, String> {
        // The same for a resume, and for nothing else.
        let digest = Sha256::digest(run.folder.as_str().as_bytes());
        let digest = digest
            .iter()
            .take(4)
            .fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
        let message = json!({"run": {
            "name": run.name,
            "id": format!("{}-{digest:08x}", run.name),
            "folder": run.folder,
            "shared_folder": run.shared_folder,
            "project": run.project,
            "params": run.facts,
        }});
        let answer = self.ask(&message, BEGIN_LIMIT).await?;
        Ok(answer["place"].as_str().unwrap_or_default().to_owned())
    }

    pub(super) async fn log(&mut self, point: &Point) -> Result<(), String> {
        let message = json!({"step": point.step, "numbers": point.numbers});
        self.ask(&message, LOG_LIMIT).await.map(drop)
    }

    pub(super) async fn end(&mut self, finished: bool) -> Result<(), String> {
        let message = json!({ "finished": finished });
        self.ask(&message, BEGIN_LIMIT).await.map(drop)
    }

    async fn ask(&mut self, message: &Value, limit: Duration) -> Result<Value, String> {
        let line = format!("{message}\n");
        // What it did not read it may still have answered.
        let _ = self.stdin.write_all(line.as_bytes()).await;
        let _ = self.stdin.flush().await;
        self.answer(limit).await
    }

    async fn answer(&mut self, limit: Duration) -> Result<Value, String> {
        let line = tokio::time::timeout(limit, self.answers.next_line()).await;
        let line = match line {
            Err(_) => return Err(format!("no answer within {} s", limit.as_secs())),
            Ok(Err(error)) => return Err(error.to_string()),
            Ok(Ok(None)) => return Err("its process ended".to_owned()),
            Ok(Ok(Some(line))) => line,
        };
        let answer: Value =
            serde_json::from_str(&line).map_err(|_| "it gave no sensible answer".to_owned())?;
        match answer["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer),
        }
    }
}
