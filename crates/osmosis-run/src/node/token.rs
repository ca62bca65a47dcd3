//! What opens a run to nodes: `osn1_` and the run, a role of the database, and the node key, in one word.

use std::fmt;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use camino::Utf8Path;
use osmosis_core::RunName;
use osmosis_store::{RunCredentials, RunKey, RunKind};
use serde::{Deserialize, Serialize};

use crate::source_digest::{hex, text_digest};
use crate::{RunError, RunErrorKind, io_error as io};

/// What every token begins with.
const PREFIX: &str = "osn1_";

/// The file in a run's folder that has its token.
const FILE: &str = "join-token";

/// A token, which is shown in the one command that nodes are started with, and nowhere else.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinToken {
    pub run: RunName,
    pub kind: RunKind,
    /// The role of the database that sees this run alone.
    pub role: String,
    password: String,
    /// The node key of the run: 32 random bytes in hexadecimal digits. It opens the controller's token endpoint.
    key: String,
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("run", &self.run)
            .field("kind", &self.kind)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

impl JoinToken {
    /// A new key for a run, with credentials that were made for it.
    pub fn new(run: &RunKey, credentials: RunCredentials) -> Self {
        Self {
            run: run.name.clone(),
            kind: run.kind,
            role: credentials.role,
            password: credentials.password,
            key: hex(&rand::random::<[u8; 32]>()),
        }
    }

    /// The same for a run that has another name by now.
    #[must_use]
    pub fn named(self, run: RunName) -> Self {
        Self { run, ..self }
    }

    /// The whole token. For the command that nodes are started with.
    pub fn reveal(&self) -> String {
        // A struct of strings can't fail to become JSON.
        let json = serde_json::to_vec(self).unwrap_or_default();
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(json))
    }

    /// The password of the role.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// The node key, which a node sends to the controller's token endpoint.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What the database has of the key: the SHA-256 of its digits.
    pub fn key_sha256(&self) -> String {
        text_digest(&self.key)
    }

    /// Texts that must never be written down.
    pub fn secrets(&self) -> Vec<String> {
        vec![self.password.clone(), self.key.clone(), self.reveal()]
    }

    /// The token that an earlier process left in the run's folder, if it is still one.
    pub fn left_in(folder: &Utf8Path) -> Option<Self> {
        let text = std::fs::read_to_string(folder.join(FILE)).ok()?;
        text.trim().parse().ok()
    }

    /// Leaves it in the run's folder, for its owner alone.
    pub fn leave_in(&self, folder: &Utf8Path) -> Result<(), RunError> {
        let path = folder.join(FILE);
        let temporary = folder.join(format!("{FILE}.tmp"));
        let write = || {
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&temporary)?;
            writeln!(file, "{}", self.reveal())?;
            file.sync_data()?;
            std::fs::rename(&temporary, &path)
        };
        write().map_err(|error| io(&path, &error))
    }
}

impl FromStr for JoinToken {
    type Err = RunError;

    /// Messages don't quote the text, which may hold most of a token.
    fn from_str(text: &str) -> Result<Self, RunError> {
        let invalid = |why: &str| {
            RunError::usage(
                RunErrorKind::TokenInvalid,
                format!("the token of `--join` {why}"),
            )
            .hint("copy the whole command that `osmosis eval submit --store …` printed")
        };
        let encoded = text
            .trim()
            .strip_prefix(PREFIX)
            .ok_or_else(|| invalid("does not begin with `osn1_`"))?;
        let json = URL_SAFE_NO_PAD
            .decode(encoded)
            .map_err(|_| invalid("is cut off or mistyped"))?;
        serde_json::from_slice(&json).map_err(|_| invalid("is cut off or mistyped"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn token() -> JoinToken {
        let run = RunKey {
            kind: RunKind::Evaluation,
            name: RunName::new("multiply").unwrap(),
        };
        let credentials = RunCredentials {
            role: "osmosis_run_1_x".to_owned(),
            password: "hunter2".to_owned(),
        };
        JoinToken::new(&run, credentials)
    }

    #[test]
    fn a_token_comes_back_from_its_text_and_tells_its_secrets_nowhere_else() {
        let token = token();
        let text = token.reveal();
        assert!(text.starts_with("osn1_"), "{text}");
        assert_eq!(text.parse::<JoinToken>().unwrap(), token);
        let told = format!("{token:?}");
        for secret in token.secrets() {
            assert!(!told.contains(&secret), "{told}");
        }
        assert_eq!(token.key().len(), 64);
        assert_ne!(token.key(), self::token().key());
    }

    #[test]
    fn what_is_no_token_is_refused_without_being_quoted() {
        let whole = token().reveal();
        for text in [
            "",
            "hunter2",
            &whole[..whole.len() - 9],
            "osn1_!!",
            "osn1_e30",
        ] {
            let error = text.parse::<JoinToken>().unwrap_err();
            assert_eq!(error.kind(), RunErrorKind::TokenInvalid, "{text}");
            assert!(error.is_usage());
            let told = format!("{error} {error:?}");
            assert!(text.len() < 6 || !told.contains(&text[5..]), "{told}");
        }
    }

    #[test]
    fn a_token_is_left_for_its_owner_alone_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap();
        assert_eq!(JoinToken::left_in(path), None);
        let token = token();
        token.leave_in(path).unwrap();
        let mode = path.join(FILE).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(JoinToken::left_in(path), Some(token));
    }
}
