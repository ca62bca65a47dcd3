//! Cancelling what waits.

use osmosis_core::{Attempt, Outcome, OutcomeKind, RolloutId};

use super::{Fixture, LEASE, TestResult, call, claim_one, plan, scored};
use crate::{CallQuery, CompletionReceipt, QueueCounts};

/// Those of the rollouts asked for that wait are cancelled and named; no other is touched.
pub async fn what_is_queued_is_cancelled_and_nothing_else(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 6, 1).await?;
    let [finished, leased, held, queued, other, untouched, unknown] =
        [0, 1, 2, 3, 4, 5, 9].map(|row| RolloutId::of(row, 0));
    store.hold_back(&[held.clone()]).await?;
    let claims = store.claim("engine", 2, LEASE).await?;
    store.complete(scored(&claims[0], 1.0)?).await?;

    let asked = [&other, &unknown, &finished, &leased, &held, &queued, &other].map(Clone::clone);
    let cancelled = store.cancel(&asked).await?;
    assert_eq!(cancelled, [other.clone(), queued.clone()]);
    assert!(store.cancel(&asked).await?.is_empty(), "once is enough");
    assert!(store.cancel(&[]).await?.is_empty());
    assert_eq!(
        store.counts().await?,
        QueueCounts {
            queued: 1,
            leased: 2,
            done: 3
        }
    );

    let record = store.rollout(&queued).await?;
    let record = record.ok_or_else(|| anyhow::anyhow!("the rollout is gone"))?;
    assert_eq!(record.outcome, Some(Outcome::Cancelled));
    assert_eq!(record.finished_at_ms, Some(1_700_000_000_000));
    assert_eq!(record.started_at_ms, record.finished_at_ms);
    assert_eq!(record.calls.model_calls, 0);
    assert!(store.samples(&queued).await?.is_empty());
    let record = store.rollout(&finished).await?;
    let outcome = record.and_then(|record| record.outcome);
    assert_eq!(
        outcome.map(|outcome| outcome.kind()),
        Some(OutcomeKind::Scored)
    );
    assert_eq!(store.samples(&finished).await?.len(), 1);

    // Whoever runs the leased one goes on.
    let running = [(leased, claims[1].attempt)];
    assert!(store.heartbeat(&running, LEASE).await?.is_empty());
    assert_eq!(
        store.complete(scored(&claims[1], 1.0)?).await?,
        CompletionReceipt::Accepted
    );
    assert_eq!(claim_one(store.as_ref()).await?.id, untouched);
    store.let_go(&held).await?;
    assert_eq!(claim_one(store.as_ref()).await?.id, held);
    Ok(())
}

/// A cancelled rollout is finished for good: nobody claims it, and an earlier attempt at it neither counts nor lends it
/// its calls. It can be requeued like any other.
pub async fn a_cancelled_rollout_is_finished(mut fixture: Fixture) -> TestResult {
    plan(&*fixture.store, 1, 1).await?;
    let store = &fixture.store;
    let first = claim_one(store.as_ref()).await?;
    store.record_call(call(&first, "main", "q", "a")?).await?;
    store.release(&first.id, first.attempt, true, false).await?;
    assert_eq!(store.cancel(&[first.id.clone()]).await?, [first.id.clone()]);
    let late = store.complete(scored(&first, 1.0)?).await?;
    assert_eq!(late, CompletionReceipt::Fenced);
    let query = CallQuery {
        rollout_id: first.id.clone(),
        attempt: None,
    };
    assert!(store.calls(query).await?.is_empty());

    fixture.reopen().await?;
    fixture.clock.advance(LEASE * 2);
    let store = &fixture.store;
    assert!(store.claim("engine", 1, LEASE).await?.is_empty());
    let tally = store.tally().await?;
    assert_eq!(tally.len(), 1);
    assert_eq!(tally[0].kind, OutcomeKind::Cancelled);
    assert_eq!(store.requeue(&[OutcomeKind::Cancelled]).await?, 1);
    assert_eq!(claim_one(store.as_ref()).await?.attempt, Attempt(3));
    Ok(())
}
