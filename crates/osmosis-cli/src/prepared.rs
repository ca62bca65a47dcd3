//! User code that is ready to be started, whatever it is written in.

use std::time::Duration;

use camino::Utf8Path;
use indicatif::{ProgressBar, ProgressStyle};
use osmosis_core::config::{Entrypoint, Language};
use osmosis_run::RunError;
use osmosis_worker::Launch;
use osmosis_worker::environment::{self, BuiltRollout, EnvironmentEvent, PreparedEnvironment};

use crate::output::Output;
use crate::terminal::neutral;

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
    ) -> Result<Self, RunError> {
        let mut teller = Teller::new(output);
        let progress = move |event| teller.tell(event);
        match entrypoint.language {
            Language::Python => {
                let prepared = environment::prepare(rollout_dir, python, progress).await?;
                for note in &prepared.notes {
                    output.note(note);
                }
                if let Some(clash) = &prepared.clash {
                    output.warn(format_args!("{}\nhint: {}", clash.message(), clash.hint()));
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

    /// The rollout's Python, when it is written in Python.
    pub(crate) fn interpreter(&self) -> Option<&Utf8Path> {
        match self {
            Self::Python(prepared) => Some(&prepared.python),
            Self::Rust(_) => None,
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

/// Says what takes time, with the tool's latest line on a terminal.
struct Teller {
    output: Output,
    spinner: Option<ProgressBar>,
}

impl Teller {
    fn new(output: Output) -> Self {
        Self {
            output,
            spinner: None,
        }
    }

    fn tell(&mut self, event: EnvironmentEvent) {
        match event {
            EnvironmentEvent::Waiting { path } => {
                self.step(&format!("Waiting for another process that makes {path}"));
            }
            EnvironmentEvent::Creating { tool, path } => {
                self.step(&format!(
                    "Making the rollout's environment in {path} with {tool}"
                ));
            }
            EnvironmentEvent::Installing { packages } => {
                self.step(&format!("Installing {}", packages.join(", ")));
            }
            EnvironmentEvent::Building { command } => {
                self.step(&format!("Building the rollout: {command}"));
            }
            EnvironmentEvent::OutputLine { line } => {
                tracing::info!(target: "environment", "{line}");
                if let Some(spinner) = &self.spinner {
                    spinner.set_message(neutral(&line).into_owned());
                }
            }
            EnvironmentEvent::Ready { .. } => self.spinner = None,
        }
    }

    fn step(&mut self, text: &str) {
        // Dropped first, so that it is not drawn over.
        self.spinner = None;
        self.output.note(text);
        if self.output.moves() {
            let spinner = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg:.dim}") {
                spinner.set_style(style);
            }
            spinner.enable_steady_tick(Duration::from_millis(120));
            self.spinner = Some(spinner);
        }
    }
}
