//! A process killed with SIGKILL in the middle of writing: all it acknowledged is there, once.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use osmosis_core::{Attempt, RolloutId, SampleId};
use osmosis_store::conformance::{LEASE, call, plan, scored};
use osmosis_store::{
    CallQuery, Catalogue as _, Claim, CompletionReceipt, NewCall, Recovery, Store, StoreErrorKind,
};
use osmosis_testkit::postgres_server::PostgresServer;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::database::{catalogue, catalogue_at, options, run};

const URL_VARIABLE: &str = "OSMOSIS_STORE_TEST_URL";
const KILLS: u64 = 8;
/// What a child does at most. Then it waits to be killed, so that a slow parent is never too late.
const ALLOWANCE: usize = 300;
const ROLLOUTS: u64 = 3000;
const TURNS: usize = 3;

/// Each request extends the one before, so that killed writers leave chains behind.
pub(crate) fn request(id: &RolloutId, attempt: Attempt, turn: usize) -> String {
    format!(
        "{{\"id\":\"{id}\",\"attempt\":{attempt},\"system\":\"{}\",\"turns\":[{}]}}",
        "s".repeat(400),
        "1,".repeat(turn)
    )
}

fn tokens(attempt: Attempt, turn: usize) -> String {
    format!("tokens of turn {turn}, attempt {attempt}")
}

/// The program of the child: works through the queue, and says what was acknowledged.
#[ignore = "the child of the test below; alone it does nothing"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn works_until_killed() {
    let Ok(url) = std::env::var(URL_VARIABLE) else {
        return;
    };
    let catalogue = catalogue_at(&url, options());
    // The server may not have noticed yet that the one before is dead.
    let store = loop {
        match catalogue.open(&run("x")).await {
            Ok(store) => break store,
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Held, "{error}"),
        }
    };
    store.recover(Recovery::AfterTakeover).await.unwrap();
    let allowance = Arc::new(Semaphore::new(ALLOWANCE));
    let mut workers = JoinSet::new();
    for _ in 0..8 {
        let (store, allowance) = (Arc::clone(&store), Arc::clone(&allowance));
        workers.spawn(async move {
            loop {
                for claim in store.claim("child", 4, LEASE).await.unwrap() {
                    allowance.acquire().await.unwrap().forget();
                    finish(&*store, &claim).await;
                    // One write per line: a line that is read was acknowledged.
                    let line = format!("done {} {}\n", claim.id, claim.attempt);
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            }
        });
    }
    workers.join_all().await;
}

pub(crate) async fn finish(store: &dyn Store, claim: &Claim) {
    for turn in 0..TURNS {
        let new = call(
            claim,
            "main",
            request(&claim.id, claim.attempt, turn),
            format!("{turn}"),
        );
        let new = NewCall {
            tokens: vec![tokens(claim.attempt, turn).into()],
            ..new.unwrap()
        };
        store.record_call(new).await.unwrap();
    }
    let receipt = store.complete(scored(claim, 1.0).unwrap()).await.unwrap();
    assert_eq!(receipt, CompletionReceipt::Accepted);
}

fn start(url: &str) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "killed::works_until_killed",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(URL_VARIABLE, url)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

/// Reads acknowledgements; the child is killed after `patience` of them, and what it still said is
/// read too.
fn acknowledged_until_killed(url: &str, patience: u64) -> Vec<(RolloutId, Attempt)> {
    let (mut child, mut output) = start(url);
    let mut acknowledged = Vec::new();
    let mut line = String::new();
    while output.read_line(&mut line).unwrap() > 0 {
        if line.ends_with('\n')
            && let Some(said) = line.trim_end().strip_prefix("done ")
        {
            let (id, attempt) = said.split_once(' ').unwrap();
            let attempt = Attempt(attempt.parse().unwrap());
            acknowledged.push((RolloutId::new(id).unwrap(), attempt));
            if acknowledged.len() as u64 == patience {
                child.kill().unwrap();
            }
        }
        line.clear();
    }
    let status = child.wait().unwrap();
    assert!(!status.success(), "the child ended by itself");
    assert!(acknowledged.len() as u64 >= patience, "{status}");
    acknowledged
}

pub(crate) async fn verify(store: &dyn Store, id: &RolloutId, attempt: Attempt) {
    let record = store.rollout(id).await.unwrap().unwrap();
    assert!(
        record.outcome.is_some(),
        "{id} was acknowledged and is gone"
    );
    assert_eq!(record.attempts, attempt.0, "{id}");
    assert_eq!(store.samples(id).await.unwrap().len(), 1, "{id}");
    let query = CallQuery {
        rollout_id: id.clone(),
        attempt: None,
    };
    let calls = store.calls(query).await.unwrap();
    assert_eq!(calls.len(), TURNS, "{id}");
    for (turn, recorded) in calls.iter().enumerate() {
        let body = store.call_body(recorded.call_id).await.unwrap().unwrap();
        assert_eq!(body.request, request(id, attempt, turn));
        assert_eq!(body.response, format!("{turn}"));
        assert_eq!(body.tokens, [tokens(attempt, turn)]);
    }
    let records = store.token_records(id).await.unwrap();
    let expected: Vec<_> = (0..TURNS)
        .map(|turn| (SampleId::main(), tokens(attempt, turn).into()))
        .collect();
    assert_eq!(records, expected, "{id}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_process_acknowledged_is_there_once() {
    let server = PostgresServer::start();
    let catalogue = catalogue(&server);
    let store = catalogue.create(&run("x")).await.unwrap();
    plan(&*store, ROLLOUTS, 1).await.unwrap();
    store.close().await.unwrap();

    let mut known: BTreeMap<RolloutId, Attempt> = BTreeMap::new();
    for kill in 0..KILLS {
        let url = server.url();
        let killed = tokio::task::spawn_blocking(move || {
            acknowledged_until_killed(&url, 1 + kill * 17 % 90)
        });
        let fresh = killed.await.unwrap();
        let reader = catalogue.open_read_only(&run("x")).await.unwrap();
        for (id, attempt) in &fresh {
            verify(&*reader, id, *attempt).await;
            let before = known.insert(id.clone(), *attempt);
            assert_eq!(before, None, "{id} was accepted twice");
        }
        reader.close().await.unwrap();
    }

    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while catalogue.holder(&run("x")).await.unwrap().is_some() {
        assert!(
            std::time::Instant::now() < deadline,
            "a dead process holds the run"
        );
        tokio::task::yield_now().await;
    }
    let store = catalogue.open(&run("x")).await.unwrap();
    store.recover(Recovery::AfterTakeover).await.unwrap();
    let done = store.counts().await.unwrap().done;
    assert!(done >= known.len() as u64);
    for (id, attempt) in &known {
        verify(&*store, id, *attempt).await;
    }
    let claims = store
        .claim("after", 5000, Duration::from_secs(1))
        .await
        .unwrap();
    assert_eq!(claims.len() as u64, ROLLOUTS - done);
    assert!(claims.iter().all(|claim| !known.contains_key(&claim.id)));
    store.close().await.unwrap();
    let report = catalogue.verify(&run("x"), Box::new(|_| {})).await.unwrap();
    assert!(report.is_whole(), "{:?}", report.damage);
}
