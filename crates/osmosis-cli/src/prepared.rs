//! User code that is ready to be started, whatever it is written in.

use camino::Utf8Path;
use osmosis_core::config::{Entrypoint, Language};
use osmosis_worker::Launch;
use osmosis_worker::environment::{self, BuiltRollout, EnvironmentEvent, PreparedEnvironment};

use crate::error::CliError;
use crate::output::Output;

#[derive(Debug)]
pub(crate) enum Prepared {
    Python(PreparedEnvironment),
    Rust(BuiltRollout),
}

impl Prepared {
    /// Makes the rollout's environment, or builds it; says aloud what takes time.
    pub(crate) async fn make(
        rollout_dir: &Utf8Path,
        entrypoint: &Entrypoint,
        python: Option<&Utf8Path>,
        output: Output,
    ) -> Result<Self, CliError> {
        let progress = move |event| tell(output, event);
        match entrypoint.language {
            Language::Python => {
                let prepared = environment::prepare(rollout_dir, python, progress).await?;
                for note in &prepared.notes {
                    output.note(note);
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

    pub(crate) fn digest(&self) -> &str {
        match self {
            Self::Python(prepared) => &prepared.digest,
            Self::Rust(built) => &built.digest,
        }
    }

    /// The interpreter or binary.
    pub(crate) fn program(&self) -> &Utf8Path {
        match self {
            Self::Python(prepared) => &prepared.python,
            Self::Rust(built) => &built.program,
        }
    }

    pub(crate) fn launch(
        &self,
        rollout_dir: &Utf8Path,
        environment: Vec<(String, String)>,
    ) -> Launch {
        match self {
            Self::Python(prepared) => prepared.launch(rollout_dir, environment),
            Self::Rust(built) => built.launch(rollout_dir, environment),
        }
    }
}

fn tell(output: Output, event: EnvironmentEvent) {
    match event {
        EnvironmentEvent::Waiting { path } => {
            output.note(format_args!(
                "Waiting for another process that makes {path}"
            ));
        }
        EnvironmentEvent::Creating { tool, path } => {
            output.note(format_args!(
                "Making the rollout's environment in {path} with {tool}"
            ));
        }
        EnvironmentEvent::Installing { packages } => {
            output.note(format_args!("Installing {}", packages.join(", ")));
        }
        EnvironmentEvent::Building { command } => {
            output.note(format_args!("Building the rollout: {command}"));
        }
        EnvironmentEvent::OutputLine { line } => {
            tracing::info!(target: "environment", "{line}");
        }
        EnvironmentEvent::Ready { .. } => {}
    }
}
