//! Writing and reading one checkpoint.

use std::collections::BTreeMap;
use std::fs;

use camino::Utf8Path;
use osmosis_core::PolicyVersion;
use osmosis_core::learner::{Learner, LearnerError, LearnerErrorKind, LearnerFiles};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Checkpoint, FOLDER};
use crate::{TrainError, durable_file};

/// The number that grows when the folder's layout changes.
const FORMAT: u32 = 2;

/// Where the state of the training is, below a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StateLayout {
    format: u32,
    state: &'static str,
    optimizer: &'static str,
}

/// In a folder of its own: others read every `*.safetensors` beside the config as the model's weights.
const LAYOUT: StateLayout = StateLayout {
    format: FORMAT,
    state: "trainer/state.json",
    optimizer: "trainer/optimizer.safetensors",
};

/// Beside the weights; read, and no longer written.
const FLAT_LAYOUT: StateLayout = StateLayout {
    format: 1,
    state: "trainer.json",
    optimizer: "trainer.safetensors",
};

/// Where training stood.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointState {
    /// Steps that are done.
    pub step: u64,
    pub version: PolicyVersion,
    pub seed: u64,
    /// Optimizer updates so far.
    pub updates: u64,
}

/// `trainer/state.json`
#[derive(Debug, Serialize, Deserialize)]
struct StateFile {
    format: u32,
    step: u64,
    version: PolicyVersion,
    seed: u64,
    updates: u64,
    /// SHA-256 of the other files, so that a damaged checkpoint is noticed and not trained on.
    files: BTreeMap<String, String>,
}

impl CheckpointState {
    /// Writes a checkpoint of `learner` below a run's folder; durable when this returns. Whatever goes
    /// wrong, the checkpoints that are there stay as they are.
    pub fn save(
        &self,
        run_folder: &Utf8Path,
        learner: &dyn Learner,
    ) -> Result<Checkpoint, TrainError> {
        self.save_with(run_folder, |folder| {
            learner.save(LearnerFiles {
                model: folder,
                optimizer: &folder.join(LAYOUT.optimizer),
            })?;
            Ok(())
        })
    }

    /// `write` writes the learner's files into a folder that does not exist yet.
    fn save_with(
        &self,
        run_folder: &Utf8Path,
        write: impl FnOnce(&Utf8Path) -> Result<(), TrainError>,
    ) -> Result<Checkpoint, TrainError> {
        let all = run_folder.join(FOLDER);
        let step = self.step;
        let folder = all.join(format!("step_{step}"));
        let partial = all.join(format!(".step_{step}.partial"));
        fs::create_dir_all(&all).map_err(|error| TrainError::file(&all, &error))?;
        durable_file::sync_parent(&all)?;
        remove(&partial)?;

        let written = write(&partial).and_then(|()| self.write_state(&partial));
        if let Err(error) = written {
            // Frees the space; what is left behind is overwritten next time.
            let _ = fs::remove_dir_all(&partial);
            return Err(error);
        }

        // A folder of that name can only be there when it was damaged and passed over on resume, or
        // when an earlier process was killed after this rename.
        let replaced = all.join(format!(".step_{step}.replaced"));
        remove(&replaced)?;
        if folder.exists() {
            rename(&folder, &replaced)?;
        }
        rename(&partial, &folder)?;
        durable_file::sync(&all)?;
        remove(&replaced)?;
        Ok(Checkpoint { step, folder })
    }

    fn write_state(&self, folder: &Utf8Path) -> Result<(), TrainError> {
        let mut files = BTreeMap::new();
        add_digests(folder, "", &mut files)?;
        let state = StateFile {
            format: FORMAT,
            step: self.step,
            version: self.version,
            seed: self.seed,
            updates: self.updates,
            files,
        };
        let mut text = serde_json::to_vec_pretty(&state)
            .map_err(|error| TrainError::Internal(error.to_string()))?;
        text.push(b'\n');
        let path = folder.join(LAYOUT.state);
        let state_folder = path.parent().unwrap_or(folder);
        fs::create_dir_all(state_folder).map_err(|error| TrainError::file(state_folder, &error))?;
        durable_file::replace(&path, &text)?;
        durable_file::sync(folder)
    }
}

impl Checkpoint {
    /// Has `learner` go on from here. A checkpoint that is damaged is a [`TrainError::Checkpoint`], and leaves
    /// the learner as it was.
    pub fn restore(&self, learner: &mut dyn Learner) -> Result<CheckpointState, TrainError> {
        let state = whole_state(self)?;
        let files = LearnerFiles {
            model: &self.folder,
            optimizer: &self.folder.join(self.layout().optimizer),
        };
        let damaged = |error: LearnerError| match error.kind {
            LearnerErrorKind::Unreadable => TrainError::Checkpoint {
                folder: self.folder.clone(),
                message: error.message,
            },
            LearnerErrorKind::Invalid
            | LearnerErrorKind::NotFinite
            | LearnerErrorKind::DiskFull
            | LearnerErrorKind::Unwritable
            | LearnerErrorKind::Ended
            | LearnerErrorKind::Fault => TrainError::Learner(error),
        };
        learner.restore(files, state.updates).map_err(damaged)?;
        Ok(CheckpointState {
            step: state.step,
            version: state.version,
            seed: state.seed,
            updates: state.updates,
        })
    }

    /// Checks that its files are as they were saved, without opening the model.
    pub fn verify(&self) -> Result<(), TrainError> {
        whole_state(self).map(drop)
    }

    /// It holds a model for a trainer outside or from it, which has no state of ours and no digests beside it.
    pub fn is_model_alone(&self) -> bool {
        [LAYOUT, FLAT_LAYOUT]
            .iter()
            .flat_map(|layout| [layout.state, layout.optimizer])
            .all(|name| !self.folder.join(name).exists())
    }

    fn layout(&self) -> StateLayout {
        if self.folder.join(FLAT_LAYOUT.state).exists() && !self.folder.join(LAYOUT.state).exists()
        {
            FLAT_LAYOUT
        } else {
            LAYOUT
        }
    }
}

/// The digests of all files below a folder, by their path from the checkpoint's.
fn add_digests(
    folder: &Utf8Path,
    prefix: &str,
    files: &mut BTreeMap<String, String>,
) -> Result<(), TrainError> {
    let entries = folder
        .read_dir_utf8()
        .map_err(|error| TrainError::file(folder, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| TrainError::file(folder, &error))?;
        let (path, name) = (entry.path(), format!("{prefix}{}", entry.file_name()));
        let failed = |error: std::io::Error| TrainError::file(path, &error);
        if entry.file_type().map_err(failed)?.is_dir() {
            add_digests(path, &format!("{name}/"), files)?;
        } else {
            files.insert(name, digest(path).map_err(failed)?);
        }
    }
    Ok(())
}

/// The state of a checkpoint all of whose files are as they were saved.
fn whole_state(checkpoint: &Checkpoint) -> Result<StateFile, TrainError> {
    let folder = &checkpoint.folder;
    let unusable = |message: String| TrainError::Checkpoint {
        folder: folder.clone(),
        message,
    };
    let layout = checkpoint.layout();
    let name = layout.state;
    let text = fs::read_to_string(folder.join(name))
        .map_err(|error| unusable(format!("`{name}`: {error}")))?;
    let state: StateFile =
        serde_json::from_str(&text).map_err(|error| unusable(format!("`{name}`: {error}")))?;
    if state.format != layout.format {
        return Err(unusable(format!(
            "it has format {}, this program knows {FORMAT}",
            state.format
        )));
    }
    if state.step != checkpoint.step {
        return Err(unusable(format!("it holds step {}", state.step)));
    }
    for (name, expected) in &state.files {
        match digest(&folder.join(name)) {
            Ok(found) if found == *expected => {}
            Ok(_) => return Err(unusable(format!("`{name}` is not as it was saved"))),
            Err(error) => return Err(unusable(format!("`{name}`: {error}"))),
        }
    }
    Ok(state)
}

fn digest(path: &Utf8Path) -> std::io::Result<String> {
    let mut hasher = HashingWriter(Sha256::new());
    std::io::copy(&mut fs::File::open(path)?, &mut hasher)?;
    let digest = hasher.0.finalize();
    let mut hex = String::with_capacity(2 * digest.len());
    for byte in digest {
        for nibble in [byte >> 4, byte & 15] {
            hex.extend(char::from_digit(u32::from(nibble), 16));
        }
    }
    Ok(hex)
}

struct HashingWriter(Sha256);

impl std::io::Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn remove(folder: &Utf8Path) -> Result<(), TrainError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(TrainError::file(folder, &error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn rename(from: &Utf8Path, to: &Utf8Path) -> Result<(), TrainError> {
    fs::rename(from, to).map_err(|error| TrainError::file(to, &error))
}

#[cfg(test)]
mod tests {
    use std::io;

    use camino::Utf8PathBuf;

    use super::*;
    use crate::TrainErrorKind;

    fn run_folder() -> (tempfile::TempDir, Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
        (folder, path)
    }

    fn state(step: u64) -> CheckpointState {
        CheckpointState {
            step,
            version: PolicyVersion(step),
            seed: 7,
            updates: step * 2,
        }
    }

    fn write_model(folder: &Utf8Path) -> Result<(), TrainError> {
        let path = folder.join("model.safetensors");
        fs::create_dir(folder)
            .and_then(|()| fs::write(&path, "weights"))
            .map_err(|error| TrainError::file(&path, &error))
    }

    fn names(run: &Utf8Path) -> Vec<String> {
        let mut names: Vec<String> = run
            .join(FOLDER)
            .read_dir_utf8()
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_full_disk_leaves_the_earlier_checkpoint_and_nothing_half_written() {
        let (_keep, run) = run_folder();
        state(1).save_with(&run, write_model).unwrap();
        let error = state(2)
            .save_with(&run, |folder| {
                write_model(folder)?;
                let full = io::Error::from(io::ErrorKind::StorageFull);
                Err(TrainError::file(&folder.join("model.safetensors"), &full))
            })
            .unwrap_err();
        assert_eq!(error.kind(), TrainErrorKind::DiskFull);
        assert!(error.hint().unwrap().contains("free some disk space"));
        assert_eq!(names(&run), ["step_1"]);
        assert!(run.join("checkpoints/step_1/model.safetensors").exists());
    }

    #[test]
    fn what_a_killed_process_left_behind_is_written_over() {
        let (_keep, run) = run_folder();
        fs::create_dir_all(run.join("checkpoints/.step_1.partial")).unwrap();
        fs::write(run.join("checkpoints/.step_1.partial/junk"), "junk").unwrap();
        fs::create_dir_all(run.join("checkpoints/step_1")).unwrap();
        fs::write(run.join("checkpoints/step_1/damaged"), "damaged").unwrap();
        let saved = state(1).save_with(&run, write_model).unwrap();
        assert_eq!(names(&run), ["step_1"]);
        assert!(saved.folder.join("trainer/state.json").exists());
        assert!(!saved.folder.join("damaged").exists());
        assert!(!saved.folder.join("junk").exists());
    }

    #[test]
    fn a_changed_file_is_noticed() {
        let (_keep, run) = run_folder();
        let saved = state(3).save_with(&run, write_model).unwrap();
        fs::write(saved.folder.join("model.safetensors"), "wEights").unwrap();
        let error = saved.verify().unwrap_err();
        assert_eq!(error.kind(), TrainErrorKind::Checkpoint);
        assert!(
            error
                .to_string()
                .ends_with("`model.safetensors` is not as it was saved"),
            "{error}"
        );
        fs::remove_file(saved.folder.join("trainer/state.json")).unwrap();
        assert!(saved.verify().is_err());
    }
}
