//! The Python package that this program carries inside, unpacked where interpreters can read it.

use std::io::ErrorKind;

use camino::{Utf8Path, Utf8PathBuf};
use pep508_rs::{ExtraName, Requirement, VerbatimUrl};
use rust_embed::RustEmbed;
use sha2::{Digest, Sha256};

use super::error::EnvironmentError;
use super::project::{self, Project};
use super::{Surroundings, hex};

/// The package's files.
#[derive(RustEmbed)]
#[folder = "../../python/osmosis_ai"]
#[exclude = "*.pyc"]
#[exclude = "*__pycache__*"]
struct Files;

/// The package's description: what it needs, and its extras.
const PYPROJECT: &str = include_str!("../../../../python/pyproject.toml");

/// Where the package's import name is found, below the unpacked folder.
const PACKAGE: &str = "osmosis_ai";

/// The names that rollouts may know the SDK by: ours, and the public reference's.
const NAMES: [&str; 2] = ["osmosis-rs", "osmosis-ai"];

/// Extras of the reference whose work this program does itself.
const BUILT_IN_EXTRAS: [&str; 6] = ["server", "platform", "eval", "parquet", "dev", "full"];

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

/// Unpacks the SDK into the cache, under a name that its content decides. Any number of processes
/// may do this at once.
pub(super) fn unpack(surroundings: &Surroundings) -> Result<Sdk, EnvironmentError> {
    let cache = surroundings
        .cache
        .as_ref()
        .ok_or(EnvironmentError::NoCache)?;
    let hash = content_hash();
    let parent = cache.join("sdk");
    let sdk = Sdk {
        path: parent.join(&hash),
        hash,
    };
    if is_whole(&sdk.path) {
        return Ok(sdk);
    }
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

fn is_whole(path: &Utf8Path) -> bool {
    Files::iter().all(|name| {
        let expected = Files::get(&name).map_or(0, |file| file.data.len() as u64);
        std::fs::metadata(path.join(PACKAGE).join(&*name))
            .is_ok_and(|metadata| metadata.len() == expected)
    })
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
    project::parse(Utf8Path::new("osmosis_ai/pyproject.toml"), PYPROJECT)
}

/// A rollout's requirements with the SDK's own in place of the SDK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Requirements {
    pub(super) packages: Vec<String>,
    /// What a person should know about it.
    pub(super) notes: Vec<String>,
}

/// Replaces the SDK (or the reference's) by what it needs: it is not installed but put on the path.
pub(super) fn replace_sdk(dependencies: &[String], sdk: &Project) -> Requirements {
    let mut packages = sdk.dependencies.clone();
    let mut notes = Vec::new();
    for dependency in dependencies {
        // Checked when the project was parsed.
        let Ok(requirement) = dependency.parse::<Requirement<VerbatimUrl>>() else {
            continue;
        };
        let name = requirement.name.to_string();
        if !NAMES.contains(&name.as_str()) {
            if !packages.contains(dependency) {
                packages.push(dependency.clone());
            }
            continue;
        }
        if requirement.version_or_url.is_some() {
            notes.push(format!(
                "`{dependency}` is replaced by the SDK of this program, whatever its version"
            ));
        }
        for extra in &requirement.extras {
            match extra_packages(sdk, extra) {
                Extra::Packages(extra) => {
                    for package in extra {
                        if !packages.contains(package) {
                            packages.push(package.clone());
                        }
                    }
                }
                Extra::BuiltIn => notes.push(format!(
                    "the extra `{extra}` of `{name}` needs no packages here: this program does its work"
                )),
                Extra::Unknown => notes.push(format!(
                    "the extra `{extra}` of `{name}` is not known here and was left out; name the packages you need"
                )),
            }
        }
    }
    Requirements { packages, notes }
}

enum Extra<'a> {
    Packages(&'a [String]),
    BuiltIn,
    Unknown,
}

fn extra_packages<'a>(sdk: &'a Project, extra: &ExtraName) -> Extra<'a> {
    let extra = extra.to_string();
    if let Some((_, packages)) = sdk.extras.iter().find(|(name, _)| *name == extra) {
        Extra::Packages(packages)
    } else if BUILT_IN_EXTRAS.contains(&extra.as_str()) {
        Extra::BuiltIn
    } else {
        Extra::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sdk() -> Project {
        project::parse(
            Utf8Path::new("pyproject.toml"),
            r#"
            [project]
            dependencies = ["pydantic>=2"]
            [project.optional-dependencies]
            openai-agents = ["openai-agents>=0.24"]
            "#,
        )
        .unwrap()
    }

    fn replaced(dependencies: &[&str]) -> Requirements {
        let dependencies: Vec<String> = dependencies.iter().map(ToString::to_string).collect();
        replace_sdk(&dependencies, &sdk())
    }

    #[test]
    fn the_sdk_gives_way_to_what_it_needs() {
        let requirements = replaced(&["osmosis-rs[openai-agents]", "numpy<3"]);
        assert_eq!(
            requirements.packages,
            ["pydantic>=2", "openai-agents>=0.24", "numpy<3"]
        );
        assert_eq!(requirements.notes, [""; 0]);
    }

    #[test]
    fn the_reference_is_replaced_too_whatever_its_spelling() {
        let requirements = replaced(&["Osmosis_AI[openai_agents]==0.3.8"]);
        assert_eq!(
            requirements.packages,
            ["pydantic>=2", "openai-agents>=0.24"]
        );
        assert_eq!(requirements.notes.len(), 1);
    }

    #[test]
    fn extras_that_bring_nothing_are_mentioned() {
        let requirements = replaced(&["osmosis-ai[server,rubric]"]);
        assert_eq!(requirements.packages, ["pydantic>=2"]);
        assert!(requirements.notes[0].contains("`server`"));
        assert!(requirements.notes[1].contains("`rubric` of `osmosis-ai` is not known"));
    }

    #[test]
    fn a_rollout_that_does_not_name_the_sdk_gets_what_it_needs_all_the_same() {
        assert_eq!(replaced(&["numpy"]).packages, ["pydantic>=2", "numpy"]);
    }

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
        assert!(Files::iter().all(|name| !name.contains("__pycache__")));
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
        std::fs::write(&script, "broken").unwrap();
        assert_eq!(unpack(&surroundings).unwrap(), sdk);
        assert_ne!(std::fs::read_to_string(&script).unwrap(), "broken");
        let left: Vec<_> = std::fs::read_dir(folder.path().join("sdk"))
            .unwrap()
            .collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
