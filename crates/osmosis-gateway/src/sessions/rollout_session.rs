//! The key of one attempt of a rollout, and what went through it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use osmosis_core::{Attempt, RolloutId, SampleId, TaskClock};
use osmosis_store::{CallPurpose, CallSummary};
use parking_lot::{Mutex, RwLock};
use rand::distr::{Alphanumeric, SampleString};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::calls::replay::Replays;
use crate::policy::Fault;
use crate::policy::registry::Served;
use crate::sessions::call_history::CallHistory;
use crate::sessions::fault_tally::FaultTally;
use crate::sessions::live::{LiveRollout, LiveStatus, Totals};
use crate::sessions::visit::Visit;

/// 43 letters and digits carry 256 bits.
const KEY_LENGTH: usize = 43;

/// What went through a session.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RolloutCalls {
    /// Every recorded call counts, also those that failed.
    pub summary: CallSummary,
    /// Time during which at least one call was under way.
    pub model_time: Duration,
    /// How the last call of a sample failed, when it failed for a reason that is not the agent's; of
    /// several samples, that which ended last.
    pub last_fault: Option<Fault>,
    /// The same for calls that were not answered when the task ended, at its deadline or so: too soon to
    /// tell a silent server from a slow one.
    pub slow_fault: Option<Fault>,
    /// What the task lost so much time to that it explains why it was late.
    pub delay_fault: Option<Fault>,
    /// The whole answers that were given, in order; empty unless the session was asked to keep them.
    pub completions: Vec<GivenCompletion>,
    /// The calls in tokens, encoded, with the samples they belong to; empty unless the session was asked to
    /// keep them.
    pub token_records: Vec<(SampleId, Bytes)>,
}

impl RolloutCalls {
    /// The fault that is behind how the task ended. A task that `timed_out` while an answer took its time,
    /// as others did before, has itself to blame.
    pub fn fault_behind(&self, timed_out: bool) -> Option<&Fault> {
        let last = self.last_fault.as_ref();
        if timed_out {
            last.or(self.delay_fault.as_ref())
        } else {
            last.or(self.slow_fault.as_ref())
        }
    }
}

/// An answer as its caller knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenCompletion {
    /// The id that the caller was given, where details are kept and the answer has one.
    pub id: Option<String>,
    pub sample: SampleId,
    /// The numbers of its token records within the sample, one for each choice; empty without tokens.
    pub calls: Vec<u32>,
    /// The token records of an answer to the same request that its caller never got.
    pub replaces: Vec<u32>,
}

/// A rollout's way in: a key that opens this rollout and nothing else.
pub struct RolloutSession {
    key: String,
    digest: KeyDigest,
    sessions: SessionRegistry,
    state: Arc<SessionState>,
}

impl RolloutSession {
    pub fn key(&self) -> &str {
        &self.key
    }

    /// From now on it is kept which answers were given, until the session is closed.
    pub fn keep_completions(&self) {
        self.state.keeps_completions.store(true, Ordering::Relaxed);
    }

    /// The same for their ids, and for what was sampled.
    pub fn keep_details(&self) {
        self.state.keeps_details.store(true, Ordering::Relaxed);
    }

    /// From now on what the run's policy is asked through this session is decoded at temperature 0, whatever
    /// the call or the run's `[sampling]` says.
    pub fn decode_greedily(&self) {
        self.state.decodes_greedily.store(true, Ordering::Relaxed);
    }

    /// The task's own clock: calls are given up in time for its deadline, and what they lose to servers that
    /// fail is lost on it.
    pub fn keep_time(&self, clock: Arc<TaskClock>) {
        let _ = self.state.clock.set(clock);
    }

    /// Ends the key, ends what is still under way, and returns when all of it is queued for
    /// recording. (Dropping a session without closing it ends the key too.)
    pub async fn close(self) -> RolloutCalls {
        self.end();
        self.state.calls.close();
        self.state.calls.wait().await;
        let mut tally = self.state.tally.lock();
        RolloutCalls {
            summary: tally.summary,
            model_time: tally.model_time,
            last_fault: tally.faults.last_fault(),
            slow_fault: tally.faults.slow_fault(),
            delay_fault: match self.state.clock.get() {
                Some(clock) if clock.explains_delay() => tally.faults.last_trouble(),
                Some(_) | None => None,
            },
            completions: std::mem::take(&mut tally.completions),
            token_records: std::mem::take(&mut tally.token_records),
        }
    }

    fn end(&self) {
        self.sessions.open.write().remove(&self.digest);
        self.state.ended.cancel();
    }
}

impl Drop for RolloutSession {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for RolloutSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RolloutSession")
            .field("rollout", &self.state.whose.rollout)
            .field("attempt", &self.state.whose.attempt)
            .finish_non_exhaustive()
    }
}

type KeyDigest = [u8; 32];

/// The attempt that a key opens.
#[derive(Debug)]
pub(crate) struct Whose {
    pub(crate) rollout: RolloutId,
    pub(crate) attempt: Attempt,
    /// What the rollout is called where it runs, when that is another name.
    pub(crate) alias: Option<RolloutId>,
    /// What its calls are recorded as.
    pub(crate) purpose: CallPurpose,
    /// What answers whatever is asked through this session; without it, the model's name decides.
    pub(crate) judge: Option<Arc<Served>>,
}

/// All open sessions, by the digest of their key: the key itself is not kept, and how long a lookup takes
/// says nothing about it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SessionRegistry {
    open: Arc<RwLock<HashMap<KeyDigest, Arc<SessionState>>>>,
    /// What went through all sessions, closed ones too.
    totals: Arc<Totals>,
}

#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) whose: Whose,
    pub(super) ended: CancellationToken,
    pub(super) calls: TaskTracker,
    pub(super) history: Arc<CallHistory>,
    pub(super) replays: Arc<Replays>,
    pub(super) keeps_completions: AtomicBool,
    pub(super) keeps_details: AtomicBool,
    pub(super) decodes_greedily: AtomicBool,
    pub(super) clock: OnceLock<Arc<TaskClock>>,
    pub(super) totals: Arc<Totals>,
    pub(super) tally: Mutex<Tally>,
}

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) summary: CallSummary,
    pub(super) under_way: u32,
    pub(super) busy_since: Option<Instant>,
    pub(super) model_time: Duration,
    pub(super) faults: FaultTally,
    pub(super) completions: Vec<GivenCompletion>,
    pub(super) token_records: Vec<(SampleId, Bytes)>,
}

impl SessionRegistry {
    /// Opens a session that ends, at the latest, with `everything`.
    pub(crate) fn open(
        &self,
        whose: Whose,
        history: CallHistory,
        everything: &CancellationToken,
    ) -> RolloutSession {
        let key = format!(
            "osm-{}",
            Alphanumeric.sample_string(&mut rand::rng(), KEY_LENGTH)
        );
        let digest = digest_of(&key);
        let state = Arc::new(SessionState {
            whose,
            ended: everything.child_token(),
            calls: TaskTracker::new(),
            history: Arc::new(history),
            replays: Arc::default(),
            keeps_completions: AtomicBool::new(false),
            keeps_details: AtomicBool::new(false),
            decodes_greedily: AtomicBool::new(false),
            clock: OnceLock::new(),
            totals: Arc::clone(&self.totals),
            tally: Mutex::default(),
        });
        self.open.write().insert(digest, Arc::clone(&state));
        RolloutSession {
            key,
            digest,
            sessions: self.clone(),
            state,
        }
    }

    /// What goes through the sessions now, and what went through them so far.
    pub(crate) fn live(&self) -> LiveStatus {
        let open: Vec<Arc<SessionState>> = self.open.read().values().cloned().collect();
        // The second session of a rollout is not another rollout.
        let shown = open
            .iter()
            .filter(|state| state.whose.purpose != CallPurpose::Other);
        let rollouts = shown.map(|state| {
            let tally = state.tally.lock();
            LiveRollout {
                rollout: state.whose.rollout.clone(),
                attempt: state.whose.attempt,
                calls: tally.summary,
                under_way: tally.under_way,
            }
        });
        LiveStatus {
            rollouts: rollouts.collect(),
            totals: self.totals.summary(),
        }
    }

    /// What went through all sessions so far.
    pub(crate) fn totals(&self) -> CallSummary {
        self.totals.summary()
    }

    /// Lets a request in, if its key opens a session.
    pub(crate) fn enter(&self, key: &str) -> Option<Visit> {
        let key = key.split_once(COMPANION_MARK).map_or(key, |(key, _)| key);
        let digest = digest_of(key);
        let open = self.open.read();
        let state = Arc::clone(open.get(&digest)?);
        // Taken while the session cannot be closed, so that `close` waits for every visit it let in.
        let token = state.calls.token();
        Some(Visit {
            state,
            _token: token,
        })
    }
}

/// Before it stands a rollout's key, which has no such character.
const COMPANION_MARK: char = '~';

/// Another key that opens the same session, and that nobody can tell who has the first one alone. For protocols
/// whose older editions know one key, for the model and for callbacks alike: the model's key then opens no
/// callback.
pub fn companion_key(key: &str) -> String {
    let letters = Alphanumeric.sample_string(&mut rand::rng(), KEY_LENGTH);
    format!("{key}{COMPANION_MARK}{letters}")
}

fn digest_of(key: &str) -> KeyDigest {
    Sha256::digest(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use osmosis_dialect::{Sampling, Usage};

    use super::*;
    use crate::policy::FaultKind;
    use crate::sessions::fault_tally::{CallOutcome, Ended};
    use crate::sessions::visit::CallResult;

    fn session(sessions: &SessionRegistry) -> RolloutSession {
        sessions.open(
            Whose {
                rollout: RolloutId::of(0, 0),
                attempt: Attempt(1),
                alias: None,
                purpose: CallPurpose::Policy,
                judge: None,
            },
            CallHistory::default(),
            &CancellationToken::new(),
        )
    }

    #[test]
    fn a_key_opens_its_own_door_until_it_is_dropped() {
        let sessions = SessionRegistry::default();
        let (first, second) = (session(&sessions), session(&sessions));
        assert_ne!(first.key(), second.key());
        assert!(first.key().starts_with("osm-") && first.key().len() == 47);
        assert!(sessions.enter(first.key()).is_some());
        assert!(sessions.enter("osm-guess").is_none());
        let key = first.key().to_owned();
        drop(first);
        assert!(sessions.enter(&key).is_none());
        assert!(sessions.enter(second.key()).is_some());
    }

    #[test]
    fn a_door_does_not_show_its_key() {
        let sessions = SessionRegistry::default();
        let session = session(&sessions);
        assert!(!format!("{session:?} {sessions:?}").contains(&session.key()[4..]));
    }

    #[test]
    fn a_door_is_greedy_for_its_own_rollout_alone() {
        let of_run = Sampling {
            temperature: Some(0.7),
            top_p: Some(0.9),
            ..Sampling::default()
        };
        let sessions = SessionRegistry::default();
        let (greedy, other) = (session(&sessions), session(&sessions));
        greedy.decode_greedily();
        let sampling = sessions.enter(greedy.key()).unwrap().sampling(of_run);
        assert_eq!(
            (sampling.temperature, sampling.top_p),
            (Some(0.0), Some(1.0))
        );
        assert!(sampling.overrides, "whatever the call says");
        assert_eq!(
            sessions.enter(other.key()).unwrap().sampling(of_run),
            of_run
        );
    }

    #[tokio::test]
    async fn the_last_call_decides_whether_there_is_a_fault() {
        let sessions = SessionRegistry::default();
        let session = session(&sessions);
        let fault = Fault {
            kind: FaultKind::ServerError,
            status: 500,
            message: "down".to_owned(),
        };
        let visit = sessions.enter(session.key()).unwrap();
        let record = |outcome| {
            visit.call_begins();
            visit.call_is_recorded(CallResult {
                sample: SampleId::main(),
                usage: Usage {
                    prompt_tokens: Some(3),
                    cached_tokens: Some(2),
                    ..Usage::default()
                },
                ended: Ended {
                    outcome,
                    began: Instant::now(),
                    first_byte_after: None,
                    trouble: None,
                },
                completion: None,
                token_records: vec![],
            });
        };
        record(CallOutcome::Faulty(fault.clone()));
        record(CallOutcome::Answered);
        assert_eq!(visit.state.tally.lock().faults.last_fault(), None);
        record(CallOutcome::Faulty(fault.clone()));
        record(CallOutcome::Unknown);
        drop(visit);
        let calls = session.close().await;
        assert_eq!(calls.last_fault, Some(fault));
        assert_eq!(calls.summary.model_calls, 4);
        assert_eq!(calls.summary.prompt_tokens, 12);
        assert_eq!(calls.summary.cached_tokens, Some(8));
        assert_eq!(calls.summary.reasoning_tokens, None);
    }
}
