//! The run folder: who may open it, and what can be wrong with it.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::{JsonText, PolicyVersion, RolloutId};
use osmosis_store::conformance::{call, claim_one, plan, scored};
use osmosis_store::{
    CallBody, CallPurpose, CallQuery, CallRecord, KeyFolder, Recovery, StepRecord, Store,
    StoreError, StoreErrorKind,
};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;

pub(crate) fn open(folder: &Utf8Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(folder, SqliteOptions::default())
}

/// A folder that goes away with the first value.
pub(crate) fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::try_from(folder.path().join("run")).unwrap();
    (folder, path)
}

/// One finished rollout with one call.
async fn one_result(store: &dyn Store) {
    plan(store, 2, 1).await.unwrap();
    let claim = claim_one(store).await.unwrap();
    let new = call(&claim, "main", "question", "answer").unwrap();
    store.record_call(new).await.unwrap();
    store.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
}

async fn sees_the_result(store: &dyn Store) {
    assert_eq!(store.counts().await.unwrap().done, 1);
    let query = CallQuery {
        rollout_id: osmosis_core::RolloutId::of(0, 0),
        attempt: None,
    };
    let calls = store.calls(query).await.unwrap();
    let body = store.call_body(calls[0].call_id).await.unwrap().unwrap();
    assert_eq!(body.request, "question");
    assert_eq!(body.response, "answer");
}

#[tokio::test]
async fn a_run_that_is_held_names_its_holder() {
    let (_keep, path) = folder();
    assert_eq!(SqliteStore::holder(&path), None);
    let options = SqliteOptions {
        command: "osmosis eval submit".to_owned(),
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(&path, options).unwrap();
    let pid = std::process::id();
    let holder = SqliteStore::holder(&path).unwrap();
    assert_eq!(
        (holder.pid, holder.command.as_str()),
        (pid, "osmosis eval submit")
    );
    let error = open(&path).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Held);
    let text = error.to_string();
    for part in [
        format!("process {pid} on "),
        " since 20".to_owned(),
        "`osmosis eval submit`".to_owned(),
    ] {
        assert!(text.contains(&part), "`{text}` lacks `{part}`");
    }
    store.close().await.unwrap();
    assert_eq!(SqliteStore::holder(&path), None);
    open(&path).unwrap();
}

#[tokio::test]
async fn asking_for_the_holder_does_not_keep_a_writer_out() {
    let (_keep, path) = folder();
    drop(open(&path).unwrap());
    let asking = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let asker = {
        let (asking, path) = (Arc::clone(&asking), path.clone());
        std::thread::spawn(move || {
            while asking.load(std::sync::atomic::Ordering::SeqCst) {
                SqliteStore::holder(&path);
            }
        })
    };
    let opened: Vec<_> = (0..20).map(|_| open(&path).map(drop)).collect();
    asking.store(false, std::sync::atomic::Ordering::SeqCst);
    asker.join().unwrap();
    for opened in opened {
        opened.unwrap();
    }
}

#[tokio::test]
async fn a_reader_sees_a_live_run_and_can_not_change_it() {
    let (_keep, path) = folder();
    let writer = open(&path).unwrap();
    let reader = SqliteStore::open_read_only(&path, &KeyFolder::none()).unwrap();
    one_result(&writer).await;
    sees_the_result(&reader).await;
    let error = claim_one(&reader).await.unwrap_err();
    assert!(error.to_string().contains("for reading only"), "{error}");
    let next = claim_one(&writer).await.unwrap();
    assert_eq!(next.row_index, 1);
    writer.close().await.unwrap();
    sees_the_result(&reader).await;
    reader.close().await.unwrap();
}

#[tokio::test]
async fn a_closed_run_is_complete_without_its_log() {
    let (_keep, path) = folder();
    let store = open(&path).unwrap();
    one_result(&store).await;
    store.close().await.unwrap();
    for leftover in ["run.db-wal", "run.db-shm"] {
        assert!(!path.join(leftover).exists(), "{leftover}");
    }
    let reader = SqliteStore::open_read_only(&path, &KeyFolder::none()).unwrap();
    sees_the_result(&reader).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_run_in_a_read_only_folder_can_be_read_and_says_why_it_can_not_be_written() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_keep, path) = folder();
    let store = open(&path).unwrap();
    one_result(&store).await;
    store.close().await.unwrap();
    let entries = [
        path.clone(),
        path.join("run.db"),
        path.join("run.lock"),
        path.join("segments"),
    ];
    for entry in &entries {
        fs::set_permissions(entry, fs::Permissions::from_mode(0o555)).unwrap();
    }
    let reader = SqliteStore::open_read_only(&path, &KeyFolder::none()).unwrap();
    sees_the_result(&reader).await;
    assert_eq!(SqliteStore::holder(&path), None);
    // Root may write anyway; then there is nothing to complain about.
    if let Err(error) = open(&path) {
        assert_eq!(error.kind(), StoreErrorKind::Unreadable);
        assert!(error.to_string().contains(path.as_str()), "{error}");
    }
    for entry in &entries {
        fs::set_permissions(entry, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[tokio::test]
async fn a_folder_that_can_not_be_made_is_named() {
    let (keep, _) = folder();
    let file = Utf8PathBuf::try_from(keep.path().join("file")).unwrap();
    fs::write(&file, "not a folder").unwrap();
    let error = open(&file.join("run")).unwrap_err();
    assert!(error.to_string().contains(file.as_str()), "{error}");
    let error = SqliteStore::open_read_only(&file.join("run"), &KeyFolder::none()).unwrap_err();
    assert!(
        error.to_string().contains("there is no run here"),
        "{error}"
    );
}

#[tokio::test]
async fn a_run_of_a_newer_program_is_left_alone() {
    let (_keep, path) = folder();
    open(&path).unwrap().close().await.unwrap();
    let database = Connection::open(path.join("run.db")).unwrap();
    database.pragma_update(None, "user_version", 99).unwrap();
    drop(database);
    let opened = [
        open(&path),
        SqliteStore::open_read_only(&path, &KeyFolder::none()),
    ];
    for error in opened.map(Result::unwrap_err) {
        assert!(
            matches!(error, StoreError::SchemaVersion { found: 99, .. }),
            "{error}"
        );
        assert!(error.hint().is_some());
    }
    assert_eq!(SqliteStore::holder(&path), None, "the lock was given back");
}

/// Takes away what later versions of the tables brought.
fn make_version_4(path: &Utf8Path) {
    let database = Connection::open(path.join("run.db")).unwrap();
    for table in [
        "run", "rows", "rollouts", "samples", "calls", "steps", "batches",
    ] {
        database
            .execute_batch(&format!(
                "ALTER TABLE {table} DROP COLUMN checksum; ALTER TABLE {table} DROP COLUMN mac;"
            ))
            .unwrap();
    }
    database
        .execute_batch(
            "ALTER TABLE calls DROP COLUMN body_macs; DROP TABLE writer; DROP TABLE requests;
             PRAGMA user_version = 4;",
        )
        .unwrap();
}

fn make_version_1(path: &Utf8Path) {
    make_version_4(path);
    let database = Connection::open(path.join("run.db")).unwrap();
    database
        .execute_batch(
            "ALTER TABLE calls DROP COLUMN token_records;
             ALTER TABLE calls DROP COLUMN tokens_offset;
             ALTER TABLE calls DROP COLUMN tokens_bytes;
             DROP TABLE steps;",
        )
        .unwrap();
    drop(database);
    make_version_2_of_4(path);
    let database = Connection::open(path.join("run.db")).unwrap();
    database.pragma_update(None, "user_version", 1).unwrap();
}

fn make_version_2(path: &Utf8Path) {
    make_version_4(path);
    make_version_2_of_4(path);
}

fn make_version_2_of_4(path: &Utf8Path) {
    let database = Connection::open(path.join("run.db")).unwrap();
    database
        .execute_batch(
            "ALTER TABLE calls DROP COLUMN cached_tokens;
             ALTER TABLE calls DROP COLUMN reasoning_tokens;
             ALTER TABLE rollouts DROP COLUMN cached_tokens;
             ALTER TABLE rollouts DROP COLUMN reasoning_tokens;
             ALTER TABLE calls DROP COLUMN purpose;
             ALTER TABLE rollouts DROP COLUMN judge_calls;
             ALTER TABLE rollouts DROP COLUMN judge_prompt_tokens;
             ALTER TABLE rollouts DROP COLUMN judge_completion_tokens;
             DROP TABLE batches;
             PRAGMA user_version = 2;",
        )
        .unwrap();
}

async fn has_no_tokens(store: &dyn Store) {
    let id = RolloutId::of(0, 0);
    let query = CallQuery {
        rollout_id: id.clone(),
        attempt: None,
    };
    let calls = store.calls(query).await.unwrap();
    assert_eq!(calls[0].token_records, 0);
    assert_eq!(calls[0].purpose, CallPurpose::Policy);
    let body = store.call_body(calls[0].call_id).await.unwrap().unwrap();
    assert_eq!((&body.response[..], body.tokens.len()), (&b"answer"[..], 0));
    assert_eq!(store.token_records(&id).await.unwrap(), []);
    assert_eq!(store.steps().await.unwrap(), []);
    assert_eq!(store.batches().await.unwrap(), []);
    assert_eq!(store.unsettled_requests().await.unwrap(), []);
}

#[tokio::test]
async fn a_run_of_an_older_program_is_read_as_it_is_and_brought_up_to_date_when_it_goes_on() {
    let (_keep, path) = folder();
    let store = open(&path).unwrap();
    one_result(&store).await;
    store.close().await.unwrap();
    make_version_1(&path);

    let before = fs::read(path.join("run.db")).unwrap();
    let reader = SqliteStore::open_read_only(&path, &KeyFolder::none()).unwrap();
    sees_the_result(&reader).await;
    has_no_tokens(&reader).await;
    reader.close().await.unwrap();
    assert_eq!(fs::read(path.join("run.db")).unwrap(), before);

    let store = open(&path).unwrap();
    sees_the_result(&store).await;
    has_no_tokens(&store).await;
    let step = StepRecord {
        step: 1,
        version: PolicyVersion(1),
        metrics: JsonText::parse("{}").unwrap(),
        finished_at_ms: 5,
    };
    store.record_step(step.clone()).await.unwrap();
    assert_eq!(store.steps().await.unwrap(), [step]);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_run_from_before_cached_tokens_is_read_as_one_where_nobody_told_them() {
    let (_keep, path) = folder();
    let store = open(&path).unwrap();
    one_result(&store).await;
    let told = store.call_totals().await.unwrap();
    assert!(told.cached_tokens.is_some());
    store.close().await.unwrap();
    make_version_2(&path);

    let reader = SqliteStore::open_read_only(&path, &KeyFolder::none()).unwrap();
    sees_the_result(&reader).await;
    let rollout = reader.rollout(&RolloutId::of(0, 0)).await.unwrap().unwrap();
    let totals = reader.call_totals().await.unwrap();
    for calls in [
        rollout.calls,
        totals,
        reader.tally().await.unwrap()[0].calls,
    ] {
        assert_eq!((calls.cached_tokens, calls.reasoning_tokens), (None, None));
    }
    assert_eq!(totals.prompt_tokens, told.prompt_tokens);
    reader.close().await.unwrap();
    open(&path).unwrap().close().await.unwrap();
}

#[tokio::test]
async fn a_run_from_before_checksums_is_whole_and_says_that_it_has_none() {
    let (_keep, path) = folder();
    let store = open(&path).unwrap();
    one_result(&store).await;
    store.close().await.unwrap();
    make_version_4(&path);
    let report = SqliteStore::verify(&path, &KeyFolder::none(), |_| {}).unwrap();
    assert!(report.is_whole(), "{:?}", report.damage);
    assert_eq!(report.schema_version, Some(4));
    // Two rows, two rollouts, a sample, a call.
    assert_eq!(report.without_checksum, 6);

    // It goes on, and what it writes now is checked.
    let store = open(&path).unwrap();
    sees_the_result(&store).await;
    let claim = claim_one(&store).await.unwrap();
    store.complete(scored(&claim, 0.5).unwrap()).await.unwrap();
    store.close().await.unwrap();
    let report = SqliteStore::verify(&path, &KeyFolder::none(), |_| {}).unwrap();
    assert!(report.is_whole(), "{:?}", report.damage);
    assert_eq!(report.without_checksum, 5);
}

#[tokio::test]
async fn a_run_that_is_only_being_made_is_not_damaged() {
    let (_keep, path) = folder();
    fs::create_dir_all(&path).unwrap();
    let database = Connection::open(path.join("run.db")).unwrap();
    database.pragma_update(None, "journal_mode", "WAL").unwrap();
    let error = SqliteStore::open_read_only(&path, &KeyFolder::none()).unwrap_err();
    assert!(error.to_string().contains("holds no run yet"), "{error}");
    open(&path).unwrap();
}

#[tokio::test]
async fn a_file_that_is_no_database_is_damaged() {
    let (_keep, path) = folder();
    fs::create_dir_all(&path).unwrap();
    fs::write(
        path.join("run.db"),
        "not a database, and long enough to look at ".repeat(100),
    )
    .unwrap();
    let opened = [
        open(&path),
        SqliteStore::open_read_only(&path, &KeyFolder::none()),
    ];
    for error in opened.map(Result::unwrap_err) {
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
}

#[tokio::test]
async fn dropping_a_store_keeps_what_was_queued_and_lets_go_of_the_run() {
    let (_keep, path) = folder();
    let store = open(&path).unwrap();
    plan(&store, 1, 1).await.unwrap();
    let claim = claim_one(&store).await.unwrap();
    for turn in 0..50 {
        let new = call(&claim, "main", format!("{turn}"), "a").unwrap();
        store.record_call(new).await.unwrap();
    }
    drop(store);
    let store = open(&path).unwrap();
    let query = CallQuery {
        rollout_id: claim.id,
        attempt: None,
    };
    assert_eq!(store.calls(query).await.unwrap().len(), 50);
}

#[tokio::test]
async fn the_tables_can_be_read_by_hand() {
    let (_keep, path) = folder();
    let store = open(&path).unwrap();
    one_result(&store).await;
    store.close().await.unwrap();
    let database = Connection::open(path.join("run.db")).unwrap();
    let line: String = database
        .query_row(
            "SELECT r.rollout_id || ' ' || r.state || ' ' || r.outcome || ' ' || r.reward || ' '
                || r.sample_rewards || ' ' || s.sample_id || ' ' || json_extract(s.messages, '$[0].role')
                || ' ' || c.model || ' ' || c.request_bytes || ' ' || c.response_bytes
             FROM rollouts r JOIN samples s USING (rollout_id) JOIN calls c USING (rollout_id)",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(
        line,
        r#"r0-0 done scored 1.0 {"main":1.0} main assistant osmosis-rollout 8 6"#
    );
}

/// The requests of the policy's calls, as they are shown.
async fn visited(store: &dyn Store, id: &RolloutId) -> Vec<String> {
    let (shown, requests) = std::sync::mpsc::channel();
    let visit = move |_: &CallRecord, body: &CallBody| {
        let request = String::from_utf8(body.request.to_vec()).unwrap();
        shown.send(request).unwrap();
    };
    let visit = Box::new(visit);
    store
        .visit_calls(std::slice::from_ref(id), CallPurpose::Policy, visit)
        .await
        .unwrap();
    requests.into_iter().collect()
}

#[tokio::test]
async fn calls_of_two_samples_and_a_judge_are_told_apart_when_they_are_visited() {
    let (_keep, path) = folder();
    let store = open(&path).unwrap();
    plan(&store, 1, 1).await.unwrap();
    let claim = claim_one(&store).await.unwrap();
    let mut expected = vec![];
    // Requests of a sample extend one another, though others stand between them.
    for turn in 1..4 {
        for sample in ["a", "b"] {
            let request = format!("{{\"messages\":[{}]}}", sample.repeat(200 * turn));
            let mut new = call(&claim, sample, request.clone(), "ok").unwrap();
            store.record_call(new.clone()).await.unwrap();
            expected.push(request);
            new.purpose = CallPurpose::Judge;
            store.record_call(new).await.unwrap();
        }
    }
    store.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
    assert_eq!(visited(&store, &claim.id).await, expected);
}

#[tokio::test]
async fn a_long_conversation_is_stored_once_and_read_in_bounded_steps() {
    let (_keep, path) = folder();
    let store = open(&path).unwrap();
    plan(&store, 1, 1).await.unwrap();
    let claim = claim_one(&store).await.unwrap();
    let turn = |n: usize| format!("{{\"content\":\"turn {n} {}\"}}", "word ".repeat(200));
    let requests: Vec<String> = (1..=100)
        .map(|turns| {
            let messages: Vec<_> = (0..turns).map(turn).collect();
            format!("{{\"messages\":[{}],\"tools\":[]}}", messages.join(","))
        })
        .collect();
    for request in &requests {
        let new = call(&claim, "main", request.clone(), "ok").unwrap();
        store.record_call(new).await.unwrap();
    }
    store.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
    let query = CallQuery {
        rollout_id: claim.id.clone(),
        attempt: None,
    };
    let calls = store.calls(query).await.unwrap();
    for (recorded, request) in calls.iter().zip(&requests) {
        let body = store.call_body(recorded.call_id).await.unwrap().unwrap();
        assert_eq!(body.request, request);
    }
    assert_eq!(visited(&store, &claim.id).await, requests);
    store.close().await.unwrap();

    let sent: usize = requests.iter().map(String::len).sum();
    let stored = fs::metadata(path.join("segments/000001.seg"))
        .unwrap()
        .len();
    assert!(stored * 8 < sent as u64, "{stored} of {sent} bytes");
    let database = Connection::open(path.join("run.db")).unwrap();
    let longest: i64 = database
        .query_row("SELECT max(chain_length) FROM calls", [], |row| row.get(0))
        .unwrap();
    assert_eq!(longest, 16);
}

#[tokio::test]
async fn a_write_that_somebody_waits_for_ends_the_gathering_of_calls() {
    let (_keep, path) = folder();
    let options = SqliteOptions {
        linger: Duration::from_hours(1),
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(&path, options).unwrap();
    plan(&store, 1, 1).await.unwrap();
    let claim = claim_one(&store).await.unwrap();
    for _ in 0..20 {
        let new = call(&claim, "main", "question", "answer").unwrap();
        store.record_call(new.clone()).await.unwrap();
        // Reading takes longer than the writer needs to begin to wait for more calls.
        store.counts().await.unwrap();
        let limit = Duration::from_secs(30);
        let awaited = tokio::time::timeout(limit, store.recover(Recovery::AfterTakeover));
        awaited.await.expect("the write waits for calls").unwrap();
        let awaited = tokio::time::timeout(limit, store.record_call_durably(new));
        awaited.await.expect("the call waits for others").unwrap();
    }
    let query = CallQuery {
        rollout_id: claim.id.clone(),
        attempt: Some(claim.attempt),
    };
    assert_eq!(store.calls(query).await.unwrap().len(), 40);
}
