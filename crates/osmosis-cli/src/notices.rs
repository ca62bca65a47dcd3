//! What a run has to say, on standard error.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use osmosis_run::notices::{Notice, Notices};
use osmosis_run::reports::NodesWelcome;
use osmosis_worker::environment::EnvironmentEvent;
use parking_lot::Mutex;

use crate::output::Output;
use crate::terminal::neutral;

/// Prints notices, with the latest line of a tool that takes its time where standard error is a terminal.
#[derive(Debug)]
struct PrintedNotices {
    output: Output,
    spinner: Mutex<Option<ProgressBar>>,
}

impl Output {
    /// For a run that has something to say.
    pub(crate) fn notices(self) -> Arc<dyn Notices> {
        Arc::new(PrintedNotices {
            output: self,
            spinner: Mutex::new(None),
        })
    }
}

impl Notices for PrintedNotices {
    fn notice(&self, notice: Notice) {
        match notice {
            Notice::Note(text) => {
                self.end_step();
                self.output.note(text);
            }
            Notice::Warning(text) => {
                self.end_step();
                self.output.warn(text);
            }
            Notice::Step(text) => self.step(&text),
            Notice::Environment(event) => self.environment(event),
            Notice::NodesWelcome(invitation) => {
                self.end_step();
                let text = format!("More machines: {}", invitation.command());
                let resource = NodesWelcome::from(&*invitation);
                self.output.meanwhile("nodes_welcome", text, &resource);
            }
            Notice::EnvironmentDone | Notice::StepsDone => self.end_step(),
        }
    }
}

impl PrintedNotices {
    fn environment(&self, event: EnvironmentEvent) {
        match event {
            EnvironmentEvent::Waiting { path } => {
                self.long_step(&format!("Waiting for another process that makes {path}"));
            }
            EnvironmentEvent::Creating { tool, path } => {
                self.long_step(&format!(
                    "Making the rollout's environment in {path} with {tool}"
                ));
            }
            EnvironmentEvent::Installing { packages } => {
                self.long_step(&format!("Installing {}", packages.join(", ")));
            }
            EnvironmentEvent::Building { command } => {
                self.long_step(&format!("Building the rollout: {command}"));
            }
            EnvironmentEvent::OutputLine { line } => {
                tracing::info!(target: "environment", "{line}");
                if let Some(spinner) = &*self.spinner.lock() {
                    spinner.set_message(neutral(&line).into_owned());
                }
            }
            EnvironmentEvent::Ready { .. } => self.end_step(),
        }
    }

    /// Nothing is drawn any more that a line would be drawn over.
    fn end_step(&self) {
        *self.spinner.lock() = None;
    }

    /// A line on a terminal that a later step replaces, and one that stays elsewhere.
    fn step(&self, text: &str) {
        self.end_step();
        if !self.output.moves() {
            self.output.note(text);
            return;
        }
        let spinner = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
            spinner.set_style(style);
        }
        spinner.set_message(neutral(text).into_owned());
        spinner.enable_steady_tick(Duration::from_millis(120));
        *self.spinner.lock() = Some(spinner);
    }

    /// A step that may take minutes, and whose tool tells how far it is.
    fn long_step(&self, text: &str) {
        let mut current = self.spinner.lock();
        // Dropped first, so that it is not drawn over.
        *current = None;
        self.output.note(text);
        if self.output.moves() {
            let spinner = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg:.dim}") {
                spinner.set_style(style);
            }
            spinner.enable_steady_tick(Duration::from_millis(120));
            *current = Some(spinner);
        }
    }
}
