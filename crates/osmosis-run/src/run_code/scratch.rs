//! The folder that the workers of one run work in: a copy beside the project's own folder, so that what the project
//! reaches by `..` is where it was.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use osmosis_worker::user::WorkerIdentity;

use super::snapshot::Snapshot;
use crate::digested_files::make_folder;
use crate::io_error;
use crate::source_files::{Ignored, ProjectSource, SKIPPED};
use crate::{RunError, RunErrorKind};

/// Larger files are links to the snapshot.
const MOST_COPIED: u64 = 1 << 20;
/// Folders that can be imported although they don't count, and modules, up to this many: they are told in a variable.
const MOST_IMPORTABLE: usize = 500;
/// In each copy, held while its run is active.
const LOCK: &str = ".osmosis-run";
/// So that no repository takes a copy for its own.
const GITIGNORE: &str = ".gitignore";
const CACHES: [&str; 2] = ["__pycache__", ".mypy_cache"];
/// How long what a project wrote is kept.
pub(super) const KEPT_DAYS: u64 = 7;
const KEPT_FOR: Duration = Duration::from_hours(24 * KEPT_DAYS);

/// A copy of the project that can be written to.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) folder: Utf8PathBuf,
    /// What has to stay as it is: copies of files that count, links to large ones, and those they lead to.
    pub(super) files: Vec<Utf8PathBuf>,
    /// Links to what does not count and can be imported all the same.
    pub(super) importable: Vec<Utf8PathBuf>,
    /// Everything that was put there, from the folder on.
    made: BTreeSet<Utf8PathBuf>,
    /// Says that the run is active.
    _lock: File,
}

impl Scratch {
    pub(super) fn make(
        project: &Utf8Path,
        source: &ProjectSource,
        snapshot: &Snapshot,
    ) -> Result<Self, RunError> {
        let (Some(parent), Some(name)) = (project.parent(), project.file_name()) else {
            let message = format!("`{project}` is no folder of a project");
            return Err(RunError::failed(RunErrorKind::Internal, message));
        };
        let prefix = format!(".{name}.run-");
        prune(parent, &prefix);
        let number: u64 = rand::random();
        let folder = parent.join(format!("{prefix}{number:016x}"));
        let failed = |error: io::Error| io_error(&folder, &error);
        make_folder(&folder, 0o700).map_err(failed)?;
        let lock = new_file(&folder.join(LOCK)).map_err(failed)?;
        lock.try_lock().map_err(|error| failed(error.into()))?;
        let mut gitignore = new_file(&folder.join(GITIGNORE)).map_err(failed)?;
        gitignore.write_all(b"*\n").map_err(failed)?;
        let mut copying = Copying {
            project,
            source,
            snapshot,
            ignored: Ignored::of_project(project)?,
            folders: folders_of(source),
            scratch: Self {
                made: BTreeSet::from([LOCK.into(), GITIGNORE.into()]),
                folder: folder.clone(),
                files: vec![],
                importable: vec![],
                _lock: lock,
            },
        };
        let copied = copying.fill(Utf8Path::new(""));
        let scratch = copying.scratch;
        if let Err(error) = copied {
            let _ = fs::remove_dir_all(&folder);
            return Err(io_error(&folder, &error));
        }
        Ok(scratch)
    }

    /// Lets another user write there. Its files stay ours: they have to stay as they are.
    pub(super) fn lend_to(&self, user: &WorkerIdentity) -> io::Result<()> {
        let copied = self.made.iter().map(|name| self.folder.join(name));
        for path in copied.chain([self.folder.clone()]) {
            if path.symlink_metadata()?.is_dir() {
                lchown(&path, Some(user.uid), Some(user.gid))?;
            }
        }
        Ok(())
    }

    /// What the project wrote there, the topmost of it. The folder is removed when there is nothing.
    pub(super) fn finish(&self) -> Vec<Utf8PathBuf> {
        let mut written = Vec::new();
        if let Err(error) = self.find_written(&self.folder, &mut written) {
            tracing::warn!(%error, folder = %self.folder, "what the project wrote can't be listed");
        }
        written.sort();
        if written.is_empty()
            && let Err(error) = fs::remove_dir_all(&self.folder)
        {
            tracing::warn!(%error, folder = %self.folder, "the copy of a project can't be removed");
        }
        written
    }

    fn find_written(&self, folder: &Utf8Path, written: &mut Vec<Utf8PathBuf>) -> io::Result<()> {
        for entry in folder.read_dir_utf8()? {
            let entry = entry?;
            let path = entry.path();
            let name = path.strip_prefix(&self.folder).unwrap_or(path);
            let is_folder = entry.file_type()?.is_dir();
            if is_folder && CACHES.contains(&entry.file_name()) {
                continue;
            }
            if !self.made.contains(name) {
                written.push(if is_folder {
                    name.join("")
                } else {
                    name.into()
                });
            } else if is_folder {
                self.find_written(path, written)?;
            }
        }
        Ok(())
    }
}

/// The folders that files of the snapshot are in.
fn folders_of(source: &ProjectSource) -> BTreeSet<&Utf8Path> {
    let files = source.packed.keys().map(Utf8Path::new);
    files.flat_map(|file| file.ancestors().skip(1)).collect()
}

struct Copying<'a> {
    project: &'a Utf8Path,
    source: &'a ProjectSource,
    snapshot: &'a Snapshot,
    ignored: Ignored,
    folders: BTreeSet<&'a Utf8Path>,
    scratch: Scratch,
}

impl Copying<'_> {
    /// Fills one folder, by its path from the project's.
    fn fill(&mut self, folder: &Utf8Path) -> io::Result<()> {
        for entry in self.project.join(folder).read_dir_utf8()? {
            // A name that is no text is no name of a module.
            let Ok(entry) = entry else { continue };
            let name = folder.join(entry.file_name());
            if self.scratch.made.contains(&name) || CACHES.contains(&entry.file_name()) {
                continue;
            }
            let target = self.scratch.folder.join(&name);
            if self.source.packed.contains_key(name.as_str()) {
                self.place(&name, &target)?;
            } else if entry.file_type()?.is_dir() && self.is_copied(&name) {
                make_folder(&target, 0o700)?;
                self.scratch.made.insert(name.clone());
                self.fill(&name)?;
            } else {
                self.link(&name, &target)?;
            }
            self.scratch.made.insert(name);
        }
        Ok(())
    }

    /// Whether a folder is there itself, and no link to the project's.
    fn is_copied(&self, folder: &Utf8Path) -> bool {
        let is_skipped = folder.file_name().is_some_and(|it| SKIPPED.contains(&it));
        let within = folder.join("x");
        self.folders.contains(folder)
            || !(is_skipped || self.ignored.contains_folder_of(self.project, &within))
    }

    /// A file of the snapshot.
    fn place(&mut self, name: &Utf8Path, target: &Utf8Path) -> io::Result<()> {
        let (copied, original) = (self.snapshot.files.join(name), self.project.join(name));
        match copied.metadata() {
            Ok(metadata) if metadata.len() <= MOST_COPIED => {
                fs::copy(&copied, target)?;
                // Code that copies it on expects to be able to write to its copy.
                let mode = original
                    .metadata()
                    .map_or(0o600, |it| it.permissions().mode());
                fs::set_permissions(target, fs::Permissions::from_mode(mode & 0o7777))?;
            }
            Ok(_) => symlink(copied, target)?,
            Err(_) => {
                symlink(&original, target)?;
                self.scratch.files.push(original);
            }
        }
        self.scratch.files.push(target.to_owned());
        Ok(())
    }

    /// Something that does not count, where it is.
    fn link(&mut self, name: &Utf8Path, target: &Utf8Path) -> io::Result<()> {
        let original = self.project.join(name);
        let is_hidden = name.file_name().is_some_and(|it| it.starts_with('.'));
        let is_module = matches!(name.extension(), Some("py" | "so"));
        if !is_hidden
            && (is_module || original.is_dir())
            && self.scratch.importable.len() < MOST_IMPORTABLE
        {
            self.scratch.importable.push(name.to_owned());
        }
        symlink(original, target)
    }
}

fn new_file(path: &Utf8Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Removes copies of runs that ended long ago.
fn prune(parent: &Utf8Path, prefix: &str) {
    let entries = parent.read_dir_utf8().into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().starts_with(prefix)) {
        if let Err(error) = prune_one(entry.path()) {
            tracing::debug!(%error, folder = %entry.path(), "a copy of a project can't be removed");
        }
    }
}

fn prune_one(folder: &Utf8Path) -> io::Result<()> {
    let lock = File::open(folder.join(LOCK));
    let used = match &lock {
        Ok(lock) => lock.metadata()?,
        Err(_) => folder.metadata()?,
    };
    if used.modified()?.elapsed().unwrap_or_default() < KEPT_FOR {
        return Ok(());
    }
    match lock.map(|lock| lock.try_lock()) {
        Ok(Err(TryLockError::WouldBlock)) => Ok(()),
        _ => fs::remove_dir_all(folder),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    struct Project {
        _keep: tempfile::TempDir,
        folder: Utf8PathBuf,
        cache: Utf8PathBuf,
    }

    impl Project {
        fn new(files: &[(&str, usize)]) -> Self {
            let keep = tempfile::tempdir().unwrap();
            let root = Utf8PathBuf::from_path_buf(keep.path().canonicalize().unwrap()).unwrap();
            let folder = root.join("rollouts/r");
            for (file, bytes) in files {
                let path = folder.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, vec![b'x'; *bytes]).unwrap();
            }
            Self {
                _keep: keep,
                folder,
                cache: root.join("cache"),
            }
        }

        fn scratch(&self) -> (Scratch, Snapshot) {
            let (source, snapshot) = super::super::copy_project(&self.cache, &self.folder).unwrap();
            let scratch = Scratch::make(&self.folder, &source, &snapshot).unwrap();
            (scratch, snapshot)
        }

        fn copies(&self) -> usize {
            let parent = self.folder.parent().unwrap();
            parent.read_dir_utf8().unwrap().count() - 1
        }
    }

    const LARGE: usize = 1 + (1 << 20);

    #[test]
    fn files_that_count_are_copies_and_the_rest_are_links() {
        let project = Project::new(&[
            ("main.py", 3),
            ("data/large.bin", LARGE),
            ("tests/test_main.py", 1),
            (".env", 1),
            ("out/run.log", 1),
            ("__pycache__/main.pyc", 1),
        ]);
        fs::create_dir(project.folder.join("empty")).unwrap();
        let (scratch, snapshot) = project.scratch();
        let at = |name: &str| scratch.folder.join(name);
        assert!(!at("main.py").is_symlink() && at("main.py").is_file());
        assert!(!at("empty").is_symlink() && at("empty").is_dir());
        let links = [
            ("data/large.bin", snapshot.files.join("data/large.bin")),
            ("tests", project.folder.join("tests")),
            (".env", project.folder.join(".env")),
            ("out/run.log", project.folder.join("out/run.log")),
        ];
        for (name, to) in links {
            assert_eq!(at(name).read_link_utf8().unwrap(), to, "{name}");
        }
        assert!(!at("__pycache__").exists());
        assert_eq!(scratch.importable, ["tests"]);
        // The project's neighbours are the copy's.
        assert_eq!(scratch.folder.parent(), project.folder.parent());
    }

    #[test]
    fn what_was_written_is_named_and_kept_and_else_nothing_is() {
        let project = Project::new(&[("main.py", 3), ("data/a.txt", 1)]);
        let (scratch, _snapshot) = project.scratch();
        assert_eq!(scratch.finish(), Vec::<Utf8PathBuf>::new());
        assert_eq!(project.copies(), 0);
        let (scratch, _snapshot) = project.scratch();
        for file in [
            "notes.txt",
            "data/b.txt",
            "new/deep/c.txt",
            "__pycache__/d.pyc",
        ] {
            let path = scratch.folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        assert_eq!(scratch.finish(), ["data/b.txt", "new/", "notes.txt"]);
        assert!(scratch.folder.join("new/deep/c.txt").exists());
    }

    #[test]
    fn old_copies_are_removed_unless_a_run_is_active_there() {
        let project = Project::new(&[("main.py", 3)]);
        let (active, _snapshot) = project.scratch();
        let (ended, _snapshot) = project.scratch();
        let long_ago = SystemTime::now() - KEPT_FOR - Duration::from_mins(1);
        for one in [&active, &ended] {
            let lock = File::options().write(true).open(one.folder.join(LOCK));
            lock.unwrap().set_modified(long_ago).unwrap();
        }
        let of_ended = ended.folder.clone();
        drop(ended);
        let (_next, _snapshot) = project.scratch();
        assert!(active.folder.exists());
        assert!(!of_ended.exists());
    }
}
