//! One run into another store, record by record. By the API alone, so that every backend copies into every other.

use std::collections::BTreeMap;
use std::time::Duration;

use osmosis_core::{Attempt, RolloutId};

use crate::{
    CallQuery, CallRecord, Claim, Completion, CompletionReceipt, NewCall, NewRollout, NewRow,
    RequestNote, RolloutPages, RolloutQuery, RolloutRecord, Store, StoreError,
};

/// Rollouts that are claimed at once. The lease must outlast what is done with them.
const AT_ONCE: usize = 200;
const LEASE: Duration = Duration::from_hours(24);
const OWNER: &str = "copy";

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopiedCounts {
    pub rows: u64,
    pub rollouts: u64,
    /// Rollouts with a result.
    pub results: u64,
    pub samples: u64,
    pub calls: u64,
    pub steps: u64,
    pub batches: u64,
}

/// Copies everything of one run into a store that is empty: the run's record, rows, rollouts with their attempts,
/// results and samples, every call of every attempt with its bodies, steps, batches and requests.
///
/// Calls are recorded in the order they have, and get the same numbers where those were given one after the other.
/// Rollouts that were leased wait in the copy. Not copied: how many workers a rollout without a result had lost. Calls
/// that belong to no rollout (those of `osmosis gateway`) can't be listed; a run that has any is refused at the end.
pub async fn copy_run(from: &dyn Store, to: &dyn Store) -> Result<CopiedCounts, StoreError> {
    let mut copied = CopiedCounts::default();
    if let Some(run) = from.run().await? {
        to.create_run(run).await?;
    }
    let mut by_attempts: BTreeMap<u32, Vec<RolloutId>> = BTreeMap::new();
    let mut calls: Vec<CallRecord> = vec![];
    let mut pages = RolloutPages::new(from, RolloutQuery::default());
    while let Some(page) = pages.next().await? {
        plan(from, to, &page, &mut copied).await?;
        for rollout in page {
            for attempt in 1..=rollout.attempts {
                let query = CallQuery {
                    rollout_id: rollout.id.clone(),
                    attempt: Some(Attempt(attempt)),
                };
                calls.extend(from.calls(query).await?);
            }
            by_attempts
                .entry(rollout.attempts)
                .or_default()
                .push(rollout.id);
        }
    }
    copied.calls = copy_calls(from, to, calls).await?;
    for (attempts, rollouts) in by_attempts {
        for some in rollouts.chunks(AT_ONCE) {
            attempt_all(from, to, attempts, some, &mut copied).await?;
        }
    }
    for step in from.steps().await? {
        to.record_step(step).await?;
        copied.steps += 1;
    }
    for batch in from.batches().await? {
        to.record_batch(batch).await?;
        copied.batches += 1;
    }
    check(from, to).await?;
    Ok(copied)
}

/// Adds the rows and rollouts of a page.
async fn plan(
    from: &dyn Store,
    to: &dyn Store,
    page: &[RolloutRecord],
    copied: &mut CopiedCounts,
) -> Result<(), StoreError> {
    let mut indices: Vec<u64> = page.iter().map(|rollout| rollout.row_index).collect();
    indices.dedup();
    let rows = from.rows(&indices).await?;
    copied.rows += rows.len() as u64;
    copied.rollouts += page.len() as u64;
    let rows = rows.into_iter().map(|row| NewRow {
        row_index: row.row_index,
        line: row.line,
        body: row.body,
    });
    let rollouts = page.iter().map(|rollout| NewRollout {
        id: rollout.id.clone(),
        row_index: rollout.row_index,
        run_index: rollout.run_index,
    });
    to.enqueue(rows.collect(), rollouts.collect()).await?;
    for rollout in page {
        copy_request(from, to, &rollout.id).await?;
    }
    Ok(())
}

async fn copy_request(
    from: &dyn Store,
    to: &dyn Store,
    rollout: &RolloutId,
) -> Result<(), StoreError> {
    let Some(request) = from.request(rollout).await? else {
        return Ok(());
    };
    // Whatever it was sealed with, it is kept from now on.
    let sealed = request.sealed.clone().unwrap_or_default();
    let mut notes = vec![RequestNote::Sealed(sealed)];
    if request.cancel_asked {
        notes.push(RequestNote::CancelAsked);
    }
    if request.agent_done {
        notes.push(RequestNote::AgentDone);
    }
    if request.completion_delivered {
        notes.push(RequestNote::CompletionDelivered);
    }
    if request.settled {
        notes.push(RequestNote::Settled);
    }
    for note in notes {
        to.note_request(rollout, note).await?;
    }
    Ok(())
}

/// In the order they were recorded in.
async fn copy_calls(
    from: &dyn Store,
    to: &dyn Store,
    mut calls: Vec<CallRecord>,
) -> Result<u64, StoreError> {
    calls.sort_by_key(|call| call.call_id);
    let count = calls.len() as u64;
    for call in calls {
        let body = from
            .call_body(call.call_id)
            .await?
            .ok_or_else(|| StoreError::refused(format!("call {} has no body", call.call_id)))?;
        to.record_call(NewCall {
            rollout_id: call.rollout_id,
            attempt: call.attempt,
            sample_id: call.sample_id,
            purpose: call.purpose,
            dialect: call.dialect,
            model: call.model,
            upstream: call.upstream,
            policy_version: call.policy_version,
            streamed: call.streamed,
            status: call.status,
            error: call.error,
            prompt_tokens: call.prompt_tokens,
            completion_tokens: call.completion_tokens,
            cached_tokens: call.cached_tokens,
            reasoning_tokens: call.reasoning_tokens,
            queued_at_ms: call.queued_at_ms,
            sent_at_ms: call.sent_at_ms,
            first_byte_at_ms: call.first_byte_at_ms,
            done_at_ms: call.done_at_ms,
            request: body.request,
            response: body.response.into(),
            tokens: body.tokens,
        })
        .await?;
    }
    Ok(count)
}

/// Claims rollouts as often as they were, gives them back in between, and records what came of the last attempt.
async fn attempt_all(
    from: &dyn Store,
    to: &dyn Store,
    attempts: u32,
    rollouts: &[RolloutId],
    copied: &mut CopiedCounts,
) -> Result<(), StoreError> {
    let records = from.rollouts_by_id(rollouts).await?;
    let samples = from.samples_of(rollouts).await?;
    for attempt in 1..=attempts {
        let claims = to.claim_these(OWNER, rollouts, LEASE).await?;
        if claims.len() != rollouts.len() {
            return Err(StoreError::refused("the store to copy to is in use"));
        }
        for ((claim, record), samples) in claims.iter().zip(&records).zip(&samples) {
            let is_result = attempt == attempts && record.outcome.is_some();
            if is_result {
                copied.results += 1;
                copied.samples += samples.len() as u64;
                finish(to, claim, record, samples.clone()).await?;
            } else {
                let failed = attempt <= record.failures;
                to.release(&claim.id, claim.attempt, false, failed).await?;
            }
        }
    }
    Ok(())
}

async fn finish(
    to: &dyn Store,
    claim: &Claim,
    record: &RolloutRecord,
    samples: Vec<osmosis_core::Sample>,
) -> Result<(), StoreError> {
    let Some(outcome) = record.outcome.clone() else {
        return Ok(());
    };
    let completion = Completion {
        id: claim.id.clone(),
        attempt: claim.attempt,
        outcome,
        samples,
        metrics: record.metrics.clone(),
        durations: record.durations,
        calls: record.calls,
        started_at_ms: record.started_at_ms.unwrap_or_default(),
        finished_at_ms: record.finished_at_ms.unwrap_or_default(),
    };
    match to.complete(completion).await? {
        CompletionReceipt::Accepted => Ok(()),
        CompletionReceipt::Fenced => Err(StoreError::refused("the store to copy to is in use")),
    }
}

/// Whether the copy is what it was made of, as far as sums tell.
async fn check(from: &dyn Store, to: &dyn Store) -> Result<(), StoreError> {
    let (source, copy) = (from.call_totals().await?, to.call_totals().await?);
    if source != copy {
        return Err(StoreError::refused(format!(
            "the run has {} model calls and its copy {}: calls that belong to no rollout can't be copied",
            source.model_calls + source.judge.calls,
            copy.model_calls + copy.judge.calls
        )));
    }
    let (source, copy) = (from.counts().await?, to.counts().await?);
    if source.done != copy.done || source.total() != copy.total() {
        return Err(StoreError::refused(
            "the run changed while it was copied; copy it when nobody writes to it",
        ));
    }
    Ok(())
}
