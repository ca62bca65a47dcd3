//! Somebody who can write to the files of a run, as user code of the same user can: whatever it changes, no reader takes it
//! for what was recorded.

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::{JsonText, OutcomeKind, PolicyVersion, RunName};
use osmosis_store::conformance::{call, claim_one, plan, scored};
use osmosis_store::{
    Authenticity, CallPurpose, CopiedCounts, KeyFolder, MissingKey, RolloutPages, RunKind,
    RunRecord, RunStatus, StepRecord, Store, StoreError, StoreErrorKind, copy_run,
};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::segment::{HEADER_BYTES, header};
use crate::{SqliteOptions, SqliteStore, checksum};

const ROWS: u64 = 6;

/// A run that every rollout failed in, and the key of its user.
struct Run {
    keep: TempDir,
}

impl Run {
    async fn recorded() -> Self {
        let run = Self::empty();
        let store = run.open().unwrap();
        record(&store).await;
        store.close().await.unwrap();
        run
    }

    fn empty() -> Self {
        Self {
            keep: tempfile::tempdir().unwrap(),
        }
    }

    fn at(&self, name: &str) -> Utf8PathBuf {
        Utf8Path::from_path(self.keep.path()).unwrap().join(name)
    }

    fn path(&self) -> Utf8PathBuf {
        self.at("run")
    }

    fn keys(&self) -> KeyFolder {
        KeyFolder::at(self.at("keys"))
    }

    fn open(&self) -> Result<SqliteStore, StoreError> {
        open(&self.path(), self.keys())
    }

    fn read(&self) -> Result<SqliteStore, StoreError> {
        SqliteStore::open_read_only(&self.path(), &self.keys())
    }

    /// What an attacker does, who has no key.
    fn attack(&self, sql: &str) {
        attack(&self.path(), sql);
    }
}

fn open(path: &Utf8Path, keys: KeyFolder) -> Result<SqliteStore, StoreError> {
    let options = SqliteOptions {
        keys,
        ..SqliteOptions::default()
    };
    SqliteStore::open(path, options)
}

async fn record(store: &SqliteStore) {
    store
        .create_run(RunRecord {
            name: RunName::new("attacked").unwrap(),
            kind: RunKind::Evaluation,
            status: RunStatus::Running,
            created_at_ms: 1,
            finished_at_ms: None,
            config_toml: "[experiment]".to_owned(),
            pinned: JsonText::parse("{}").unwrap(),
        })
        .await
        .unwrap();
    plan(store, ROWS, 1).await.unwrap();
    for _ in 0..ROWS {
        let claim = claim_one(store).await.unwrap();
        let new = call(&claim, "main", "a request", "an answer").unwrap();
        store.record_call(new).await.unwrap();
        let mut completion = scored(&claim, 0.0).unwrap();
        completion.calls.model_calls = 1;
        store.complete(completion).await.unwrap();
    }
    let step = StepRecord {
        step: 1,
        version: PolicyVersion(1),
        metrics: JsonText::parse("{\"reward/mean\":0.0}").unwrap(),
        finished_at_ms: 5,
    };
    store.record_step(step).await.unwrap();
    store.set_status(RunStatus::Finished).await.unwrap();
}

fn attack(path: &Utf8Path, sql: &str) {
    let connection = Connection::open(path.join("run.db")).unwrap();
    // Checksums need no key.
    checksum::register(&connection).unwrap();
    connection.execute_batch(sql).unwrap();
}

/// The rewards of five of six rollouts, with the right checksums.
fn forged_rewards() -> String {
    let columns = "rollout_id, row_index, run_index, attempt, failures, suspect, outcome, 1.0, 1, error,
        sample_rewards, model_calls, prompt_tokens, completion_tokens, queue_ms, agent_ms, model_ms, grade_ms,
        started_at_ms, finished_at_ms, metrics, outcome_detail, cached_tokens, reasoning_tokens, judge_calls,
        judge_prompt_tokens, judge_completion_tokens";
    format!(
        "UPDATE rollouts SET reward = 1.0, passed = 1, checksum = row_checksum({columns}) WHERE row_index < 5"
    )
}

/// Everything that reports, comparisons, exports and training read.
async fn read_all(store: &dyn Store) -> Result<u64, StoreError> {
    store.run().await?;
    let tally = store.tally().await?;
    let mut ids = Vec::new();
    RolloutPages::finished(store)
        .for_each(|rollout| ids.push(rollout.id.clone()))
        .await?;
    store.samples_of(&ids).await?;
    store.call_totals().await?;
    store
        .visit_calls(&ids, CallPurpose::Policy, Box::new(|_, _| {}))
        .await?;
    let rows: Vec<u64> = (0..ROWS).collect();
    store.rows(&rows).await?;
    store.steps().await?;
    store.batches().await?;
    Ok(tally.iter().map(|kind| kind.passed).sum())
}

fn assert_altered<T: std::fmt::Debug>(found: Result<T, StoreError>, what: &str, named: &str) {
    let error = found.expect_err(what);
    assert_eq!(error.kind(), StoreErrorKind::Altered, "{what}: {error}");
    assert!(error.to_string().contains(named), "{what}: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rewards_that_are_written_while_the_run_is_open_are_not_read_and_the_rows_are_named() {
    let run = Run::empty();
    let store = run.open().unwrap();
    record(&store).await;
    assert_eq!(read_all(&*store).await.unwrap(), 0);
    run.attack(&forged_rewards());
    for (reader, who) in [
        (&*store, "the engine"),
        (&*run.read().unwrap(), "another process"),
    ] {
        assert_altered(reader.tally().await, who, "table rollouts, rollout_id r0-0");
        assert_altered(
            read_all(reader).await,
            who,
            "table rollouts, rollout_id r0-0",
        );
    }
    store.close().await.unwrap();
    assert_altered(run.open(), "a resume", "table rollouts, rollout_id r0-0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rewards_with_checksums_made_again_are_found_by_verify_with_the_rows() {
    let run = Run::recorded().await;
    run.attack(&forged_rewards());
    let report = SqliteStore::verify(&run.path(), &run.keys(), |_| {}).unwrap();
    assert_eq!(report.altered, 5, "{:?}", report.damage);
    assert_eq!(report.damage[0].place, "table rollouts, rollout_id r0-0");
    // Without the key nothing is wrong with them, and nothing is said about who wrote them.
    let report = SqliteStore::verify(&run.path(), &KeyFolder::none(), |_| {}).unwrap();
    assert!(report.is_whole(), "{:?}", report.damage);
    let no_key = Authenticity::Unauthenticated(MissingKey::NoKeyFolder);
    assert_eq!(report.authenticity, Some(no_key));
}

/// Each succeeds as far as SQLite and the checksums are concerned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_changed_swapped_added_or_taken_away_are_altered_for_every_reader() {
    let attacks = [
        ("a label", "UPDATE rows SET body = '{\"label\":\"mine\"}' WHERE row_index = 1", "table rows, row_index 1"),
        ("what failed is hidden", "UPDATE rollouts SET state = 'queued', outcome = NULL WHERE row_index = 2", "r2-0"),
        ("a state alone", "UPDATE rollouts SET state = 'leased' WHERE row_index = 2", "r2-0"),
        ("an answer", "UPDATE samples SET messages = '[]' WHERE rollout_id = 'r3-0'", "table samples, rollout_id r3-0"),
        (
            "samples that change places",
            "UPDATE samples SET rollout_id = CASE rollout_id WHEN 'r3-0' THEN 'x' ELSE rollout_id END;
             UPDATE samples SET rollout_id = 'r3-0' WHERE rollout_id = 'r4-0';
             UPDATE samples SET rollout_id = 'r4-0' WHERE rollout_id = 'x'",
            "table samples",
        ),
        ("a call", "UPDATE calls SET prompt_tokens = 0, response_bytes = response_bytes WHERE call_id = 1", "table calls, call_id 1"),
        ("a rollout taken away", "DELETE FROM samples WHERE rollout_id = 'r5-0'; DELETE FROM rollouts WHERE rollout_id = 'r5-0'", "5 rows, where 6"),
        ("the last call taken away", "DELETE FROM calls WHERE call_id = 6", "table calls: 5 rows, where 6"),
        ("samples taken away", "DELETE FROM samples WHERE rollout_id = 'r5-0'", "table samples: 5 rows, where 6"),
        ("a row added", "INSERT INTO rows SELECT 77, line, body, checksum, mac FROM rows WHERE row_index = 1", "table rows: 7 rows, where 6"),
        ("a step", "UPDATE steps SET metrics = '{\"reward/mean\":1.0}'", "table steps, step 1"),
        ("the run", "UPDATE run SET config_toml = ''", "table run"),
        ("the totals", "UPDATE writer SET seal = replace(seal, ':[6,', ':[5,')", "the totals of its tables"),
        ("no codes", "UPDATE rollouts SET mac = NULL", "table rollouts"),
        ("no authentication", "UPDATE writer SET key_id = NULL, run_uid = NULL, seal = NULL", "taken off"),
    ];
    for (what, sql, named) in attacks {
        let run = Run::recorded().await;
        run.attack(&format!("PRAGMA foreign_keys = OFF; {sql}"));
        let read = match run.read() {
            Ok(store) => read_all(&*store).await,
            Err(error) => Err(error),
        };
        assert_altered(read, what, named);
        let report = SqliteStore::verify(&run.path(), &run.keys(), |_| {}).unwrap();
        assert!(!report.is_whole(), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_state_of_a_row_or_of_the_whole_run_is_not_taken_for_the_last() {
    let run = Run::recorded().await;
    run.attack("CREATE TABLE older AS SELECT * FROM rollouts; CREATE TABLE older_samples AS SELECT * FROM samples");
    let kept = run.at("kept");
    std::fs::create_dir(&kept).unwrap();
    std::fs::copy(run.path().join("run.db"), kept.join("run.db")).unwrap();
    let store = run.open().unwrap();
    assert_eq!(store.requeue(&[OutcomeKind::Scored]).await.unwrap(), ROWS);
    for _ in 0..ROWS {
        let claim = claim_one(&store).await.unwrap();
        store.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
    }
    store.close().await.unwrap();
    assert_eq!(read_all(&*run.read().unwrap()).await.unwrap(), ROWS);
    let last = std::fs::read(run.path().join("run.db")).unwrap();

    let columns = "SELECT * FROM older WHERE row_index = 1";
    run.attack(&format!("REPLACE INTO rollouts {columns}"));
    let read = read_all(&*run.read().unwrap()).await;
    assert_altered(read, "an older rollout", "some rows are older ones");

    std::fs::write(run.path().join("run.db"), &last).unwrap();
    run.attack("REPLACE INTO samples SELECT * FROM older_samples WHERE rollout_id = 'r1-0'");
    let read = read_all(&*run.read().unwrap()).await;
    assert_altered(read, "older samples", "table samples, rollout_id r1-0");

    std::fs::copy(kept.join("run.db"), run.path().join("run.db")).unwrap();
    let read = read_all(&*run.read().unwrap()).await;
    assert_altered(read, "the whole run", "an older state of the run");
    assert_altered(run.open(), "a resume", "an older state of the run");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_writer_authenticates_nothing_that_somebody_else_wrote() {
    let run = Run::empty();
    let store = run.open().unwrap();
    plan(&store, 3, 1).await.unwrap();
    // A label that is put in before its rollout is claimed.
    run.attack("UPDATE rows SET body = '{\"label\":\"mine\"}' WHERE row_index = 0");
    assert_altered(
        claim_one(&store)
            .await
            .map_err(|error| error.downcast().unwrap()),
        "a label",
        "table rows, row_index 0",
    );
    // The writer computes the MAC of a whole row when it changes a part of it.
    run.attack("UPDATE rollouts SET suspect = 9 WHERE row_index = 0");
    assert_altered(
        claim_one(&store)
            .await
            .map_err(|error| error.downcast().unwrap()),
        "a rollout",
        "r0-0",
    );
    // Programs in the file would act with the writer's hands.
    let run = Run::empty();
    let store = run.open().unwrap();
    plan(&store, 3, 1).await.unwrap();
    run.attack(
        "CREATE TRIGGER mine AFTER UPDATE OF outcome ON rollouts BEGIN
            DELETE FROM rollouts WHERE row_index = 2;
         END",
    );
    let claim = claim_one(&store).await.unwrap();
    store.complete(scored(&claim, 0.0).unwrap()).await.unwrap();
    assert_eq!(store.counts().await.unwrap().total(), 3);
    store.close().await.unwrap();
    assert_eq!(read_all(&*run.read().unwrap()).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_calls_are_compared_with_their_codes() {
    let run = Run::recorded().await;
    let segment = run.path().join("segments/000001.seg");
    let bytes = std::fs::read(&segment).unwrap();
    let at = bytes
        .windows(9)
        .position(|part| part == b"an answer")
        .unwrap();
    let mut forged = bytes.clone();
    forged[at..at + 9].copy_from_slice(b"my answer");
    let begins = at - usize::try_from(HEADER_BYTES).unwrap();
    forged[begins..at].copy_from_slice(&header(&[b"my answer"]).unwrap());
    std::fs::write(&segment, &forged).unwrap();
    let store = run.read().unwrap();
    assert_altered(store.call_body(1).await, "a body", "segment 1");
    assert_altered(read_all(&*store).await, "a body", "segment 1");
    let report = SqliteStore::verify(&run.path(), &run.keys(), |_| {}).unwrap();
    assert_eq!(report.altered, 1, "{:?}", report.damage);
    assert_eq!(report.damage[0].place, "call 1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_without_codes_or_of_another_key_is_read_and_said_to_be_unauthenticated() {
    let run = Run::recorded().await;
    let moved = run.at("elsewhere");
    std::fs::rename(run.path(), &moved).unwrap();
    // The same user's key: a folder that was moved is what it was.
    let store = SqliteStore::open_read_only(&moved, &run.keys()).unwrap();
    assert_eq!(store.authenticity(), Authenticity::Authenticated);
    let other = KeyFolder::at(run.at("other"));
    open(&run.at("another"), other.clone()).unwrap();
    let store = SqliteStore::open_read_only(&moved, &other).unwrap();
    assert_eq!(read_all(&*store).await.unwrap(), 0);
    let theirs = Authenticity::Unauthenticated(MissingKey::OtherKey);
    assert_eq!(store.authenticity(), theirs);
    drop(store);
    // Whoever goes on with it has no key of it: from then on nobody's codes are complete.
    let store = open(&moved, other).unwrap();
    store.set_status(RunStatus::Running).await.unwrap();
    store.close().await.unwrap();
    let store = SqliteStore::open_read_only(&moved, &KeyFolder::at(run.at("keys2"))).unwrap();
    let none = Authenticity::Unauthenticated(MissingKey::NoMacs);
    assert_eq!(store.authenticity(), none);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_and_what_is_salvaged_have_codes_where_their_source_has() {
    let run = Run::recorded().await;
    let name = RunName::new("saved").unwrap();
    let copy = open(&run.at("copy"), run.keys()).unwrap();
    let counts: CopiedCounts = copy_run(&*run.read().unwrap(), &*copy).await.unwrap();
    assert_eq!(counts.results, ROWS);
    copy.close().await.unwrap();
    SqliteStore::salvage(&run.path(), &run.at("saved"), &name, &run.keys()).unwrap();
    SqliteStore::salvage(&run.path(), &run.at("plain"), &name, &KeyFolder::none()).unwrap();
    for (place, is_authenticated) in [("copy", true), ("saved", true), ("plain", false)] {
        let report = SqliteStore::verify(&run.at(place), &run.keys(), |_| {}).unwrap();
        assert!(report.is_whole(), "{place}: {:?}", report.damage);
        let found = report.authenticity.unwrap();
        assert_eq!(found.is_authenticated(), is_authenticated, "{place}");
        let store = SqliteStore::open_read_only(&run.at(place), &run.keys()).unwrap();
        assert_eq!(read_all(&*store).await.unwrap(), 0, "{place}");
    }
    // What was changed is lost, and waits again.
    run.attack(&forged_rewards());
    let salvaged = SqliteStore::salvage(&run.path(), &run.at("rest"), &name, &run.keys()).unwrap();
    assert_eq!(salvaged.results, 1, "{salvaged:?}");
    let report = SqliteStore::verify(&run.at("rest"), &run.keys(), |_| {}).unwrap();
    assert!(report.is_whole(), "{:?}", report.damage);
}
