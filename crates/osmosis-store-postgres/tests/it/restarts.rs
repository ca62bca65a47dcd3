//! PostgreSQL that crashes and comes back in the middle: operations wait or fail clearly, and nothing is doubled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use osmosis_core::{Attempt, RolloutId};
use osmosis_store::conformance::{LEASE, call, claim_one, plan, scored};
use osmosis_store::{CallQuery, Catalogue as _, StoreError};
use osmosis_store_postgres::PostgresOptions;
use osmosis_testkit::postgres_server::PostgresServer;
use osmosis_testkit::waiting::until;
use tokio::task::JoinSet;

use crate::database::{catalogue, catalogue_at, options, run};
use crate::killed::{finish, verify};

const RESTARTS: u64 = 6;
const ROLLOUTS: u64 = 1200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_go_on_over_crashes_of_the_server_and_nothing_is_lost_or_doubled() {
    let server = PostgresServer::start();
    let catalogue = catalogue(&server);
    let store = catalogue.create(&run("x")).await.unwrap();
    plan(&*store, ROLLOUTS, 1).await.unwrap();
    let node = catalogue.join(&run("x")).await.unwrap();
    let finished = Arc::new(AtomicU64::new(0));
    let mut workers = JoinSet::new();
    for worker in 0..8 {
        let store = Arc::clone(if worker % 2 == 0 { &store } else { &node });
        let finished = Arc::clone(&finished);
        workers.spawn(async move {
            let mut done = vec![];
            loop {
                let claims = store.claim(&format!("w{worker}"), 4, LEASE).await.unwrap();
                if claims.is_empty() {
                    return done;
                }
                for claim in claims {
                    finish(&*store, &claim).await;
                    finished.fetch_add(1, Ordering::Relaxed);
                    done.push((claim.id, claim.attempt));
                }
            }
        });
    }
    let share = ROLLOUTS / (RESTARTS + 1);
    for restart in 1..=RESTARTS {
        until("some more are done", Duration::from_mins(1), || {
            finished.load(Ordering::Relaxed) >= restart * share
        })
        .await;
        server.crash();
        server.start_again();
    }
    let mut all: Vec<(RolloutId, Attempt)> = vec![];
    while let Some(done) = workers.join_next().await {
        all.extend(done.unwrap());
    }
    assert_eq!(
        all.len() as u64,
        ROLLOUTS,
        "each was claimed and completed once"
    );
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.done, counts.leased), (ROLLOUTS, 0));
    for (id, attempt) in &all {
        assert_eq!(
            attempt.0, 1,
            "{id}: a claim whose commit was lost was made again"
        );
        verify(&*store, id, *attempt).await;
    }
    assert_eq!(store.call_totals().await.unwrap().model_calls, ROLLOUTS * 3);
    node.close().await.unwrap();
    store.close().await.unwrap();
    let report = catalogue.verify(&run("x"), Box::new(|_| {})).await.unwrap();
    assert!(report.is_whole(), "{:?}", report.damage);
}

#[tokio::test]
async fn a_server_that_stays_away_fails_operations_clearly_and_queued_calls_are_written_later() {
    let server = PostgresServer::start();
    let options = PostgresOptions {
        retry_for: Duration::from_millis(500),
        ..options()
    };
    let catalogue = catalogue_at(&server.url(), options);
    let store = catalogue.create(&run("x")).await.unwrap();
    plan(&*store, 2, 1).await.unwrap();
    let claim = claim_one(&*store).await.unwrap();
    server.crash();
    store
        .record_call(call(&claim, "main", "kept", "a").unwrap())
        .await
        .unwrap();
    let errors = [
        store
            .complete(scored(&claim, 1.0).unwrap())
            .await
            .unwrap_err(),
        store.counts().await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
        assert!(error.to_string().contains("postgres://"), "{error}");
    }
    server.start_again();
    let receipt = store.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
    assert_eq!(receipt, osmosis_store::CompletionReceipt::Accepted);
    let query = CallQuery {
        rollout_id: claim.id.clone(),
        attempt: None,
    };
    assert_eq!(store.calls(query).await.unwrap().len(), 1);
    store.close().await.unwrap();
}
