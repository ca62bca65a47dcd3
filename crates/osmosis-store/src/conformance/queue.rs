//! The leased queue: who may run what, and whose result counts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::{CallQuery, CompletionReceipt, NewRollout, NewRow, QueueCounts, RolloutQuery};
use osmosis_core::{Attempt, OutcomeKind, RolloutId};
use tokio::task::JoinSet;

use super::{Fixture, LEASE, TestResult, call, claim_one, plan, row_body, scored};

fn ids(claims: &[crate::Claim]) -> Vec<String> {
    claims.iter().map(|claim| claim.id.to_string()).collect()
}

/// Claims hand out rollouts by row index, then run index, however they were added.
pub async fn claims_come_in_order_of_row_and_run(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    let rows = [2, 0, 1].map(|row_index| (row_index, row_body(row_index)));
    let mut new_rows = Vec::new();
    for (row_index, body) in rows {
        new_rows.push(NewRow {
            row_index,
            line: row_index + 1,
            body: body?,
        });
    }
    let rollouts = [(2, 1), (0, 1), (1, 0), (2, 0), (1, 1), (0, 0)]
        .map(|(row_index, run_index)| NewRollout {
            id: RolloutId::of(row_index, run_index),
            row_index,
            run_index,
        })
        .to_vec();
    store.enqueue(new_rows, rollouts).await?;
    assert_eq!(
        ids(&store.claim("a", 4, LEASE).await?),
        ["r0-0", "r0-1", "r1-0", "r1-1"]
    );
    assert_eq!(ids(&store.claim("b", 4, LEASE).await?), ["r2-0", "r2-1"]);
    assert!(store.claim("c", 4, LEASE).await?.is_empty());
    Ok(())
}

/// A claim brings what is needed to run it: its row, word for word, and a first attempt.
pub async fn a_claim_carries_its_row(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 3, 1).await?;
    assert!(store.claim("a", 0, LEASE).await?.is_empty());
    let claims = store.claim("a", 3, LEASE).await?;
    for (row_index, claim) in (0..).zip(&claims) {
        assert_eq!(claim.row.row_index, row_index);
        assert_eq!(claim.row.line, row_index + 1);
        assert_eq!(claim.row.body, row_body(row_index)?);
        assert_eq!(store.row(row_index).await?.as_ref(), Some(&claim.row));
        assert_eq!(claim.attempt, Attempt(1));
        assert_eq!(claim.losses, 0);
        assert_eq!(claim.failures, 0);
    }
    assert_eq!(claims.len(), 3);
    assert_eq!(store.row(3).await?, None);
    let asked_for = [claims[2].row.clone(), claims[0].row.clone()];
    assert_eq!(store.rows(&[2, 3, 0]).await?, asked_for);
    Ok(())
}

/// Sixteen claimers at once share the queue out without overlap.
pub async fn concurrent_claimers_never_get_the_same_rollout(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 100, 2).await?;
    let mut claimers = JoinSet::new();
    for claimer in 0..16 {
        let store = Arc::clone(&store);
        claimers.spawn(async move {
            let mut mine = Vec::new();
            loop {
                let claims = store.claim(&format!("claimer {claimer}"), 3, LEASE).await?;
                if claims.is_empty() {
                    return anyhow::Ok(mine);
                }
                mine.extend(claims.into_iter().map(|claim| (claim.id, claim.attempt)));
            }
        });
    }
    let mut handed_out = BTreeSet::new();
    while let Some(mine) = claimers.join_next().await {
        for (id, attempt) in mine?? {
            assert_eq!(attempt, Attempt(1), "{id}");
            assert!(handed_out.insert(id.clone()), "{id} was handed out twice");
        }
    }
    assert_eq!(handed_out.len(), 200);
    Ok(())
}

/// A lease that ran out makes the rollout claimable, in its place in the order.
pub async fn a_lease_that_ran_out_is_claimed_again_as_a_new_attempt(
    fixture: Fixture,
) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 4, 1).await?;
    store.claim("gone", 2, LEASE).await?;
    fixture.clock.advance(LEASE);
    let claims = store.claim("new", 3, LEASE).await?;
    assert_eq!(ids(&claims), ["r0-0", "r1-0", "r2-0"]);
    let attempts: Vec<_> = claims.iter().map(|claim| claim.attempt.0).collect();
    assert_eq!(attempts, [2, 2, 1]);
    assert_eq!(
        claims[0].failures, 0,
        "running out is no failure of its own"
    );
    Ok(())
}

/// Nobody gets a rollout whose lease still runs.
pub async fn a_lease_that_runs_is_not_claimed_again(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 1, 1).await?;
    claim_one(store.as_ref()).await?;
    let last_moment = Duration::from_millis(1);
    fixture.clock.advance(LEASE.saturating_sub(last_moment));
    assert!(store.claim("other", 1, LEASE).await?.is_empty());
    fixture.clock.advance(last_moment);
    assert_eq!(store.claim("other", 1, LEASE).await?.len(), 1);
    Ok(())
}

/// Once another attempt has the rollout, the old one's result changes nothing.
pub async fn a_stale_completion_is_fenced(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 1, 1).await?;
    let old = claim_one(store.as_ref()).await?;
    fixture.clock.advance(LEASE);
    let new = claim_one(store.as_ref()).await?;
    let before = store.rollout(&old.id).await?;
    assert_eq!(
        store.complete(scored(&old, 0.0)?).await?,
        CompletionReceipt::Fenced
    );
    assert_eq!(store.rollout(&old.id).await?, before);
    assert!(store.samples(&old.id).await?.is_empty());
    assert_eq!(
        store.complete(scored(&new, 1.0)?).await?,
        CompletionReceipt::Accepted
    );
    assert_eq!(
        store.complete(scored(&old, 0.0)?).await?,
        CompletionReceipt::Fenced
    );
    assert_eq!(store.samples(&old.id).await?, scored(&new, 1.0)?.samples);

    let unknown = crate::Claim {
        id: RolloutId::new("nobody")?,
        ..new
    };
    assert_eq!(
        store.complete(scored(&unknown, 1.0)?).await?,
        CompletionReceipt::Fenced
    );
    Ok(())
}

/// Being late is no fault as long as the attempt still has the rollout.
pub async fn a_late_completion_counts_while_nobody_else_claimed(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 1, 1).await?;
    let claim = claim_one(store.as_ref()).await?;
    fixture.clock.advance(LEASE * 10);
    assert_eq!(
        store.complete(scored(&claim, 1.0)?).await?,
        CompletionReceipt::Accepted
    );
    assert!(store.claim("other", 1, LEASE).await?.is_empty());
    Ok(())
}

/// The first result stands; the same attempt can't give another, nor be released.
pub async fn a_rollout_completes_once(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 1, 1).await?;
    let claim = claim_one(store.as_ref()).await?;
    let mut completions = JoinSet::new();
    for reward in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let store = Arc::clone(&store);
        let completion = scored(&claim, reward)?;
        completions.spawn(async move { anyhow::Ok((reward, store.complete(completion).await?)) });
    }
    let mut accepted = Vec::new();
    while let Some(completion) = completions.join_next().await {
        let (reward, receipt) = completion??;
        if receipt == CompletionReceipt::Accepted {
            accepted.push(reward);
        }
    }
    assert_eq!(accepted.len(), 1);
    store.release(&claim.id, claim.attempt, true, true).await?;
    let record = store.rollout(&claim.id).await?;
    let outcome = record.and_then(|record| record.outcome);
    assert_eq!(outcome, Some(scored(&claim, accepted[0])?.outcome));
    assert_eq!(store.samples(&claim.id).await?.len(), 1);
    Ok(())
}

/// A heartbeat keeps what is held, and names what is not: claimed by another, finished, unknown.
pub async fn a_heartbeat_extends_leases_and_reports_lost_ones(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 3, 1).await?;
    let held: Vec<_> = store
        .claim("engine", 3, LEASE)
        .await?
        .into_iter()
        .map(|claim| (claim.id, claim.attempt))
        .collect();
    let half = LEASE / 2;
    fixture.clock.advance(half);
    assert!(store.heartbeat(&held[..2], LEASE).await?.is_empty());
    fixture.clock.advance(half);
    let others = store.claim("other", 3, LEASE).await?;
    assert_eq!(ids(&others), ["r2-0"], "the extended ones are still held");
    assert_eq!(store.heartbeat(&held, LEASE).await?, held[2..]);

    let mut first = others[0].clone();
    (first.id, first.attempt) = held[0].clone();
    store.complete(scored(&first, 1.0)?).await?;
    let unknown = (RolloutId::new("nobody")?, Attempt(1));
    let asked = [held[0].clone(), held[1].clone(), unknown.clone()];
    assert_eq!(
        store.heartbeat(&asked, LEASE).await?,
        [held[0].clone(), unknown]
    );
    assert!(store.heartbeat(&[], LEASE).await?.is_empty());
    Ok(())
}

/// Releasing queues the rollout again, and counts lost workers and failures.
pub async fn a_release_puts_back_and_counts_lost_workers_and_failures(
    fixture: Fixture,
) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 1, 1).await?;
    let mut seen = Vec::new();
    for (lost, failed) in [(false, false), (false, true), (true, false), (true, true)] {
        let claim = claim_one(store.as_ref()).await?;
        store
            .release(&claim.id, claim.attempt, lost, failed)
            .await?;
        assert_eq!(store.counts().await?.queued, 1);
        let next = claim_one(store.as_ref()).await?;
        seen.push((next.attempt.0, next.losses, next.failures));
        store.release(&next.id, next.attempt, false, false).await?;
    }
    assert_eq!(seen, [(2, 0, 0), (4, 0, 1), (6, 1, 1), (8, 2, 2)]);
    let record = store.rollout(&RolloutId::of(0, 0)).await?;
    let record = record.map(|record| (record.attempts, record.failures, record.outcome));
    assert_eq!(record, Some((8, 2, None)));
    Ok(())
}

/// Only the attempt that holds a rollout can give it back.
pub async fn a_stale_release_changes_nothing(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 1, 1).await?;
    let old = claim_one(store.as_ref()).await?;
    fixture.clock.advance(LEASE);
    let new = claim_one(store.as_ref()).await?;
    store.release(&old.id, old.attempt, true, true).await?;
    assert_eq!(store.counts().await?.leased, 1);
    assert_eq!(
        store.complete(scored(&new, 1.0)?).await?,
        CompletionReceipt::Accepted
    );
    Ok(())
}

/// Planning again after a crash leaves what is there alone, and adds what is not.
pub async fn enqueueing_again_changes_nothing(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 2, 1).await?;
    let claim = claim_one(store.as_ref()).await?;
    store.complete(scored(&claim, 1.0)?).await?;
    let running = claim_one(store.as_ref()).await?;
    let done = store.rollout(&claim.id).await?;
    plan(store.as_ref(), 3, 2).await?;
    assert_eq!(store.rollout(&claim.id).await?, done);
    assert_eq!(
        store.counts().await?,
        QueueCounts {
            queued: 4,
            leased: 1,
            done: 1
        }
    );
    assert_eq!(
        store.complete(scored(&running, 1.0)?).await?,
        CompletionReceipt::Accepted
    );
    Ok(())
}

/// A plan with a rollout that has no row, or takes another's place, adds nothing at all.
pub async fn enqueueing_is_all_or_nothing(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 1, 1).await?;
    let row = NewRow {
        row_index: 5,
        line: 6,
        body: row_body(5)?,
    };
    let fine = NewRollout {
        id: RolloutId::of(5, 0),
        row_index: 5,
        run_index: 0,
    };
    let without_row = NewRollout {
        id: RolloutId::of(9, 0),
        row_index: 9,
        run_index: 0,
    };
    let same_place = NewRollout {
        id: RolloutId::new("usurper")?,
        row_index: 0,
        run_index: 0,
    };
    for bad in [without_row, same_place] {
        let refused = store
            .enqueue(vec![row.clone()], vec![fine.clone(), bad])
            .await;
        assert!(refused.is_err());
        assert_eq!(store.counts().await?.total(), 1);
        assert_eq!(store.row(5).await?, None);
    }
    store.enqueue(vec![row], vec![fine]).await?;
    assert_eq!(store.counts().await?.total(), 2);
    Ok(())
}

/// Counts are right after every step.
pub async fn counts_follow_every_change_of_state(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    let counts = |queued, leased, done| QueueCounts {
        queued,
        leased,
        done,
    };
    assert_eq!(store.counts().await?, counts(0, 0, 0));
    plan(store.as_ref(), 3, 1).await?;
    assert_eq!(store.counts().await?, counts(3, 0, 0));
    let claims = store.claim("engine", 2, LEASE).await?;
    assert_eq!(store.counts().await?, counts(1, 2, 0));
    store.complete(scored(&claims[0], 1.0)?).await?;
    assert_eq!(store.counts().await?, counts(1, 1, 1));
    store
        .release(&claims[1].id, claims[1].attempt, false, true)
        .await?;
    assert_eq!(store.counts().await?, counts(2, 0, 1));
    store.requeue(&[OutcomeKind::Scored]).await?;
    assert_eq!(store.counts().await?, counts(3, 0, 0));
    Ok(())
}

/// Sixteen writers that claim, record and complete at once: every rollout has one result and its
/// calls.
pub async fn concurrent_writers_lose_nothing(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 50, 4).await?;
    let mut writers = JoinSet::new();
    for writer in 0..16 {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            let owner = format!("writer {writer}");
            loop {
                let claims = store.claim(&owner, 2, LEASE).await?;
                if claims.is_empty() {
                    return anyhow::Ok(());
                }
                for claim in claims {
                    let request = format!("{{\"ask\":\"{}\"}}", claim.id);
                    store
                        .record_call(call(&claim, "main", request.clone(), "1")?)
                        .await?;
                    store
                        .record_call(call(&claim, "main", request, "2")?)
                        .await?;
                    let receipt = store.complete(scored(&claim, 1.0)?).await?;
                    assert_eq!(receipt, CompletionReceipt::Accepted);
                }
            }
        });
    }
    while let Some(finished) = writers.join_next().await {
        finished??;
    }
    assert_eq!(store.counts().await?.done, 200);
    let page = store
        .rollouts(RolloutQuery {
            finished_only: true,
            ..RolloutQuery::default()
        })
        .await?;
    assert_eq!(page.items.len(), 200);
    for record in page.items {
        assert_eq!(record.attempts, 1);
        assert_eq!(store.samples(&record.id).await?.len(), 1);
        let query = CallQuery {
            rollout_id: record.id.clone(),
            attempt: None,
        };
        let calls = store.calls(query).await?;
        assert_eq!(calls.len(), 2);
        for (expected, recorded) in ["1", "2"].into_iter().zip(calls) {
            let body = store.call_body(recorded.call_id).await?;
            let Some(body) = body else {
                anyhow::bail!("a call has no body");
            };
            assert_eq!(body.request, format!("{{\"ask\":\"{}\"}}", record.id));
            assert_eq!(body.response, expected);
        }
    }
    Ok(())
}
