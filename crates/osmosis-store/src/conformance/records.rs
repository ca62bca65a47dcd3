//! What is recorded comes back as it was: runs, results, samples.

use osmosis_core::{Attempt, JsonText, Outcome, OutcomeKind, Phase, Reward, RolloutId};

use super::calls::{body_of, calls_of};
use super::{
    Fixture, LEASE, TestResult, call, claim_one, ended, failure, plan, run_record, sample, scored,
};
use crate::{RolloutPages, RolloutQuery, RolloutRecord, RunStatus, Store, StoreErrorKind};

/// A run is created once; its status moves, and only a finished one has a finish time.
pub async fn a_run_has_one_record(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    assert_eq!(store.run().await?, None);
    assert!(store.set_status(RunStatus::Finished).await.is_err());
    let record = run_record("first")?;
    store.create_run(record.clone()).await?;
    assert_eq!(store.run().await?, Some(record.clone()));
    let Err(error) = store.create_run(run_record("second")?).await else {
        anyhow::bail!("a second record was accepted");
    };
    assert_eq!(error.kind(), StoreErrorKind::AlreadyExists);
    assert_eq!(store.run().await?, Some(record));

    for status in [
        RunStatus::Interrupted,
        RunStatus::Running,
        RunStatus::Finished,
        RunStatus::Running,
    ] {
        store.set_status(status).await?;
        let run = store.run().await?;
        let run = run.map(|run| (run.status, run.finished_at_ms.is_some()));
        assert_eq!(run, Some((status, status == RunStatus::Finished)));
    }
    Ok(())
}

fn one_outcome_of_each_kind() -> anyhow::Result<Vec<Outcome>> {
    let mut traced = failure("ValueError");
    traced.traceback = Some("Traceback:\n  line 1\n".to_owned());
    Ok(vec![
        Outcome::Scored {
            reward: Reward::new(0.1 + 0.2)?,
            passed: false,
        },
        Outcome::AgentFailed { failure: traced },
        Outcome::TimedOut {
            phase: Phase::Grade,
            limit_ms: 150_000,
        },
        Outcome::Ungraded {
            failure: failure("nan_reward"),
        },
        Outcome::Rejected {
            reason: "too \"easy\"".to_owned(),
        },
        Outcome::InfrastructureFailed {
            failure: failure("upstream_down"),
        },
        Outcome::Cancelled,
    ])
}

/// Every kind of outcome survives with all that belongs to it.
pub async fn every_outcome_comes_back_as_it_was(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    let outcomes = one_outcome_of_each_kind()?;
    let kinds: Vec<_> = outcomes.iter().map(Outcome::kind).collect();
    assert_eq!(kinds, OutcomeKind::ALL);
    plan(store.as_ref(), outcomes.len() as u64, 1).await?;
    for outcome in &outcomes {
        let claim = claim_one(store.as_ref()).await?;
        let mut completion = ended(&claim, outcome.clone())?;
        completion.metrics = Some(JsonText::parse(r#"{"turns": 3}"#)?);
        store.complete(completion.clone()).await?;
        let Some(record) = store.rollout(&claim.id).await? else {
            anyhow::bail!("the rollout is gone");
        };
        assert_eq!(record.outcome.as_ref(), Some(outcome));
        assert_eq!(record.metrics, completion.metrics);
        assert_eq!(record.durations, completion.durations);
        assert_eq!(record.calls, completion.calls);
        assert_eq!(record.started_at_ms, Some(completion.started_at_ms));
        assert_eq!(record.finished_at_ms, Some(completion.finished_at_ms));
        assert_eq!(record.attempts, 1);
    }
    let page = store.rollouts(RolloutQuery::default()).await?;
    let listed: Vec<_> = page
        .items
        .into_iter()
        .filter_map(|item| item.outcome)
        .collect();
    assert_eq!(listed, outcomes);
    Ok(())
}

/// Samples keep their order, their text and their exact rewards; removed ones give none.
pub async fn samples_come_back_as_they_were(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 1, 1).await?;
    let claim = claim_one(store.as_ref()).await?;
    let new = |id, reward| sample(id, &claim.id, claim.attempt, reward);
    let mut first = new("zebra \"✓\"", Some(Reward::new(1.0 / 3.0)?))?;
    first.metrics = Some(JsonText::parse(r#"{"a":1.50}"#)?);
    first.extra_fields = Some(JsonText::parse(r#"{"b":[null]}"#)?);
    let mut removed = new("removed", Some(Reward::new(0.5)?))?;
    removed.remove_sample = true;
    let samples = vec![
        first,
        removed,
        new("ungraded", None)?,
        new("apple", Some(Reward::recorded(-2e300)?))?,
    ];
    let mut completion = scored(&claim, 1.0)?;
    completion.samples.clone_from(&samples);
    store.complete(completion).await?;
    assert_eq!(store.samples(&claim.id).await?, samples);
    let rewards = vec![
        (samples[0].id.clone(), samples[0].reward),
        (samples[2].id.clone(), None),
        (samples[3].id.clone(), samples[3].reward),
    ];
    let record = store.rollout(&claim.id).await?;
    assert_eq!(record.map(|record| record.rewards), Some(rewards));
    let nobody = RolloutId::new("nobody")?;
    assert!(store.samples(&nobody).await?.is_empty());
    let asked_for = [nobody, claim.id.clone()];
    assert_eq!(store.samples_of(&asked_for).await?, [vec![], samples]);
    Ok(())
}

/// A result the store can't take (two samples of one name) is refused whole, and others are unharmed.
pub async fn a_refused_completion_leaves_nothing_behind(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 2, 1).await?;
    let claims = store.claim("engine", 2, LEASE).await?;
    let mut twice = scored(&claims[0], 1.0)?;
    twice.samples.push(twice.samples[0].clone());
    let (refused, accepted) = tokio::join!(
        store.complete(twice),
        store.complete(scored(&claims[1], 1.0)?)
    );
    assert!(refused.is_err());
    accepted?;
    let record = store.rollout(&claims[0].id).await?;
    assert_eq!(record.and_then(|record| record.outcome), None);
    assert!(store.samples(&claims[0].id).await?.is_empty());
    store.complete(scored(&claims[0], 1.0)?).await?;
    assert_eq!(store.counts().await?.done, 2);
    Ok(())
}

async fn all_pages(
    store: &dyn Store,
    query: RolloutQuery,
) -> anyhow::Result<(Vec<(u64, u32)>, usize)> {
    let all = query.clone();
    let mut query = query;
    let mut places = Vec::new();
    let mut pages = 0;
    loop {
        let page = store.rollouts(query.clone()).await?;
        pages += 1;
        places.extend(
            page.items
                .iter()
                .map(|item| (item.row_index, item.run_index)),
        );
        match page.next {
            None => {
                let mut visited = Vec::new();
                let visit = |item: &RolloutRecord| visited.push((item.row_index, item.run_index));
                RolloutPages::new(store, all).for_each(visit).await?;
                assert_eq!(visited, places, "visited and read page by page");
                return Ok((places, pages));
            }
            Some(next) => query.after = Some(next),
        }
    }
}

/// Pages of any size list every rollout once, in order, and the last one says that it is.
pub async fn pages_cover_every_rollout_once(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 7, 3).await?;
    let expected: Vec<_> = (0..7)
        .flat_map(|row| (0..3).map(move |run| (row, run)))
        .collect();
    for (limit, expected_pages) in [(1, 21), (4, 6), (7, 3), (20, 2), (21, 1), (0, 1)] {
        let query = RolloutQuery {
            limit,
            ..RolloutQuery::default()
        };
        let (places, pages) = all_pages(store.as_ref(), query).await?;
        assert_eq!(places, expected, "limit {limit}");
        assert_eq!(pages, expected_pages, "limit {limit}");
    }
    Ok(())
}

/// Filters by row, kind and having a result combine with pages.
pub async fn pages_can_be_filtered(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 4, 2).await?;
    let claims = store.claim("engine", 6, LEASE).await?;
    for (n, claim) in claims.iter().enumerate().take(5) {
        let completion = if n % 2 == 0 {
            scored(claim, 1.0)?
        } else {
            ended(claim, Outcome::Cancelled)?
        };
        store.complete(completion).await?;
    }
    let paged = RolloutQuery {
        limit: 2,
        ..RolloutQuery::default()
    };
    let row = RolloutQuery {
        row_index: Some(1),
        ..paged.clone()
    };
    assert_eq!(
        all_pages(store.as_ref(), row.clone()).await?.0,
        [(1, 0), (1, 1)]
    );
    let finished = RolloutQuery {
        finished_only: true,
        ..paged.clone()
    };
    assert_eq!(
        all_pages(store.as_ref(), finished).await?.0,
        [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    );
    let scored = RolloutQuery {
        kind: Some(OutcomeKind::Scored),
        ..paged
    };
    assert_eq!(
        all_pages(store.as_ref(), scored).await?.0,
        [(0, 0), (1, 0), (2, 0)]
    );
    let both = RolloutQuery {
        kind: Some(OutcomeKind::Cancelled),
        ..row
    };
    assert_eq!(all_pages(store.as_ref(), both).await?.0, [(1, 1)]);
    Ok(())
}

/// A tally counts finished rollouts by kind and sums rewards, passes and calls.
pub async fn a_tally_sums_up_by_kind(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 5, 1).await?;
    assert!(store.tally().await?.is_empty());
    let claims = store.claim("engine", 4, LEASE).await?;
    store.complete(scored(&claims[0], 1.0)?).await?;
    store.complete(scored(&claims[1], 0.25)?).await?;
    store
        .complete(ended(&claims[2], Outcome::Cancelled)?)
        .await?;
    let tallies = store.tally().await?;
    let seen: Vec<_> = tallies
        .iter()
        .map(|tally| (tally.kind, tally.rollouts, tally.passed, tally.reward_sum))
        .collect();
    assert_eq!(
        seen,
        [
            (OutcomeKind::Scored, 2, 1, 1.25),
            (OutcomeKind::Cancelled, 1, 0, 0.0)
        ]
    );
    assert_eq!(tallies[0].calls.model_calls, 4);
    assert_eq!(tallies[0].calls.prompt_tokens, 200);
    assert_eq!(tallies[0].calls.completion_tokens, 40);
    assert_eq!(tallies[0].calls.judge.calls, 2);
    assert_eq!(tallies[0].calls.judge.prompt_tokens, 60);
    assert_eq!(tallies[0].calls.judge.completion_tokens, 6);
    assert_eq!(tallies[0].calls.cached_tokens, Some(120));
    assert_eq!(tallies[0].calls.reasoning_tokens, None);
    Ok(())
}

/// Closing and opening again changes nothing: not the queue, not the results, not the calls.
pub async fn reopening_keeps_everything(mut fixture: Fixture) -> TestResult {
    fixture.store.create_run(run_record("kept")?).await?;
    plan(fixture.store.as_ref(), 4, 1).await?;
    let claims = fixture.store.claim("engine", 3, LEASE).await?;
    fixture
        .store
        .record_call(call(&claims[0], "main", "q", "a")?)
        .await?;
    fixture.store.complete(scored(&claims[0], 1.0)?).await?;
    fixture
        .store
        .release(&claims[1].id, claims[1].attempt, true, true)
        .await?;
    // Only queued so far: closing makes it durable.
    fixture
        .store
        .record_call(call(&claims[2], "main", "unfinished", "a")?)
        .await?;
    let before = (
        fixture.store.run().await?,
        fixture.store.counts().await?,
        fixture.store.rollouts(RolloutQuery::default()).await?,
        fixture.store.samples(&claims[0].id).await?,
    );
    fixture.reopen().await?;
    let store = &fixture.store;
    let after = (
        store.run().await?,
        store.counts().await?,
        store.rollouts(RolloutQuery::default()).await?,
        store.samples(&claims[0].id).await?,
    );
    assert_eq!(after, before);
    for (claim, request) in [(&claims[0], "q"), (&claims[2], "unfinished")] {
        let calls = calls_of(store.as_ref(), claim, None).await?;
        assert_eq!(calls.len(), 1);
        let body = body_of(store.as_ref(), calls[0].call_id).await?;
        assert_eq!(body.request, request);
    }
    let held = [(claims[2].id.clone(), claims[2].attempt)];
    assert!(store.heartbeat(&held, LEASE).await?.is_empty());
    let next = claim_one(store.as_ref()).await?;
    assert_eq!(
        (next.attempt, next.losses, next.failures),
        (Attempt(2), 1, 1)
    );
    Ok(())
}

/// After closing, everything fails with `Closed`, and closing again is nothing.
pub async fn a_closed_store_says_so(fixture: Fixture) -> TestResult {
    let store = fixture.store;
    plan(store.as_ref(), 1, 1).await?;
    let claim = claim_one(store.as_ref()).await?;
    store.close().await?;
    let completed = store.complete(scored(&claim, 1.0)?).await.map(|_| ());
    let recorded = store.record_call(call(&claim, "main", "q", "a")?).await;
    let counted = store.counts().await.map(|_| ());
    for refused in [completed, recorded, counted] {
        let kind = refused.err().map(|error| error.kind());
        assert_eq!(kind, Some(StoreErrorKind::Closed));
    }
    store.close().await?;
    Ok(())
}
