//! What preparing an environment would find or do, without doing any of it.

use camino::{Utf8Path, Utf8PathBuf};

use super::error::EnvironmentError;
use super::tool::Tool;
use super::venv::{self, Found};
use super::{Clash, Preparation, PreparedEnvironment, Surroundings, interpreter, sdk};

/// Where the environment of a rollout stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvironmentState {
    /// Workers can be started as things are.
    Ready {
        /// The interpreter that would run.
        python: Utf8PathBuf,
        /// What a person should know.
        notes: Vec<String>,
        clash: Option<Clash>,
    },
    /// The first run makes it, or [`super::prepare`].
    ToMake {
        folder: Utf8PathBuf,
        /// Why: what is there instead.
        reason: &'static str,
        /// The interpreter that it would be made with, and its version.
        python: Utf8PathBuf,
        version: String,
        /// `uv` or `pip`.
        tool: &'static str,
        packages: Vec<String>,
        notes: Vec<String>,
    },
}

/// Where the Python package that this program carries is unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SdkState {
    pub path: Utf8PathBuf,
    /// The first run unpacks it when it is not there.
    pub unpacked: bool,
}

/// Where the SDK is, or will be. Writes nothing.
pub fn sdk_state() -> Result<SdkState, EnvironmentError> {
    let found = sdk::locate(&Surroundings::from_environment())?;
    Ok(SdkState {
        unpacked: sdk::is_whole(&found.path),
        path: found.path,
    })
}

/// What [`super::prepare`] would find or do. Writes nothing; starts interpreters only to ask them what they are.
pub async fn inspect(
    rollout_dir: &Utf8Path,
    python: Option<&Utf8Path>,
) -> Result<EnvironmentState, EnvironmentError> {
    inspect_in(&Surroundings::from_environment(), rollout_dir, python).await
}

/// Like `inspect`, in surroundings of the caller's choice.
pub async fn inspect_in(
    surroundings: &Surroundings,
    rollout_dir: &Utf8Path,
    python: Option<&Utf8Path>,
) -> Result<EnvironmentState, EnvironmentError> {
    let sdk = sdk::locate(surroundings)?;
    let preparation = Preparation::read(surroundings, rollout_dir, python, sdk)?;
    let requirements = match (&preparation.requirements, python) {
        (Some(requirements), None) => requirements.clone(),
        (Some(_), Some(_)) | (None, _) => {
            return preparation.interpreter_as_it_is().await.map(ready);
        }
    };
    let (base, reason) = match venv::look(&preparation.folder)? {
        Found::Foreign => return preparation.foreign(requirements).await.map(ready),
        Found::Ours(stamp) if preparation.still_fits(&stamp, &requirements.packages) => {
            return Ok(EnvironmentState::Ready {
                python: venv::python_in(&preparation.folder),
                notes: requirements.notes,
                clash: Clash::in_environment(&preparation.folder),
            });
        }
        Found::Ours(stamp) => (
            Some(stamp.interpreter().to_owned()),
            "was made for other dependencies or another interpreter",
        ),
        Found::Unfinished => (None, "was not made to the end"),
        Found::Nothing => (None, "is not there yet"),
    };
    let found = interpreter::find(None, base, &preparation.wanted, surroundings).await?;
    Ok(EnvironmentState::ToMake {
        folder: preparation.folder.clone(),
        reason,
        python: found.executable,
        version: found.version.to_string(),
        tool: Tool::choose(surroundings).name(),
        packages: requirements.packages,
        notes: requirements.notes,
    })
}

fn ready(found: PreparedEnvironment) -> EnvironmentState {
    EnvironmentState::Ready {
        python: found.python,
        notes: found.notes,
        clash: found.clash,
    }
}
