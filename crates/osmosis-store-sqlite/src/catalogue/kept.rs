//! Runs that are over: renamed, archived, restored, removed, measured. A run is moved by one rename of its folder, so that
//! it is whole in one place or in the other.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use camino::{Utf8Path, Utf8PathBuf};
use jiff::Zoned;
use osmosis_core::{RunName, RunTag};
use osmosis_store::{
    ArchivedRun, Holder, RunKey, RunKind, RunLabels, RunPlace, RunSize, StoreError, StoreUrl,
};

use super::labels::{LabelsFile, editing};
use super::{ARCHIVE, STATE_FOLDER, SqliteCatalogue, free_place, holds_run};
use crate::authentic;
use crate::fence;
use crate::lock::RunLock;
use crate::private::{change_mode, create_private_folder};
use crate::store::DATABASE_FILE;

/// In [`STATE_FOLDER`]: runs that are being deleted. What a crash leaves here goes with the next one.
const TRASH: &str = "trash";

/// The files of a run that are not named by what they are for.
const CALLS: &str = "calls";
const DATABASE: &str = "database";
const OTHER: &str = "other";

/// A folder in the archive, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArchivedFolder {
    pub(super) id: String,
    pub(super) name: RunName,
    /// When it was archived, in local time: `20260101-120000`.
    pub(super) time: String,
    number: u32,
}

impl ArchivedFolder {
    /// `NAME.TIME.NUMBER`.
    pub(super) fn parse(id: &str) -> Option<Self> {
        let mut parts = id.rsplitn(3, '.');
        let (number, time, name) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self {
            id: id.to_owned(),
            name: RunName::new(name).ok()?,
            time: time.to_owned(),
            number: number.parse().ok()?,
        })
    }
}

impl SqliteCatalogue {
    fn state_folder(&self) -> Utf8PathBuf {
        self.root.join(STATE_FOLDER)
    }

    pub(super) fn archive_folder(&self) -> Utf8PathBuf {
        self.state_folder().join(ARCHIVE)
    }

    /// The lock is the folder's and moves with it: nobody begins to write between a look and the move.
    fn hold(&self, folder: &Utf8Path) -> Result<RunLock, StoreError> {
        let ourselves = Holder::this_process(self.options.clock.now_ms(), &self.options.command);
        RunLock::take(folder, &ourselves, || {
            fence::last_holder(&folder.join(DATABASE_FILE))
        })
    }

    /// With what is remembered of the run there.
    fn move_folder(&self, from: &Utf8Path, to: &Utf8Path) -> Result<(), StoreError> {
        let place = authentic::place_of(&from.join(DATABASE_FILE));
        fs::rename(from, to).map_err(|error| StoreError::io(to, &error))?;
        let now = authentic::place_of(&to.join(DATABASE_FILE));
        self.options.keys.move_place(&place, Some(&now));
        Ok(())
    }

    pub(super) fn archive_blocking(&self, run: &RunKey) -> Result<ArchivedRun, StoreError> {
        let folder = self.existing(run)?;
        let held = self.hold(&folder)?;
        let archive = self.archive_folder();
        create_private_folder(&archive, |_| true)
            .map_err(|error| StoreError::io(&archive, &error))?;
        let mut labels = LabelsFile::read(&folder).unwrap_or_default();
        labels.archived_kind = Some(run.kind);
        labels.write(&folder)?;
        let target = free_place(&archive, &run.name, &now_text())?;
        self.move_folder(&folder, &target)?;
        drop(held);
        Ok(ArchivedRun {
            id: target.file_name().unwrap_or_default().to_owned(),
            key: run.clone(),
            url: StoreUrl::of_folder(&target)?,
            labels: labels.labels(),
        })
    }

    /// A folder in the archive as it is told.
    pub(super) fn archived_run(
        &self,
        archived: ArchivedFolder,
        kind: RunKind,
    ) -> Result<ArchivedRun, StoreError> {
        let folder = self.archive_folder().join(&archived.id);
        let ArchivedFolder { id, name, .. } = archived;
        Ok(ArchivedRun {
            id,
            key: RunKey { kind, name },
            url: StoreUrl::of_folder(&folder)?,
            labels: LabelsFile::read(&folder).unwrap_or_default().labels(),
        })
    }

    /// The folders in the archive that hold runs, newest first.
    pub(super) fn archived_folders(&self) -> Result<Vec<ArchivedFolder>, StoreError> {
        let archive = self.archive_folder();
        let entries = match archive.read_dir_utf8() {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            Err(error) => return Err(StoreError::io(&archive, &error)),
        };
        let mut found: Vec<ArchivedFolder> = entries
            .filter_map(Result::ok)
            .filter(|entry| holds_run(entry.path()))
            .filter_map(|entry| ArchivedFolder::parse(entry.file_name()))
            .collect();
        found.sort_by(|a, b| {
            let key = |one: &ArchivedFolder| (one.time.clone(), one.number, one.name.clone());
            key(b).cmp(&key(a))
        });
        Ok(found)
    }

    /// What a run in the archive says that it is.
    pub(super) fn archived_kind(&self, id: &str) -> Option<RunKind> {
        let labels = LabelsFile::read(&self.archive_folder().join(id)).ok()?;
        labels.archived_kind
    }

    /// The folder of an archived run that must be there.
    pub(super) fn existing_archived(
        &self,
        id: &str,
    ) -> Result<(ArchivedFolder, Utf8PathBuf), StoreError> {
        // Which makes it one path segment, too.
        let name = RunName::new(id).map_err(|error| StoreError::refused(error.to_string()))?;
        let folder = self.archive_folder().join(id);
        match ArchivedFolder::parse(id).filter(|_| holds_run(&folder)) {
            Some(archived) => Ok((archived, folder)),
            None => Err(StoreError::NotFound {
                name,
                at: self.archive_folder().into_string(),
            }),
        }
    }

    pub(super) fn restore_blocking(
        &self,
        id: &str,
        kind: RunKind,
        name: Option<&RunName>,
    ) -> Result<RunKey, StoreError> {
        let (archived, folder) = self.existing_archived(id)?;
        let name = name.cloned().unwrap_or(archived.name);
        let run = RunKey { kind, name };
        let held = self.hold(&folder)?;
        let target = self.free_target(&run)?;
        let mut labels = LabelsFile::read(&folder).unwrap_or_default();
        labels.archived_kind = None;
        self.move_folder(&folder, &target)?;
        labels.write(&target)?;
        drop(held);
        Ok(run)
    }

    /// Where a run would go that nobody has the name of.
    fn free_target(&self, run: &RunKey) -> Result<Utf8PathBuf, StoreError> {
        let target = self.folder_of(run);
        // Also a folder that holds no run: a rename would fail, or take the place of an empty one.
        if target.symlink_metadata().is_ok() {
            return Err(StoreError::AlreadyExists(run.name.clone()));
        }
        let parent = self.folder(run.kind);
        create_private_folder(&parent, |_| true)
            .map_err(|error| StoreError::io(&parent, &error))?;
        Ok(target)
    }

    pub(super) fn rename_blocking(&self, run: &RunKey, to: &RunName) -> Result<(), StoreError> {
        let folder = self.existing(run)?;
        let held = self.hold(&folder)?;
        let target = self.free_target(&RunKey {
            kind: run.kind,
            name: to.clone(),
        })?;
        let before = LabelsFile::read(&folder)?;
        let mut labels = before.clone();
        labels
            .former_names
            .retain(|name| *name != run.name && name != to);
        labels.former_names.push(run.name.clone());
        // Before the rename: a crash between the two leaves a run that lists its own name, which means nothing.
        labels.write(&folder)?;
        if let Err(error) = self.move_folder(&folder, &target) {
            // The rename is what failed; a note too many does no harm.
            let _ = before.write(&folder);
            return Err(error);
        }
        drop(held);
        Ok(())
    }

    pub(super) fn labels_blocking(&self, run: &RunKey) -> Result<RunLabels, StoreError> {
        Ok(LabelsFile::read(&self.existing(run)?)?.labels())
    }

    pub(super) fn tag_blocking(
        &self,
        run: &RunKey,
        add: &[RunTag],
        remove: &[RunTag],
    ) -> Result<RunLabels, StoreError> {
        let folder = self.existing(run)?;
        let _editing = editing(&self.state_folder());
        let mut labels = LabelsFile::read(&folder)?;
        labels.tags.extend(add.iter().cloned());
        for tag in remove {
            labels.tags.remove(tag);
        }
        labels.write(&folder)?;
        Ok(labels.labels())
    }

    pub(super) fn size_blocking(&self, place: &RunPlace) -> Result<RunSize, StoreError> {
        let folder = self.folder_at(place)?;
        let mut parts: BTreeMap<String, u64> = BTreeMap::new();
        let entries = fs::read_dir(&folder).map_err(|error| StoreError::io(&folder, &error))?;
        for entry in entries.filter_map(Result::ok) {
            let bytes = bytes_below(&entry.path());
            let name = entry.file_name();
            let part = match name.to_str() {
                Some("segments") => CALLS,
                Some(name) if name.starts_with(DATABASE_FILE) => DATABASE,
                Some(name) if entry.file_type().is_ok_and(|kind| kind.is_dir()) => name,
                Some(_) | None => OTHER,
            };
            *parts.entry(part.to_owned()).or_default() += bytes;
        }
        Ok(RunSize {
            bytes: parts.values().sum(),
            parts,
        })
    }

    fn folder_at(&self, place: &RunPlace) -> Result<Utf8PathBuf, StoreError> {
        match place {
            RunPlace::Listed(run) => self.existing(run),
            RunPlace::Archived(id) => Ok(self.existing_archived(id)?.1),
        }
    }

    pub(super) fn remove_blocking(&self, place: &RunPlace) -> Result<(), StoreError> {
        let folder = self.folder_at(place)?;
        let held = self.hold(&folder)?;
        let trash = self.state_folder().join(TRASH);
        create_private_folder(&trash, |_| true).map_err(|error| StoreError::io(&trash, &error))?;
        let name = match place {
            RunPlace::Listed(run) => run.name.clone(),
            RunPlace::Archived(id) => self.existing_archived(id)?.0.name,
        };
        let aside = free_place(&trash, &name, &now_text())?;
        // From here on it is no run any more, whatever happens to its files.
        let place = authentic::place_of(&folder.join(DATABASE_FILE));
        fs::rename(&folder, &aside).map_err(|error| StoreError::io(&aside, &error))?;
        self.options.keys.move_place(&place, None);
        drop(held);
        delete(&aside).map_err(|error| StoreError::io(&aside, &error))?;
        empty(&trash);
        Ok(())
    }
}

/// The name of a run in a workspace, which is its folder's: whoever renames the one renames the other.
pub(crate) fn name_in_workspace(database: &Utf8Path) -> Option<RunName> {
    let folder = database.parent()?;
    let kind = folder.parent()?;
    let ours = [RunKind::Evaluation, RunKind::Training, RunKind::Serving]
        .into_iter()
        .any(|one| kind.file_name() == Some(super::kind_folder(one)));
    if !ours || kind.parent()?.file_name() != Some(STATE_FOLDER) {
        return None;
    }
    RunName::new(folder.file_name()?).ok()
}

fn now_text() -> String {
    Zoned::now().strftime("%Y%m%d-%H%M%S").to_string()
}

/// What earlier removals left that did not come to their end. Who can't delete it leaves it to the next.
fn empty(trash: &Utf8Path) {
    for entry in trash.read_dir_utf8().into_iter().flatten().flatten() {
        if let Err(error) = delete(entry.path()) {
            tracing::warn!(path = %entry.path(), %error, "what was removed can't be deleted");
        }
    }
    // Unless another removal is under way.
    let _ = fs::remove_dir(trash);
}

/// Deletes a folder with everything in it; user code may have left folders that can't be written to. Links are not
/// followed. What is gone already is no failure.
fn delete(folder: &Utf8Path) -> io::Result<()> {
    let removed = match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_folders(folder.as_std_path());
            fs::remove_dir_all(folder)
        }
        other => other,
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn open_folders(root: &Path) {
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        // One that can't be opened up can't be deleted either, which is told then.
        let _ = change_mode(&folder, |_| 0o700);
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
}

/// The sizes of all files at and below a path; links count as themselves.
fn bytes_below(path: &Path) -> u64 {
    let mut bytes = 0;
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        // What is gone meanwhile takes no room.
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path()));
        } else {
            bytes += metadata.len();
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_name_in_the_archive_may_have_dots() {
        let archived = ArchivedFolder::parse("a.b.20260101-120000.2").unwrap();
        assert_eq!(archived.name.as_str(), "a.b");
        assert_eq!(archived.time, "20260101-120000");
        assert_eq!(ArchivedFolder::parse("a.b"), None);
    }

    #[test]
    fn only_runs_of_a_workspace_are_named_by_their_folders() {
        let name = |path: &str| name_in_workspace(Utf8Path::new(path)).map(String::from);
        assert_eq!(name("/w/.osmosis/evals/x/run.db").as_deref(), Some("x"));
        assert_eq!(name("/w/.osmosis/archive/x.t.1/run.db"), None);
        assert_eq!(name("/tmp/evals/x/run.db"), None);
    }

    #[test]
    fn folders_that_user_code_closed_are_deleted_too() {
        let keep = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::try_from(keep.path().join("run")).unwrap();
        fs::create_dir_all(root.join("artifacts/closed")).unwrap();
        fs::write(root.join("artifacts/closed/x"), "x").unwrap();
        fs::set_permissions(
            root.join("artifacts/closed"),
            fs::Permissions::from_mode(0o500),
        )
        .unwrap();
        delete(&root).unwrap();
        assert!(!root.exists());
        delete(&root).unwrap();
    }
}
