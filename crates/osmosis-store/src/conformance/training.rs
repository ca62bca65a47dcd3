//! What training reads back: token records, the rollouts of a step, the steps.

use crate::{BatchRecord, CallPurpose, Claim, NewCall, RolloutQuery, StepRecord};
use bytes::Bytes;
use osmosis_core::{JsonText, PolicyVersion, RolloutId, SampleId};

use super::records::{body_of, calls_of};
use super::{Fixture, LEASE, TestResult, call, claim_one, plan, scored};

/// Token records come back as they were, by sample and in order, of the accepted attempt alone.
pub async fn token_records_come_back_without_the_bodies(mut fixture: Fixture) -> TestResult {
    plan(fixture.store.as_ref(), 2, 1).await?;
    let first = claim_one(fixture.store.as_ref()).await?;
    let neighbour = claim_one(fixture.store.as_ref()).await?;
    let with = |claim: &Claim, sample: &str, tokens: &[&[u8]]| {
        anyhow::Ok(NewCall {
            tokens: tokens.iter().map(|t| Bytes::copy_from_slice(t)).collect(),
            ..call(claim, sample, "q", "a")?
        })
    };
    let store = fixture.store.as_ref();
    store
        .record_call(with(&first, "main", &[b"too old"])?)
        .await?;
    fixture.clock.advance(LEASE);
    let second = claim_one(store).await?;
    assert_eq!(second.id, first.id);
    let long = vec![7; 3 << 20];
    let calls: [(&str, &[&[u8]]); 5] = [
        ("main", &[b"one"]),
        ("judge", &[b"two", b"", b"three"]),
        ("main", &[]),
        ("main", &[&long]),
        ("judge", &[b""]),
    ];
    for (sample, tokens) in calls {
        store.record_call(with(&second, sample, tokens)?).await?;
        store
            .record_call(with(&neighbour, "main", &[b"next door"])?)
            .await?;
    }
    // What the grader asks its judge is nothing to learn from.
    let judged = NewCall {
        purpose: CallPurpose::Judge,
        ..with(&second, "main", &[b"judged"])?
    };
    store.record_call(judged).await?;
    // The old attempt's agent has not noticed yet that it is too late.
    store
        .record_call(with(&first, "main", &[b"too late"])?)
        .await?;
    store.complete(scored(&second, 1.0)?).await?;
    let expected: Vec<(SampleId, Bytes)> = calls
        .iter()
        .flat_map(|(sample, tokens)| tokens.iter().map(move |t| (*sample, *t)))
        .map(|(sample, tokens)| Ok((SampleId::new(sample)?, Bytes::copy_from_slice(tokens))))
        .collect::<anyhow::Result<_>>()?;
    for _ in 0..2 {
        let store = fixture.store.as_ref();
        assert_eq!(store.token_records(&second.id).await?, expected);
        assert_eq!(store.token_records(&neighbour.id).await?.len(), 5);
        let recorded = calls_of(store, &second, None).await?;
        for (recorded, (_, tokens)) in recorded.iter().zip(calls) {
            assert_eq!(recorded.token_records as usize, tokens.len());
            let body = body_of(store, recorded.call_id).await?;
            assert_eq!(body.tokens, tokens);
            assert_eq!(
                (&body.request[..], &body.response[..]),
                (&b"q"[..], &b"a"[..])
            );
        }
        fixture.reopen().await?;
    }
    let unknown = RolloutId::of(77, 0);
    assert_eq!(fixture.store.token_records(&unknown).await?, []);
    Ok(())
}

/// Rollouts are found by id, in the order asked for; ids that are nobody's are left out.
pub async fn rollouts_come_by_id_in_the_order_asked_for(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 3, 2).await?;
    let claim = claim_one(store.as_ref()).await?;
    store.complete(scored(&claim, 0.5)?).await?;
    let all = store.rollouts(RolloutQuery::default()).await?.items;
    let wanted = [5, 0, 3].map(|place: usize| all[place].clone());
    let ids: Vec<RolloutId> = [
        &wanted[0].id,
        &RolloutId::of(9, 9),
        &wanted[1].id,
        &wanted[2].id,
    ]
    .into_iter()
    .cloned()
    .collect();
    assert_eq!(store.rollouts_by_id(&ids).await?, wanted);
    assert!(
        wanted[1].outcome.is_some(),
        "the finished one is among them"
    );
    assert_eq!(store.rollouts_by_id(&[]).await?, []);
    Ok(())
}

/// Steps come in order and stay; one that is done again takes the place of what it was.
pub async fn a_step_is_kept_and_can_be_replaced(mut fixture: Fixture) -> TestResult {
    let step = |step: u64, version: u64, metrics: &str| {
        anyhow::Ok(StepRecord {
            step,
            version: PolicyVersion(version),
            metrics: JsonText::parse(metrics)?,
            finished_at_ms: 1_700_000_000_000,
        })
    };
    assert_eq!(fixture.store.steps().await?, []);
    let first = step(1, 1, r#"{"reward/mean":  0.25}"#)?;
    let second = step(2, u64::MAX, "{}")?;
    let again = step(2, 2, r#"{"reward/mean":0.5}"#)?;
    let third = step(3, 3, "{}")?;
    for done in [&third, &first, &second] {
        fixture.store.record_step(done.clone()).await?;
    }
    let expected = [first.clone(), second, third.clone()];
    assert_eq!(fixture.store.steps().await?, expected);
    fixture.store.record_step(again.clone()).await?;
    fixture.reopen().await?;
    assert_eq!(fixture.store.steps().await?, [first, again, third]);
    Ok(())
}

/// A batch may be formed anew until it was acknowledged, and is acknowledged once.
pub async fn a_batch_stays_as_it_was_acknowledged(mut fixture: Fixture) -> TestResult {
    let batch = |number: u64, content: &str| {
        anyhow::Ok(BatchRecord {
            number,
            version: PolicyVersion(u64::MAX),
            content: JsonText::parse(content)?,
            formed_at_ms: 1_700_000_000_000,
            acknowledged_at_ms: None,
        })
    };
    assert_eq!(fixture.store.batches().await?, []);
    let second = batch(2, "[3,  4]")?;
    let first = batch(1, "[0,1]")?;
    for formed in [&second, &first] {
        fixture.store.record_batch(formed.clone()).await?;
    }
    let again = batch(1, "[0,2]")?;
    fixture.store.record_batch(again.clone()).await?;
    assert!(fixture.store.acknowledge_batch(1, 5).await?);
    assert!(!fixture.store.acknowledge_batch(1, 6).await?);
    assert!(!fixture.store.acknowledge_batch(3, 6).await?);
    fixture.store.record_batch(first).await?;
    fixture.reopen().await?;
    let acknowledged = BatchRecord {
        acknowledged_at_ms: Some(5),
        ..again
    };
    assert_eq!(fixture.store.batches().await?, [acknowledged, second]);
    Ok(())
}
