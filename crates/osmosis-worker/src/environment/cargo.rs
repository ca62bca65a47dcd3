//! Rollouts written in Rust: built by cargo, started as they are.

use std::process::Stdio;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use super::error::EnvironmentError;
use super::{EnvironmentEvent, tool};
use crate::guard::GuardProgram;
use crate::user::{Needed, NeededPath, open_program};
use crate::{Launch, variables};

/// A rollout's binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltRollout {
    pub program: Utf8PathBuf,
    /// Changes when the binary does.
    pub digest: String,
}

impl BuiltRollout {
    /// How to start a worker, with `environment` beside what workers inherit.
    pub fn launch(&self, rollout_dir: &Utf8Path, environment: Vec<(String, String)>) -> Launch {
        Launch {
            program: self.program.clone(),
            arguments: vec![],
            working_directory: rollout_dir.to_owned(),
            environment,
            guard: GuardProgram::this(),
            seal: None,
            needed: [
                (Needed::Program, &*self.program),
                (Needed::Project, rollout_dir),
            ]
            .map(|(needed, path)| NeededPath {
                needed,
                path: path.to_owned(),
            })
            .to_vec(),
            user: None,
        }
    }
}

/// What cargo says about something it made.
#[derive(Debug, Deserialize)]
struct Artifact {
    reason: String,
    executable: Option<Utf8PathBuf>,
    target: Option<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
}

/// Builds the package of `manifest` (a path inside the rollout) for release and finds the binary:
/// the one named, else the only one. Dropping the future ends the build.
pub async fn build(
    rollout_dir: &Utf8Path,
    manifest: &Utf8Path,
    binary: Option<&str>,
    mut progress: impl FnMut(EnvironmentEvent) + Send,
) -> Result<BuiltRollout, EnvironmentError> {
    let manifest = rollout_dir.join(manifest);
    let mut words = vec![
        "cargo",
        "build",
        "--release",
        "--manifest-path",
        manifest.as_str(),
    ];
    if let Some(name) = binary {
        words.extend(["--bin", name]);
    }
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    progress(EnvironmentEvent::Building {
        command: words.join(" "),
    });
    tool::run(&words, rollout_dir, &mut progress)
        .await
        .map_err(EnvironmentError::into_build)?;
    let program = executable(&words, rollout_dir, &manifest).await?;
    if rustix::process::geteuid().is_root()
        && let Err(error) = open_program(rollout_dir, &program)
    {
        tracing::debug!(%program, %error, "could not be opened to others");
    }
    let bytes = tokio::fs::read(&program)
        .await
        .map_err(EnvironmentError::io("reading", &program))?;
    let digest = format!("{:x}", Bytes::copy_from_slice(&Sha256::digest(&bytes)));
    progress(EnvironmentEvent::Ready { reused: false });
    Ok(BuiltRollout { program, digest })
}

/// Asks cargo, which has nothing left to build, where the binary is.
async fn executable(
    words: &[String],
    rollout_dir: &Utf8Path,
    manifest: &Utf8Path,
) -> Result<Utf8PathBuf, EnvironmentError> {
    let output = Command::new("cargo")
        .args(&words[1..])
        .args(["--message-format", "json", "--quiet"])
        .current_dir(rollout_dir)
        .env_clear()
        .envs(variables::for_tools())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(EnvironmentError::io("asking cargo about", manifest))?;
    let mut found: Vec<(String, Utf8PathBuf)> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
        .filter(|artifact| artifact.reason == "compiler-artifact")
        .filter_map(|artifact| Some((artifact.target?.name, artifact.executable?)))
        .collect();
    let names: Vec<String> = found.iter().map(|(name, _)| name.clone()).collect();
    match (found.pop(), found.is_empty()) {
        (Some((_, program)), true) => Ok(program),
        (Some(_), false) => Err(EnvironmentError::Project {
            file: manifest.to_owned(),
            problems: vec![format!(
                "it has several binaries ({}); name one: `entrypoint = \"Cargo.toml#NAME\"`",
                names.join(", ")
            )],
        }),
        (None, _) => Err(EnvironmentError::Project {
            file: manifest.to_owned(),
            problems: vec!["it has no binary; a rollout needs a `src/main.rs`".to_owned()],
        }),
    }
}
