//! The environment that user code runs in: an interpreter, the rollout's dependencies, our SDK.
//!
//! A rollout with a `pyproject.toml` gets a `.venv` of its own, made once and reused as long as its
//! dependencies and its interpreter stay; a match needs no network and starts no process. A `.venv`
//! that we did not make is used as it is, and so is the interpreter that `--python` names: nothing is
//! made or installed for it. Without a `pyproject.toml` the interpreter that is found is used directly.
//! The SDK is never installed, only put on the import path. [`inspect()`] tells all of this without
//! writing anything.

mod cargo;
mod clash;
mod error;
mod inspect;
mod interpreter;
mod project;
mod requirements;
mod sdk;
mod tool;
mod venv;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest, Sha256};

pub use self::cargo::{BuiltRollout, build};
pub use self::clash::Clash;
pub use self::error::{EnvironmentError, EnvironmentErrorKind, PackageRemedy, PassedOver};
pub use self::inspect::{EnvironmentState, SdkState, inspect, inspect_in, sdk_state};
use self::interpreter::{Interpreter, Wanted};
use self::requirements::Requirements;
use self::sdk::Sdk;
pub(crate) use self::sdk::compile as compile_sdk;
pub use self::sdk::sdk_path;
use self::venv::{BuildLock, Found};
pub(crate) use self::venv::{is_made_here, site_packages};
use crate::Launch;
use crate::guard::GuardProgram;
use crate::seal::Sealed;
use crate::user::{Needed, NeededPath, is_open_to_all};

/// Where things that can be made again are kept; before `XDG_CACHE_HOME/osmosis` and
/// `~/.cache/osmosis`.
pub const CACHE_VARIABLE: &str = "OSMOSIS_CACHE_DIR";

/// What the SDK can't do without, as it is imported.
const ESSENTIAL_MODULES: [&str; 2] = ["pydantic", "msgpack"];

/// What is going on while an environment is prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvironmentEvent {
    /// Another process is making this environment; we wait for it.
    Waiting {
        path: Utf8PathBuf,
    },
    /// An environment is made with `uv` or `pip`.
    Creating {
        tool: &'static str,
        path: Utf8PathBuf,
    },
    Installing {
        packages: Vec<String>,
    },
    /// A rollout written in Rust is built.
    Building {
        command: String,
    },
    /// A line that the tool printed.
    OutputLine {
        line: String,
    },
    /// It can be used. `reused` when nothing had to be made.
    Ready {
        reused: bool,
    },
}

/// What user code can be started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedEnvironment {
    /// The interpreter, as it has to be called.
    pub python: Utf8PathBuf,
    /// The unpacked SDK, which is to be first on the import path.
    pub sdk_path: Utf8PathBuf,
    /// What a person should know.
    pub notes: Vec<String>,
    /// Set when the reference's package is installed there.
    pub clash: Option<Clash>,
    /// Changes when the requirements, what is installed, the interpreter or the SDK do.
    pub digest: String,
    worker_script: Utf8PathBuf,
    /// Set when the interpreter is that of an environment.
    environment: Option<Utf8PathBuf>,
    /// Where its packages are.
    package_folders: Vec<Utf8PathBuf>,
}

impl PreparedEnvironment {
    /// The SDK, the packages and the interpreter: what has to stay as it is while workers import it.
    pub fn sealed(&self) -> Vec<Sealed> {
        let interpreter = self.python.canonicalize_utf8().ok();
        let folders = self.package_folders.iter().chain([&self.sdk_path]);
        let mut sealed: Vec<Sealed> = folders.cloned().map(Sealed::Packages).collect();
        sealed.push(Sealed::Files(interpreter.into_iter().collect()));
        sealed
    }

    /// How to start a worker for the rollout, with `environment` beside what workers inherit.
    pub fn launch(&self, rollout_dir: &Utf8Path, environment: Vec<(String, String)>) -> Launch {
        let mut variables = Vec::new();
        if let Some(folder) = &self.environment {
            // So that programs which user code starts find the environment as well.
            variables.push(("VIRTUAL_ENV".to_owned(), folder.to_string()));
            let inherited = std::env::var("PATH").unwrap_or_default();
            variables.push(("PATH".to_owned(), format!("{folder}/bin:{inherited}")));
        }
        variables.extend(environment);
        let working_directory = interpreter::absolute(rollout_dir);
        Launch {
            program: self.python.clone(),
            arguments: vec![self.worker_script.to_string()],
            needed: self.needed(&working_directory),
            working_directory,
            environment: variables,
            guard: GuardProgram::this(),
            seal: None,
            user: None,
        }
    }

    fn needed(&self, project: &Utf8Path) -> Vec<NeededPath> {
        let environment = self.environment.iter();
        let environment = environment.map(|folder| (Needed::Environment, &**folder));
        [
            (Needed::Interpreter, &*self.python),
            (Needed::Sdk, &*self.sdk_path),
            (Needed::Project, project),
        ]
        .into_iter()
        .chain(environment)
        .map(|(needed, path)| NeededPath {
            needed,
            path: path.to_owned(),
        })
        .collect()
    }
}

/// What of this machine matters here, so that it can be told instead of looked up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    pub cache: Option<Utf8PathBuf>,
    /// The active environment.
    pub virtual_env: Option<Utf8PathBuf>,
    /// The folders of `PATH`.
    pub path: Vec<Utf8PathBuf>,
}

impl Surroundings {
    pub fn from_environment() -> Self {
        let folder = |name: &str| {
            let value = std::env::var_os(name)?;
            let path = Utf8PathBuf::try_from(std::path::PathBuf::from(value)).ok()?;
            (!path.as_str().is_empty()).then(|| interpreter::absolute(&path))
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self {
            cache: folder(CACHE_VARIABLE)
                .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("osmosis")))
                .or_else(|| Some(default_cache(&folder("HOME")?))),
            virtual_env: folder("VIRTUAL_ENV"),
            path: std::env::split_paths(&path)
                .filter_map(|folder| Utf8PathBuf::try_from(folder).ok())
                .filter(|folder| folder.is_absolute())
                .collect(),
        }
    }
}

/// Where things are kept that can be made again. Where root's own home is closed to others, that is no place for what
/// root's workers read, which have a user of their own.
fn default_cache(home: &Utf8Path) -> Utf8PathBuf {
    let system = Utf8Path::new("/var/cache");
    if rustix::process::geteuid().is_root()
        && home == "/root"
        && !is_open_to_all(home.as_std_path())
        && is_open_to_all(system.as_std_path())
    {
        system.join("osmosis")
    } else {
        home.join(".cache").join("osmosis")
    }
}

/// Makes sure that the rollout can be run: finds the interpreter (`python`, when one is asked for)
/// and makes or reuses the environment. Dropping the future ends what it started.
pub async fn prepare(
    rollout_dir: &Utf8Path,
    python: Option<&Utf8Path>,
    progress: impl FnMut(EnvironmentEvent) + Send,
) -> Result<PreparedEnvironment, EnvironmentError> {
    prepare_in(
        &Surroundings::from_environment(),
        rollout_dir,
        python,
        progress,
    )
    .await
}

/// Like `prepare`, in surroundings of the caller's choice.
pub async fn prepare_in(
    surroundings: &Surroundings,
    rollout_dir: &Utf8Path,
    python: Option<&Utf8Path>,
    mut progress: impl FnMut(EnvironmentEvent) + Send,
) -> Result<PreparedEnvironment, EnvironmentError> {
    let sdk = sdk::unpack(surroundings)?;
    let preparation = Preparation::read(surroundings, rollout_dir, python, sdk)?;
    if let (Some(requirements), None) = (&preparation.requirements, python) {
        let requirements = requirements.clone();
        preparation
            .in_own_environment(requirements, &mut progress)
            .await
    } else {
        let found = preparation.interpreter_as_it_is().await?;
        progress(EnvironmentEvent::Ready { reused: true });
        Ok(found)
    }
}

struct Preparation<'a> {
    surroundings: &'a Surroundings,
    python: Option<&'a Utf8Path>,
    wanted: Wanted,
    sdk: Sdk,
    rollout_dir: Utf8PathBuf,
    /// The rollout's `.venv`, which may not be there.
    folder: Utf8PathBuf,
    /// What its `pyproject.toml` asks for; `None` without one.
    requirements: Option<Requirements>,
}

impl<'a> Preparation<'a> {
    /// Reads what the rollout asks for. Writes nothing and starts nothing.
    fn read(
        surroundings: &'a Surroundings,
        rollout_dir: &Utf8Path,
        python: Option<&'a Utf8Path>,
        sdk: Sdk,
    ) -> Result<Self, EnvironmentError> {
        let rollout_dir = rollout_dir
            .canonicalize_utf8()
            .map_err(EnvironmentError::io("can't open", rollout_dir))?;
        let description = sdk::description()?;
        let project = project::read(&rollout_dir.join("pyproject.toml"))?;
        let wanted = Wanted {
            ranges: [Some(&description), project.as_ref()]
                .into_iter()
                .flatten()
                .filter_map(|project| project.requires_python.clone())
                .collect(),
            modules: ESSENTIAL_MODULES.to_vec(),
        };
        let requirements = project.map(|project| {
            let mut found = Requirements::of(&project.dependencies, &description);
            found.notes.extend(project.notes);
            found
        });
        Ok(Self {
            surroundings,
            python,
            wanted,
            sdk,
            folder: rollout_dir.join(".venv"),
            rollout_dir,
            requirements,
        })
    }

    /// The interpreter that was asked for, or that is found where nothing says what to install.
    async fn interpreter_as_it_is(&self) -> Result<PreparedEnvironment, EnvironmentError> {
        let own = venv::python_in(&self.folder);
        let interpreter = interpreter::find(
            self.python,
            Some(own.clone()),
            &self.wanted,
            self.surroundings,
        )
        .await?;
        let is_own = interpreter.path == own;
        let remedy = match (&self.requirements, self.python) {
            (Some(_), Some(_)) => PackageRemedy::LeaveOutPython,
            (None, Some(_)) => PackageRemedy::Install,
            _ if is_own => PackageRemedy::RemoveEnvironment(self.folder.clone()),
            _ => PackageRemedy::AddProject {
                file: self.rollout_dir.join("pyproject.toml"),
                dependency: requirements::sdk_dependency(&self.rollout_dir),
            },
        };
        require_modules(&interpreter, remedy)?;
        let requirements = self.requirements.clone().unwrap_or_default();
        let mut notes = requirements.notes;
        if self.requirements.is_some() {
            notes.push(format!(
                "`{}` is used as it is: nothing of `pyproject.toml` is installed with `--python`",
                interpreter.path
            ));
        }
        let environment = if is_own {
            Some(self.folder.clone())
        } else {
            // So that programs of an environment that was named are found, too.
            let named = self.requirements.as_ref().and(self.python);
            named.and_then(|_| environment_of(&interpreter.path))
        };
        let clash = Clash::look(&interpreter.path, &interpreter.import_path);
        let package_folders = match &environment {
            Some(folder) => vec![folder.clone()],
            None => package_folders(&interpreter.import_path),
        };
        Ok(PreparedEnvironment {
            clash,
            package_folders,
            ..self.done(
                interpreter.path.clone(),
                environment,
                &interpreter.version.to_string(),
                &requirements.packages,
                notes,
            )
        })
    }

    async fn in_own_environment(
        &self,
        requirements: Requirements,
        progress: &mut (dyn FnMut(EnvironmentEvent) + Send),
    ) -> Result<PreparedEnvironment, EnvironmentError> {
        if let Found::Ours(stamp) = venv::look(&self.folder)?
            && self.still_fits(&stamp, &requirements.packages)
        {
            return self.ready(&stamp, requirements, progress, Made::Before);
        }
        let _lock = BuildLock::acquire(&self.folder, self.surroundings, progress).await?;
        // Looked at again: another process may have made it while we waited.
        let base = match venv::look(&self.folder)? {
            Found::Foreign => return self.use_foreign(requirements, progress).await,
            Found::Ours(stamp) => {
                if self.still_fits(&stamp, &requirements.packages) {
                    return self.ready(&stamp, requirements, progress, Made::Before);
                }
                Some(stamp.interpreter().to_owned())
            }
            Found::Nothing | Found::Unfinished => None,
        };
        let interpreter = interpreter::find(None, base, &self.wanted, self.surroundings).await?;
        let stamp = venv::build(
            &self.folder,
            &interpreter,
            &requirements.packages,
            self.surroundings,
            progress,
        )
        .await?;
        self.ready(&stamp, requirements, progress, Made::Now)
    }

    /// Whether an environment of ours can be used as it is. Starts no process.
    fn still_fits(&self, stamp: &venv::Stamp, packages: &[String]) -> bool {
        stamp.fits(packages) && stamp.version().is_some_and(|it| self.wanted.accepts(&it))
    }

    fn ready(
        &self,
        stamp: &venv::Stamp,
        requirements: Requirements,
        progress: &mut (dyn FnMut(EnvironmentEvent) + Send),
        made: Made,
    ) -> Result<PreparedEnvironment, EnvironmentError> {
        venv::link_sdk(&self.folder, &self.sdk)?;
        progress(EnvironmentEvent::Ready {
            reused: matches!(made, Made::Before),
        });
        let version = stamp.version().map(|it| it.to_string()).unwrap_or_default();
        Ok(self.done(
            venv::python_in(&self.folder),
            Some(self.folder.clone()),
            &version,
            &requirements.packages,
            requirements.notes,
        ))
    }

    async fn use_foreign(
        &self,
        requirements: Requirements,
        progress: &mut (dyn FnMut(EnvironmentEvent) + Send),
    ) -> Result<PreparedEnvironment, EnvironmentError> {
        let found = self.foreign(requirements).await?;
        progress(EnvironmentEvent::Ready { reused: true });
        Ok(found)
    }

    /// An environment in the rollout's `.venv` that the user made.
    async fn foreign(
        &self,
        requirements: Requirements,
    ) -> Result<PreparedEnvironment, EnvironmentError> {
        let misfit = |reason: String| EnvironmentError::ForeignEnvironment {
            path: self.folder.clone(),
            reason,
        };
        let python = venv::python_in(&self.folder);
        let interpreter = interpreter::ask(&python, &self.wanted)
            .await
            .map_err(|reason| misfit(format!("its interpreter {reason}")))?;
        if !self.wanted.accepts(&interpreter.version) {
            return Err(misfit(format!("it has python {}", interpreter.version)));
        }
        require_modules(
            &interpreter,
            PackageRemedy::RemoveEnvironment(self.folder.clone()),
        )?;
        let mut notes = requirements.notes;
        notes.push(format!(
            "`{}` was not made by osmosis and is used as it is",
            self.folder
        ));
        Ok(self.done(
            python,
            Some(self.folder.clone()),
            &interpreter.version.to_string(),
            &requirements.packages,
            notes,
        ))
    }

    fn done(
        &self,
        python: Utf8PathBuf,
        environment: Option<Utf8PathBuf>,
        version: &str,
        packages: &[String],
        notes: Vec<String>,
    ) -> PreparedEnvironment {
        let installed = environment
            .as_deref()
            .map(venv::installed)
            .unwrap_or_default();
        let mut facts = vec![python.as_str(), version, &self.sdk.hash];
        facts.extend(packages.iter().map(String::as_str));
        facts.extend(installed.iter().map(String::as_str));
        PreparedEnvironment {
            digest: digest_of(&facts),
            clash: environment.as_deref().and_then(Clash::in_environment),
            sdk_path: self.sdk.path.clone(),
            worker_script: self.sdk.worker_script(),
            python,
            package_folders: environment.iter().cloned().collect(),
            environment,
            notes,
        }
    }
}

#[derive(Clone, Copy)]
enum Made {
    Before,
    Now,
}

fn require_modules(
    interpreter: &Interpreter,
    remedy: PackageRemedy,
) -> Result<(), EnvironmentError> {
    if interpreter.missing.is_empty() {
        return Ok(());
    }
    Err(EnvironmentError::MissingPackages {
        python: interpreter.path.clone(),
        packages: interpreter.missing.clone(),
        remedy,
    })
}

/// Where packages are installed, of the folders that an interpreter imports from.
fn package_folders(import_path: &[Utf8PathBuf]) -> Vec<Utf8PathBuf> {
    let holds_packages = |folder: &&Utf8PathBuf| {
        let name = folder.file_name().unwrap_or_default();
        matches!(name, "site-packages" | "dist-packages") && folder.is_dir()
    };
    import_path.iter().filter(holds_packages).cloned().collect()
}

/// The virtual environment that an interpreter belongs to.
fn environment_of(python: &Utf8Path) -> Option<Utf8PathBuf> {
    let folder = python.parent()?.parent()?;
    folder
        .join("pyvenv.cfg")
        .is_file()
        .then(|| folder.to_owned())
}

/// A short name for exactly these texts in this order.
fn digest_of(texts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for text in texts {
        hasher.update((text.len() as u64).to_be_bytes());
        hasher.update(text.as_bytes());
    }
    hex(&hasher.finalize()[..16])
}

fn hex(bytes: &[u8]) -> String {
    format!("{:x}", Bytes::copy_from_slice(bytes))
}
