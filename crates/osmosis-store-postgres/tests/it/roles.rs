//! A role of one run sees nothing of another.

use osmosis_core::JsonText;
use osmosis_store::conformance::{call, claim_one, plan, scored};
use osmosis_store::{
    Catalogue as _, CompletionReceipt, PackageFile, Recovery, RunKind, RunPlace, StoreErrorKind,
};
use osmosis_testkit::postgres_server::PostgresServer;

use crate::database::{catalogue, catalogue_at, client, options, run};

/// Every table that has rows of runs.
const TABLES: [&str; 13] = [
    "runs",
    "members",
    "call_ids",
    "run_records",
    "rows",
    "rollouts",
    "samples",
    "calls",
    "steps",
    "batches",
    "run_roles",
    "packages",
    "package_files",
];

#[tokio::test]
async fn a_role_of_one_run_works_on_it_and_sees_nothing_of_another() {
    let server = PostgresServer::start();
    let owner = catalogue(&server);
    let (a, b) = (run("a"), run("b"));
    let mut opened = vec![];
    for run in [&a, &b] {
        let store = owner.create(run).await.unwrap();
        plan(&*store, 3, 1).await.unwrap();
        let claim = claim_one(&*store).await.unwrap();
        store
            .record_call(call(&claim, "main", "q", "a").unwrap())
            .await
            .unwrap();
        store.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
        let secret = PackageFile {
            sha256: "1".to_owned(),
            content: "of the run".into(),
        };
        let manifest = JsonText::parse("{}").unwrap();
        let shared = store.shared().unwrap();
        shared.put_package(manifest, vec![secret]).await.unwrap();
        opened.push(store);
    }
    let role = owner.create_role(&a).await.unwrap();
    let other = owner.create_role(&b).await.unwrap();
    assert!(!format!("{role:?}").contains(&role.password));
    let account = format!("{}:{}", role.role, role.password);
    let url = server.url_as(&account, "postgres");

    // As a node of its run it does all a node does.
    let node = catalogue_at(&url, options());
    let listed = node.list(RunKind::Evaluation).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].key, a);
    let store = node.join(&a).await.unwrap();
    let claim = claim_one(&*store).await.unwrap();
    store
        .record_call(call(&claim, "main", "q", "a").unwrap())
        .await
        .unwrap();
    let receipt = store.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
    assert_eq!(receipt, CompletionReceipt::Accepted);
    assert_eq!(store.counts().await.unwrap().done, 2);
    assert!(store.recover(Recovery::AfterTakeover).await.is_err());
    store.close().await.unwrap();
    let missing = node.join(&b).await.unwrap_err();
    assert_eq!(missing.kind(), StoreErrorKind::NotFound);

    // Nor does it with statements of its own.
    let sql = client(&url).await;
    for table in TABLES {
        let count = format!("SELECT count(*), count(DISTINCT run_id) FROM osmosis.{table}");
        let row = sql.query_one(&count, &[]).await.unwrap();
        let runs: i64 = row.get(1);
        assert!(runs <= 1, "{table} shows {runs} runs");
    }
    let seen: i64 = sql
        .query_one("SELECT count(*) FROM osmosis.rollouts WHERE run_id <> (SELECT run_id FROM osmosis.runs)", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(seen, 0);
    let owners = client(&server.url()).await;
    let of_b: i32 = owners
        .query_one("SELECT run_id FROM osmosis.runs WHERE name = 'b'", &[])
        .await
        .unwrap()
        .get(0);
    for refused in [
        format!(
            "INSERT INTO osmosis.samples VALUES ({of_b}, 'r', 's', 0, NULL, false, NULL, NULL, '[]')"
        ),
        format!("INSERT INTO osmosis.members (run_id, kind, holder) VALUES ({of_b}, 'node', '')"),
        "UPDATE osmosis.runs SET epoch = epoch + 1".to_owned(),
        format!("INSERT INTO osmosis.run_roles VALUES (current_user, {of_b})"),
        format!("UPDATE osmosis.rollouts SET run_id = {of_b}"),
        "SELECT * FROM osmosis.requests".to_owned(),
        "DELETE FROM osmosis.calls".to_owned(),
        "UPDATE osmosis.runs SET stop_asked = 'now'".to_owned(),
        "UPDATE osmosis.runs SET controller_url = 'http://evil.example'".to_owned(),
        "DELETE FROM osmosis.package_files".to_owned(),
        "UPDATE osmosis.packages SET manifest = '[]'".to_owned(),
        format!("INSERT INTO osmosis.package_files VALUES ({of_b}, 'x', '')"),
        "CREATE TABLE osmosis.mine ()".to_owned(),
    ] {
        assert!(sql.batch_execute(&refused).await.is_err(), "{refused}");
    }
    for harmless in [
        format!("UPDATE osmosis.rollouts SET state = 'done' WHERE run_id = {of_b}"),
        format!("DELETE FROM osmosis.samples WHERE run_id = {of_b}"),
    ] {
        assert_eq!(sql.execute(&harmless, &[]).await.unwrap(), 0, "{harmless}");
    }
    assert_eq!(opened[1].counts().await.unwrap().queued, 2);

    // Roles go with their run, or when they are taken away.
    owner.drop_roles(&b).await.unwrap();
    for store in &opened {
        store.close().await.unwrap();
    }
    owner.remove(&RunPlace::Listed(a)).await.unwrap();
    let left: i64 = owners
        .query_one(
            "SELECT count(*) FROM pg_roles WHERE rolname = ANY ($1)",
            &[&vec![role.role, other.role]],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(left, 0);
}
