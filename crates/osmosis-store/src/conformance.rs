//! What every store must do, told in claims and fences. A backend runs each behaviour as a test of
//! its own through [`for_each_store_behaviour!`](crate::for_each_store_behaviour), or all of them
//! with [`run_all`]. What every catalogue must do is in [`catalogue`], and what every store must do that several processes
//! share in [`shared`].

mod calls;
mod cancelling;
pub mod catalogue;
mod changes;
mod kept_runs;
mod queue;
mod records;
mod recovery;
mod requests;
mod requeueing;
pub mod shared;
mod training;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use osmosis_core::{
    Attempt, Durations, ErrorCategory, Failure, JsonText, Outcome, PolicyVersion, Reward,
    RolloutId, RunName, Sample, SampleId,
};

use crate::{
    CallPurpose, CallSummary, Claim, Clock, Completion, JudgeSummary, NewCall, NewRollout, NewRow,
    Pieces, RunKind, RunRecord, RunStatus, Store, StoreError,
};

pub use calls::*;
pub use cancelling::*;
pub use changes::*;
pub use queue::*;
pub use records::*;
pub use recovery::*;
pub use requests::*;
pub use requeueing::*;
pub use training::*;

/// What a behaviour returns; what it finds wrong, it asserts.
pub type TestResult = anyhow::Result<()>;

/// Hands the names of all behaviours to a macro: `for_each_store_behaviour!(each)`.
#[macro_export]
macro_rules! for_each_store_behaviour {
    ($each:ident) => {
        $each! {
            claims_come_in_order_of_row_and_run
            a_claim_carries_its_row
            concurrent_claimers_never_get_the_same_rollout
            a_lease_that_ran_out_is_claimed_again_as_a_new_attempt
            a_lease_that_runs_is_not_claimed_again
            a_stale_completion_is_fenced
            a_late_completion_counts_while_nobody_else_claimed
            a_rollout_completes_once
            a_heartbeat_extends_leases_and_reports_lost_ones
            a_release_puts_back_and_counts_lost_workers_and_failures
            a_stale_release_changes_nothing
            enqueueing_again_changes_nothing
            enqueueing_is_all_or_nothing
            recovery_after_a_takeover_puts_back_everything_leased
            recovery_after_a_takeover_needs_no_names
            recovery_of_an_owner_leaves_the_leases_of_others
            requeueing_takes_chosen_kinds_and_drops_their_samples
            chosen_rollouts_are_requeued_alone
            what_is_queued_is_cancelled_and_nothing_else
            a_cancelled_rollout_is_finished
            a_change_is_reported_when_it_can_be_read
            a_write_that_changes_nothing_is_not_reported
            changes_end_with_the_store
            counts_follow_every_change_of_state
            concurrent_writers_lose_nothing
            a_run_has_one_record
            every_outcome_comes_back_as_it_was
            samples_come_back_as_they_were
            a_refused_completion_leaves_nothing_behind
            pages_cover_every_rollout_once
            pages_can_be_filtered
            a_tally_sums_up_by_kind
            totals_count_the_calls_of_every_attempt
            calls_are_ordered_and_belong_to_their_attempt
            a_call_is_durable_with_the_next_completion
            bodies_of_megabytes_come_back_exactly
            conversations_come_back_exactly
            token_records_come_back_without_the_bodies
            rollouts_come_by_id_in_the_order_asked_for
            a_step_is_kept_and_can_be_replaced
            a_batch_stays_as_it_was_acknowledged
            a_request_is_kept_until_it_is_settled
            a_rollout_that_is_held_back_is_claimed_by_nobody
            chosen_rollouts_are_claimed_alone
            reopening_keeps_everything
            a_closed_store_says_so
        }
    };
}

macro_rules! all_in_turn {
    ($($name:ident)*) => {
        /// Every behaviour in turn, each on a fresh store.
        pub async fn run_all<F, Fut>(make: F) -> TestResult
        where
            F: Fn() -> Fut,
            Fut: Future<Output = anyhow::Result<Fixture>>,
        {
            $( $name(make().await?).await?; )*
            Ok(())
        }
    };
}
for_each_store_behaviour!(all_in_turn);

/// A clock that moves when it is told to.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    pub fn new() -> Self {
        Self(Arc::new(AtomicI64::new(1_700_000_000_000)))
    }

    pub fn advance(&self, by: Duration) {
        let ms = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

type Opening = Pin<Box<dyn Future<Output = Result<Arc<dyn Store>, StoreError>> + Send>>;

/// A store under test: fresh, on a manual clock, and able to be opened again on the same data.
pub struct Fixture {
    pub store: Arc<dyn Store>,
    pub clock: ManualClock,
    open: Box<dyn Fn(ManualClock) -> Opening + Send + Sync>,
}

impl Fixture {
    /// `open` opens the same data each time; whatever keeps that data alive lives in the closure.
    pub async fn new<F, Fut>(open: F) -> anyhow::Result<Self>
    where
        F: Fn(ManualClock) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Arc<dyn Store>, StoreError>> + Send + 'static,
    {
        let clock = ManualClock::new();
        let open: Box<dyn Fn(ManualClock) -> Opening + Send + Sync> =
            Box::new(move |clock| Box::pin(open(clock)));
        Ok(Self {
            store: open(clock.clone()).await?,
            clock,
            open,
        })
    }

    /// Closes the store and opens it again.
    pub async fn reopen(&mut self) -> anyhow::Result<()> {
        self.store.close().await?;
        self.store = (self.open)(self.clock.clone()).await?;
        Ok(())
    }
}

impl fmt::Debug for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixture")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

/// How long a lease lasts in these tests.
pub const LEASE: Duration = Duration::from_mins(1);

/// Adds `rows` rows with `runs` rollouts each.
pub async fn plan(store: &dyn Store, rows: u64, runs: u32) -> anyhow::Result<()> {
    let mut new_rows = Vec::new();
    let mut new_rollouts = Vec::new();
    for row_index in 0..rows {
        new_rows.push(NewRow {
            row_index,
            line: row_index + 1,
            body: row_body(row_index)?,
        });
        for run_index in 0..runs {
            new_rollouts.push(NewRollout {
                id: RolloutId::of(row_index, run_index),
                row_index,
                run_index,
            });
        }
    }
    store.enqueue(new_rows, new_rollouts).await?;
    Ok(())
}

pub(crate) fn row_body(row_index: u64) -> anyhow::Result<JsonText> {
    Ok(JsonText::parse(format!(
        r#"{{"user_prompt":"what is {row_index}  times 2?","ground_truth":"{}"}}"#,
        row_index * 2
    ))?)
}

/// Claims exactly one rollout.
pub async fn claim_one(store: &dyn Store) -> anyhow::Result<Claim> {
    let mut claims = store.claim("test", 1, LEASE).await?;
    claims
        .pop()
        .ok_or_else(|| anyhow::anyhow!("nothing to claim"))
}

/// A scored result with one sample that says which attempt made it.
pub fn scored(claim: &Claim, reward: f64) -> anyhow::Result<Completion> {
    let reward = Reward::new(reward)?;
    Ok(Completion {
        id: claim.id.clone(),
        attempt: claim.attempt,
        outcome: Outcome::Scored {
            reward,
            passed: reward.get() >= 1.0,
        },
        samples: vec![sample("main", &claim.id, claim.attempt, Some(reward))?],
        metrics: None,
        durations: Durations {
            queue: 0.5,
            agent: 12.25,
            model: 7.125,
            grade: 1.0,
        },
        calls: CallSummary {
            model_calls: 2,
            prompt_tokens: 100,
            completion_tokens: 20,
            cached_tokens: Some(60),
            reasoning_tokens: None,
            judge: JudgeSummary {
                calls: 1,
                prompt_tokens: 30,
                completion_tokens: 3,
            },
        },
        started_at_ms: 1_700_000_000_100,
        finished_at_ms: 1_700_000_000_900,
    })
}

/// A result without samples.
pub fn ended(claim: &Claim, outcome: Outcome) -> anyhow::Result<Completion> {
    Ok(Completion {
        outcome,
        samples: Vec::new(),
        ..scored(claim, 0.0)?
    })
}

pub(crate) fn sample(
    id: &str,
    rollout: &RolloutId,
    attempt: Attempt,
    reward: Option<Reward>,
) -> anyhow::Result<Sample> {
    Ok(Sample {
        id: SampleId::new(id)?,
        messages: JsonText::parse(format!(
            r#"[{{"role":"assistant","content":"{rollout}  attempt {attempt}"}}]"#
        ))?,
        reward,
        remove_sample: false,
        metrics: None,
        extra_fields: None,
    })
}

pub(crate) fn failure(kind: &str) -> Failure {
    Failure::new(ErrorCategory::AgentError, kind, "it broke")
}

/// A call of `claim` with these bodies.
pub fn call(
    claim: &Claim,
    sample_id: &str,
    request: impl Into<Bytes>,
    response: impl Into<Pieces>,
) -> anyhow::Result<NewCall> {
    Ok(NewCall {
        rollout_id: claim.id.clone(),
        attempt: claim.attempt,
        sample_id: SampleId::new(sample_id)?,
        purpose: CallPurpose::Policy,
        dialect: "chat_completions".to_owned(),
        model: "osmosis-rollout".to_owned(),
        upstream: "script".to_owned(),
        policy_version: PolicyVersion(3),
        streamed: true,
        status: 200,
        error: None,
        prompt_tokens: Some(50),
        completion_tokens: Some(10),
        cached_tokens: Some(30),
        reasoning_tokens: None,
        queued_at_ms: 1_700_000_000_200,
        sent_at_ms: Some(1_700_000_000_201),
        first_byte_at_ms: Some(1_700_000_000_250),
        done_at_ms: 1_700_000_000_300,
        request: request.into(),
        response: response.into(),
        tokens: Vec::new(),
    })
}

pub(crate) fn run_record(name: &str) -> anyhow::Result<RunRecord> {
    Ok(RunRecord {
        name: RunName::new(name)?,
        kind: RunKind::Evaluation,
        status: RunStatus::Running,
        created_at_ms: 1_700_000_000_000,
        finished_at_ms: None,
        config_toml: "# as it was\n[experiment]\n".to_owned(),
        pinned: JsonText::parse(r#"{"model":"script:x",  "n":1}"#)?,
    })
}
