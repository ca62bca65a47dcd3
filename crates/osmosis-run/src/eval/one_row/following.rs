//! What is recorded of a rollout, told once and in order.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use osmosis_core::{Phase, RolloutId, SampleId};
use osmosis_store::{CallPurpose, CallQuery, CallRecord, Store};
use osmosis_tokens::ChatFormat;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{RowEvent, TellRow};
use crate::RunError;
use crate::reports::{Entry, Transcriber};
use crate::transcripts::{self, Telling};

/// Calls are recorded a moment after they have ended, and what user code did next may be known before. It is
/// told so much later.
const SETTLE: Duration = Duration::from_millis(50);
/// More than this is not held back: user code prints faster than we read.
const MOST_PENDING: usize = 1_000;

/// Reads what the store has of one rollout, and tells what it has not told yet.
pub(super) struct Follower {
    rollout: RolloutId,
    transcriber: Transcriber,
    tell: Mutex<TellRow>,
    told: tokio::sync::Mutex<Reported>,
    /// What is told once the calls before it are.
    pending: Mutex<VecDeque<Pending>>,
    arrived: Notify,
}

struct Pending {
    event: RowEvent,
    /// So many calls of the last attempt come before it, however late they are recorded.
    after_calls: usize,
}

#[derive(Default)]
struct Reported {
    calls: usize,
    /// Of them, the policy's in the last attempt.
    of_attempt: usize,
    paths: HashMap<SampleId, Vec<Vec<Entry>>>,
}

impl Follower {
    pub(super) fn new(
        rollout: RolloutId,
        tokenizer: Option<Arc<ChatFormat>>,
        tell: TellRow,
    ) -> Self {
        Self {
            rollout,
            transcriber: Transcriber {
                tokenizer,
                ..Transcriber::default()
            },
            tell: Mutex::new(tell),
            told: tokio::sync::Mutex::default(),
            pending: Mutex::default(),
            arrived: Notify::new(),
        }
    }

    /// Tells as things are recorded and arrive, until the store is closed.
    pub(super) async fn follow(&self, store: &dyn Store) {
        let mut changes = store.changes();
        loop {
            tokio::select! {
                changed = changes.wait() => if changed.is_err() { return },
                () = self.arrived.notified() => {}
            }
            let waiting = self.pending.lock().len();
            if waiting > 0 {
                tokio::time::sleep(SETTLE).await;
            }
            // Whoever runs the row reads it again at the end, and reports what fails.
            if let Err(error) = self.catch_up(store).await {
                tracing::debug!(error = error.message(), "can't follow the rollout");
            }
            let recorded = self.told.lock().await.of_attempt;
            self.tell_first(waiting, recorded);
        }
    }

    /// Tells this after the calls that ended before it. No call ends before the agent begins.
    pub(super) fn tell_soon(&self, event: RowEvent) {
        self.tell_after(event, 0);
    }

    /// The same, and not before the last attempt has so many calls of the policy.
    pub(super) fn tell_after(&self, event: RowEvent, after_calls: usize) {
        if matches!(event, RowEvent::Phase(Phase::Agent)) {
            self.tell_pending();
            (self.tell.lock())(event);
            return;
        }
        let mut pending = self.pending.lock();
        pending.push_back(Pending { event, after_calls });
        let is_full = pending.len() > MOST_PENDING;
        drop(pending);
        if is_full {
            self.tell_pending();
        }
        self.arrived.notify_one();
    }

    /// Tells all that waits.
    pub(super) fn tell_pending(&self) {
        self.tell_first(usize::MAX, usize::MAX);
    }

    /// Tells at most `count`, up to the first that more calls come before than are `recorded`.
    fn tell_first(&self, count: usize, recorded: usize) {
        let mut pending = self.pending.lock();
        let due = pending
            .iter()
            .take(count)
            .take_while(|pending| pending.after_calls <= recorded)
            .count();
        for pending in pending.drain(..due) {
            (self.tell.lock())(pending.event);
        }
    }

    /// Tells the dataset row of the rollout.
    pub(super) async fn tell_row(&self, store: &dyn Store) -> Result<(), RunError> {
        let found = store.rollout(&self.rollout).await?;
        let Some(rollout) = found else { return Ok(()) };
        if let Some(row) = store.row(rollout.row_index).await? {
            (self.tell.lock())(RowEvent::Row(row.body.as_str().to_owned()));
        }
        Ok(())
    }

    pub(super) async fn catch_up(&self, store: &dyn Store) -> Result<(), RunError> {
        let mut told = self.told.lock().await;
        let query = CallQuery {
            rollout_id: self.rollout.clone(),
            attempt: None,
        };
        let calls = store.calls(query).await?;
        if calls.len() == told.calls {
            return Ok(());
        }
        let said = transcripts::of(store, &self.rollout, &[], &Telling::default()).await?;
        let attempt = calls.last().map(|call| call.attempt);
        let is_of_attempt = |call: &&CallRecord| {
            Some(call.attempt) == attempt && call.purpose == CallPurpose::Policy
        };
        told.of_attempt = calls.iter().filter(is_of_attempt).count();
        // Nothing is awaited from here on, so that what is told is noted, too.
        let mut tell = self.tell.lock();
        for (number, call) in calls.into_iter().enumerate().skip(told.calls) {
            told.calls = number + 1;
            let call = Box::new(call);
            tell(RowEvent::Call { number, call });
        }
        for sample in said {
            let paths = self.transcriber.paths(&sample.conversations);
            let known = told.paths.entry(sample.id.clone()).or_default();
            for path in &paths {
                let shared = known.iter().map(|other| shared(other, path)).max();
                let shared = shared.unwrap_or(0);
                let is_continued = known.iter().any(|other| other.len() == shared);
                if shared > 0 && shared < path.len() && !is_continued {
                    let sample = sample.id.to_string();
                    tell(RowEvent::Branched { sample });
                }
                for entry in &path[shared..] {
                    tell(RowEvent::Said {
                        sample: sample.id.to_string(),
                        entry: entry.clone(),
                    });
                }
            }
            *known = paths;
        }
        Ok(())
    }
}

/// How many entries two paths begin with in common.
fn shared(one: &[Entry], other: &[Entry]) -> usize {
    let pairs = one.iter().zip(other);
    pairs.take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_grader_does_waits_for_the_last_call_of_the_agent() {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = Arc::clone(&told);
        let tell = Box::new(move |event| lines.lock().push(format!("{event:?}")));
        let follower = Follower::new(RolloutId::of(0, 0), None, tell);
        follower.tell_soon(RowEvent::Printed("by the agent".to_owned()));
        follower.tell_after(RowEvent::Phase(Phase::Grade), 2);
        follower.tell_soon(RowEvent::Printed("by the grader".to_owned()));

        // One of two calls is recorded.
        follower.tell_first(usize::MAX, 1);
        assert_eq!(told.lock().join(" "), r#"Printed("by the agent")"#);

        follower.tell_first(usize::MAX, 2);
        assert_eq!(
            told.lock()[1..].join(" "),
            r#"Phase(Grade) Printed("by the grader")"#
        );
    }
}
