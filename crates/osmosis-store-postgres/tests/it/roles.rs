//! A role of one run sees nothing of another.

use std::time::Duration;

use osmosis_core::{JsonText, RunName};
use osmosis_store::conformance::{call, claim_one, plan, scored};
use osmosis_store::{
    Catalogue as _, CompletionReceipt, PackageFile, Recovery, RunKey, RunKind, RunPlace, RunRecord,
    RunStatus, StoreErrorKind,
};
use osmosis_store_postgres::PostgresCatalogue;
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
        format!("DELETE FROM osmosis.samples WHERE run_id = {of_b}"),
        "DELETE FROM osmosis.members".to_owned(),
        "UPDATE osmosis.runs SET stop_asked = 'now'".to_owned(),
        "UPDATE osmosis.runs SET controller_url = 'http://evil.example'".to_owned(),
        "DELETE FROM osmosis.package_files".to_owned(),
        "UPDATE osmosis.packages SET manifest = '[]'".to_owned(),
        format!("INSERT INTO osmosis.package_files VALUES ({of_b}, 'x', '')"),
        "CREATE TABLE osmosis.mine ()".to_owned(),
    ] {
        assert!(sql.batch_execute(&refused).await.is_err(), "{refused}");
    }
    let harmless = format!("UPDATE osmosis.rollouts SET state = 'done' WHERE run_id = {of_b}");
    assert_eq!(sql.execute(&harmless, &[]).await.unwrap(), 0);
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

fn run_record(name: &str) -> RunRecord {
    RunRecord {
        name: RunName::new(name).unwrap(),
        kind: RunKind::Evaluation,
        status: RunStatus::Running,
        created_at_ms: 1,
        finished_at_ms: None,
        config_toml: String::new(),
        pinned: JsonText::parse("{}").unwrap(),
    }
}

/// A role of the run, and what logs in as it.
async fn token_of(server: &PostgresServer, owner: &PostgresCatalogue, of: &RunKey) -> String {
    let role = owner.create_role(of).await.unwrap();
    let account = format!("{}:{}", role.role, role.password);
    server.url_as(&account, "postgres")
}

#[tokio::test]
async fn a_token_of_a_finished_run_changes_nothing_of_it_and_soon_sees_nothing() {
    let server = PostgresServer::start();
    let owner = catalogue(&server);
    let of = run("over");
    let store = owner.create(&of).await.unwrap();
    plan(&*store, 1, 1).await.unwrap();
    let url = token_of(&server, &owner, &of).await;
    let node = catalogue_at(&url, options()).join(&of).await.unwrap();
    let claim = claim_one(&*node).await.unwrap();
    node.complete(scored(&claim, 0.0).unwrap()).await.unwrap();
    let begun = client(&url).await;
    let record = run_record("over");
    store.create_run(record).await.unwrap();
    store.set_status(RunStatus::Finished).await.unwrap();
    store.close().await.unwrap();

    // Sessions that were there before, and new ones.
    for sql in [&begun, &client(&url).await] {
        for change in [
            "UPDATE osmosis.rollouts SET reward = 1.0, passed = true",
            "INSERT INTO osmosis.samples SELECT run_id, rollout_id, 'mine', 0, 1.0, false, NULL, NULL, '[]'
                FROM osmosis.rollouts",
            "UPDATE osmosis.run_roles SET ended = false, valid_until = 'infinity'",
        ] {
            let refused = sql.batch_execute(change).await.unwrap_err();
            assert_eq!(refused.code().unwrap().code(), "42501", "{change}");
        }
    }
    // A node hears of the end, and leaves in order.
    let standing = node.shared().unwrap().standing().await.unwrap();
    assert_eq!(standing.status, Some(RunStatus::Finished));
    node.close().await.unwrap();
    let owners = client(&server.url()).await;
    let members = "SELECT count(*) FROM osmosis.members";
    let left: i64 = owners.query_one(members, &[]).await.unwrap().get(0);
    assert_eq!(left, 0);

    // A role may change its own password; neither that nor a session that is open opens the run again.
    let (role, host) = url.split_once("//").unwrap().1.split_once(':').unwrap();
    let at = host.split_once('@').unwrap().1;
    begun
        .batch_execute(&format!("ALTER ROLE {role} PASSWORD 'mine'"))
        .await
        .unwrap();
    let expire = "UPDATE osmosis.run_roles SET valid_until = clock_timestamp()";
    assert_eq!(owners.execute(expire, &[]).await.unwrap(), 1);
    let again = client(&format!("postgres://{role}:mine@{at}")).await;
    for sql in [&begun, &again] {
        let seen: i64 = sql
            .query_one("SELECT count(*) FROM osmosis.rollouts", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(seen, 0);
    }
    // It goes with the next role that is made.
    let another = run("another");
    let other = owner.create(&another).await.unwrap();
    token_of(&server, &owner, &another).await;
    let roles: i64 = owners
        .query_one("SELECT count(*) FROM pg_roles WHERE rolname = $1", &[&role])
        .await
        .unwrap()
        .get(0);
    assert_eq!(roles, 0);
    other.close().await.unwrap();
}

#[tokio::test]
async fn a_token_takes_no_lock_that_another_run_or_a_new_one_waits_for() {
    let server = PostgresServer::start();
    let owner = catalogue(&server);
    let (a, b) = (run("a"), run("b"));
    let of_a = owner.create(&a).await.unwrap();
    plan(&*of_a, 1, 1).await.unwrap();
    let of_b = owner.create(&b).await.unwrap();
    plan(&*of_b, 2, 1).await.unwrap();
    let sql = client(&token_of(&server, &owner, &a).await).await;
    sql.batch_execute("BEGIN").await.unwrap();
    // Every number that was ever used for such a lock, of more runs than there are.
    for run_id in 0..9 {
        for what in [0x4f53_4d01, 0x4f53_4d02] {
            sql.batch_execute(&format!("SELECT pg_advisory_lock({what}, {run_id})"))
                .await
                .unwrap();
        }
    }
    sql.batch_execute("SELECT pg_advisory_lock(5715711107617259521)")
        .await
        .unwrap();
    sql.batch_execute("SELECT * FROM osmosis.rollouts FOR UPDATE")
        .await
        .unwrap();
    for (table, strength) in TABLES
        .iter()
        .flat_map(|table| ["SHARE", "EXCLUSIVE", "ACCESS EXCLUSIVE"].map(|mode| (table, mode)))
    {
        sql.batch_execute("SAVEPOINT one").await.unwrap();
        let lock = format!("LOCK TABLE osmosis.{table} IN {strength} MODE");
        let refused = sql.batch_execute(&lock).await.unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "42501", "{lock}");
        sql.batch_execute("ROLLBACK TO one").await.unwrap();
    }
    for lock in ["FOR UPDATE", "FOR SHARE", "FOR KEY SHARE"] {
        sql.batch_execute("SAVEPOINT one").await.unwrap();
        let lock = format!("SELECT * FROM osmosis.runs {lock}");
        assert!(sql.batch_execute(&lock).await.is_err(), "{lock}");
        sql.batch_execute("ROLLBACK TO one").await.unwrap();
    }

    let work = async {
        let claim = claim_one(&*of_b).await.unwrap();
        of_b.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
        of_b.close().await.unwrap();
        // Taken over, renamed, archived; and another one is made.
        let of_b = owner.open(&b).await.unwrap();
        claim_one(&*of_b).await.unwrap();
        of_b.close().await.unwrap();
        let renamed = run("c");
        owner.rename(&b, &renamed.name).await.unwrap();
        owner.archive(&renamed).await.unwrap();
        let new = owner.create(&run("new")).await.unwrap();
        plan(&*new, 1, 1).await.unwrap();
        new.close().await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(20), work)
        .await
        .expect("nothing waits for the locks of a token");
    of_a.close().await.unwrap();
}
