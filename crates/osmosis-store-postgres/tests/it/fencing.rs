//! Two processes that believe to control one run: one is let in, and one that was passed over stops.

use osmosis_store::conformance::{call, claim_one, plan, scored};
use osmosis_store::{Catalogue as _, Recovery, StoreError, StoreErrorKind};
use osmosis_testkit::postgres_server::PostgresServer;

use crate::database::{catalogue, client, run};

#[tokio::test]
async fn a_controller_that_was_passed_over_stops_and_changes_nothing() {
    let server = PostgresServer::start();
    let catalogue = catalogue(&server);
    let first = catalogue.create(&run("x")).await.unwrap();
    plan(&*first, 2, 1).await.unwrap();
    let claim = claim_one(&*first).await.unwrap();
    // What a takeover does, without asking for the lock.
    let sql = client(&server.url()).await;
    sql.batch_execute("UPDATE osmosis.runs SET epoch = epoch + 1, holder = NULL")
        .await
        .unwrap();
    let error = first
        .complete(scored(&claim, 1.0).unwrap())
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Fenced { .. }), "{error}");
    assert_eq!(error.kind(), StoreErrorKind::Held);
    let new = call(&claim, "main", "q", "a").unwrap();
    assert!(first.record_call_durably(new).await.is_err());
    assert!(first.recover(Recovery::AfterTakeover).await.is_err());
    let reader = catalogue.open_read_only(&run("x")).await.unwrap();
    assert_eq!(reader.counts().await.unwrap().done, 0);
    assert_eq!(reader.call_totals().await.unwrap().model_calls, 0);
    drop(first);
}

#[tokio::test]
async fn a_controller_whose_session_was_ended_takes_the_lock_again() {
    let server = PostgresServer::start();
    let catalogue = catalogue(&server);
    let store = catalogue.create(&run("x")).await.unwrap();
    plan(&*store, 3, 1).await.unwrap();
    let sql = client(&server.url()).await;
    sql.batch_execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
    )
    .await
    .unwrap();
    for _ in 0..3 {
        let claim = claim_one(&*store).await.unwrap();
        store.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while catalogue.holder(&run("x")).await.unwrap().is_none() {
        assert!(
            std::time::Instant::now() < deadline,
            "the lock was not taken again"
        );
        tokio::task::yield_now().await;
    }
    let second = catalogue.open(&run("x")).await.unwrap_err();
    assert_eq!(second.kind(), StoreErrorKind::Held);
    store.close().await.unwrap();
    catalogue
        .open(&run("x"))
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
}
