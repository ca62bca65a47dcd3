//! What a request needs after a restart, encrypted: addresses with their credentials, and keys.

use std::fmt;

use bytes::Bytes;
use http::HeaderValue;
use osmosis_core::RolloutId;
use osmosis_gateway::Secret;
use reqwest::Url;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::request::{Callbacks, RolloutRequest};

/// The first byte of everything sealed.
const VERSION: u8 = 1;
/// Goes into every seal before the rollout's id, so that one can't be put in another's place.
const PURPOSE: &[u8] = b"osmosis rollout request\0";

/// What seals requests on the disk. Whoever has it and the run's folder has the keys of its requests.
#[derive(Clone)]
pub struct StateKey([u8; 32]);

impl StateKey {
    /// A new one.
    pub fn generate() -> Self {
        Self(rand::random())
    }

    /// Out of any text that is long enough.
    pub fn from_text(text: &str) -> Self {
        let mut digest = Sha256::new();
        digest.update(b"osmosis state key\0");
        digest.update(text.trim().as_bytes());
        Self(digest.finalize().into())
    }

    fn cipher(&self) -> Option<LessSafeKey> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, &self.0).ok()?;
        Some(LessSafeKey::new(key))
    }

    fn seal(&self, rollout: &RolloutId, mut text: Vec<u8>) -> Option<Bytes> {
        // 96 random bits: the same twice is unlikely for billions of requests under one key.
        let nonce: [u8; NONCE_LEN] = rand::random();
        let unique = Nonce::assume_unique_for_key(nonce);
        self.cipher()?
            .seal_in_place_append_tag(unique, bound_to(rollout), &mut text)
            .ok()?;
        let mut sealed = Vec::with_capacity(1 + NONCE_LEN + text.len());
        sealed.push(VERSION);
        sealed.extend(nonce);
        sealed.extend(text);
        Some(sealed.into())
    }

    fn open(&self, rollout: &RolloutId, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, text) = sealed
            .strip_prefix(&[VERSION])?
            .split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = text.to_vec();
        let opened = self
            .cipher()?
            .open_in_place(nonce, bound_to(rollout), &mut text)
            .ok()?
            .len();
        text.truncate(opened);
        Some(text)
    }
}

impl fmt::Debug for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateKey([redacted])")
    }
}

fn bound_to(rollout: &RolloutId) -> Aad<Vec<u8>> {
    Aad::from([PURPOSE, rollout.as_str().as_bytes()].concat())
}

/// Where a request's model and its callbacks are, and the keys for them.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) chat_completions_url: String,
    pub(crate) llm_key: Option<Secret>,
    pub(crate) callbacks: Callbacks,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("callbacks", &self.callbacks)
            .finish_non_exhaustive()
    }
}

#[derive(Serialize, Deserialize)]
struct StoredAccess {
    chat_completions_url: String,
    llm_key: Option<String>,
    completion: String,
    grader: Option<String>,
    authorization: Option<String>,
}

impl Access {
    pub(crate) fn of(request: &RolloutRequest) -> Self {
        Self {
            chat_completions_url: request.chat_completions_url.clone(),
            llm_key: request.llm_key.clone(),
            callbacks: request.callbacks.clone(),
        }
    }

    /// `None` can't happen, and would mean that a request is not durable.
    pub(crate) fn seal(&self, key: &StateKey, rollout: &RolloutId) -> Option<Bytes> {
        let authorization = self.callbacks.authorization.as_ref();
        let stored = StoredAccess {
            chat_completions_url: self.chat_completions_url.clone(),
            llm_key: self.llm_key.as_ref().map(|key| key.expose().to_owned()),
            completion: self.callbacks.completion.to_string(),
            grader: self.callbacks.grader.as_ref().map(Url::to_string),
            authorization: match authorization {
                Some(value) => Some(std::str::from_utf8(value.as_bytes()).ok()?.to_owned()),
                None => None,
            },
        };
        key.seal(rollout, serde_json::to_vec(&stored).ok()?)
    }

    /// `None` when it was sealed with another key, or is damaged.
    pub(crate) fn open(key: &StateKey, rollout: &RolloutId, sealed: &[u8]) -> Option<Self> {
        let text = key.open(rollout, sealed)?;
        let stored: StoredAccess = serde_json::from_slice(&text).ok()?;
        let authorization = match stored.authorization {
            Some(text) => {
                let mut value = HeaderValue::from_str(&text).ok()?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        let grader = stored.grader.map(|url| Url::parse(&url));
        Some(Self {
            chat_completions_url: stored.chat_completions_url,
            llm_key: stored.llm_key.map(Secret::new),
            callbacks: Callbacks {
                completion: Url::parse(&stored.completion).ok()?,
                grader: grader.transpose().ok()?,
                authorization,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        let mut authorization = HeaderValue::from_static("Bearer controller-key");
        authorization.set_sensitive(true);
        Access {
            chat_completions_url: "http://u:hunter2@h/v1?t=1".to_owned(),
            llm_key: Some(Secret::new("llm-key-ä")),
            callbacks: Callbacks {
                completion: Url::parse("http://h/done?token=t0ken").unwrap(),
                grader: None,
                authorization: Some(authorization),
            },
        }
    }

    #[test]
    fn what_was_sealed_is_opened_with_the_same_key_for_the_same_rollout_alone() {
        let key = StateKey::from_text("a key of the operator's own");
        let (one, other) = (RolloutId::of(0, 0), RolloutId::of(1, 0));
        let sealed = access().seal(&key, &one).unwrap();
        let same = StateKey::from_text(" a key of the operator's own\n");
        let opened = Access::open(&same, &one, &sealed).unwrap();
        assert_eq!(opened.chat_completions_url, access().chat_completions_url);
        assert_eq!(opened.llm_key.unwrap().expose(), "llm-key-ä");
        assert_eq!(opened.callbacks.completion, access().callbacks.completion);
        assert_eq!(opened.callbacks.grader, None);
        let authorization = opened.callbacks.authorization.unwrap();
        assert_eq!(authorization, "Bearer controller-key");
        assert!(authorization.is_sensitive());

        assert!(Access::open(&key, &other, &sealed).is_none());
        assert!(Access::open(&StateKey::generate(), &one, &sealed).is_none());
        for at in 0..sealed.len() {
            let mut damaged = sealed.to_vec();
            damaged[at] ^= 1;
            assert!(Access::open(&key, &one, &damaged).is_none(), "byte {at}");
            assert!(Access::open(&key, &one, &sealed[..at]).is_none());
        }
    }

    #[test]
    fn nothing_of_it_is_in_clear_and_no_two_seals_are_alike() {
        let key = StateKey::generate();
        let id = RolloutId::of(0, 0);
        let sealed = access().seal(&key, &id).unwrap();
        let text = String::from_utf8_lossy(&sealed).into_owned();
        for secret in ["hunter2", "t0ken", "llm-key", "controller-key", "http"] {
            assert!(!text.contains(secret), "{secret}");
        }
        assert_ne!(sealed, access().seal(&key, &id).unwrap());
        let shown = format!("{key:?} {:?}", access());
        for secret in ["t0ken", "llm-key", "hunter2"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}
