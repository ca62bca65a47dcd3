//! A leased queue in memory. Its leases run on tokio's clock, which the tests have paused, and it can stop
//! answering.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use osmosis_core::{
    Attempt, Durations, ErrorCategory, Failure, JsonText, Outcome, OutcomeKind, RolloutId, Sample,
    SampleId,
};
use osmosis_store::{
    BatchRecord, CallBody, CallPurpose, CallQuery, CallRecord, CallSummary, CallVisitor,
    ChangeSender, Changes, Claim, Completion, CompletionReceipt, FinishedCursor, Member,
    MemberKind, NewCall, NewRollout, NewRow, OutcomeTally, PackageFile, Queue, QueueCounts,
    Records, Recovery, RequestNote, RequestRecord, RolloutPage, RolloutQuery, RolloutRecord,
    RowRecord, RunRecord, RunStanding, RunStatus, SharedRun, StepRecord, StopRequest, Store,
    StoreError,
};
use parking_lot::Mutex;
use tokio::time::Instant;

/// What the engine asks of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Cancel,
    Claim,
    Heartbeat,
    Complete,
    Release,
}

#[derive(Debug)]
pub(crate) struct MemoryQueue {
    /// Set when others work on the run too.
    pub(crate) company: Option<Company>,
    changes: (ChangeSender, Changes),
    rollouts: Mutex<BTreeMap<RolloutId, Queued>>,
    fails: Mutex<Vec<Operation>>,
    hangs: Mutex<Vec<Operation>>,
    claims: AtomicUsize,
}

#[derive(Debug)]
struct Queued {
    row_index: u64,
    attempts: u32,
    losses: u32,
    failures: u32,
    leased_until: Option<Instant>,
    completion: Option<Completion>,
    /// Another member holds it, or has finished it.
    is_others: bool,
}

impl Default for MemoryQueue {
    fn default() -> Self {
        Self {
            company: None,
            changes: ChangeSender::new(),
            rollouts: Mutex::default(),
            fails: Mutex::default(),
            hangs: Mutex::default(),
            claims: AtomicUsize::default(),
        }
    }
}

impl MemoryQueue {
    /// The same run with others who work on it.
    pub(crate) fn shared(rows: u64) -> Self {
        Self {
            company: Some(Company::default()),
            ..Self::of(rows)
        }
    }

    /// Something was committed.
    pub(crate) fn changed(&self) {
        self.changes.0.send();
    }

    /// Another member has claimed a rollout, and holds it for so long.
    pub(crate) fn claimed_by_another(&self, row: u64, lease: Duration) {
        let mut rollouts = self.rollouts.lock();
        let queued = rollouts.get_mut(&RolloutId::of(row, 0)).unwrap();
        queued.attempts += 1;
        queued.is_others = true;
        queued.leased_until = Some(Instant::now() + lease);
        drop(rollouts);
        self.changed();
    }

    /// Another member has finished a rollout that it held.
    pub(crate) fn finished_by_another(&self, row: u64) {
        let id = RolloutId::of(row, 0);
        let mut rollouts = self.rollouts.lock();
        let queued = rollouts.get_mut(&id).unwrap();
        queued.leased_until = None;
        queued.is_others = true;
        queued.completion = Some(Completion {
            id: id.clone(),
            attempt: Attempt(queued.attempts),
            outcome: Outcome::AgentFailed {
                failure: Failure::new(ErrorCategory::AgentError, "E", "elsewhere"),
            },
            samples: vec![],
            metrics: None,
            durations: Durations::default(),
            calls: CallSummary::default(),
            started_at_ms: 0,
            finished_at_ms: 0,
        });
        drop(rollouts);
        if let Some(company) = &self.company {
            company.finished.lock().push(id);
        }
        self.changed();
    }

    /// With one rollout for each of so many rows.
    pub(crate) fn of(rows: u64) -> Self {
        let queue = Self::default();
        for row in 0..rows {
            queue.add(row);
        }
        queue
    }

    pub(crate) fn add(&self, row_index: u64) {
        let queued = Queued {
            row_index,
            attempts: 0,
            losses: 0,
            failures: 0,
            leased_until: None,
            completion: None,
            is_others: false,
        };
        let id = RolloutId::of(row_index, 0);
        self.rollouts.lock().insert(id, queued);
        self.changed();
    }

    /// From now on this is answered with an error.
    pub(crate) fn fails(&self, operation: Operation) {
        self.fails.lock().push(operation);
    }

    /// From now on this is never answered.
    pub(crate) fn hangs(&self, operation: Operation) {
        self.hangs.lock().push(operation);
    }

    /// Another engine takes a rollout, as it may once its lease has run out.
    pub(crate) fn taken_over(&self, row: u64) {
        let mut rollouts = self.rollouts.lock();
        let queued = rollouts.get_mut(&RolloutId::of(row, 0)).unwrap();
        queued.attempts += 1;
        queued.leased_until = Some(Instant::now() + Duration::from_hours(24));
    }

    pub(crate) fn completion(&self, row: u64) -> Option<Completion> {
        let rollouts = self.rollouts.lock();
        rollouts[&RolloutId::of(row, 0)].completion.clone()
    }

    /// How often the next ones were asked for. In a database each is a commit.
    pub(crate) fn claims(&self) -> usize {
        self.claims.load(Ordering::SeqCst)
    }

    /// How many attempts were claimed, and how many of them counted as losses and as failures.
    pub(crate) fn tried(&self, row: u64) -> (u32, u32, u32) {
        let rollouts = self.rollouts.lock();
        let queued = &rollouts[&RolloutId::of(row, 0)];
        (queued.attempts, queued.losses, queued.failures)
    }

    async fn answers(&self, operation: Operation) -> Result<(), StoreError> {
        if self.hangs.lock().contains(&operation) {
            return std::future::pending().await;
        }
        if self.fails.lock().contains(&operation) {
            return Err(StoreError::Database {
                message: "disk I/O error".to_owned(),
                full: false,
            });
        }
        Ok(())
    }

    fn hand_out(
        &self,
        lease: Duration,
        wanted: impl Fn(&RolloutId) -> bool,
        n: usize,
    ) -> Vec<Claim> {
        let now = Instant::now();
        let mut rollouts = self.rollouts.lock();
        let free = rollouts.iter_mut().filter(|(id, queued)| {
            let leased = queued.leased_until.is_some_and(|until| until > now);
            wanted(id) && !leased && queued.completion.is_none()
        });
        let claims = free.take(n).map(|(id, queued)| {
            queued.attempts += 1;
            queued.is_others = false;
            queued.leased_until = Some(now + lease);
            Claim {
                id: id.clone(),
                row_index: queued.row_index,
                run_index: 0,
                attempt: Attempt(queued.attempts),
                losses: queued.losses,
                failures: queued.failures,
                row: RowRecord {
                    row_index: queued.row_index,
                    line: queued.row_index + 1,
                    body: JsonText::parse(BODY).unwrap(),
                },
            }
        });
        claims.collect()
    }
}

/// A dataset row and a served request at once.
const BODY: &str =
    r#"{"system_prompt": "", "user_prompt": "6*7?", "ground_truth": "42", "initial_messages": []}"#;

impl Queued {
    fn holds(&self, attempt: Attempt) -> bool {
        self.leased_until.is_some() && self.attempts == attempt.0 && self.completion.is_none()
    }
}

#[async_trait]
impl Queue for MemoryQueue {
    async fn claim(
        &self,
        _owner: &str,
        n: usize,
        lease: Duration,
    ) -> Result<Vec<Claim>, StoreError> {
        self.answers(Operation::Claim).await?;
        self.claims.fetch_add(1, Ordering::SeqCst);
        Ok(self.hand_out(lease, |_| true, n))
    }

    async fn claim_these(
        &self,
        _owner: &str,
        rollouts: &[RolloutId],
        lease: Duration,
    ) -> Result<Vec<Claim>, StoreError> {
        self.answers(Operation::Claim).await?;
        Ok(self.hand_out(lease, |id| rollouts.contains(id), usize::MAX))
    }

    async fn heartbeat(
        &self,
        held: &[(RolloutId, Attempt)],
        lease: Duration,
    ) -> Result<Vec<(RolloutId, Attempt)>, StoreError> {
        self.answers(Operation::Heartbeat).await?;
        let mut rollouts = self.rollouts.lock();
        let mut lost = vec![];
        for (id, attempt) in held {
            match rollouts.get_mut(id) {
                Some(queued) if queued.holds(*attempt) => {
                    queued.leased_until = Some(Instant::now() + lease);
                }
                Some(_) | None => lost.push((id.clone(), *attempt)),
            }
        }
        Ok(lost)
    }

    async fn complete(&self, completion: Completion) -> Result<CompletionReceipt, StoreError> {
        self.answers(Operation::Complete).await?;
        let mut rollouts = self.rollouts.lock();
        let queued = rollouts.get_mut(&completion.id).unwrap();
        if !queued.holds(completion.attempt) {
            return Ok(CompletionReceipt::Fenced);
        }
        queued.leased_until = None;
        queued.completion = Some(completion);
        drop(rollouts);
        self.changed();
        Ok(CompletionReceipt::Accepted)
    }

    async fn release(
        &self,
        rollout: &RolloutId,
        attempt: Attempt,
        lost: bool,
        failed: bool,
    ) -> Result<(), StoreError> {
        self.answers(Operation::Release).await?;
        let mut rollouts = self.rollouts.lock();
        let queued = rollouts.get_mut(rollout).unwrap();
        if queued.holds(attempt) {
            queued.leased_until = None;
            queued.losses += u32::from(lost);
            queued.failures += u32::from(failed);
        }
        drop(rollouts);
        self.changed();
        Ok(())
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> Result<Vec<RolloutId>, StoreError> {
        self.answers(Operation::Cancel).await?;
        let mut queue = self.rollouts.lock();
        let mut cancelled = vec![];
        for id in rollouts {
            let Some(queued) = queue.get_mut(id) else {
                continue;
            };
            if queued.leased_until.is_some() || queued.completion.is_some() {
                continue;
            }
            queued.attempts += 1;
            queued.completion = Some(Completion {
                id: id.clone(),
                attempt: Attempt(queued.attempts),
                outcome: Outcome::Cancelled,
                samples: vec![],
                metrics: None,
                durations: Durations::default(),
                calls: CallSummary::default(),
                started_at_ms: 0,
                finished_at_ms: 0,
            });
            cancelled.push(id.clone());
        }
        Ok(cancelled)
    }

    // What an engine never asks.
    async fn enqueue(&self, _: Vec<NewRow>, _: Vec<NewRollout>) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn enqueue_request(&self, _: NewRow, _: NewRollout, _: Bytes) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn hold_back(&self, _: &[RolloutId]) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn let_go(&self, _: &RolloutId) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn recover(&self, _: Recovery<'_>) -> Result<u64, StoreError> {
        Err(StoreError::Closed)
    }
    async fn requeue(&self, _: &[OutcomeKind]) -> Result<u64, StoreError> {
        Err(StoreError::Closed)
    }
    async fn requeue_these(&self, _: &[RolloutId]) -> Result<Vec<RolloutId>, StoreError> {
        Err(StoreError::Closed)
    }
}

#[async_trait]
impl Records for MemoryQueue {
    async fn counts(&self) -> Result<QueueCounts, StoreError> {
        let rollouts = self.rollouts.lock();
        let mut counts = QueueCounts::default();
        for queued in rollouts.values() {
            match (&queued.completion, queued.leased_until) {
                (Some(_), _) => counts.done += 1,
                (None, Some(_)) => counts.leased += 1,
                (None, None) => counts.queued += 1,
            }
        }
        Ok(counts)
    }

    async fn rollout(&self, id: &RolloutId) -> Result<Option<RolloutRecord>, StoreError> {
        let rollouts = self.rollouts.lock();
        Ok(rollouts.get(id).map(|queued| RolloutRecord {
            id: id.clone(),
            row_index: queued.row_index,
            run_index: 0,
            attempts: queued.attempts,
            failures: queued.failures,
            outcome: queued.completion.as_ref().map(|done| done.outcome.clone()),
            rewards: vec![],
            metrics: None,
            durations: Durations::default(),
            calls: CallSummary::default(),
            started_at_ms: None,
            finished_at_ms: None,
        }))
    }

    async fn samples(&self, id: &RolloutId) -> Result<Vec<Sample>, StoreError> {
        let rollouts = self.rollouts.lock();
        let completion = rollouts
            .get(id)
            .and_then(|queued| queued.completion.as_ref());
        Ok(completion
            .map(|done| done.samples.clone())
            .unwrap_or_default())
    }

    async fn rollouts_by_id(&self, ids: &[RolloutId]) -> Result<Vec<RolloutRecord>, StoreError> {
        let mut found = vec![];
        for id in ids {
            found.extend(self.rollout(id).await?);
        }
        Ok(found)
    }

    async fn samples_of(&self, ids: &[RolloutId]) -> Result<Vec<Vec<Sample>>, StoreError> {
        let mut found = vec![];
        for id in ids {
            found.push(self.samples(id).await?);
        }
        Ok(found)
    }

    // What an engine never asks.
    async fn record_call(&self, _: NewCall) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn record_call_durably(&self, _: NewCall) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn create_run(&self, _: RunRecord) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn run(&self) -> Result<Option<RunRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn set_status(&self, _: RunStatus) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn request(&self, _: &RolloutId) -> Result<Option<RequestRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn unsettled_requests(&self) -> Result<Vec<RequestRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn note_request(&self, _: &RolloutId, _: RequestNote) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn tally(&self) -> Result<Vec<OutcomeTally>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn call_totals(&self) -> Result<CallSummary, StoreError> {
        Err(StoreError::Closed)
    }
    async fn rollouts(&self, _: RolloutQuery) -> Result<RolloutPage, StoreError> {
        Err(StoreError::Closed)
    }
    async fn token_records(&self, _: &RolloutId) -> Result<Vec<(SampleId, Bytes)>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn record_step(&self, _: StepRecord) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn steps(&self) -> Result<Vec<StepRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn record_batch(&self, _: BatchRecord) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn acknowledge_batch(&self, _: u64, _: i64) -> Result<bool, StoreError> {
        Err(StoreError::Closed)
    }
    async fn batches(&self) -> Result<Vec<BatchRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn row(&self, _: u64) -> Result<Option<RowRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn rows(&self, _: &[u64]) -> Result<Vec<RowRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn calls(&self, _: CallQuery) -> Result<Vec<CallRecord>, StoreError> {
        Ok(vec![])
    }
    async fn call_body(&self, _: u64) -> Result<Option<CallBody>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn visit_calls(
        &self,
        _: &[RolloutId],
        _: CallPurpose,
        _: CallVisitor,
    ) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
}

#[async_trait]
impl Store for MemoryQueue {
    fn changes(&self) -> Changes {
        self.changes.1.from_now()
    }

    fn shared(&self) -> Option<&dyn SharedRun> {
        self.company.as_ref().map(|_| self as &dyn SharedRun)
    }

    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// What the others who work on a run do, as a test says.
#[derive(Debug)]
pub(crate) struct Company {
    pub(crate) status: Mutex<RunStatus>,
    pub(crate) stop_asked: Mutex<Option<StopRequest>>,
    /// Whether they are alive.
    pub(crate) alive: AtomicBool,
    /// What they have finished, in order.
    finished: Mutex<Vec<RolloutId>>,
    /// Whether this engine has said that it begins nothing new.
    pub(crate) draining: AtomicBool,
    /// How often the queue was looked at.
    pub(crate) looks: AtomicUsize,
}

impl Default for Company {
    fn default() -> Self {
        Self {
            status: Mutex::new(RunStatus::Running),
            stop_asked: Mutex::default(),
            alive: AtomicBool::new(true),
            finished: Mutex::default(),
            draining: AtomicBool::default(),
            looks: AtomicUsize::default(),
        }
    }
}

impl MemoryQueue {
    fn company(&self) -> Result<&Company, StoreError> {
        self.company.as_ref().ok_or(StoreError::Closed)
    }
}

#[async_trait]
impl SharedRun for MemoryQueue {
    async fn ask_to_stop(&self, request: Option<StopRequest>) -> Result<(), StoreError> {
        *self.company()?.stop_asked.lock() = request;
        self.changed();
        Ok(())
    }

    async fn standing(&self) -> Result<RunStanding, StoreError> {
        let company = self.company()?;
        company.looks.fetch_add(1, Ordering::SeqCst);
        let now = Instant::now();
        let rollouts = self.rollouts.lock();
        let open = || rollouts.values().filter(|one| one.completion.is_none());
        Ok(RunStanding {
            status: Some(*company.status.lock()),
            stop_asked: *company.stop_asked.lock(),
            claimable: open().any(|one| one.leased_until.is_none_or(|until| until <= now)),
            leased: open().any(|one| one.leased_until.is_some()),
        })
    }

    async fn members(&self) -> Result<Vec<Member>, StoreError> {
        let company = self.company()?;
        let now = Instant::now();
        let rollouts = self.rollouts.lock();
        let held = rollouts.values().filter(|one| {
            let leased = one.leased_until.is_some_and(|until| until > now);
            one.completion.is_none() && one.is_others && leased
        });
        Ok(vec![Member {
            id: 2,
            kind: MemberKind::Node,
            is_self: false,
            holder: None,
            seen_ago: Duration::ZERO,
            alive: company.alive.load(Ordering::SeqCst),
            leases: held.count() as u64,
            done: 0,
            draining: false,
        }])
    }

    async fn set_draining(&self) -> Result<(), StoreError> {
        self.company()?.draining.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn watch_finished(&self) -> Result<(FinishedCursor, QueueCounts), StoreError> {
        let horizon = self.company()?.finished.lock().len();
        let cursor = FinishedCursor {
            horizon: i64::try_from(horizon).unwrap(),
            reported: vec![],
        };
        Ok((cursor, self.counts().await?))
    }

    async fn finished_since(
        &self,
        cursor: FinishedCursor,
    ) -> Result<(Vec<RolloutRecord>, FinishedCursor), StoreError> {
        let finished = self.company()?.finished.lock().clone();
        let from = usize::try_from(cursor.horizon).unwrap();
        let records = self.rollouts_by_id(&finished[from..]).await?;
        let next = FinishedCursor {
            horizon: i64::try_from(finished.len()).unwrap(),
            reported: vec![],
        };
        Ok((records, next))
    }

    // What an engine never asks.
    async fn put_package(&self, _: JsonText, _: Vec<PackageFile>) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn package(&self) -> Result<Option<JsonText>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn package_file(&self, _: &str) -> Result<Option<Bytes>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn set_controller(&self, _: Option<&str>, _: Option<&str>) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn controller_url(&self) -> Result<Option<String>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn node_key_sha256(&self) -> Result<Option<String>, StoreError> {
        Err(StoreError::Closed)
    }
}
