//! Commits that fail, and what is left when they work again.

use std::fs;

use osmosis_core::{
    Attempt, Durations, JsonText, Outcome, PolicyVersion, Reward, RolloutId, Sample, SampleId,
};
use osmosis_store::{
    CallPurpose, CallQuery, CallSummary, Completion, CompletionReceipt, NewRollout, NewRow, Pieces,
    StoreErrorKind,
};

use super::*;
use crate::{queue, rollouts};

const LEASE: Duration = Duration::from_mins(1);

struct Run {
    folder: tempfile::TempDir,
    store: SqliteStore,
}

impl Run {
    async fn new(rollouts: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().try_into().unwrap();
        let store = SqliteStore::open(path, SqliteOptions::default()).unwrap();
        let rows = (0..rollouts).map(|row_index| NewRow {
            row_index,
            line: row_index + 1,
            body: JsonText::parse("{}").unwrap(),
        });
        let places = (0..rollouts).map(|row_index| NewRollout {
            id: RolloutId::of(row_index, 0),
            row_index,
            run_index: 0,
        });
        store
            .enqueue(rows.collect(), places.collect())
            .await
            .unwrap();
        store.claim("test", usize::MAX, LEASE).await.unwrap();
        Self { folder, store }
    }

    /// Lets the database grow by this many pages and no further; `None` lifts the limit.
    async fn limit_pages(&self, more: Option<i64>) {
        let limited = self.store.write(move |desk| {
            let pages: i64 = desk
                .connection
                .pragma_query_value(None, "page_count", |row| row.get(0))?;
            let limit = more.map_or(4_294_967_294, |more| pages + more);
            let sql = format!("PRAGMA max_page_count = {limit}");
            desk.connection.query_row(&sql, [], |_| Ok(()))?;
            Ok(())
        });
        limited.await.unwrap();
    }

    async fn calls(&self, row: u64) -> usize {
        let query = CallQuery {
            rollout_id: RolloutId::of(row, 0),
            attempt: Some(Attempt(1)),
        };
        let calls = self.store.calls(query).await.unwrap();
        for call in &calls {
            let body = self.store.call_body(call.call_id).await.unwrap().unwrap();
            assert_eq!(body.request, request(row));
        }
        calls.len()
    }
}

fn request(row: u64) -> String {
    format!("{row} {}", "q".repeat(500))
}

fn call(row: u64) -> NewCall {
    NewCall {
        rollout_id: RolloutId::of(row, 0),
        attempt: Attempt(1),
        sample_id: SampleId::main(),
        purpose: CallPurpose::Policy,
        dialect: "chat_completions".to_owned(),
        model: "m".to_owned(),
        upstream: "u".to_owned(),
        policy_version: PolicyVersion(0),
        streamed: false,
        status: 200,
        error: None,
        prompt_tokens: None,
        completion_tokens: None,
        cached_tokens: None,
        reasoning_tokens: None,
        queued_at_ms: 0,
        sent_at_ms: None,
        first_byte_at_ms: None,
        done_at_ms: 0,
        request: request(row).into(),
        response: Pieces::default(),
        tokens: Vec::new(),
    }
}

/// A result that takes several pages.
fn completion(row: u64) -> Completion {
    let reward = Reward::new(1.0).unwrap();
    Completion {
        id: RolloutId::of(row, 0),
        attempt: Attempt(1),
        outcome: Outcome::Scored {
            reward,
            passed: true,
        },
        samples: vec![Sample {
            id: SampleId::main(),
            messages: JsonText::parse(format!("[\"{}\"]", "m".repeat(20_000))).unwrap(),
            reward: Some(reward),
            remove_sample: false,
            metrics: None,
            extra_fields: None,
        }],
        metrics: None,
        durations: Durations::default(),
        calls: CallSummary::default(),
        started_at_ms: 0,
        finished_at_ms: 0,
    }
}

#[tokio::test]
async fn a_full_disk_fails_every_write_of_the_batch_and_loses_nothing_acknowledged() {
    let run = Run::new(4).await;
    let store = &run.store;
    store.complete(completion(0)).await.unwrap();
    run.limit_pages(Some(2)).await;
    store.record_call(call(1)).await.unwrap();
    let (first, second) =
        tokio::join!(store.complete(completion(1)), store.complete(completion(2)));
    for failed in [first, second] {
        let error = failed.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::DiskFull, "{error}");
        assert!(error.hint().is_some());
    }
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.leased, counts.done), (3, 1), "nothing is half done");

    run.limit_pages(None).await;
    for row in [1, 2] {
        let receipt = store.complete(completion(row)).await.unwrap();
        assert_eq!(receipt, CompletionReceipt::Accepted);
    }
    assert_eq!(run.calls(1).await, 1, "the queued call was kept");
    assert_eq!(store.counts().await.unwrap().done, 3);
    store.close().await.unwrap();
}

#[tokio::test]
async fn calls_that_can_not_be_written_are_refused_instead_of_piling_up() {
    let run = Run::new(3).await;
    let store = &run.store;
    // The next segment's name is taken, so that appending fails until it is free.
    let obstacle = run.folder.path().join("segments/000001.seg");
    fs::create_dir(&obstacle).unwrap();
    store.record_call(call(0)).await.unwrap();
    let error = store.complete(completion(0)).await.unwrap_err();
    assert!(error.to_string().contains("000001.seg"), "{error}");
    for _ in 0..3 {
        store.record_call(call(1)).await.unwrap_err();
    }
    fs::remove_dir(&obstacle).unwrap();
    store.record_call(call(2)).await.unwrap();
    assert_eq!(run.calls(2).await, 1, "it waited for the commit");
    store.complete(completion(0)).await.unwrap();
    assert_eq!(run.calls(0).await, 1, "what was accepted before is kept");
    assert_eq!(run.calls(1).await, 0, "what was refused is not");
    store.record_call(call(1)).await.unwrap();
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_caller_that_waits_for_room_hears_of_the_failure() {
    let run = Run::new(1).await;
    let store = &run.store;
    let obstacle = run.folder.path().join("segments/000001.seg");
    fs::create_dir(&obstacle).unwrap();
    // Half of the room each: the third waits until the first fails, and must not wait for ever.
    let large = || NewCall {
        response: vec![0; ROOM_FOR_CALLS_KB as usize / 2 * 1024 - 2048].into(),
        ..call(0)
    };
    store.record_call(large()).await.unwrap();
    store.record_call(large()).await.unwrap();
    store.record_call(large()).await.unwrap_err();
    fs::remove_dir(&obstacle).unwrap();
    store.record_call(call(0)).await.unwrap();
    assert_eq!(run.calls(0).await, 3);
}

#[tokio::test]
async fn closing_tells_when_queued_calls_could_not_be_written() {
    let run = Run::new(1).await;
    fs::create_dir(run.folder.path().join("segments/000001.seg")).unwrap();
    run.store.record_call(call(0)).await.unwrap();
    run.store.close().await.unwrap_err();
    let path = run.folder.path().try_into().unwrap();
    assert_eq!(
        SqliteStore::holder(path),
        None,
        "the run is free all the same"
    );
}

#[tokio::test]
async fn claims_and_pages_follow_an_index() {
    let run = Run::new(1).await;
    let plans = run.store.write(|desk| {
        let mut plans = Vec::new();
        for sql in [
            queue::claim_queued_sql(),
            queue::claim_run_out_sql(),
            "SELECT state, count(*) FROM rollouts GROUP BY state".to_owned(),
            rollouts::page_sql("AND +state = 'done' AND (row_index, run_index) > (1, 1)"),
            "SELECT * FROM calls WHERE rollout_id = 'a' AND attempt = 1 ORDER BY call_id"
                .to_owned(),
        ] {
            let mut explain = desk
                .connection
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
            let steps: Result<Vec<String>, _> = explain
                .raw_query()
                .mapped(|row| row.get("detail"))
                .collect();
            plans.push(steps?.join("; "));
        }
        Ok(plans)
    });
    let plans = plans.await.unwrap();
    assert!(
        plans[0].contains("USING INDEX rollouts_by_state (state=?)"),
        "{plans:?}"
    );
    assert!(
        !plans[0].contains("B-TREE"),
        "claims need no sorting: {plans:?}"
    );
    assert!(
        plans[1].contains("USING INDEX rollouts_by_lease"),
        "{plans:?}"
    );
    assert!(
        plans[2].contains("COVERING INDEX rollouts_by_state"),
        "{plans:?}"
    );
    assert!(
        plans[3].contains("USING INDEX sqlite_autoindex_rollouts_2"),
        "{plans:?}"
    );
    assert!(
        !plans[3].contains("B-TREE"),
        "pages need no sorting: {plans:?}"
    );
    assert!(
        plans[4].contains("USING INDEX calls_by_rollout"),
        "{plans:?}"
    );
    assert!(
        !plans[4].contains("B-TREE"),
        "calls need no sorting: {plans:?}"
    );
}
