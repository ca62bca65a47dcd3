//! Several processes that claim from one run.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use osmosis_store::conformance::{LEASE, call, claim_one, plan, scored};
use osmosis_store::{Catalogue as _, CompletionReceipt, QueueCounts, Recovery, RolloutQuery};
use osmosis_testkit::postgres_server::PostgresServer;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::database::{catalogue, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_share_a_queue_without_overlap_and_nothing_is_lost() {
    let server = PostgresServer::start();
    let catalogue = catalogue(&server);
    let controller = catalogue.create(&run("x")).await.unwrap();
    plan(&*controller, 150, 2).await.unwrap();
    let mut nodes = JoinSet::new();
    for node in 0..4 {
        let store = catalogue.join(&run("x")).await.unwrap();
        nodes.spawn(async move {
            let mut mine = BTreeSet::new();
            loop {
                let claims = store
                    .claim(&format!("node {node}"), 5, LEASE)
                    .await
                    .unwrap();
                if claims.is_empty() {
                    store.close().await.unwrap();
                    return mine;
                }
                for claim in claims {
                    for turn in 0..2 {
                        let body = format!("{} {turn} {}", claim.id, "x".repeat(400));
                        let new = call(&claim, "main", body.clone(), body).unwrap();
                        store.record_call(new).await.unwrap();
                    }
                    let receipt = store.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
                    assert_eq!(receipt, CompletionReceipt::Accepted);
                    mine.insert(claim.id);
                }
            }
        });
    }
    let mut all = BTreeSet::new();
    while let Some(mine) = nodes.join_next().await {
        for id in mine.unwrap() {
            assert!(all.insert(id.clone()), "{id} was done twice");
        }
    }
    assert_eq!(all.len(), 300);
    let page = controller.rollouts(RolloutQuery::default()).await.unwrap();
    assert!(
        page.items
            .iter()
            .all(|item| item.attempts == 1 && item.outcome.is_some())
    );
    assert_eq!(controller.call_totals().await.unwrap().model_calls, 600);
    controller.close().await.unwrap();
    let report = catalogue.verify(&run("x"), Box::new(|_| {})).await.unwrap();
    assert!(report.is_whole(), "{:?}", report.damage);
}

#[tokio::test]
async fn a_controller_that_comes_back_leaves_the_leases_of_living_nodes_alone() {
    let server = PostgresServer::start();
    let catalogue = catalogue(&server);
    let first = catalogue.create(&run("x")).await.unwrap();
    plan(&*first, 3, 1).await.unwrap();
    claim_one(&*first).await.unwrap();
    let node = catalogue.join(&run("x")).await.unwrap();
    let theirs = claim_one(&*node).await.unwrap();
    assert!(node.recover(Recovery::AfterTakeover).await.is_err());
    first.close().await.unwrap();
    // The node goes on without a controller.
    let new = call(&theirs, "main", "q", "a").unwrap();
    node.record_call_durably(new).await.unwrap();

    let second = catalogue.open(&run("x")).await.unwrap();
    assert_eq!(second.recover(Recovery::AfterTakeover).await.unwrap(), 1);
    let counts = QueueCounts {
        queued: 2,
        leased: 1,
        done: 0,
    };
    assert_eq!(second.counts().await.unwrap(), counts);
    let receipt = node.complete(scored(&theirs, 1.0).unwrap()).await.unwrap();
    assert_eq!(receipt, CompletionReceipt::Accepted);

    // What a node held that left, or was not heard of for long, goes back.
    claim_one(&*node).await.unwrap();
    node.close().await.unwrap();
    assert_eq!(second.recover(Recovery::AfterTakeover).await.unwrap(), 1);
    second.close().await.unwrap();
}

#[tokio::test]
async fn members_hear_of_each_others_changes() {
    let server = PostgresServer::start();
    let catalogue = catalogue(&server);
    let controller = catalogue.create(&run("x")).await.unwrap();
    let node = catalogue.join(&run("x")).await.unwrap();
    let mut changes = node.changes();
    plan(&*controller, 1, 1).await.unwrap();
    let soon = Duration::from_secs(30);
    timeout(soon, changes.wait()).await.unwrap().unwrap();
    let claim = claim_one(&*node).await.unwrap();
    let mut changes = controller.changes();
    node.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
    timeout(soon, changes.wait()).await.unwrap().unwrap();
    assert_eq!(controller.counts().await.unwrap().done, 1);
}

#[tokio::test]
async fn leases_run_out_by_the_clock_of_the_database() {
    let server = PostgresServer::start();
    let catalogue = catalogue(&server);
    let controller = catalogue.create(&run("x")).await.unwrap();
    plan(&*controller, 1, 1).await.unwrap();
    let node: Arc<_> = catalogue.join(&run("x")).await.unwrap();
    let first = node
        .claim("node", 1, Duration::from_millis(300))
        .await
        .unwrap();
    assert_eq!(first.len(), 1);
    assert!(controller.claim("c", 1, LEASE).await.unwrap().is_empty());
    let again = timeout(Duration::from_secs(30), async {
        loop {
            let found = controller.claim("c", 1, LEASE).await.unwrap();
            if !found.is_empty() {
                return found;
            }
        }
    });
    let again = again.await.unwrap();
    assert_eq!(again[0].attempt.0, 2);
    let late = node
        .complete(scored(&first[0], 1.0).unwrap())
        .await
        .unwrap();
    assert_eq!(late, CompletionReceipt::Fenced);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_controller_cancels_what_a_node_holds_and_not_what_it_holds_itself() {
    let server = PostgresServer::start();
    let catalogue = catalogue(&server);
    let controller = catalogue.create(&run("x")).await.unwrap();
    plan(&*controller, 3, 1).await.unwrap();
    let node = catalogue.join(&run("x")).await.unwrap();
    let of_node = claim_one(&*node).await.unwrap();
    let own = claim_one(&*controller).await.unwrap();
    let asked = [of_node.id.clone(), own.id.clone()];
    assert!(
        node.cancel(&asked).await.unwrap().is_empty(),
        "a node cancels no leases"
    );
    let cancelled = controller.cancel(&asked).await.unwrap();
    assert_eq!(cancelled, std::slice::from_ref(&of_node.id));
    let held = [(of_node.id.clone(), of_node.attempt)];
    assert_eq!(node.heartbeat(&held, LEASE).await.unwrap(), held);
    let receipt = node.complete(scored(&of_node, 1.0).unwrap()).await.unwrap();
    assert_ne!(receipt, CompletionReceipt::Accepted);
    let record = controller.rollout(&of_node.id).await.unwrap().unwrap();
    assert_eq!(record.outcome, Some(osmosis_core::Outcome::Cancelled));
    node.close().await.unwrap();
    controller.close().await.unwrap();
}
