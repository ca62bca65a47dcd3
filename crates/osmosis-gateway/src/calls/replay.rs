//! Calls that a caller repeats under one `Idempotency-Key`: the first is answered and recorded, the others
//! are given the same answer.
//!
//! Only that header is taken for such a promise. `x-request-id` names a request for logs (some agents send
//! one for a whole conversation), and `x-stainless-retry-count` names none; calls that carry these are calls
//! of their own, each recorded as what it was.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

/// How many keys of one session are remembered.
const REMEMBERED_KEYS: usize = 256;
/// An answer beyond this is not kept, and a repeated call is a call of its own.
const MAX_KEPT_BYTES: usize = 1 << 20;
/// What all kept answers of one session may take.
const MAX_ALL_BYTES: usize = 8 << 20;
/// A key beyond this is none.
const MAX_KEY_BYTES: usize = 255;

/// What a key stands for, so that a reused one is noticed.
pub(crate) type RequestDigest = [u8; 32];

/// The answers of one session, by key.
#[derive(Default)]
pub(crate) struct Replays(Mutex<Known>);

#[derive(Default)]
struct Known {
    entries: VecDeque<Entry>,
    bytes: usize,
}

struct Entry {
    key: String,
    digest: RequestDigest,
    state: State,
}

enum State {
    /// Being answered. The channel closes when that ends.
    UnderWay(watch::Receiver<()>),
    Answered(StoredAnswer),
}

/// An answer as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredAnswer {
    pub(crate) status: u16,
    pub(crate) streamed: bool,
    pub(crate) body: Bytes,
}

/// What a call with a key is.
#[derive(Debug)]
pub(crate) enum Claim {
    /// The first; say how it went.
    First(FirstUse),
    /// A repetition of one that was answered.
    Again(StoredAnswer),
    /// Another call under a key that is taken.
    OtherRequest,
}

impl fmt::Debug for Replays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replays").finish_non_exhaustive()
    }
}

/// The digest of what a call asks for.
pub(crate) fn digest(dialect: &str, sample: &str, body: &[u8]) -> RequestDigest {
    let mut hash = Sha256::new();
    for part in [dialect.as_bytes(), sample.as_bytes()] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.update(body);
    hash.finalize().into()
}

/// The key of a call, when it has one that can be kept.
pub(crate) fn key_in(headers: &http::HeaderMap) -> Option<String> {
    let key = headers.get("idempotency-key")?.to_str().ok()?.trim();
    (!key.is_empty() && key.len() <= MAX_KEY_BYTES).then(|| key.to_owned())
}

impl Replays {
    /// Says what this call is; waits while the first of its kind is under way.
    pub(crate) async fn claim(self: &Arc<Self>, key: &str, digest: RequestDigest) -> Claim {
        loop {
            let mut under_way = {
                let mut known = self.0.lock();
                match known.entries.iter().find(|entry| entry.key == key) {
                    Some(entry) if entry.digest != digest => return Claim::OtherRequest,
                    Some(entry) => match &entry.state {
                        State::Answered(kept) => return Claim::Again(kept.clone()),
                        State::UnderWay(end) => end.clone(),
                    },
                    None => {
                        let (end, ended) = watch::channel(());
                        known.entries.push_back(Entry {
                            key: key.to_owned(),
                            digest,
                            state: State::UnderWay(ended),
                        });
                        known.shrink();
                        return Claim::First(FirstUse {
                            replays: Arc::clone(self),
                            key: key.to_owned(),
                            _end: end,
                        });
                    }
                }
            };
            // It never changes; it closes.
            let _ = under_way.changed().await;
        }
    }
}

impl Known {
    fn remove(&mut self, at: usize) {
        if let Some(Entry {
            state: State::Answered(kept),
            ..
        }) = self.entries.remove(at)
        {
            self.bytes -= kept.body.len();
        }
    }

    /// Forgets the oldest answers that are too many. Calls under way are as many as there are callers.
    fn shrink(&mut self) {
        while self.entries.len() > REMEMBERED_KEYS || self.bytes > MAX_ALL_BYTES {
            let oldest = self
                .entries
                .iter()
                .position(|entry| matches!(entry.state, State::Answered(_)));
            match oldest {
                Some(at) => self.remove(at),
                None => return,
            }
        }
    }
}

/// The first call under a key. Dropped without [`FirstUse::answered`], it is as if it had never come: the
/// next one under the key is answered anew.
pub(crate) struct FirstUse {
    replays: Arc<Replays>,
    key: String,
    /// Closes after the entry is in its place.
    _end: watch::Sender<()>,
}

impl FirstUse {
    pub(crate) fn answered(self, kept: StoredAnswer) {
        if kept.body.len() > MAX_KEPT_BYTES {
            return;
        }
        let mut known = self.replays.0.lock();
        let length = kept.body.len();
        if let Some(entry) = known.entries.iter_mut().find(|entry| entry.key == self.key) {
            entry.state = State::Answered(kept);
            known.bytes += length;
            known.shrink();
        }
    }
}

impl Drop for FirstUse {
    fn drop(&mut self) {
        let mut known = self.replays.0.lock();
        let abandoned = known
            .entries
            .iter()
            .position(|entry| entry.key == self.key && matches!(entry.state, State::UnderWay(_)));
        if let Some(at) = abandoned {
            known.remove(at);
        }
    }
}

impl fmt::Debug for FirstUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirstUse").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(body: &'static str) -> StoredAnswer {
        StoredAnswer {
            status: 200,
            streamed: false,
            body: Bytes::from_static(body.as_bytes()),
        }
    }

    #[tokio::test]
    async fn a_key_stands_for_one_request() {
        let replays = Arc::new(Replays::default());
        let one = digest("chat", "main", b"one");
        let Claim::First(first) = replays.claim("k", one).await else {
            panic!("nothing came before");
        };
        assert!(matches!(
            replays.claim("k", digest("chat", "main", b"two")).await,
            Claim::OtherRequest
        ));
        first.answered(kept("hello"));
        assert!(matches!(replays.claim("k", one).await, Claim::Again(k) if k == kept("hello")));
    }

    #[tokio::test]
    async fn a_repetition_waits_for_the_first_and_takes_its_place_when_it_fails() {
        let replays = Arc::new(Replays::default());
        let one = digest("chat", "main", b"one");
        let Claim::First(first) = replays.claim("k", one).await else {
            panic!("nothing came before");
        };
        let mut second = Box::pin(replays.claim("k", one));
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        drop(first);
        let Claim::First(second) = second.await else {
            panic!("the first came to nothing");
        };
        let mut third = Box::pin(replays.claim("k", one));
        assert!(futures_util::poll!(third.as_mut()).is_pending());
        second.answered(kept("hello"));
        assert!(matches!(third.await, Claim::Again(_)));
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded() {
        let replays = Arc::new(Replays::default());
        let one = digest("chat", "main", b"one");
        for n in 0..2 * REMEMBERED_KEYS {
            let Claim::First(first) = replays.claim(&format!("k{n}"), one).await else {
                panic!("nothing came before");
            };
            first.answered(StoredAnswer {
                body: Bytes::from(vec![0; 100_000]),
                ..kept("")
            });
            let known = replays.0.lock();
            assert!(known.entries.len() <= REMEMBERED_KEYS && known.bytes <= MAX_ALL_BYTES);
        }
        let Claim::First(first) = replays.claim("large", one).await else {
            panic!("nothing came before");
        };
        first.answered(StoredAnswer {
            body: Bytes::from(vec![0; MAX_KEPT_BYTES + 1]),
            ..kept("")
        });
        assert!(matches!(replays.claim("large", one).await, Claim::First(_)));
    }
}
