//! What a run makes is its user's alone: folders 0700, files 0600, whatever the umask was. Files that the user asked
//! for by name, outside `.osmosis`, are as the user's umask says.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Mutex, OnceLock, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_store_sqlite::{change_mode, is_shared, tighten};
use osmosis_worker::environment::Surroundings;
use rustix::fs::Mode;

/// Our folder in a workspace.
const STATE_FOLDER: &str = ".osmosis";
/// What we keep in the cache. The cache itself may be a folder that others use too.
const CACHED: [&str; 3] = ["sdk", "locks", "nodes"];

/// The user's umask, once ours is another one.
static USERS_UMASK: OnceLock<u32> = OnceLock::new();
/// Run folders that this process has opened.
static OPENED: Mutex<Vec<Utf8PathBuf>> = Mutex::new(Vec::new());

/// Whatever this process and the processes it starts make from now on is its user's alone.
pub fn begin() {
    let users = rustix::process::umask(Mode::from_raw_mode(0o077));
    let _ = USERS_UMASK.set(users.as_raw_mode());
    if let Some(cache) = Surroundings::from_environment().cache {
        for name in CACHED {
            let folder = cache.join(name);
            if is_listable(&folder) {
                tighten_or_tell(&folder);
            }
        }
    }
}

/// Takes a run folder from group and others, and with it the `.osmosis` it is in if that was open to them. User code
/// may make files with modes of its own, so it is done again when the process ends.
pub fn opened(folder: &Utf8Path) {
    let Some(state) = state_folder_of(folder) else {
        // A folder that the user named, with who knows what in it. The store's files are private by themselves.
        return;
    };
    tighten_if_shared(state);
    tighten_or_tell(folder);
    let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if !all.iter().any(|known| known == folder) {
        all.push(folder.to_owned());
    }
}

/// What user code left open in the folders of [`opened`] is closed.
pub fn end() {
    let all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    for folder in all.iter().filter(|folder| folder.exists()) {
        tighten_or_tell(folder);
    }
}

/// Whether others can look into it. What they may only pass through leads to what was opened to workers with a user of
/// their own (`osmosis_worker::user`).
fn is_listable(folder: &Utf8Path) -> bool {
    std::fs::symlink_metadata(folder).is_ok_and(|found| found.permissions().mode() & 0o066 != 0)
}

fn tighten_if_shared(folder: &Utf8Path) {
    if is_shared(folder) {
        tighten_or_tell(folder);
    }
}

fn tighten_or_tell(folder: &Utf8Path) {
    match tighten(folder) {
        Ok(0) => {}
        Ok(changed) => tracing::info!(%folder, changed, "taken from group and others"),
        Err(error) => tracing::warn!(%folder, %error, "others may be able to read it"),
    }
}

fn state_folder_of(path: &Utf8Path) -> Option<&Utf8Path> {
    path.ancestors()
        .skip(1)
        .find(|folder| folder.file_name() == Some(STATE_FOLDER))
}

/// Gives a file that the user asked for by name the mode that the user's umask says.
pub fn share(path: &Utf8Path) -> io::Result<()> {
    let Some(umask) = USERS_UMASK.get() else {
        return Ok(());
    };
    if state_folder_of(path).is_some() {
        return Ok(());
    }
    let kind = std::fs::symlink_metadata(path)?.file_type();
    if kind.is_file() || kind.is_dir() {
        let all = if kind.is_dir() { 0o777 } else { 0o666 };
        change_mode(path, |_| all & !umask)?;
    }
    Ok(())
}

/// Makes a folder that the user asked for by name, and those above it that are missing.
pub fn create_shared_folder(path: &Utf8Path) -> io::Result<()> {
    let missing: Vec<&Utf8Path> = path
        .ancestors()
        .take_while(|folder| !folder.as_str().is_empty() && !folder.exists())
        .collect();
    std::fs::create_dir_all(path)?;
    missing.into_iter().try_for_each(share)
}
