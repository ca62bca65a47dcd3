//! Whether a user can reach what workers need. The kernel answers: a thread takes the user's identity, looks, and ends.

use std::fmt;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::Access;

use super::{UserError, WorkerIdentity};
use crate::environment;

/// Folders of a project that a worker does not import from.
const NOT_LOOKED_INTO: [&str; 3] = ["__pycache__", "node_modules", "target"];

/// More files than this are not looked at one by one.
const MOST_FILES: usize = 20_000;

/// Variables that name files or folders which workers read.
const VARIABLES: [&str; 12] = [
    "CURL_CA_BUNDLE",
    "HF_DATASETS_CACHE",
    "HF_HOME",
    "HF_HUB_CACHE",
    "NODE_EXTRA_CA_CERTS",
    "PYTHONHOME",
    "PYTHONPATH",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TORCH_HOME",
    "TRANSFORMERS_CACHE",
];

/// What a worker needs to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    Interpreter,
    /// A rollout's binary.
    Program,
    /// A virtual environment.
    Environment,
    /// What `pip install --user` has installed for the engine's user.
    UserPackages,
    Sdk,
    Project,
    /// The copy of the project that is imported, in our cache.
    Snapshot,
    /// What a variable of this name names.
    Variable(&'static str),
}

impl fmt::Display for Needed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interpreter => f.write_str("the interpreter"),
            Self::Program => f.write_str("the program"),
            Self::Environment => f.write_str("the environment"),
            Self::UserPackages => f.write_str("the packages of root's own"),
            Self::Sdk => f.write_str("the unpacked SDK"),
            Self::Project => f.write_str("the project"),
            Self::Snapshot => f.write_str("the snapshot of the project"),
            Self::Variable(name) => write!(f, "what {name} names,"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeededPath {
    pub needed: Needed,
    pub path: Utf8PathBuf,
}

/// What an interpreter outside of environments imports from the home of the engine's user.
fn user_packages(needed: &NeededPath) -> Option<NeededPath> {
    let python = (needed.needed == Needed::Interpreter).then_some(&needed.path)?;
    if python.parent()?.parent()?.join("pyvenv.cfg").exists() {
        return None;
    }
    let home = Utf8PathBuf::from_path_buf(std::env::var_os("HOME")?.into()).ok()?;
    let version = python.canonicalize_utf8().ok()?;
    let path = home
        .join(".local/lib")
        .join(version.file_name()?)
        .join("site-packages");
    path.is_dir().then_some(NeededPath {
        needed: Needed::UserPackages,
        path,
    })
}

/// The existing paths that inherited variables name.
fn in_variables() -> Vec<NeededPath> {
    let named = VARIABLES.into_iter().flat_map(|name| {
        let value = std::env::var_os(name).unwrap_or_default();
        std::env::split_paths(&value)
            .filter_map(|path| Utf8PathBuf::from_path_buf(path).ok())
            .filter(|path| path.is_absolute() && path.exists())
            .map(|path| NeededPath {
                needed: Needed::Variable(name),
                path,
            })
            .collect::<Vec<_>>()
    });
    named.collect()
}

/// Whether what may be opened to others is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    Now,
    /// It is taken for open: a run will open it.
    Never,
}

/// What this program made, and may therefore open to others.
struct Openable<'n> {
    needed: Needed,
    tree: &'n Utf8Path,
    /// The folder that holds it. What is above is not ours to open.
    base: &'n Utf8Path,
}

impl<'n> Openable<'n> {
    fn new(needed: &'n NeededPath, cache: Option<&'n Utf8Path>) -> Option<Self> {
        let tree: &Utf8Path = &needed.path;
        let base = match (needed.needed, cache) {
            (_, Some(cache)) if tree.starts_with(cache) => cache,
            (Needed::Environment, _) if environment::is_made_here(tree) => tree,
            _ => return None,
        };
        Some(Self {
            needed: needed.needed,
            tree,
            base,
        })
    }
}

/// Whether the user can be changed to and reaches all of it. What is in our cache, or an environment that we made, is
/// opened to others first, once all else is known to be within reach.
pub(super) fn check(
    user: &WorkerIdentity,
    needed: &[NeededPath],
    cache: Option<&Utf8Path>,
    opening: Opening,
) -> Result<(), UserError> {
    let openable: Vec<Openable<'_>> = needed
        .iter()
        .filter_map(|needed| Openable::new(needed, cache))
        .collect();
    let (to_open, outside): (Vec<NeededPath>, Vec<NeededPath>) = needed
        .iter()
        .cloned()
        .chain(in_variables())
        .chain(needed.iter().filter_map(user_packages))
        .partition(|needed| openable.iter().any(|it| needed.path.starts_with(it.tree)));
    look_as(user, || {
        let above = openable.iter().filter_map(|it| {
            let above = it.base.parent()?;
            Some((
                it.needed,
                it.tree.to_owned(),
                closed(above, Access::EXEC_OK)?,
            ))
        });
        above.chain(closed_among(&outside)).next()
    })?;
    if opening == Opening::Never {
        return Ok(());
    }
    for Openable { tree, base, .. } in openable {
        // Where that can't be done, the next look says what is closed.
        if let Err(error) = open_up(base, tree) {
            tracing::debug!(%tree, %error, "could not be opened to others");
        }
    }
    look_as(user, || closed_among(&to_open).next())
}

/// Whether the user can read a file or list a folder.
pub(super) fn can_read(user: &WorkerIdentity, path: &Utf8Path) -> bool {
    let needed = NeededPath {
        needed: Needed::Project,
        path: path.to_owned(),
    };
    look_as(user, || closed_among(std::slice::from_ref(&needed)).next()).is_ok()
}

/// What was needed, where, and what is closed.
type Closed = (Needed, Utf8PathBuf, Utf8PathBuf);

fn closed_among(needed: &[NeededPath]) -> impl Iterator<Item = Closed> {
    needed
        .iter()
        .filter_map(|it| Some((it.needed, it.path.clone(), closed_in(it)?)))
}

/// Looks from a thread with the identity of the user.
fn look_as(
    user: &WorkerIdentity,
    look: impl FnOnce() -> Option<Closed> + Send,
) -> Result<(), UserError> {
    let cannot = |message: String| UserError::CannotSwitch {
        uid: user.uid,
        message,
    };
    let looked = std::thread::scope(|scope| {
        let looking = std::thread::Builder::new()
            .name("osmosis-reach".to_owned())
            .spawn_scoped(scope, || become_user(user).map(|()| look()))
            .map_err(|error| error.to_string())?;
        let panicked = |_| Err("the thread that looked has panicked".to_owned());
        looking.join().unwrap_or_else(panicked)
    });
    match looked {
        Ok(None) => Ok(()),
        Ok(Some((needed, path, closed))) => Err(UserError::Closed {
            uid: user.uid,
            needed,
            path: path.into_string(),
            // As root, because the user may not even see it.
            mode: std::fs::metadata(&closed).map_or(0, |found| found.mode() & 0o7777),
            closed: closed.into_string(),
        }),
        Err(message) => Err(cannot(message)),
    }
}

#[cfg(target_os = "linux")]
fn become_user(user: &WorkerIdentity) -> Result<(), String> {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{
        CapabilitySet, capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    };

    let held = capabilities(None).map_err(|error| error.to_string())?;
    let wanted = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::KILL
        | CapabilitySet::SETGID
        | CapabilitySet::SETUID;
    let missing = wanted.difference(held.effective);
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter_names().map(|(name, _)| name).collect();
        return Err(format!("it lacks {}", names.join(", ")));
    }
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    // The user last: without root's rights nothing else can be changed. These change the calling thread alone.
    set_thread_groups(&[]).map_err(|error| error.to_string())?;
    set_thread_res_gid(gid, gid, gid).map_err(|error| error.to_string())?;
    set_thread_res_uid(uid, uid, uid).map_err(|error| error.to_string())
}

#[cfg(not(target_os = "linux"))]
fn become_user(_user: &WorkerIdentity) -> Result<(), String> {
    Err("it is possible on Linux only".to_owned())
}

/// What of it the calling thread can't read.
fn closed_in(needed: &NeededPath) -> Option<Utf8PathBuf> {
    let path = &needed.path;
    match needed.needed {
        Needed::Interpreter => closed_link(path, Access::EXEC_OK).or_else(|| {
            let library = path.canonicalize_utf8().ok()?;
            let library = library.parent()?.parent()?.join("lib");
            closed_if_there(&library, Access::READ_OK | Access::EXEC_OK)
        }),
        Needed::Program => closed_link(path, Access::EXEC_OK),
        Needed::Environment => closed(path, Access::READ_OK | Access::EXEC_OK).or_else(|| {
            let packages = environment::site_packages(path)?;
            closed_inside(&packages, Depth::One)
        }),
        Needed::UserPackages => closed(path, Access::READ_OK | Access::EXEC_OK),
        Needed::Sdk | Needed::Project | Needed::Snapshot => closed_inside(path, Depth::All),
        Needed::Variable(_) => {
            let folder = path.is_dir().then_some(Access::EXEC_OK);
            closed_link(path, Access::READ_OK | folder.unwrap_or(Access::empty()))
        }
    }
}

/// The first of the folders above a path that can't be entered, or the path itself if it does not grant the access.
fn closed(path: &Utf8Path, wanted: Access) -> Option<Utf8PathBuf> {
    let mut above: Vec<&Utf8Path> = path.ancestors().skip(1).collect();
    above.reverse();
    let entered = above
        .into_iter()
        .filter(|folder| !folder.as_str().is_empty())
        .map(|folder| (folder, Access::EXEC_OK));
    entered
        .chain([(path, wanted)])
        .find(|(path, wanted)| rustix::fs::access(path.as_std_path(), *wanted).is_err())
        .map(|(path, _)| path.to_owned())
}

/// The same for what a link leads to, too.
fn closed_link(path: &Utf8Path, wanted: Access) -> Option<Utf8PathBuf> {
    let above = path
        .parent()
        .and_then(|above| closed(above, Access::EXEC_OK));
    above.or_else(|| {
        let mut path = path.to_owned();
        // Step by step: what can't be entered is to be named, and the kernel only says that something can't.
        for _ in 0..MOST_LINKS {
            let Ok(target) = path.read_link_utf8() else {
                break;
            };
            let next = path
                .parent()
                .map_or_else(|| target.clone(), |folder| folder.join(&target));
            if let Some(closed) = next
                .parent()
                .and_then(|above| closed(above, Access::EXEC_OK))
            {
                return Some(closed);
            }
            path = next;
        }
        closed(&path, wanted)
    })
}

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

fn closed_if_there(path: &Utf8Path, wanted: Access) -> Option<Utf8PathBuf> {
    closed(path, wanted).filter(|closed| closed != path || path.exists())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    One,
    All,
}

/// The first folder or file in a tree that can't be read. What begins with a dot is the user's own affair.
fn closed_inside(root: &Utf8Path, depth: Depth) -> Option<Utf8PathBuf> {
    let readable_folder = Access::READ_OK | Access::EXEC_OK;
    if let Some(closed) = closed(root, readable_folder) {
        return Some(closed);
    }
    let mut waiting = vec![root.to_owned()];
    let mut looked_at = 0;
    while let Some(folder) = waiting.pop() {
        let Ok(entries) = folder.read_dir_utf8() else {
            return Some(folder);
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if name.starts_with('.') || NOT_LOOKED_INTO.contains(&name) || kind.is_symlink() {
                continue;
            }
            looked_at += 1;
            if looked_at > MOST_FILES {
                return None;
            }
            let wanted = if kind.is_dir() {
                readable_folder
            } else {
                Access::READ_OK
            };
            if rustix::fs::access(entry.path().as_std_path(), wanted).is_err() {
                return Some(entry.into_path());
            }
            if kind.is_dir() && depth == Depth::All {
                waiting.push(entry.into_path());
            }
        }
    }
    None
}

/// Lets others read a tree whose path they know, and pass through the folders between it and `base`, which they can't
/// list. The tree's own folder comes last, so that it is a sign that all else is done.
fn open_up(base: &Utf8Path, tree: &Utf8Path) -> std::io::Result<()> {
    for above in tree.ancestors().skip(1) {
        if !above.starts_with(base) {
            break;
        }
        add_mode(above.as_std_path(), 0o001)?;
    }
    if std::fs::symlink_metadata(tree)?.mode() & 0o005 == 0o005 {
        return Ok(());
    }
    open_tree(tree)
}

/// Lets others read a tree of ours.
pub(crate) fn open_tree(tree: &Utf8Path) -> std::io::Result<()> {
    let mut waiting = vec![tree.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in folder.read_dir_utf8()? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                add_mode(entry.path().as_std_path(), 0o055)?;
                waiting.push(entry.into_path());
            } else if kind.is_file() {
                let may_run = entry.metadata()?.mode() & 0o100 != 0;
                let bits = if may_run { 0o055 } else { 0o044 };
                add_mode(entry.path().as_std_path(), bits)?;
            }
        }
    }
    add_mode(tree.as_std_path(), 0o055)
}

/// Lets everybody start a program that we built, as far as the folders above `root` let them.
pub(crate) fn open_program(root: &Utf8Path, program: &Utf8Path) -> std::io::Result<()> {
    let inside = program
        .ancestors()
        .skip(1)
        .take_while(|above| *above != root);
    for above in inside.filter(|above| above.starts_with(root)) {
        add_mode(above.as_std_path(), 0o001)?;
    }
    add_mode(program.as_std_path(), 0o055)
}

fn add_mode(path: &Path, bits: u32) -> std::io::Result<()> {
    let mode = std::fs::symlink_metadata(path)?.mode() & 0o7777;
    if mode & bits == bits {
        return Ok(());
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode | bits))
}

/// Whether everybody can enter this folder, as far as modes tell.
pub(crate) fn is_open_to_all(folder: &Path) -> bool {
    folder
        .ancestors()
        .filter(|above| !above.as_os_str().is_empty())
        .all(|above| std::fs::metadata(above).is_ok_and(|found| found.mode() & 0o001 != 0))
}
