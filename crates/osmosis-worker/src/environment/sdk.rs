//! The Python package that this program carries inside, unpacked where interpreters can read it.

use std::io::ErrorKind;
use std::process::Stdio;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use rust_embed::RustEmbed;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use super::error::EnvironmentError;
use super::project::{self, Project};
use super::{Surroundings, digest_of, hex};
use crate::user::open_tree;
use crate::variables;

/// The package's files.
#[derive(RustEmbed)]
#[folder = "../../python/osmosis_ai"]
#[exclude = "*.pyc"]
#[exclude = "*__pycache__*"]
struct Files;

/// The package's description: what it needs, and its extras.
const PYPROJECT: &str = include_str!("../../../../pyproject.toml");

/// Where the package's import name is found, below the unpacked folder.
const PACKAGE: &str = "osmosis_ai";

/// How long compiling it may take.
const COMPILE_LIMIT: Duration = Duration::from_mins(1);

/// The unpacked SDK, to be put on an interpreter's import path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sdk {
    pub(super) path: Utf8PathBuf,
    pub(super) hash: String,
}

impl Sdk {
    /// The script that a worker process runs.
    pub(super) fn worker_script(&self) -> Utf8PathBuf {
        self.path.join(PACKAGE).join("worker").join("__main__.py")
    }
}

/// Where the SDK is; unpacks it when it is not there yet.
pub fn sdk_path() -> Result<Utf8PathBuf, EnvironmentError> {
    Ok(unpack(&Surroundings::from_environment())?.path)
}

/// Compiles the unpacked SDK, once for each interpreter: workers that can't write there would do it at each start.
/// Where it fails, they do.
pub(crate) async fn compile(sdk: &Utf8Path, python: &Utf8Path) {
    let python_is = python
        .canonicalize_utf8()
        .unwrap_or_else(|_| python.to_owned());
    let done = sdk.join(format!(".compiled-{}", digest_of(&[python_is.as_str()])));
    if done.exists() {
        return;
    }
    let compiling = Command::new(python)
        .args(["-I", "-m", "compileall", "-q"])
        .arg(sdk.join(PACKAGE))
        .env_clear()
        .envs(variables::for_workers())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .status();
    let compiled = tokio::time::timeout(COMPILE_LIMIT, compiling).await;
    if !matches!(compiled, Ok(Ok(status)) if status.success()) {
        tracing::debug!(%sdk, %python, "the SDK could not be compiled");
    }
    if let Err(error) = std::fs::write(&done, "") {
        tracing::debug!(%done, %error, "can't be written");
    }
}

/// Unpacks the SDK into the cache, under a name that its content decides. Any number of processes
/// may do this at once.
pub(super) fn unpack(surroundings: &Surroundings) -> Result<Sdk, EnvironmentError> {
    let sdk = locate(surroundings)?;
    if is_whole(&sdk.path) {
        return Ok(sdk);
    }
    let parent = sdk.path.parent().unwrap_or(&sdk.path).to_owned();
    std::fs::create_dir_all(&parent).map_err(EnvironmentError::io("can't create", &parent))?;
    let fresh = tempfile::Builder::new()
        .prefix(".unpacking-")
        .tempdir_in(&parent)
        .map_err(EnvironmentError::io("can't write to", &parent))?;
    let write_error = || EnvironmentError::io("can't unpack to", &parent);
    for name in Files::iter() {
        let Some(file) = Files::get(&name) else {
            continue;
        };
        let path = fresh.path().join(PACKAGE).join(&*name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(write_error())?;
        }
        std::fs::write(path, &file.data).map_err(write_error())?;
    }
    if rustix::process::geteuid().is_root() {
        // Root's workers may run as another user. Now, because a change of modes later would be one of sealed files.
        let unpacked = Utf8Path::from_path(fresh.path()).map_or(Ok(()), open_tree);
        unpacked.map_err(write_error())?;
    }
    // A damaged copy is moved out of the way first; whoever uses it keeps their open files.
    if sdk.path.exists() {
        let damaged = tempfile::Builder::new()
            .prefix(".damaged-")
            .tempdir_in(&parent)
            .map_err(write_error())?;
        match std::fs::rename(&sdk.path, damaged.path().join("sdk")) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(write_error()(error)),
        }
    }
    match std::fs::rename(fresh.path(), &sdk.path) {
        Ok(()) => Ok(sdk),
        // Somebody else was faster.
        Err(_) if is_whole(&sdk.path) => Ok(sdk),
        Err(error) => Err(write_error()(error)),
    }
}

/// Where the SDK is, or will be once it is unpacked.
pub(super) fn locate(surroundings: &Surroundings) -> Result<Sdk, EnvironmentError> {
    let cache = surroundings
        .cache
        .as_ref()
        .ok_or(EnvironmentError::NoCache)?;
    let hash = content_hash();
    Ok(Sdk {
        path: cache.join("sdk").join(&hash),
        hash,
    })
}

/// Whether it is what was unpacked: every file, and none beside them that could be imported.
pub(super) fn is_whole(path: &Utf8Path) -> bool {
    let is_as_unpacked = |name: &str| {
        let expected = Files::get(name);
        std::fs::read(path.join(PACKAGE).join(name))
            .is_ok_and(|found| expected.is_some_and(|file| *file.data == *found))
    };
    Files::iter().all(|name| is_as_unpacked(&name))
        && count_files(path).is_ok_and(|count| count == Files::iter().count())
}

/// All files but the bytecode that interpreters keep.
fn count_files(folder: &Utf8Path) -> std::io::Result<usize> {
    let mut count = 0;
    for entry in folder.read_dir_utf8()? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            count += 1;
        } else if entry.file_name() != "__pycache__" {
            count += count_files(entry.path())?;
        }
    }
    Ok(count)
}

fn content_hash() -> String {
    let mut names: Vec<_> = Files::iter().collect();
    names.sort();
    let mut hasher = Sha256::new();
    for name in names {
        let Some(file) = Files::get(&name) else {
            continue;
        };
        hasher.update((name.len() as u64).to_be_bytes());
        hasher.update(name.as_bytes());
        hasher.update(file.metadata.sha256_hash());
    }
    hex(&hasher.finalize()[..16])
}

/// The SDK's own description, parsed.
pub(super) fn description() -> Result<Project, EnvironmentError> {
    project::parse(Utf8Path::new("pyproject.toml"), PYPROJECT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_description_is_sound_and_without_compiled_files() {
        let description = description().unwrap();
        assert!(
            description
                .dependencies
                .iter()
                .any(|text| text.starts_with("pydantic"))
        );
        assert!(description.requires_python.is_some());
        assert!(Files::get("worker/__main__.py").is_some());
        assert!(Files::get("py.typed").is_some());
        assert!(Files::iter().all(|name| !name.contains("__pycache__")));
    }

    #[test]
    fn program_and_package_have_one_version() {
        let file = Files::get("__init__.py").unwrap();
        let text = String::from_utf8(file.data.into_owned()).unwrap();
        let expected = format!("__version__ = \"{}\"\n", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&expected), "no `{expected}` in\n{text}");
    }

    #[test]
    fn a_damaged_copy_in_the_cache_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let surroundings = Surroundings {
            cache: Some(Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap()),
            ..Surroundings::default()
        };
        let sdk = unpack(&surroundings).unwrap();
        let script = sdk.worker_script();
        assert!(script.exists());
        let whole = std::fs::read_to_string(&script).unwrap();
        let forged = whole.replace("main()", "mine()");
        assert_eq!(forged.len(), whole.len());
        std::fs::write(&script, forged).unwrap();
        assert_eq!(unpack(&surroundings).unwrap(), sdk);
        assert_eq!(std::fs::read_to_string(&script).unwrap(), whole);
        // It would be found before the standard library's.
        std::fs::write(sdk.path.join("json.py"), "").unwrap();
        assert_eq!(unpack(&surroundings).unwrap(), sdk);
        assert!(!sdk.path.join("json.py").exists());
        let left: Vec<_> = std::fs::read_dir(folder.path().join("sdk"))
            .unwrap()
            .collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
