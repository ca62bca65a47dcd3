//! Model calls and their bodies.

use bytes::Bytes;
use osmosis_core::{Attempt, PolicyVersion, RolloutId, SampleId};

use super::{Fixture, LEASE, TestResult, call, claim_one, plan, scored};
use crate::{
    CallBody, CallPurpose, CallQuery, CallRecord, CallSummary, Claim, JudgeSummary, NewCall,
    Pieces, Recovery, Store,
};

/// What was paid for counts, also when it came to nothing.
pub async fn totals_count_the_calls_of_every_attempt(fixture: Fixture) -> TestResult {
    let store = fixture.store.as_ref();
    plan(store, 1, 1).await?;
    assert_eq!(store.call_totals().await?, CallSummary::default());
    let lost = claim_one(store).await?;
    store.record_call(call(&lost, "main", "q", "a")?).await?;
    fixture.clock.advance(LEASE);
    let claim = claim_one(store).await?;
    let told = NewCall {
        cached_tokens: None,
        reasoning_tokens: Some(4),
        ..call(&claim, "main", "q", "a")?
    };
    let untold = NewCall {
        prompt_tokens: None,
        completion_tokens: None,
        cached_tokens: None,
        ..call(&claim, "main", "q", "a")?
    };
    store.record_call(told).await?;
    store.record_call(untold).await?;
    let judge = NewCall {
        purpose: CallPurpose::Judge,
        ..call(&claim, "main", "q", "a")?
    };
    store.record_call(judge).await?;
    store.complete(scored(&claim, 1.0)?).await?;
    let expected = CallSummary {
        model_calls: 3,
        prompt_tokens: 100,
        completion_tokens: 20,
        cached_tokens: Some(30),
        reasoning_tokens: Some(4),
        judge: JudgeSummary {
            calls: 1,
            prompt_tokens: 50,
            completion_tokens: 10,
        },
    };
    assert_eq!(store.call_totals().await?, expected);
    Ok(())
}

fn as_recorded(call_id: u64, call: &NewCall) -> CallRecord {
    CallRecord {
        call_id,
        rollout_id: call.rollout_id.clone(),
        attempt: call.attempt,
        sample_id: call.sample_id.clone(),
        purpose: call.purpose,
        dialect: call.dialect.clone(),
        model: call.model.clone(),
        upstream: call.upstream.clone(),
        policy_version: call.policy_version,
        streamed: call.streamed,
        status: call.status,
        error: call.error.clone(),
        prompt_tokens: call.prompt_tokens,
        completion_tokens: call.completion_tokens,
        cached_tokens: call.cached_tokens,
        reasoning_tokens: call.reasoning_tokens,
        queued_at_ms: call.queued_at_ms,
        sent_at_ms: call.sent_at_ms,
        first_byte_at_ms: call.first_byte_at_ms,
        done_at_ms: call.done_at_ms,
        token_records: u32::try_from(call.tokens.len()).unwrap_or(u32::MAX),
    }
}

pub(super) async fn calls_of(
    store: &dyn Store,
    claim: &Claim,
    attempt: Option<Attempt>,
) -> anyhow::Result<Vec<CallRecord>> {
    let query = CallQuery {
        rollout_id: claim.id.clone(),
        attempt,
    };
    Ok(store.calls(query).await?)
}

pub(super) async fn body_of(store: &dyn Store, call_id: u64) -> anyhow::Result<CallBody> {
    store
        .call_body(call_id)
        .await?
        .ok_or_else(|| anyhow::anyhow!("call {call_id} has no body"))
}

/// Calls come back in the order they were recorded, by attempt; by default the accepted one's.
pub async fn calls_are_ordered_and_belong_to_their_attempt(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 2, 1).await?;
    let first = claim_one(store.as_ref()).await?;
    let neighbour = claim_one(store.as_ref()).await?;
    store
        .record_call(call(&first, "main", "old", "old")?)
        .await?;
    fixture.clock.advance(LEASE);
    let second = claim_one(store.as_ref()).await?;
    assert_eq!(second.id, first.id);

    let plain = call(&second, "main", "one", "1")?;
    let mut odd = call(&second, "other", Bytes::new(), Bytes::new())?;
    odd.error = Some("upstream hung up".to_owned());
    odd.status = 0;
    odd.policy_version = PolicyVersion(u64::MAX);
    odd.prompt_tokens = None;
    odd.sent_at_ms = None;
    odd.streamed = false;
    odd.done_at_ms -= 1000;
    for new in [&plain, &odd] {
        store.record_call(new.clone()).await?;
        store
            .record_call(call(&neighbour, "main", "n", "n")?)
            .await?;
    }
    // The old attempt's agent has not noticed yet that it is too late.
    store
        .record_call(call(&first, "main", "late", "late")?)
        .await?;
    store
        .heartbeat(&[(second.id.clone(), second.attempt)], LEASE)
        .await?;

    for accepted in [false, true] {
        if accepted {
            store.complete(scored(&second, 1.0)?).await?;
        }
        let shown = calls_of(store.as_ref(), &second, None).await?;
        let ids: Vec<_> = shown.iter().map(|call| call.call_id).collect();
        assert!(ids.is_sorted());
        assert_eq!(ids.len(), 2);
        let expected = [as_recorded(ids[0], &plain), as_recorded(ids[1], &odd)];
        assert_eq!(shown, expected);
        let same = calls_of(store.as_ref(), &second, Some(second.attempt)).await?;
        assert_eq!(same, expected);
    }
    let old = calls_of(store.as_ref(), &first, Some(first.attempt)).await?;
    let mut bodies = Vec::new();
    for call in &old {
        bodies.push(body_of(store.as_ref(), call.call_id).await?.request);
    }
    assert_eq!(bodies, ["old", "late"]);
    assert_eq!(store.call_body(1_000_000).await?, None);
    assert_eq!(calls_of(store.as_ref(), &neighbour, None).await?.len(), 2);

    let gateway = call(
        &Claim {
            id: RolloutId::new("no-run")?,
            ..first
        },
        "main",
        "x",
        "y",
    )?;
    store.record_call(gateway.clone()).await?;
    store.recover(Recovery::AfterTakeover).await?;
    let query = CallQuery {
        rollout_id: gateway.rollout_id,
        attempt: None,
    };
    assert_eq!(store.calls(query).await?.len(), 1, "calls need no rollout");
    Ok(())
}

/// Whatever was recorded before a completion is there when the completion is acknowledged.
pub async fn a_call_is_durable_with_the_next_completion(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 20, 1).await?;
    for turns in 0..20 {
        let claim = claim_one(store.as_ref()).await?;
        for turn in 0..turns {
            store
                .record_call(call(&claim, "main", format!("{turn}"), "a")?)
                .await?;
        }
        store.complete(scored(&claim, 1.0)?).await?;
        let calls = calls_of(store.as_ref(), &claim, None).await?;
        assert_eq!(calls.len(), turns);
    }
    Ok(())
}

/// Five megabytes in, five megabytes out, also when the next request extends them.
pub async fn bodies_of_megabytes_come_back_exactly(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 1, 1).await?;
    let claim = claim_one(store.as_ref()).await?;
    let noise = |seed: u32, length: usize| -> Vec<u8> {
        let mut state = seed;
        (0..length)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state.to_be_bytes()[0]
            })
            .collect()
    };
    let request = noise(1, 5_000_000);
    let response = noise(2, 5_000_000);
    let longer = [&request[..4_000_000], b"more", &request[4_000_000..]].concat();
    let bodies = [(request, response.clone()), (longer, response)];
    for (request, response) in &bodies {
        store
            .record_call(call(&claim, "main", request.clone(), response.clone())?)
            .await?;
    }
    store.complete(scored(&claim, 1.0)?).await?;
    let calls = calls_of(store.as_ref(), &claim, None).await?;
    assert_eq!(calls.len(), 2);
    for (call, (request, response)) in calls.iter().zip(&bodies) {
        let body = body_of(store.as_ref(), call.call_id).await?;
        assert!(body.request == request, "the request differs");
        assert!(body.response == response, "the response differs");
    }
    Ok(())
}

/// Conversations that grow, fork, shrink and interleave come back byte for byte, also after reopening.
pub async fn conversations_come_back_exactly(mut fixture: Fixture) -> TestResult {
    plan(fixture.store.as_ref(), 3, 1).await?;
    let claims = fixture.store.claim("engine", 3, LEASE).await?;
    let mut expected = Vec::new();
    for turn in 0..60_usize {
        let claim = &claims[turn % claims.len()];
        let sample_id = if turn % 4 == 0 { "helper" } else { "main" };
        let messages: Vec<String> = (0..turn)
            .map(|n| {
                format!(
                    r#"{{"role":"user","content":"{sample_id} says {n} é {}"}}"#,
                    "x".repeat(n)
                )
            })
            .collect();
        let request = match turn % 11 {
            7 => String::new(),
            9 => messages.iter().rev().cloned().collect(),
            _ => format!(
                r#"{{"model":"m","messages":[{}],"tools":[{}]}}"#,
                messages.join(","),
                "t".repeat(300)
            ),
        };
        let response = format!("answer {turn}");
        // Whole, or in pieces, of which some are empty.
        let pieces: Pieces = match turn % 3 {
            0 => response.clone().into(),
            step => (response.as_bytes().chunks(step * 3))
                .map(Bytes::copy_from_slice)
                .flat_map(|piece| [piece, Bytes::new()])
                .collect(),
        };
        fixture
            .store
            .record_call(call(claim, sample_id, request.clone(), pieces)?)
            .await?;
        expected.push((
            claim.id.clone(),
            SampleId::new(sample_id)?,
            request,
            response,
        ));
    }
    fixture.store.complete(scored(&claims[0], 1.0)?).await?;
    for _ in 0..2 {
        for claim in &claims {
            let calls = calls_of(fixture.store.as_ref(), claim, None).await?;
            let mut seen = Vec::new();
            for call in calls {
                let body = body_of(fixture.store.as_ref(), call.call_id).await?;
                seen.push((call.rollout_id, call.sample_id, body));
            }
            let wanted: Vec<_> = expected
                .iter()
                .filter(|(id, ..)| *id == claim.id)
                .map(|(id, sample_id, request, response)| {
                    let body = CallBody {
                        request: request.clone().into(),
                        response: response.clone().into(),
                        tokens: Vec::new(),
                    };
                    (id.clone(), sample_id.clone(), body)
                })
                .collect();
            assert_eq!(seen, wanted);
        }
        fixture.reopen().await?;
    }
    Ok(())
}
