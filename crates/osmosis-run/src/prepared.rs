//! User code that is ready to be started, whatever it is written in.

use camino::Utf8Path;
use osmosis_core::config::{Entrypoint, Language};
use osmosis_worker::Launch;
use osmosis_worker::environment::{self, BuiltRollout, PreparedEnvironment};
use osmosis_worker::seal::Sealed;

use crate::RunError;
use crate::notices::{Notice, Notices};

#[derive(Debug)]
pub enum Prepared {
    Python(PreparedEnvironment),
    Rust(BuiltRollout),
}

impl Prepared {
    /// Makes the rollout's environment, or builds it; what takes time is told as it begins.
    pub async fn make(
        rollout_dir: &Utf8Path,
        entrypoint: &Entrypoint,
        python: Option<&Utf8Path>,
        notices: &dyn Notices,
    ) -> Result<Self, RunError> {
        let _preparing = Preparing(notices);
        let project = rollout_dir.file_name().unwrap_or(rollout_dir.as_str());
        notices.step(match entrypoint.language {
            Language::Python => format!("Preparing the Python environment of `{project}`"),
            Language::Rust => format!("Building `{project}`"),
        });
        let progress = |event| notices.notice(Notice::Environment(event));
        match entrypoint.language {
            Language::Python => {
                let prepared = environment::prepare(rollout_dir, python, progress).await?;
                for note in &prepared.notes {
                    notices.note(note);
                }
                if let Some(clash) = &prepared.clash {
                    notices.warn(format_args!("{}\nhint: {}", clash.message(), clash.hint()));
                }
                Ok(Self::Python(prepared))
            }
            Language::Rust => {
                let name = entrypoint.name.as_deref();
                let built =
                    environment::build(rollout_dir, &entrypoint.file, name, progress).await?;
                Ok(Self::Rust(built))
            }
        }
    }

    pub fn digest(&self) -> &str {
        match self {
            Self::Python(prepared) => &prepared.digest,
            Self::Rust(built) => &built.digest,
        }
    }

    /// The interpreter or binary.
    pub fn program(&self) -> &Utf8Path {
        match self {
            Self::Python(prepared) => &prepared.python,
            Self::Rust(built) => &built.program,
        }
    }

    /// The rollout's Python, when it is written in Python.
    pub fn interpreter(&self) -> Option<&Utf8Path> {
        match self {
            Self::Python(prepared) => Some(&prepared.python),
            Self::Rust(_) => None,
        }
    }

    /// What of it has to stay as it is while workers run.
    pub fn sealed(&self) -> Vec<Sealed> {
        match self {
            Self::Python(prepared) => prepared.sealed(),
            // Its binary is in a snapshot.
            Self::Rust(_) => vec![],
        }
    }

    pub fn launch(&self, rollout_dir: &Utf8Path, environment: Vec<(String, String)>) -> Launch {
        match self {
            Self::Python(prepared) => prepared.launch(rollout_dir, environment),
            Self::Rust(built) => built.launch(rollout_dir, environment),
        }
    }
}

/// Says that the environment is made, also when that failed or was given up.
struct Preparing<'n>(&'n dyn Notices);

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        self.0.notice(Notice::EnvironmentDone);
    }
}
