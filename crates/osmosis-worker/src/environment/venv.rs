//! The rollout's `.venv`: whether it is ours and still fits, and making it when not.

use std::time::{Duration, UNIX_EPOCH};

use camino::{Utf8Path, Utf8PathBuf};
use pep440_rs::Version;
use serde::{Deserialize, Serialize};

use super::error::EnvironmentError;
use super::interpreter::Interpreter;
use super::sdk::Sdk;
use super::tool::{self, Tool};
use super::{EnvironmentEvent, Surroundings, digest_of};

/// Says in an environment that we made it, and for what.
const STAMP: &str = "osmosis-environment.json";

/// Puts the SDK on the environment's import path.
const PATH_FILE: &str = "osmosis_ai.pth";

const STAMP_FORMAT: u32 = 1;

/// How often we look whether another process is done with the environment.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// What is found where the environment belongs.
#[derive(Debug)]
pub(super) enum Found {
    Nothing,
    /// Made by us to the end.
    Ours(Box<Stamp>),
    /// Made by us, but not to the end, or by a version whose stamp we can't read.
    Unfinished,
    /// Somebody else's; never changed.
    Foreign,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    format: u32,
    /// Written last.
    complete: bool,
    requirements: Vec<String>,
    interpreter: InterpreterStamp,
    tool: String,
}

/// An interpreter, recognisable without starting it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct InterpreterStamp {
    path: Utf8PathBuf,
    version: String,
    /// Size and time of the file behind the path, which change when it is updated in place.
    bytes: u64,
    modified_ms: u64,
}

impl Stamp {
    pub(super) fn interpreter(&self) -> &Utf8Path {
        &self.interpreter.path
    }

    pub(super) fn version(&self) -> Option<Version> {
        self.interpreter.version.parse().ok()
    }

    /// Whether the environment holds these packages, on an interpreter that is still the same.
    pub(super) fn fits(&self, requirements: &[String]) -> bool {
        self.requirements == normalised(requirements)
            && file_facts(&self.interpreter.path)
                == Some((self.interpreter.bytes, self.interpreter.modified_ms))
    }
}

pub(super) fn look(folder: &Utf8Path) -> Result<Found, EnvironmentError> {
    let error = || EnvironmentError::io("can't read", folder);
    match std::fs::symlink_metadata(folder) {
        Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Found::Nothing);
        }
        Err(other) => return Err(error()(other)),
        // A link leads to a place that is not the rollout's own.
        Ok(metadata) if metadata.is_symlink() => return Ok(Found::Foreign),
        Ok(_) => {}
    }
    match std::fs::read(folder.join(STAMP)) {
        Ok(bytes) => Ok(match serde_json::from_slice::<Stamp>(&bytes) {
            Ok(stamp)
                if stamp.complete && stamp.format == STAMP_FORMAT && python_in(folder).exists() =>
            {
                Found::Ours(Box::new(stamp))
            }
            Ok(_) | Err(_) => Found::Unfinished,
        }),
        Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => {
            let empty = folder.read_dir_utf8().map_err(error())?.next().is_none();
            Ok(if empty {
                Found::Nothing
            } else {
                Found::Foreign
            })
        }
        Err(other) => Err(error()(other)),
    }
}

pub(super) fn python_in(folder: &Utf8Path) -> Utf8PathBuf {
    folder.join("bin").join("python")
}

/// Makes the environment anew in its place; an environment can't be moved there afterwards.
pub(super) async fn build(
    folder: &Utf8Path,
    interpreter: &Interpreter,
    requirements: &[String],
    surroundings: &Surroundings,
    progress: &mut (dyn FnMut(EnvironmentEvent) + Send),
) -> Result<Stamp, EnvironmentError> {
    let tool = Tool::choose(surroundings);
    progress(EnvironmentEvent::Creating {
        tool: tool.name(),
        path: folder.to_owned(),
    });
    match tokio::fs::remove_dir_all(folder).await {
        Ok(()) => {}
        Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(EnvironmentError::io("can't remove", folder)(error)),
    }
    std::fs::create_dir_all(folder).map_err(EnvironmentError::io("can't create", folder))?;
    let (bytes, modified_ms) = file_facts(&interpreter.executable).unwrap_or_default();
    let mut stamp = Stamp {
        format: STAMP_FORMAT,
        complete: false,
        requirements: normalised(requirements),
        interpreter: InterpreterStamp {
            path: interpreter.executable.clone(),
            version: interpreter.version.to_string(),
            bytes,
            modified_ms,
        },
        tool: tool.name().to_owned(),
    };
    // Before anything else, so that what an interruption leaves behind is known to be ours.
    write_stamp(folder, &stamp)?;

    let rollout_dir = folder.parent().unwrap_or(folder);
    tool::run(
        &tool.create(&interpreter.executable, folder),
        rollout_dir,
        progress,
    )
    .await?;
    progress(EnvironmentEvent::Installing {
        packages: requirements.to_vec(),
    });
    tool::run(
        &tool.install(&python_in(folder), requirements),
        rollout_dir,
        progress,
    )
    .await?;
    stamp.complete = true;
    write_stamp(folder, &stamp)?;
    Ok(stamp)
}

/// Makes `import osmosis_ai` work in the environment. Cheap when it does already.
pub(super) fn link_sdk(folder: &Utf8Path, sdk: &Sdk) -> Result<(), EnvironmentError> {
    let Some(site_packages) = site_packages(folder) else {
        return Err(EnvironmentError::io("no `site-packages` in", folder)(
            std::io::ErrorKind::NotFound.into(),
        ));
    };
    let file = site_packages.join(PATH_FILE);
    let content = format!("{}\n", sdk.path);
    if std::fs::read_to_string(&file).is_ok_and(|found| found == content) {
        return Ok(());
    }
    write_whole(&file, content.as_bytes())
}

/// What is installed, in names and versions, as far as the folder's names tell.
pub(super) fn installed(folder: &Utf8Path) -> Vec<String> {
    let Some(entries) = site_packages(folder).and_then(|path| path.read_dir_utf8().ok()) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_owned())
        .filter(|name| {
            Utf8Path::new(name)
                .extension()
                .is_some_and(|extension| extension == "dist-info" || extension == "egg-info")
        })
        .collect();
    names.sort();
    names
}

/// Whether the environment is one of those that this program makes.
pub(crate) fn is_made_here(folder: &Utf8Path) -> bool {
    matches!(look(folder), Ok(Found::Ours(_)))
}

pub(crate) fn site_packages(folder: &Utf8Path) -> Option<Utf8PathBuf> {
    let library = folder.join("lib");
    library
        .read_dir_utf8()
        .ok()?
        .flatten()
        .filter(|entry| entry.file_name().starts_with("python"))
        .map(|entry| entry.path().join("site-packages"))
        .find(|path| path.is_dir())
}

/// Held while an environment is looked at and made, so that two processes do not make it at once.
#[derive(Debug)]
pub(super) struct BuildLock {
    _file: std::fs::File,
}

impl BuildLock {
    /// Waits for its turn, telling once that it does.
    pub(super) async fn acquire(
        folder: &Utf8Path,
        surroundings: &Surroundings,
        progress: &mut (dyn FnMut(EnvironmentEvent) + Send),
    ) -> Result<Self, EnvironmentError> {
        let cache = surroundings
            .cache
            .as_ref()
            .ok_or(EnvironmentError::NoCache)?;
        let locks = cache.join("locks");
        std::fs::create_dir_all(&locks).map_err(EnvironmentError::io("can't create", &locks))?;
        let path = locks.join(format!("{}.lock", digest_of(&[folder.as_str()])));
        let file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(EnvironmentError::io("can't open", &path))?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(std::fs::TryLockError::WouldBlock) => {
                    if !told {
                        progress(EnvironmentEvent::Waiting {
                            path: folder.to_owned(),
                        });
                        told = true;
                    }
                    tokio::time::sleep(LOCK_POLL).await;
                }
                Err(std::fs::TryLockError::Error(error)) => {
                    return Err(EnvironmentError::io("can't lock", &path)(error));
                }
            }
        }
    }
}

fn write_stamp(folder: &Utf8Path, stamp: &Stamp) -> Result<(), EnvironmentError> {
    let file = folder.join(STAMP);
    let json = serde_json::to_vec_pretty(stamp)
        .map_err(|error| EnvironmentError::io("can't write", &file)(error.into()))?;
    write_whole(&file, &json)
}

/// Either the old content or the new is there, whatever happens.
fn write_whole(file: &Utf8Path, content: &[u8]) -> Result<(), EnvironmentError> {
    use std::io::Write as _;
    let error = || EnvironmentError::io("can't write", file);
    let folder = file.parent().unwrap_or(file);
    let mut fresh = tempfile::Builder::new()
        .permissions(readable_by_all())
        .tempfile_in(folder)
        .map_err(error())?;
    fresh.write_all(content).map_err(error())?;
    fresh
        .persist(file)
        .map_err(|failed| error()(failed.error))?;
    Ok(())
}

fn readable_by_all() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o644)
}

fn normalised(requirements: &[String]) -> Vec<String> {
    let mut sorted = requirements.to_vec();
    sorted.sort();
    sorted.dedup();
    sorted
}

fn file_facts(path: &Utf8Path) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some((
        metadata.len(),
        u64::try_from(modified.as_millis()).unwrap_or(u64::MAX),
    ))
}
