//! Requests to a rollout server: kept until nothing is left to do for them.

use crate::{NewRollout, NewRow, QueueCounts, Recovery, RequestNote, RequestRecord, Store};
use bytes::Bytes;
use osmosis_core::{Attempt, RolloutId};

use super::{Fixture, LEASE, TestResult, claim_one, plan, row_body, scored};

async fn accept(store: &dyn Store, row_index: u64) -> anyhow::Result<RolloutId> {
    let row = NewRow {
        row_index,
        line: row_index + 1,
        body: row_body(row_index)?,
    };
    let id = RolloutId::of(row_index, 0);
    let rollout = NewRollout {
        id: id.clone(),
        row_index,
        run_index: 0,
    };
    let sealed = Bytes::from(vec![0, 255, u8::try_from(row_index)?]);
    store.enqueue_request(row, rollout, sealed).await?;
    Ok(id)
}

/// What happens to a request is kept for good; when it is settled, what was sealed goes.
pub async fn a_request_is_kept_until_it_is_settled(mut fixture: Fixture) -> TestResult {
    let first = accept(&*fixture.store, 0).await?;
    let second = accept(&*fixture.store, 1).await?;
    let fresh = RequestRecord {
        rollout_id: first.clone(),
        row_index: 0,
        sealed: Some(Bytes::from_static(&[0, 255, 0])),
        cancel_asked: false,
        agent_done: false,
        completion_delivered: false,
        settled: false,
    };
    assert_eq!(fixture.store.request(&first).await?, Some(fresh.clone()));
    assert_eq!(fixture.store.request(&RolloutId::of(9, 0)).await?, None);
    assert_eq!(claim_one(&*fixture.store).await?.id, first);

    let again = Bytes::from_static(b"other keys");
    for note in [
        RequestNote::AgentDone,
        RequestNote::CompletionDelivered,
        RequestNote::CancelAsked,
        RequestNote::Sealed(again.clone()),
    ] {
        fixture.store.note_request(&first, note).await?;
    }
    let nobody = RolloutId::of(9, 0);
    let asked = RequestNote::CancelAsked;
    fixture.store.note_request(&nobody, asked).await?;
    fixture.reopen().await?;
    let noted = RequestRecord {
        sealed: Some(again),
        cancel_asked: true,
        agent_done: true,
        completion_delivered: true,
        ..fresh
    };
    let unsettled = fixture.store.unsettled_requests().await?;
    assert_eq!(unsettled.len(), 2);
    assert_eq!(unsettled[0], noted);
    assert_eq!(unsettled[1].rollout_id, second);

    fixture
        .store
        .note_request(&first, RequestNote::Settled)
        .await?;
    let late = RequestNote::Sealed(Bytes::from_static(b"too late"));
    fixture.store.note_request(&first, late).await?;
    fixture.reopen().await?;
    let settled = RequestRecord {
        sealed: None,
        settled: true,
        ..noted
    };
    assert_eq!(fixture.store.request(&first).await?, Some(settled));
    let unsettled = fixture.store.unsettled_requests().await?;
    assert_eq!(unsettled.len(), 1);

    // A rollout that was there before requests were kept.
    plan(&*fixture.store, 3, 1).await?;
    let old = RolloutId::of(2, 0);
    let keys = RequestNote::Sealed(Bytes::from_static(b"keys"));
    fixture.store.note_request(&old, keys).await?;
    assert_eq!(fixture.store.unsettled_requests().await?.len(), 2);
    Ok(())
}

/// A rollout that waits is nobody's until it is let go, and no attempt is counted meanwhile.
pub async fn a_rollout_that_is_held_back_is_claimed_by_nobody(mut fixture: Fixture) -> TestResult {
    plan(&*fixture.store, 3, 1).await?;
    let (held, other) = (RolloutId::of(0, 0), RolloutId::of(1, 0));
    let both = [held.clone(), other.clone()];
    fixture.store.hold_back(&both).await?;
    fixture.clock.advance(LEASE * 10_000);
    let claims = fixture.store.claim("a", 9, LEASE).await?;
    assert_eq!(claims.len(), 1);
    assert_eq!(claims[0].id, RolloutId::of(2, 0));
    // What runs is not let go by that.
    fixture.store.let_go(&claims[0].id).await?;
    fixture.store.hold_back(&[claims[0].id.clone()]).await?;
    assert!(fixture.store.claim("a", 9, LEASE).await?.is_empty());
    fixture.store.complete(scored(&claims[0], 1.0)?).await?;

    fixture.store.let_go(&held).await?;
    let claim = claim_one(&*fixture.store).await?;
    assert_eq!((&claim.id, claim.attempt), (&held, Attempt(1)));
    // A new start looks at all of them again.
    fixture.reopen().await?;
    assert_eq!(fixture.store.recover(Recovery::AfterTakeover).await?, 2);
    let counts = QueueCounts {
        queued: 2,
        leased: 0,
        done: 1,
    };
    assert_eq!(fixture.store.counts().await?, counts);
    Ok(())
}

/// Of the rollouts that are asked for, those that are queued are handed out, and no others.
pub async fn chosen_rollouts_are_claimed_alone(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 4, 1).await?;
    let first = claim_one(store.as_ref()).await?;
    let chosen = [3, 0, 9, 2, 3].map(|row| RolloutId::of(row, 0));
    let claims = store.claim_these("b", &chosen, LEASE).await?;
    let ids: Vec<&RolloutId> = claims.iter().map(|claim| &claim.id).collect();
    assert_eq!(ids, [&chosen[0], &chosen[3]]);
    assert_eq!(claims[0].attempt, Attempt(1));
    assert_eq!(claims[0].row.body, row_body(3)?);
    assert!(store.claim_these("b", &[], LEASE).await?.is_empty());
    assert!(store.claim_these("b", &chosen, LEASE).await?.is_empty());
    store.complete(scored(&first, 1.0)?).await?;
    assert_eq!(claim_one(store.as_ref()).await?.id, RolloutId::of(1, 0));
    Ok(())
}
