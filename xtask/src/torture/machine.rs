//! What a campaign runs with, and what this machine can do.

use std::cell::OnceCell;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_testkit::python_environment;
use tokio::runtime::Runtime;

use super::rounds::training::Undisturbed;
use crate::ci::{cargo, root};

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) binary: Utf8PathBuf,
    pub(super) python: Utf8PathBuf,
    /// Where rounds have their folders. Short: paths of sockets are.
    pub(super) folder: Utf8PathBuf,
    pub(super) cache: Utf8PathBuf,
    /// For the model server, and to read stores.
    pub(super) runtime: Runtime,
    /// What training comes to when nobody disturbs it.
    pub(super) undisturbed: OnceCell<Undisturbed>,
    /// `osmosis run verify` is there.
    pub(super) verifies: bool,
    pub(super) faketime: Option<Utf8PathBuf>,
    pub(super) strace: bool,
}

impl Machine {
    /// Builds `osmosis` unless one is given.
    pub(super) fn prepare(binary: Option<&Utf8Path>) -> Result<Self> {
        let binary = match binary {
            Some(given) => given
                .canonicalize_utf8()
                .with_context(|| format!("`{given}` is not there"))?,
            None => build()?,
        };
        let base = Utf8PathBuf::from_path_buf(std::env::temp_dir())
            .ok()
            .context("the temporary folder has no name in UTF-8")?
            .canonicalize_utf8()?;
        let folder = base.join(format!("ot-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        // Orphans of the processes that are started come here, so that none is overlooked.
        rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1))
            .context("this process can't become a reaper of orphans")?;
        let verifies = succeeds(Command::new(&binary).args(["run", "verify", "--help"]));
        Ok(Self {
            python: python_environment::python(),
            cache: folder.join("cache"),
            folder,
            binary,
            runtime: Runtime::new()?,
            undisturbed: OnceCell::new(),
            verifies,
            faketime: faketime(),
            strace: succeeds(Command::new("strace").args(["-e", "trace=none", "true"])),
        })
    }
}

/// Where cargo puts a debug build.
pub(super) fn debug_binary() -> Result<Utf8PathBuf> {
    let target = std::env::var("CARGO_TARGET_DIR");
    let target = target.map_or_else(|_| Ok(root()?.join("target")), |path| Ok(path.into()));
    target.map(|target: Utf8PathBuf| target.join("debug/osmosis"))
}

fn build() -> Result<Utf8PathBuf> {
    let root = root()?;
    cargo(&root, &["build", "--locked", "--package", "osmosis-cli"])?;
    let binary = debug_binary()?;
    if !binary.exists() {
        bail!("`{binary}` is not there after it was built");
    }
    Ok(binary)
}

fn succeeds(command: &mut Command) -> bool {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The library of the package `faketime`.
fn faketime() -> Option<Utf8PathBuf> {
    let places = [
        "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
        "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
        "/usr/lib64/faketime/libfaketimeMT.so.1",
        "/usr/lib/faketime/libfaketimeMT.so.1",
    ];
    places.iter().map(Utf8PathBuf::from).find(|p| p.exists())
}
