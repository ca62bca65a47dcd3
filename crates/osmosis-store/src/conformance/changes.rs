//! Notification of changes.

use std::time::Duration;

use tokio::time::timeout;

use super::{Fixture, LEASE, TestResult, call, claim_one, plan, scored};
use crate::{Changes, StoreErrorKind};

/// How long a backend may take to report a change.
const SOON: Duration = Duration::from_secs(30);

pub(super) async fn reported(changes: &mut Changes) -> TestResult {
    timeout(SOON, changes.wait()).await??;
    Ok(())
}

/// Whether nothing is reported so far.
async fn is_quiet(changes: &mut Changes) -> bool {
    tokio::select! {
        biased;
        _ = changes.wait() => false,
        () = std::future::ready(()) => true,
    }
}

/// Whoever waits hears of every kind of change, and then finds it.
pub async fn a_change_is_reported_when_it_can_be_read(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    let (mut changes, mut other) = (store.changes(), store.changes());
    assert!(is_quiet(&mut changes).await);
    plan(store.as_ref(), 2, 1).await?;
    reported(&mut changes).await?;
    reported(&mut other).await?;
    assert_eq!(store.counts().await?.queued, 2);

    let claim = claim_one(store.as_ref()).await?;
    reported(&mut changes).await?;
    store.record_call(call(&claim, "main", "q", "a")?).await?;
    reported(&mut changes).await?;
    assert_eq!(store.call_totals().await?.model_calls, 1);
    store.complete(scored(&claim, 1.0)?).await?;
    reported(&mut changes).await?;
    assert_eq!(store.counts().await?.done, 1);

    let mut late = store.changes();
    assert!(is_quiet(&mut late).await, "only what comes from now on");
    Ok(())
}

/// A loop that claims, and waits for a change when there was nothing to claim, comes to rest.
pub async fn a_write_that_changes_nothing_is_not_reported(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 1, 1).await?;
    let claim = claim_one(store.as_ref()).await?;
    let mut changes = store.changes();
    assert!(store.claim("engine", 1, LEASE).await?.is_empty());
    assert!(store.cancel(&[claim.id.clone()]).await?.is_empty());
    assert!(store.requeue_these(&[claim.id.clone()]).await?.is_empty());
    assert!(is_quiet(&mut changes).await);
    store
        .release(&claim.id, claim.attempt, false, false)
        .await?;
    reported(&mut changes).await
}

/// Whoever waits for a store that is closed is told so.
pub async fn changes_end_with_the_store(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    let mut changes = store.changes();
    plan(store.as_ref(), 1, 1).await?;
    store.close().await?;
    reported(&mut changes).await?;
    for mut changes in [changes, store.changes()] {
        let ended = timeout(SOON, changes.wait()).await?;
        let kind = ended.err().map(|error| error.kind());
        assert_eq!(kind, Some(StoreErrorKind::Closed));
    }
    Ok(())
}
