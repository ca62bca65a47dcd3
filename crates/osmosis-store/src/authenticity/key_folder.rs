//! The key of this user, and what is remembered of each run, in a folder of the user's own outside of the workspace.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};

use super::RecordKey;
use crate::StoreError;

const KEY_FILE: &str = "key";

/// Where keys are kept: `XDG_STATE_HOME/osmosis/records`, else `~/.local/state/osmosis/records`, of mode 0700.
///
/// Beside the key there is a small file for each place that holds a run: which run it is, and the number of its last seal.
/// Without it, whoever can write to a run could take the authentication off, or put an older state of all of it back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyFolder(Option<Utf8PathBuf>);

/// What is remembered of the run at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedPlace {
    pub run_uid: String,
    /// The number of a seal that the run has, or has had.
    pub number: u64,
}

impl KeyFolder {
    /// This user's; none where neither `XDG_STATE_HOME` nor `HOME` is set.
    pub fn of_user() -> Self {
        let absolute = |name: &str| {
            let folder = Utf8PathBuf::from(std::env::var(name).ok()?);
            folder.is_absolute().then_some(folder)
        };
        let state =
            absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
        Self(state.map(|state| state.join("osmosis/records")))
    }

    /// For tests, and for whoever keeps it elsewhere.
    pub fn at(folder: Utf8PathBuf) -> Self {
        Self(Some(folder))
    }

    /// No key: what is written is not authenticated.
    pub fn none() -> Self {
        Self(None)
    }

    /// Whether there is a place for keys.
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Makes the user's key where there is a folder for it and no key.
    pub fn make_key(&self) -> Result<(), StoreError> {
        let Some(folder) = &self.0 else {
            return Ok(());
        };
        let path = folder.join(KEY_FILE);
        if path.exists() {
            return Ok(());
        }
        make_key(folder, &path).map_err(|error| StoreError::io(&path, &error))
    }

    /// The user's key; `None` where there is none.
    fn user_key(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(folder) = &self.0 else {
            return Ok(None);
        };
        let path = folder.join(KEY_FILE);
        let failed = |error: std::io::Error| StoreError::io(&path, &error);
        if !path.try_exists().map_err(failed)? {
            return Ok(None);
        }
        let metadata = fs::metadata(&path).map_err(failed)?;
        if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
            return Err(StoreError::Io {
                path: path.clone(),
                message: "others can read or change the key that runs are authenticated with; \
                          `chmod 600` it if nobody did"
                    .to_owned(),
                full: false,
            });
        }
        let text = fs::read_to_string(&path).map_err(failed)?;
        match from_hex(text.trim()) {
            Some(key) if key.len() == 32 => Ok(Some(key)),
            Some(_) | None => Err(StoreError::damaged(&path, "it holds no key")),
        }
    }

    /// The key of a run, and what names the user's key in it.
    pub fn record_key(&self, run_uid: &str) -> Result<Option<(RecordKey, String)>, StoreError> {
        let Some(user_key) = self.user_key()? else {
            return Ok(None);
        };
        Ok(Some((
            RecordKey::derive(&user_key, run_uid),
            key_id(&user_key),
        )))
    }

    /// What names the user's key in runs that it was used for; `None` where there is none.
    pub fn key_id(&self) -> Result<Option<String>, StoreError> {
        Ok(self.user_key()?.map(|key| key_id(&key)))
    }

    /// What is remembered of the run at a place.
    pub fn recall(&self, place: &str) -> Option<SealedPlace> {
        let text = fs::read_to_string(self.place_file(place)?).ok()?;
        let (run_uid, number) = text.trim().split_once(' ')?;
        Some(SealedPlace {
            run_uid: run_uid.to_owned(),
            number: number.parse().ok()?,
        })
    }

    /// Remembers the run at a place. A failure costs no result: it is logged.
    pub fn remember(&self, place: &str, sealed: &SealedPlace) {
        let Some(path) = self.place_file(place) else {
            return;
        };
        let SealedPlace { run_uid, number } = sealed;
        let begun = Utf8PathBuf::from(format!("{path}.{}", std::process::id()));
        let written = private(&begun)
            .and_then(|mut file| writeln!(file, "{run_uid} {number}"))
            .and_then(|()| fs::rename(&begun, &path));
        if let Err(error) = written {
            tracing::warn!(%path, %error, "an older state of the run could not be told from this one");
        }
    }

    /// The run went to another place, or (`None`) is gone.
    pub fn move_place(&self, from: &str, to: Option<&str>) {
        let Some(path) = self.place_file(from) else {
            return;
        };
        let moved = match to.and_then(|to| self.place_file(to)) {
            Some(to) => fs::rename(&path, to),
            None => fs::remove_file(&path),
        };
        if let Err(error) = moved
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%path, %error, "what is remembered of the run stays at its former place");
        }
    }

    fn place_file(&self, place: &str) -> Option<Utf8PathBuf> {
        let hash = digest(&SHA256, place.as_bytes());
        Some(self.0.as_ref()?.join(to_hex(&hash.as_ref()[..16])))
    }
}

/// A new id for a run, which no other run has.
pub fn new_run_uid() -> Result<String, StoreError> {
    random_hex(16)
}

fn random_hex(bytes: usize) -> Result<String, StoreError> {
    let mut random = vec![0; bytes];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| StoreError::refused("the system gave no random numbers"))?;
    Ok(to_hex(&random))
}

/// Whole or not at all; when two make one at a time, the first one stays.
fn make_key(folder: &Utf8Path, path: &Utf8Path) -> std::io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let key = random_hex(32).map_err(std::io::Error::other)?;
    let begun = Utf8PathBuf::from(format!(
        "{path}.{}",
        random_hex(8).map_err(std::io::Error::other)?
    ));
    let placed = private(&begun)
        .and_then(|mut file| {
            writeln!(file, "{key}")?;
            file.sync_all()
        })
        .and_then(|()| match fs::hard_link(&begun, path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            Ok(()) | Err(_) => fs::File::open(folder)?.sync_all(),
        });
    // A rest of it holds a key that nobody uses.
    let _ = fs::remove_file(&begun);
    placed
}

fn private(path: &Utf8Path) -> std::io::Result<fs::File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

fn key_id(user_key: &[u8]) -> String {
    let root = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, user_key);
    to_hex(&ring::hmac::sign(&root, b"osmosis key id").as_ref()[..8])
}

/// Small letters.
fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    let digits = bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(*byte)]);
    digits.collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}
