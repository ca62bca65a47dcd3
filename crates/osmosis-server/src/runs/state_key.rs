//! The key that seals what accepted requests need after a restart: in a variable, or in a file of the user's own,
//! outside of the workspace.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_run::notices::Notices;
use osmosis_run::policy::variable;
use osmosis_run::workspace::Workspace;
use osmosis_run::{RunError, RunErrorKind, io_error as io};

use crate::{StateKey, generate_api_key};

/// Holds the key itself.
const VARIABLE: &str = "OSMOSIS_STATE_KEY";
/// A shorter key could be guessed.
const SHORTEST: usize = 32;
const FILE: &str = "state.key";

/// The key, which is made when there is none. A program that is served by `create_rollout_server()` may have
/// been started where nothing can be written: then the key goes with the process.
pub fn load_state_key(
    attached: bool,
    workspace: &Workspace,
    notices: &dyn Notices,
) -> Result<StateKey, RunError> {
    if let Some(text) = variable(VARIABLE) {
        return given(&text);
    }
    let found = match folder() {
        Some(folder) => kept_in(&folder, workspace, notices),
        None => Err(RunError::failed(
            RunErrorKind::StateKey,
            "there is no folder for this user's state: neither XDG_STATE_HOME nor HOME is set",
        )
        .hint(format!("set {VARIABLE} to a key of your own"))),
    };
    match found {
        Err(error) if attached => {
            tracing::warn!(
                error = error.message(),
                "rollouts that a crash interrupts go on only when they are sent again"
            );
            Ok(StateKey::generate())
        }
        found => found,
    }
}

fn given(text: &str) -> Result<StateKey, RunError> {
    if text.trim().len() < SHORTEST {
        let message = format!("{VARIABLE} has fewer than {SHORTEST} characters");
        return Err(RunError::usage(RunErrorKind::Usage, message)
            .hint("make one with `openssl rand -hex 32`, and keep it for the next start"));
    }
    Ok(StateKey::from_text(text))
}

/// `XDG_STATE_HOME/osmosis`, else `~/.local/state/osmosis`.
fn folder() -> Option<Utf8PathBuf> {
    let absolute = |name: &str| {
        let folder = Utf8PathBuf::from(variable(name)?);
        folder.is_absolute().then_some(folder)
    };
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("osmosis"))
}

fn kept_in(
    folder: &Utf8Path,
    workspace: &Workspace,
    notices: &dyn Notices,
) -> Result<StateKey, RunError> {
    if folder.starts_with(&workspace.root) {
        notices.warn(format_args!(
            "`{folder}` is part of the workspace: whoever gets a copy of it can read the keys of accepted \
             rollouts; set XDG_STATE_HOME or {VARIABLE}"
        ));
    }
    let path = folder.join(FILE);
    if !path.exists() {
        make(folder, &path)?;
    }
    read(&path)
}

fn read(path: &Utf8Path) -> Result<StateKey, RunError> {
    let metadata = fs::metadata(path).map_err(|error| io(path, &error))?;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !is_ours || metadata.mode() & 0o077 != 0 {
        let message = format!("others can read or change the key in `{path}`");
        return Err(RunError::failed(RunErrorKind::StateKey, message).hint(format!(
            "if nobody did, `chmod 600 {path}`; otherwise remove it: what waits for its keys has to be sent again"
        )));
    }
    let text = fs::read_to_string(path).map_err(|error| io(path, &error))?;
    if text.trim().len() < SHORTEST {
        let message = format!("`{path}` holds no key");
        return Err(RunError::failed(RunErrorKind::StateKey, message)
            .hint("remove it: what waits for its keys has to be sent again"));
    }
    Ok(StateKey::from_text(&text))
}

/// Whole or not at all; when two make one at a time, the first one stays.
fn make(folder: &Utf8Path, path: &Utf8Path) -> Result<(), RunError> {
    let failed = |error: std::io::Error| {
        io(path, &error).hint(format!("set {VARIABLE} to a key of your own"))
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(failed)?;
    let key = generate_api_key();
    let started = format!("{FILE}.{}", std::process::id());
    let started = folder.join(started);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&started)
        .and_then(|mut file| {
            file.write_all(format!("{}\n", key.expose()).as_bytes())?;
            file.sync_all()
        });
    let placed = written.and_then(|()| match fs::hard_link(&started, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => File::open(folder)?.sync_all(),
    });
    // A rest of it holds a key that nobody uses.
    let _ = fs::remove_file(&started);
    placed.map_err(failed)
}
