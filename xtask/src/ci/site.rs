//! Where the steps run, and where the output of their programs goes.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;

use anyhow::{Context, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_testkit::python_environment;
use std::sync::Mutex;

use super::changed::Changed;

/// The workspace, and what changed in it.
#[derive(Debug)]
pub(crate) struct Site {
    pub(super) root: Utf8PathBuf,
    pub(super) changed: Changed,
    /// Of steps that run beside others: their output is printed at the end of each.
    kept: Option<Mutex<String>>,
}

impl Site {
    pub(super) fn new(root: Utf8PathBuf, changed: Changed) -> Self {
        Self {
            root,
            changed,
            kept: None,
        }
    }

    /// The same place; with `keeping`, output waits for the end of its step.
    pub(super) fn keeping_output(&self, keeping: bool) -> Self {
        Self {
            root: self.root.clone(),
            changed: self.changed.clone(),
            kept: keeping.then(Mutex::default),
        }
    }

    pub(super) fn cargo(&self, arguments: &[&str]) -> Result<()> {
        self.run(cargo_command().args(arguments), &self.root)
    }

    pub(super) fn python(&self, arguments: &[&str]) -> Result<()> {
        self.python_of(&python_environment::python(), arguments)
    }

    pub(super) fn python_of(&self, python: &Utf8Path, arguments: &[&str]) -> Result<()> {
        let folder = self.root.join("python");
        self.run(Command::new(python).args(arguments), &folder)
    }

    pub(super) fn run(&self, program: &mut Command, folder: &Utf8Path) -> Result<()> {
        program.current_dir(folder);
        if self.kept.is_none() {
            return command(program);
        }
        let name = program.get_program().display().to_string();
        let output = program
            .output()
            .with_context(|| format!("{name} could not be started"))?;
        self.say(&String::from_utf8_lossy(&output.stdout));
        self.say(&String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            bail!("{name} {}", output.status);
        }
        Ok(())
    }

    /// A line for the terminal, now or at the end of the step.
    #[expect(
        clippy::print_stdout,
        reason = "a command line program reports to the terminal"
    )]
    pub(super) fn say(&self, text: &str) {
        match &self.kept {
            Some(kept) => {
                if let Ok(mut kept) = kept.lock() {
                    let _ = writeln!(kept, "{}", text.trim_end());
                }
            }
            None => println!("{}", text.trim_end()),
        }
    }

    pub(super) fn show_kept(&self) {
        if let Some(kept) = &self.kept
            && let Ok(mut kept) = kept.lock()
        {
            let _ = std::io::stdout().lock().write_all(kept.as_bytes());
            kept.clear();
        }
    }
}

pub(crate) fn root() -> Result<Utf8PathBuf> {
    let here = Utf8Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .map(Utf8Path::to_owned)
        .context("xtask has no parent folder")
}

pub(crate) fn cargo(root: &Utf8Path, arguments: &[&str]) -> Result<()> {
    command(cargo_command().current_dir(root).args(arguments))
}

/// Cargo as if it were called by hand. It tells whatever it runs, so this program too, which package that is; build scripts
/// that read it (`ring`'s) would run again, and all that needs them be built again, whenever somebody changes between
/// `cargo xtask` and `cargo build`.
fn cargo_command() -> Command {
    let mut cargo = Command::new("cargo");
    for (name, _) in std::env::vars_os() {
        let told = name.to_string_lossy();
        if told.starts_with("CARGO_PKG_") || told.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}

pub(crate) fn command(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("{} could not be started", command.get_program().display()))?;
    if !status.success() {
        bail!("{} {}", command.get_program().display(), status);
    }
    Ok(())
}
