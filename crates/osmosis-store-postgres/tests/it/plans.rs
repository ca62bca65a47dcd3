//! What operations cost the server, counted in index entries and connections: no clock is involved.

use std::time::Duration;

use futures_util::future::join_all;
use osmosis_store::conformance::{LEASE, plan, scored};
use osmosis_store::{Catalogue as _, Claim, CompletionReceipt};
use osmosis_testkit::postgres_server::PostgresServer;
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use crate::database::{catalogue, catalogue_at, client, options, run};

const READ: &str = "
    SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'rollouts')
        + (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'rollouts')";

async fn number(sql: &Client, statement: &str) -> i64 {
    let statement = format!("SELECT ({statement})::bigint");
    sql.query_one(&statement, &[]).await.unwrap().get(0)
}

/// Connections of a role.
async fn connections(sql: &Client, role: &str) -> i64 {
    let statement = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'");
    number(sql, &statement).await
}

/// Waits until a role has no more connections than this: a session counts what it read when it ends, at the latest.
async fn until_left(sql: &Client, role: &str, most: i64) {
    let waiting = async {
        while connections(sql, role).await > most {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(30), waiting).await.unwrap();
}

/// What a catalogue keeps for its next question.
const OF_CATALOGUE: i64 = 1;

/// The planner knows nothing of a new run, or that none of it is leased. It must not read all leases for one of them.
#[tokio::test]
async fn heartbeats_and_results_read_their_own_rollouts_and_no_others() {
    let server = PostgresServer::start();
    let owner = catalogue(&server);
    let controller = owner.create(&run("x")).await.unwrap();
    plan(&*controller, 6000, 1).await.unwrap();
    let role = owner.create_role(&run("x")).await.unwrap();
    let account = format!("{}:{}", role.role, role.password);
    let nodes = catalogue_at(&server.url_as(&account, "postgres"), options());
    let sql = client(&server.url()).await;
    for statistics in ["", "ANALYZE osmosis.rollouts"] {
        sql.batch_execute(statistics).await.unwrap();
        let many = nodes.join(&run("x")).await.unwrap();
        assert_eq!(many.claim("many", 1500, LEASE).await.unwrap().len(), 1500);
        many.close().await.unwrap();
        until_left(&sql, &role.role, OF_CATALOGUE).await;
        let before = number(&sql, READ).await;
        let few = nodes.join(&run("x")).await.unwrap();
        let claims = few.claim("few", 16, LEASE).await.unwrap();
        let held: Vec<_> = claims.iter().map(|c| (c.id.clone(), c.attempt)).collect();
        for _ in 0..20 {
            assert!(few.heartbeat(&held, LEASE).await.unwrap().is_empty());
        }
        let done = |claim: &Claim| few.complete(scored(claim, 1.0).unwrap());
        for receipt in join_all(claims[..8].iter().map(done)).await {
            assert_eq!(receipt.unwrap(), CompletionReceipt::Accepted);
        }
        for claim in &claims[8..] {
            let releasing = few.release(&claim.id, claim.attempt, false, false);
            releasing.await.unwrap();
        }
        few.close().await.unwrap();
        until_left(&sql, &role.role, OF_CATALOGUE).await;
        let read = number(&sql, READ).await - before;
        // All leases for each heartbeat would be 20 × 1,500, twice. Versions of a row that are gone count too.
        assert!(read < 20_000, "{read} entries were read ({statistics:?})");
    }
    controller.close().await.unwrap();
}

/// PostgreSQL takes 100 connections by default, and a run may have many nodes.
#[tokio::test]
async fn a_node_has_three_connections_however_much_it_asks() {
    let server = PostgresServer::start();
    let owner = catalogue(&server);
    let controller = owner.create(&run("x")).await.unwrap();
    plan(&*controller, 20, 1).await.unwrap();
    let role = owner.create_role(&run("x")).await.unwrap();
    let account = format!("{}:{}", role.role, role.password);
    let nodes = catalogue_at(&server.url_as(&account, "postgres"), options());
    let node = nodes.join(&run("x")).await.unwrap();
    let sql = client(&server.url()).await;
    let claims = node.claim("node", 20, LEASE).await.unwrap();
    let reading = (0..16).map(|_| node.counts());
    let writing = claims
        .iter()
        .map(|claim| node.complete(scored(claim, 1.0).unwrap()));
    let (counts, receipts) = tokio::join!(join_all(reading), join_all(writing));
    assert!(counts.into_iter().all(|counts| counts.is_ok()));
    assert!(receipts.into_iter().all(|receipt| receipt.is_ok()));
    assert_eq!(connections(&sql, &role.role).await, 3 + OF_CATALOGUE);
    node.close().await.unwrap();
    controller.close().await.unwrap();
}
