//! Finished rollouts that run again.

use osmosis_core::{Attempt, Outcome, OutcomeKind, RolloutId};

use super::{Fixture, LEASE, TestResult, call, claim_one, ended, failure, plan, scored};
use crate::{CallQuery, CompletionReceipt, QueueCounts};

/// Retrying failures runs exactly those again, as if they had no history but their attempts.
pub async fn requeueing_takes_chosen_kinds_and_drops_their_samples(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 3, 1).await?;
    let first = claim_one(store.as_ref()).await?;
    store.release(&first.id, first.attempt, true, true).await?;
    let claims = store.claim("engine", 3, LEASE).await?;
    let mut broken = scored(&claims[0], 0.0)?;
    broken.outcome = Outcome::InfrastructureFailed {
        failure: failure("worker_crashed"),
    };
    store
        .record_call(call(&claims[0], "main", "q", "a")?)
        .await?;
    store.complete(broken).await?;
    store.complete(scored(&claims[1], 1.0)?).await?;
    store
        .complete(ended(&claims[2], Outcome::Cancelled)?)
        .await?;

    assert_eq!(store.requeue(&[OutcomeKind::Rejected]).await?, 0);
    let kinds = [OutcomeKind::InfrastructureFailed, OutcomeKind::Cancelled];
    assert_eq!(store.requeue(&kinds).await?, 2);
    assert!(store.samples(&claims[0].id).await?.is_empty());
    assert_eq!(store.samples(&claims[1].id).await?.len(), 1);
    let record = store.rollout(&claims[0].id).await?;
    let Some(record) = record else {
        anyhow::bail!("the rollout is gone");
    };
    assert_eq!(
        (record.outcome, record.attempts, record.failures),
        (None, 2, 0)
    );
    assert!(record.rewards.is_empty());
    assert_eq!(record.finished_at_ms, None);
    let query = CallQuery {
        rollout_id: claims[0].id.clone(),
        attempt: Some(claims[0].attempt),
    };
    assert_eq!(
        store.calls(query).await?.len(),
        1,
        "calls are never dropped"
    );

    assert_eq!(
        store.complete(scored(&claims[0], 1.0)?).await?,
        CompletionReceipt::Fenced
    );
    let again = store.claim("engine", 3, LEASE).await?;
    let seen: Vec<_> = again
        .iter()
        .map(|claim| {
            (
                claim.row_index,
                claim.attempt.0,
                claim.losses,
                claim.failures,
            )
        })
        .collect();
    assert_eq!(seen, [(0, 3, 0, 0), (2, 2, 0, 0)]);
    assert_eq!(
        store.complete(scored(&again[0], 1.0)?).await?,
        CompletionReceipt::Accepted
    );
    Ok(())
}

/// Those of the rollouts asked for that are finished run again, whatever came of them; no other is touched.
pub async fn chosen_rollouts_are_requeued_alone(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 4, 1).await?;
    let claims = store.claim("engine", 3, LEASE).await?;
    store.complete(scored(&claims[0], 1.0)?).await?;
    store.complete(scored(&claims[1], 0.5)?).await?;
    let [kept, chosen, leased, queued, unknown] = [0, 1, 2, 3, 9].map(|row| RolloutId::of(row, 0));
    let asked = [
        unknown,
        leased.clone(),
        chosen.clone(),
        queued.clone(),
        chosen.clone(),
    ];
    let requeued = store.requeue_these(&asked).await?;
    assert_eq!(requeued, [chosen.clone()]);
    assert!(store.requeue_these(&asked).await?.is_empty());
    assert!(store.requeue_these(&[]).await?.is_empty());
    assert!(store.samples(&chosen).await?.is_empty());
    assert_eq!(store.samples(&kept).await?.len(), 1);
    assert_eq!(
        store.counts().await?,
        QueueCounts {
            queued: 2,
            leased: 1,
            done: 1
        }
    );
    let again = store.claim("engine", 9, LEASE).await?;
    let seen: Vec<_> = again
        .iter()
        .map(|claim| (&claim.id, claim.attempt))
        .collect();
    assert_eq!(seen, [(&chosen, Attempt(2)), (&queued, Attempt(1))]);
    store.complete(scored(&claims[2], 1.0)?).await?;
    assert_eq!(store.samples(&leased).await?.len(), 1);
    Ok(())
}
