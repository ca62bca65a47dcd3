//! A run from SQLite to PostgreSQL and back is the same run.

use camino::Utf8Path;
use osmosis_core::{Attempt, JsonText, Outcome, PolicyVersion, RolloutId, SampleId};
use osmosis_store::conformance::{LEASE, call, ended, plan, scored};
use osmosis_store::{
    BatchRecord, CallBody, CallPurpose, CallQuery, CallRecord, Catalogue as _, Claim, NewCall,
    NewRollout, NewRow, RequestNote, RolloutQuery, RunKey, RunKind, RunRecord, RunStatus,
    StepRecord, Store, StoreUrl, copy_run,
};
use osmosis_store_sqlite::{SqliteCatalogue, SqliteOptions};
use osmosis_testkit::postgres_server::PostgresServer;

use crate::database::{catalogue, run};

fn workspace(folder: &Utf8Path) -> SqliteCatalogue {
    let url = StoreUrl::of_folder(folder).unwrap();
    SqliteCatalogue::at(url, SqliteOptions::default()).unwrap()
}

/// Results of every kind, attempts that failed, calls that extend each other, odd texts, a request, steps and batches.
async fn fill(store: &dyn Store, key: &RunKey) {
    store
        .create_run(RunRecord {
            name: key.name.clone(),
            kind: RunKind::Evaluation,
            status: RunStatus::Finished,
            created_at_ms: 5,
            finished_at_ms: Some(77),
            config_toml: "# as it was\n".to_owned(),
            pinned: JsonText::parse(r#"{"model":"script:x",  "n":1}"#).unwrap(),
        })
        .await
        .unwrap();
    plan(store, 40, 2).await.unwrap();
    let first = store.claim("a", 20, LEASE).await.unwrap();
    for (n, claim) in first.iter().enumerate() {
        record(store, claim).await;
        let failed = n % 2 == 0;
        store
            .release(&claim.id, claim.attempt, true, failed)
            .await
            .unwrap();
    }
    let second = store.claim("a", 60, LEASE).await.unwrap();
    for (n, claim) in second.iter().enumerate() {
        record(store, claim).await;
        let completion = match n % 3 {
            0 => scored(claim, 0.1 + 0.2).unwrap(),
            1 => ended(
                claim,
                Outcome::Rejected {
                    reason: "a\0b \"c\"".to_owned(),
                },
            )
            .unwrap(),
            _ => ended(claim, Outcome::Cancelled).unwrap(),
        };
        store.complete(completion).await.unwrap();
    }
    // One is under way, and one goes back into the queue.
    let left = store.claim("a", 2, LEASE).await.unwrap();
    store
        .release(&left[0].id, left[0].attempt, false, true)
        .await
        .unwrap();
    let row = NewRow {
        row_index: 90,
        line: 91,
        body: JsonText::parse(r#"{"asked": "by a server"}"#).unwrap(),
    };
    let rollout = NewRollout {
        id: RolloutId::new("served").unwrap(),
        row_index: 90,
        run_index: 0,
    };
    store
        .enqueue_request(row, rollout.clone(), vec![0, 255, 1].into())
        .await
        .unwrap();
    store
        .note_request(&rollout.id, RequestNote::AgentDone)
        .await
        .unwrap();
    for step in [1, 2] {
        let metrics = JsonText::parse(format!(r#"{{"reward/mean":  {step}}}"#)).unwrap();
        let step = StepRecord {
            step,
            version: PolicyVersion(u64::MAX),
            metrics,
            finished_at_ms: 9,
        };
        store.record_step(step).await.unwrap();
    }
    for number in [1, 2] {
        let batch = BatchRecord {
            number,
            version: PolicyVersion(3),
            content: JsonText::parse("[0,  1]").unwrap(),
            formed_at_ms: 4,
            acknowledged_at_ms: (number == 1).then_some(6),
        };
        store.record_batch(batch).await.unwrap();
    }
}

async fn record(store: &dyn Store, claim: &Claim) {
    for turn in 0..3_usize {
        let request = format!("{} {}", "s".repeat(600), "turn ".repeat(turn));
        let mut new = call(
            claim,
            "main",
            request,
            format!("é {turn} {}", "a".repeat(900)),
        )
        .unwrap();
        "odd\0name".clone_into(&mut new.model);
        new.tokens = vec![vec![0, 159, 146].into(), bytes::Bytes::new()];
        if turn == 1 {
            new = NewCall {
                purpose: CallPurpose::Judge,
                sample_id: SampleId::new("judge").unwrap(),
                error: Some("hung\0up".to_owned()),
                ..new
            };
        }
        store.record_call(new).await.unwrap();
    }
}

type Everything = (
    Option<RunRecord>,
    Vec<String>,
    Vec<(CallRecord, CallBody)>,
    Vec<StepRecord>,
    Vec<BatchRecord>,
);

/// All that a store tells of a run.
async fn everything(store: &dyn Store) -> Everything {
    let page = store.rollouts(RolloutQuery::default()).await.unwrap();
    assert_eq!(page.next, None);
    let mut rollouts = vec![];
    let mut calls = vec![];
    for rollout in page.items {
        let row = store.row(rollout.row_index).await.unwrap();
        let samples = store.samples(&rollout.id).await.unwrap();
        let request = store.request(&rollout.id).await.unwrap();
        rollouts.push(format!("{rollout:?} {row:?} {samples:?} {request:?}"));
        for attempt in 1..=rollout.attempts {
            let query = CallQuery {
                rollout_id: rollout.id.clone(),
                attempt: Some(Attempt(attempt)),
            };
            for call in store.calls(query).await.unwrap() {
                let body = store.call_body(call.call_id).await.unwrap().unwrap();
                calls.push((call, body));
            }
        }
    }
    calls.sort_by_key(|(call, _)| call.call_id);
    (
        store.run().await.unwrap(),
        rollouts,
        calls,
        store.steps().await.unwrap(),
        store.batches().await.unwrap(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_goes_there_and_back_is_the_same_byte_for_byte() {
    let server = PostgresServer::start();
    let database = catalogue(&server);
    let (keep, again) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, back) = (
        workspace(keep.path().try_into().unwrap()),
        workspace(again.path().try_into().unwrap()),
    );
    let key = run("x");
    let original = here.create(&key).await.unwrap();
    fill(&*original, &key).await;
    original.close().await.unwrap();
    let original = here.open_read_only(&key).await.unwrap();
    let there = database.create(&key).await.unwrap();
    let copied = copy_run(&*original, &*there).await.unwrap();
    there.close().await.unwrap();
    let there = database.open_read_only(&key).await.unwrap();
    let returned = back.create(&key).await.unwrap();
    assert_eq!(copy_run(&*there, &*returned).await.unwrap(), copied);
    returned.close().await.unwrap();
    let returned = back.open_read_only(&key).await.unwrap();

    assert_eq!(
        (
            copied.rollouts,
            copied.results,
            copied.steps,
            copied.batches
        ),
        (81, 60, 2, 2)
    );
    assert_eq!(copied.calls, 240);
    let expected = everything(&*original).await;
    assert_eq!(expected.2.len(), 240);
    assert_eq!(everything(&*there).await, expected);
    assert_eq!(everything(&*returned).await, expected);
    for (catalogue, run) in [
        (&database as &dyn osmosis_store::Catalogue, &key),
        (&back, &key),
    ] {
        let report = catalogue.verify(run, Box::new(|_| {})).await.unwrap();
        assert!(report.is_whole(), "{:?}", report.damage);
    }
}

#[tokio::test]
async fn calls_that_belong_to_no_rollout_are_not_left_out_silently() {
    let server = PostgresServer::start();
    let database = catalogue(&server);
    let store = database.create(&run("gateway")).await.unwrap();
    plan(&*store, 1, 1).await.unwrap();
    let claim = store.claim("a", 1, LEASE).await.unwrap().remove(0);
    let other = Claim {
        id: RolloutId::new("gateway").unwrap(),
        ..claim
    };
    store
        .record_call_durably(call(&other, "main", "q", "a").unwrap())
        .await
        .unwrap();
    let copy = database.create(&run("copy")).await.unwrap();
    let error = copy_run(&*store, &*copy).await.unwrap_err().to_string();
    assert!(error.contains("belong to no rollout"), "{error}");
}
