//! A process killed with SIGKILL in the middle of writing: all it acknowledged is there, once.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::{Attempt, RolloutId, SampleId};
use osmosis_store::conformance::{LEASE, call, plan, scored};
use osmosis_store::{
    CallQuery, Claim, CompletionReceipt, KeyFolder, NewCall, Recovery, Store, StoreErrorKind,
};
use osmosis_store_sqlite::SqliteStore;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::folder::{folder, open};

const FOLDER_VARIABLE: &str = "OSMOSIS_STORE_TEST_FOLDER";
const KILLS: u64 = 10;
/// What a child does at most. Then it waits to be killed, so that a slow parent is never too late.
const ALLOWANCE: usize = 300;
const ROLLOUTS: u64 = 4000;
const TURNS: usize = 3;

/// Each request extends the one before, so that killed writers leave chains behind.
fn request(id: &RolloutId, attempt: Attempt, turn: usize) -> String {
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
    let Ok(path) = std::env::var(FOLDER_VARIABLE) else {
        return;
    };
    let store = Arc::new(open(Utf8Path::new(&path)).unwrap());
    store.recover(Recovery::AfterTakeover).await.unwrap();
    let allowance = Arc::new(Semaphore::new(ALLOWANCE));
    let mut workers = JoinSet::new();
    for _ in 0..8 {
        let (store, allowance) = (Arc::clone(&store), Arc::clone(&allowance));
        workers.spawn(async move {
            loop {
                for claim in store.claim("child", 4, LEASE).await.unwrap() {
                    allowance.acquire().await.unwrap().forget();
                    finish(&store, &claim).await;
                }
            }
        });
    }
    workers.join_all().await;
}

async fn finish(store: &SqliteStore, claim: &Claim) {
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
    // One write per line: a line that is read was acknowledged.
    let line = format!("done {} {}\n", claim.id, claim.attempt);
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}

fn start(path: &Utf8Path) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "killed::works_until_killed",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(FOLDER_VARIABLE, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

/// Reads acknowledgements; the child is killed after `patience` of them, and what it still said is
/// read too.
fn acknowledged_until_killed(path: &Utf8Path, patience: u64) -> Vec<(RolloutId, Attempt)> {
    let (mut child, mut output) = start(path);
    let mut acknowledged = Vec::new();
    let mut line = String::new();
    while output.read_line(&mut line).unwrap() > 0 {
        if line.ends_with('\n')
            && let Some(said) = line.trim_end().strip_prefix("done ")
        {
            let (id, attempt) = said.split_once(' ').unwrap();
            let attempt = Attempt(attempt.parse().unwrap());
            acknowledged.push((RolloutId::new(id).unwrap(), attempt));
            if acknowledged.len() as u64 == 1 {
                assert_held_by(path, child.id());
            }
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

fn assert_held_by(path: &Utf8Path, pid: u32) {
    assert_eq!(
        SqliteStore::holder(path).map(|holder| holder.pid),
        Some(pid)
    );
    let error = open(path).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Held);
    assert!(
        error.to_string().contains(&format!("process {pid} ")),
        "{error}"
    );
}

async fn verify(store: &SqliteStore, id: &RolloutId, attempt: Attempt) {
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

#[tokio::test]
async fn what_a_killed_process_acknowledged_is_there_once() {
    let (_keep, path): (_, Utf8PathBuf) = folder();
    let store = open(&path).unwrap();
    plan(&store, ROLLOUTS, 1).await.unwrap();
    store.close().await.unwrap();
    drop(store);

    let mut known: BTreeMap<RolloutId, Attempt> = BTreeMap::new();
    for kill in 0..KILLS {
        for (id, attempt) in acknowledged_until_killed(&path, 1 + kill * 17 % 90) {
            let before = known.insert(id.clone(), attempt);
            assert_eq!(before, None, "{id} was accepted twice");
        }
        // A reader needs no lock and repairs nothing.
        let reader = SqliteStore::open_read_only(&path, &KeyFolder::none()).unwrap();
        for (id, attempt) in &known {
            verify(&reader, id, *attempt).await;
        }
        reader.close().await.unwrap();
    }

    assert_eq!(SqliteStore::holder(&path), None);
    let store = open(&path).unwrap();
    store.recover(Recovery::AfterTakeover).await.unwrap();
    let done = store.counts().await.unwrap().done;
    assert!(done >= known.len() as u64);
    for (id, attempt) in &known {
        verify(&store, id, *attempt).await;
    }
    let claims = store
        .claim("after", 5000, Duration::from_secs(1))
        .await
        .unwrap();
    assert_eq!(claims.len() as u64, ROLLOUTS - done);
    assert!(claims.iter().all(|claim| !known.contains_key(&claim.id)));
    let database = rusqlite::Connection::open(path.join("run.db")).unwrap();
    let integrity: String = database
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(integrity, "ok");
}
