//! Leases whose owner is gone.

use osmosis_core::{Attempt, RolloutId};

use super::{Fixture, LEASE, TestResult, claim_one, plan, scored};
use crate::{CompletionReceipt, QueueCounts, Recovery};

/// Whoever takes the run over puts back what others held; results and counters stay.
pub async fn recovery_after_a_takeover_puts_back_everything_leased(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 4, 1).await?;
    let claims = store.claim("dead", 3, LEASE).await?;
    store.complete(scored(&claims[0], 1.0)?).await?;
    store
        .release(&claims[1].id, claims[1].attempt, true, true)
        .await?;
    let again = claim_one(store.as_ref()).await?;
    assert_eq!(again.id, claims[1].id);
    assert_eq!(store.recover(Recovery::AfterTakeover).await?, 2);
    assert_eq!(
        store.counts().await?,
        QueueCounts {
            queued: 3,
            leased: 0,
            done: 1
        }
    );
    assert_eq!(
        store.complete(scored(&claims[2], 1.0)?).await?,
        CompletionReceipt::Fenced,
        "whoever held it before is too late"
    );
    let retaken = store.claim("alive", 3, LEASE).await?;
    let seen: Vec<_> = retaken
        .iter()
        .map(|claim| (claim.attempt.0, claim.losses, claim.failures))
        .collect();
    assert_eq!(seen, [(3, 1, 1), (2, 0, 0), (1, 0, 0)]);
    Ok(())
}

/// An engine that starts again takes back what it held itself; what others run, and what is held back, stays theirs.
pub async fn recovery_of_an_owner_leaves_the_leases_of_others(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 5, 1).await?;
    store.hold_back(&[RolloutId::of(4, 0)]).await?;
    let ours = store.claim("ours", 2, LEASE).await?;
    let theirs = store.claim("theirs", 1, LEASE).await?;
    assert_eq!(store.recover(Recovery::OwnedBy("nobody")).await?, 0);
    assert_eq!(store.recover(Recovery::OwnedBy("ours")).await?, 2);
    assert_eq!(
        store.counts().await?,
        QueueCounts {
            queued: 3,
            leased: 2,
            done: 0
        }
    );

    let held: Vec<_> = theirs
        .iter()
        .chain(&ours)
        .map(|claim| (claim.id.clone(), claim.attempt))
        .collect();
    let lost = store.heartbeat(&held, LEASE).await?;
    assert_eq!(lost, held[1..], "only ours were taken back");
    assert_eq!(
        store.complete(scored(&ours[0], 1.0)?).await?,
        CompletionReceipt::Fenced
    );
    assert_eq!(
        store.complete(scored(&theirs[0], 1.0)?).await?,
        CompletionReceipt::Accepted
    );

    let again = store.claim("ours", 9, LEASE).await?;
    let seen: Vec<_> = again
        .iter()
        .map(|claim| (&claim.id, claim.attempt, claim.losses, claim.failures))
        .collect();
    assert_eq!(
        seen,
        [
            (&RolloutId::of(0, 0), Attempt(2), 0, 0),
            (&RolloutId::of(1, 0), Attempt(2), 0, 0),
            (&RolloutId::of(3, 0), Attempt(1), 0, 0),
        ],
        "what is held back is nobody's"
    );
    Ok(())
}

/// A process that was killed left leases under a name that nobody knows any more: whoever holds the run alone after it
/// takes them all, so that nothing is stuck until they run out.
pub async fn recovery_after_a_takeover_needs_no_names(mut fixture: Fixture) -> TestResult {
    plan(&*fixture.store, 2, 1).await?;
    let dead = fixture.store.claim("pid 4711", 2, LEASE * 1000).await?;
    fixture.reopen().await?;
    let store = &fixture.store;
    assert!(store.claim("pid 4712", 2, LEASE).await?.is_empty());
    assert_eq!(store.recover(Recovery::OwnedBy("pid 4712")).await?, 0);
    assert_eq!(store.recover(Recovery::AfterTakeover).await?, 2);
    assert_eq!(claim_one(store.as_ref()).await?.attempt, Attempt(2));
    let late = store.complete(scored(&dead[1], 1.0)?).await?;
    assert_eq!(late, CompletionReceipt::Fenced);
    Ok(())
}
