//! A database of an earlier version: it is read as it is, and brought to this version by the first who writes.

use osmosis_store::conformance::{claim_one, plan, scored};
use osmosis_store::{Catalogue as _, RunKind, StoreError};
use osmosis_testkit::postgres_server::PostgresServer;

use crate::database::{catalogue, catalogue_at, client, options, run};

/// As the program of that version left it: a run with one row and one result, and a role of the run.
async fn version_1(server: &PostgresServer) {
    let sql = client(&server.url()).await;
    sql.batch_execute(
        "CREATE SCHEMA osmosis;
         CREATE TABLE osmosis.schema_version (
            only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one), version integer NOT NULL);
         INSERT INTO osmosis.schema_version (version) VALUES (1);",
    )
    .await
    .unwrap();
    sql.batch_execute(include_str!("../../src/schema/version_1.sql"))
        .await
        .unwrap();
    sql.batch_execute(
        "INSERT INTO osmosis.runs (kind, name) VALUES ('evaluation', 'old');
         INSERT INTO osmosis.call_ids VALUES (1, 1);
         INSERT INTO osmosis.run_records VALUES (1, 'old', 'evaluation', 'running', 1, NULL, '', '{}');
         INSERT INTO osmosis.rows VALUES (1, 0, 1, '{}');
         INSERT INTO osmosis.rollouts (run_id, rollout_id, row_index, run_index, state, attempt, outcome, reward, passed,
            sample_rewards, started_at_ms, finished_at_ms)
         VALUES (1, 'r0-0', 0, 0, 'done', 1, 'scored', 1.0, true, '{}', 1, 2);
         CREATE ROLE osmosis_run_1_old LOGIN PASSWORD 'old';
         GRANT USAGE ON SCHEMA osmosis TO osmosis_run_1_old;
         GRANT SELECT ON osmosis.schema_version, osmosis.run_roles, osmosis.runs TO osmosis_run_1_old;
         INSERT INTO osmosis.run_roles VALUES ('osmosis_run_1_old', 1);",
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn a_database_of_version_1_is_read_and_brought_to_this_version_when_it_is_written_to() {
    let server = PostgresServer::start();
    version_1(&server).await;
    let catalogue = catalogue(&server);
    let listed = catalogue.list(RunKind::Evaluation).await.unwrap();
    assert_eq!(listed.len(), 1);
    let old = catalogue.open_read_only(&run("old")).await.unwrap();
    assert_eq!(old.counts().await.unwrap().done, 1);
    old.close().await.unwrap();
    // A node changes no tables.
    let error = catalogue.join(&run("old")).await.unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::SchemaVersion {
                found: 1,
                known: 3,
                ..
            }
        ),
        "{error}"
    );

    let store = catalogue.open(&run("old")).await.unwrap();
    assert_eq!(store.counts().await.unwrap().done, 1);
    plan(&*store, 2, 2).await.unwrap();
    let shared = store.shared().unwrap();
    let (cursor, counts) = shared.watch_finished().await.unwrap();
    assert_eq!((counts.done, counts.queued), (1, 3));
    let node = catalogue.join(&run("old")).await.unwrap();
    let claim = claim_one(&*node).await.unwrap();
    node.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
    let (found, _) = shared.finished_since(cursor).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, claim.id);

    // The roles of before see the new tables of their run.
    let manifest = osmosis_core::JsonText::parse("{}").unwrap();
    shared.put_package(manifest, vec![]).await.unwrap();
    let sql = client(&server.url_as("osmosis_run_1_old:old", "postgres")).await;
    let rows = sql.query("SELECT * FROM osmosis.packages", &[]).await;
    assert_eq!(rows.unwrap().len(), 1);
    node.close().await.unwrap();
    store.close().await.unwrap();
    let again = catalogue_at(&server.url(), options());
    let report = again.verify(&run("old"), Box::new(|_| {})).await.unwrap();
    assert!(report.is_whole(), "{:?}", report.damage);
}
