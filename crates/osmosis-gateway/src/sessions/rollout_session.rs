use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use osmosis_core::{Attempt, RolloutId, SampleId, TaskClock};
use osmosis_dialect::{Sampling, Usage};
use osmosis_store::{CallPurpose, CallSummary, JudgeSummary};
use parking_lot::{Mutex, RwLock};
use rand::distr::{Alphanumeric, SampleString};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::calls::deadline::CallDeadline;
use crate::calls::replay::Replays;
use crate::policy::Fault;
use crate::policy::registry::Served;
use crate::sessions::call_history::CallHistory;
use crate::sessions::fault_tally::{Ended, FaultTally};
use crate::sessions::live::{LiveRollout, LiveStatus, Totals};

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
    /// keep completions.
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
    /// The id that the caller was given.
    pub id: String,
    pub sample: SampleId,
    /// The numbers of its token records within the sample, one for each choice; empty without tokens.
    pub calls: Vec<u32>,
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

    /// From now on the ids of answers, and what was sampled, are kept until the session is closed.
    pub fn keep_completions(&self) {
        self.state.keeps_completions.store(true, Ordering::Relaxed);
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
struct SessionState {
    whose: Whose,
    ended: CancellationToken,
    calls: TaskTracker,
    history: Arc<CallHistory>,
    replays: Arc<Replays>,
    keeps_completions: AtomicBool,
    decodes_greedily: AtomicBool,
    clock: OnceLock<Arc<TaskClock>>,
    totals: Arc<Totals>,
    tally: Mutex<Tally>,
}

#[derive(Debug, Default)]
struct Tally {
    summary: CallSummary,
    under_way: u32,
    busy_since: Option<Instant>,
    model_time: Duration,
    faults: FaultTally,
    completions: Vec<GivenCompletion>,
    token_records: Vec<(SampleId, Bytes)>,
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

/// One request inside a session; `RolloutSession::close` waits until it is dropped.
#[derive(Debug)]
pub(crate) struct Visit {
    state: Arc<SessionState>,
    _token: TaskTrackerToken,
}

/// What a recorded call adds to its rollout's sums.
#[derive(Debug)]
pub(crate) struct CallResult {
    pub(crate) sample: SampleId,
    pub(crate) usage: Usage,
    pub(crate) ended: Ended,
    /// The answer, when it was whole and the session keeps them.
    pub(crate) completion: Option<GivenCompletion>,
    /// What was sampled, when the session keeps that.
    pub(crate) token_records: Vec<(SampleId, Bytes)>,
}

impl Visit {
    pub(crate) fn rollout(&self) -> &RolloutId {
        &self.state.whose.rollout
    }

    pub(crate) fn alias(&self) -> Option<&RolloutId> {
        self.state.whose.alias.as_ref()
    }

    pub(crate) fn attempt(&self) -> Attempt {
        self.state.whose.attempt
    }

    /// The judge, when this is the session of a grader.
    pub(crate) fn judge(&self) -> Option<Arc<Served>> {
        self.state.whose.judge.clone()
    }

    pub(crate) fn purpose(&self) -> CallPurpose {
        self.state.whose.purpose
    }

    /// What the policy remembers while the session is open.
    pub(crate) fn history(&self) -> Arc<CallHistory> {
        Arc::clone(&self.state.history)
    }

    /// What callers have asked for under a key of their own.
    pub(crate) fn replays(&self) -> Arc<Replays> {
        Arc::clone(&self.state.replays)
    }

    /// Cancelled when the rollout's session is closed.
    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.state.ended
    }

    pub(crate) fn keeps_completions(&self) -> bool {
        self.state.keeps_completions.load(Ordering::Relaxed)
    }

    /// How the run's policy samples for this rollout.
    pub(crate) fn sampling(&self, of_run: Sampling) -> Sampling {
        if self.decodes_greedily() {
            of_run.greedy()
        } else {
            of_run
        }
    }

    pub(crate) fn decodes_greedily(&self) -> bool {
        self.state.decodes_greedily.load(Ordering::Relaxed)
    }

    pub(crate) fn clock(&self) -> Option<Arc<TaskClock>> {
        self.state.clock.get().cloned()
    }

    /// Until when a call that begins now is waited for.
    pub(crate) fn call_deadline(&self) -> CallDeadline {
        CallDeadline::new(self.clock(), Instant::now(), self.slowest_answer())
    }

    fn slowest_answer(&self) -> Duration {
        self.state.tally.lock().faults.slowest_answer()
    }

    pub(crate) fn call_begins(&self) {
        if let Some(clock) = self.state.clock.get() {
            // Unless it is known better.
            clock.start(Instant::now());
        }
        let mut tally = self.state.tally.lock();
        if tally.under_way == 0 {
            tally.busy_since = Some(Instant::now());
        }
        tally.under_way += 1;
    }

    pub(crate) fn call_is_recorded(&self, result: CallResult) {
        let mut tally = self.state.tally.lock();
        let usage = result.usage;
        let call = CallSummary {
            model_calls: 1,
            prompt_tokens: usage.prompt_tokens.unwrap_or(0),
            completion_tokens: usage.completion_tokens.unwrap_or(0),
            cached_tokens: usage.cached_tokens,
            reasoning_tokens: usage.reasoning_tokens,
            judge: JudgeSummary::default(),
        };
        tally.summary.add(&call);
        // The totals are the policy's.
        if self.purpose() == CallPurpose::Policy {
            self.state.totals.add(&call);
        }
        // Those of a standing session have no end that they could decide about.
        if !self.state.history.is_bounded() {
            let clock = self.state.clock.get().map(|clock| &**clock);
            tally.faults.note(&result.sample, result.ended, clock);
        }
        tally.completions.extend(result.completion);
        tally.token_records.extend(result.token_records);
        tally.under_way -= 1;
        if tally.under_way == 0
            && let Some(since) = tally.busy_since.take()
        {
            tally.model_time += since.elapsed();
        }
    }
}

fn digest_of(key: &str) -> KeyDigest {
    Sha256::digest(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::FaultKind;
    use crate::sessions::fault_tally::CallOutcome;

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
