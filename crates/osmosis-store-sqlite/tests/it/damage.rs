//! Bytes that changed by themselves: each is found, or was of no consequence.

use std::collections::BTreeMap;
use std::fs;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::{JsonText, PolicyVersion, RolloutId, RunName, SampleId};
use osmosis_store::conformance::{call, claim_one, plan, scored};
use osmosis_store::{
    BatchRecord, CallPurpose, CallQuery, KeyFolder, NewCall, RolloutPages, RolloutQuery, RunKind,
    RunRecord, RunStatus, StepRecord, Store, StoreError,
};
use osmosis_store_sqlite::SqliteStore;

use crate::folder::{folder, open};

/// Another place for the flips: `OSMOSIS_SEED=7 cargo nextest run -p osmosis-store-sqlite damage`.
struct Random(u64);

impl Random {
    fn seeded() -> Self {
        let seed = std::env::var("OSMOSIS_SEED");
        let seed = seed.map_or(18, |seed| seed.parse().unwrap());
        eprintln!("OSMOSIS_SEED={seed}");
        Self(seed)
    }

    /// SplitMix64.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % end as u64).unwrap()
    }
}

const ROWS: u64 = 40;

/// Everything a run can hold, in a run that still waits for some rollouts.
async fn record(store: &SqliteStore) {
    let run = RunRecord {
        name: RunName::new("damaged").unwrap(),
        kind: RunKind::Evaluation,
        status: RunStatus::Running,
        created_at_ms: 1,
        finished_at_ms: None,
        config_toml: "[experiment]\n".repeat(20),
        pinned: JsonText::parse("{\"seed\":7}").unwrap(),
    };
    store.create_run(run).await.unwrap();
    plan(store, ROWS + 3, 1).await.unwrap();
    for row in 0..ROWS {
        let claim = claim_one(store).await.unwrap();
        for turn in 1..=3_usize {
            let request = format!("{{\"messages\":[{}]}}", "one more word ".repeat(30 * turn));
            let purpose = if turn == 3 && row % 4 == 0 {
                CallPurpose::Judge
            } else {
                CallPurpose::Policy
            };
            let tokens = (row % 2 == 0).then(|| Bytes::from(vec![7; 40 + turn]));
            let new = NewCall {
                purpose,
                tokens: tokens.into_iter().collect(),
                ..call(&claim, "main", request, format!("answer {row} {turn}")).unwrap()
            };
            store.record_call(new).await.unwrap();
        }
        let reward = f64::from(u32::try_from(row).unwrap()) / 7.0;
        let mut completion = scored(&claim, reward).unwrap();
        completion.calls.model_calls = if row % 4 == 0 { 2 } else { 3 };
        completion.calls.judge.calls = u64::from(row % 4 == 0);
        store.complete(completion).await.unwrap();
    }
    for number in 1..=5 {
        let step = StepRecord {
            step: number,
            version: PolicyVersion(number),
            metrics: JsonText::parse(format!("{{\"reward/mean\":0.{number}}}")).unwrap(),
            finished_at_ms: 5,
        };
        store.record_step(step).await.unwrap();
        let batch = BatchRecord {
            number,
            version: PolicyVersion(number),
            content: JsonText::parse("[\"r0-0\"]").unwrap(),
            formed_at_ms: 9,
            acknowledged_at_ms: None,
        };
        store.record_batch(batch).await.unwrap();
    }
    store.acknowledge_batch(2, 10).await.unwrap();
    store.set_status(RunStatus::Interrupted).await.unwrap();
}

/// A closed run.
async fn recorded(path: &Utf8Path) {
    let store = open(path).unwrap();
    record(&store).await;
    store.close().await.unwrap();
}

/// Everything that a reader can get out of a run, by what it is.
async fn content(path: &Utf8Path) -> Result<BTreeMap<String, String>, StoreError> {
    let store = SqliteStore::open_read_only(path, &KeyFolder::none())?;
    let mut content = BTreeMap::new();
    content.insert("run".to_owned(), format!("{:?}", store.run().await?));
    let mut pages = RolloutPages::new(&store, RolloutQuery::default());
    let mut ids = vec![];
    while let Some(page) = pages.next().await? {
        for rollout in page {
            ids.push(rollout.id.clone());
            content.insert(format!("rollout {}", rollout.id), format!("{rollout:?}"));
        }
    }
    for id in &ids {
        let samples = store.samples(id).await?;
        content.insert(format!("samples {id}"), format!("{samples:?}"));
        let query = CallQuery {
            rollout_id: id.clone(),
            attempt: None,
        };
        for (at, mut call) in store.calls(query).await?.into_iter().enumerate() {
            let body = store.call_body(call.call_id).await?;
            // Calls are numbered anew in a run that was salvaged.
            call.call_id = 0;
            content.insert(format!("calls {id} {at}"), format!("{call:?} {body:?}"));
        }
    }
    for index in 0..ROWS + 3 {
        let row = store.row(index).await?;
        content.insert(format!("row {index}"), format!("{row:?}"));
    }
    content.insert("steps".to_owned(), format!("{:?}", store.steps().await?));
    content.insert(
        "batches".to_owned(),
        format!("{:?}", store.batches().await?),
    );
    content.insert("counts".to_owned(), format!("{:?}", store.counts().await?));
    content.insert("tally".to_owned(), format!("{:?}", store.tally().await?));
    content.insert(
        "totals".to_owned(),
        format!("{:?}", store.call_totals().await?),
    );
    store.close().await?;
    Ok(content)
}

fn copy(from: &Utf8Path, to: &Utf8Path) {
    fs::create_dir_all(to.join("segments")).unwrap();
    for folder in ["", "segments"] {
        for entry in from.join(folder).read_dir_utf8().unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() && !entry.file_name().ends_with("-shm") {
                fs::copy(entry.path(), to.join(folder).join(entry.file_name())).unwrap();
            }
        }
    }
}

struct Flips {
    _keep: tempfile::TempDir,
    original: Utf8PathBuf,
    before: BTreeMap<String, String>,
    made: usize,
    noticed: usize,
}

impl Flips {
    async fn of(keep: tempfile::TempDir, original: Utf8PathBuf) -> Self {
        let before = content(&original).await.unwrap();
        Self {
            _keep: keep,
            original,
            before,
            made: 0,
            noticed: 0,
        }
    }

    fn copy(&mut self) -> Utf8PathBuf {
        self.made += 1;
        let path = Utf8PathBuf::from(format!("{}-{}", self.original, self.made));
        copy(&self.original, &path);
        path
    }

    /// Flips a bit of a byte in one file of a copy. It must be found, or change nothing; what was found must keep
    /// the run from going on, and must not keep what is whole from being saved.
    async fn flip(&mut self, file: &str, place: usize, bit: usize) {
        let path = self.copy();
        let mut bytes = fs::read(path.join(file)).unwrap();
        bytes[place] ^= 1 << bit;
        fs::write(path.join(file), &bytes).unwrap();
        let what = format!("bit {bit} of byte {place} of {file}");
        let report = match SqliteStore::verify(&path, &KeyFolder::none(), |_| {}) {
            Ok(report) => report,
            // A version that we don't know is told too.
            Err(error) => {
                assert!(
                    matches!(error, StoreError::SchemaVersion { .. }),
                    "{what}: {error}"
                );
                self.noticed += 1;
                return;
            }
        };
        if report.is_whole() {
            let after = content(&path).await.unwrap();
            for (key, value) in &self.before {
                assert_eq!(after.get(key), Some(value), "{what} went unnoticed");
            }
            assert_eq!(after.len(), self.before.len(), "{what} went unnoticed");
            fs::remove_dir_all(&path).unwrap();
            return;
        }
        self.noticed += 1;
        let only_bodies = report.damage.iter().all(|d| d.place.starts_with("call "));
        let torn = report
            .damage
            .iter()
            .all(|d| d.message.contains("a power cut"));
        if !only_bodies && !torn {
            let again = self.copy();
            fs::write(again.join(file), &bytes).unwrap();
            let error = open(&again).map(drop).expect_err(&what);
            assert!(
                matches!(
                    error,
                    StoreError::Damaged { .. } | StoreError::SchemaVersion { .. }
                ),
                "{what}: {error}"
            );
            assert_eq!(
                fs::read(again.join(file)).unwrap(),
                bytes,
                "{what}: written to"
            );
            fs::remove_dir_all(&again).unwrap();
        }
        if self.noticed % 3 == 1 {
            self.salvage(&path, &what).await;
        }
        fs::remove_dir_all(&path).unwrap();
    }

    /// What is kept is as it was, and waits for a resume otherwise.
    async fn salvage(&mut self, path: &Utf8Path, what: &str) {
        let to = Utf8PathBuf::from(format!("{path}-salvaged"));
        let name = RunName::new("salvaged").unwrap();
        let report = SqliteStore::salvage(path, &to, &name, &KeyFolder::none())
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        let verified = SqliteStore::verify(&to, &KeyFolder::none(), |_| {}).unwrap();
        assert!(verified.is_whole(), "{what}: {:?}", verified.damage);
        let after = content(&to).await.unwrap();
        for (key, value) in &after {
            let sums = ["run", "counts", "tally", "totals", "steps", "batches"];
            let waits = value.contains("outcome: None") || value == "[]" || value == "None";
            if sums.contains(&key.as_str()) || waits || self.before.get(key) == Some(value) {
                continue;
            }
            // A rollout whose accepted attempt is gone shows the calls of its latest.
            let id = key.split(' ').nth(1).unwrap_or_default();
            let result = after
                .get(&format!("rollout {id}"))
                .map_or("", String::as_str);
            assert!(result.contains("outcome: None"), "{what}: {key} is {value}");
        }
        if after.len() < self.before.len() || report.results < ROWS {
            assert!(!report.lost.is_empty(), "{what}: {report:?}");
        }
        fs::remove_dir_all(&to).unwrap();
    }
}

#[tokio::test]
async fn a_flipped_bit_in_the_database_is_found_or_changes_nothing() {
    let (keep, path) = folder();
    recorded(&path).await;
    let mut flips = Flips::of(keep, path).await;
    let length = fs::metadata(flips.original.join("run.db")).unwrap().len();
    let length = usize::try_from(length).unwrap();
    let mut random = Random::seeded();
    // The header, the first page, which says what everything else is, and then anywhere.
    for _ in 0..40 {
        flips
            .flip("run.db", random.below(100), random.below(8))
            .await;
    }
    for _ in 0..20 {
        flips
            .flip("run.db", random.below(4096), random.below(8))
            .await;
    }
    let anywhere = 100;
    let before = flips.noticed;
    for _ in 0..anywhere {
        flips
            .flip("run.db", random.below(length), random.below(8))
            .await;
    }
    eprintln!(
        "{} of {anywhere} flips anywhere had to be noticed",
        flips.noticed - before
    );
    assert!(flips.noticed - before > anywhere / 8);
}

#[tokio::test]
async fn a_flipped_bit_in_a_segment_is_found() {
    let (keep, path) = folder();
    recorded(&path).await;
    let mut flips = Flips::of(keep, path).await;
    let segment = "segments/000001.seg";
    let length = fs::metadata(flips.original.join(segment)).unwrap().len();
    let mut random = Random::seeded();
    for _ in 0..30 {
        let place = random.below(usize::try_from(length).unwrap());
        flips.flip(segment, place, random.below(8)).await;
    }
    assert_eq!(
        flips.noticed, 30,
        "every byte of a segment belongs to a call"
    );
}

#[tokio::test]
async fn a_flipped_bit_in_the_log_of_a_killed_run_is_found() {
    let (keep, path) = folder();
    let store = open(&path).unwrap();
    record(&store).await;
    // As a kill would leave it.
    let killed = Utf8PathBuf::from(format!("{path}-killed"));
    copy(&path, &killed);
    store.close().await.unwrap();
    let log = fs::metadata(killed.join("run.db-wal")).unwrap().len();
    let report = SqliteStore::verify(&killed, &KeyFolder::none(), |_| {}).unwrap();
    assert!(report.is_whole(), "{:?}", report.damage);
    let mut flips = Flips::of(keep, killed).await;
    let mut random = Random::seeded();
    for place in (0..32).step_by(2) {
        flips.flip("run.db-wal", place, random.below(8)).await;
    }
    for _ in 0..60 {
        let place = random.below(usize::try_from(log).unwrap());
        flips.flip("run.db-wal", place, random.below(8)).await;
    }
    // And its very end, the last transaction.
    for back in 1..=30 {
        let place = usize::try_from(log).unwrap() - back * 140;
        flips.flip("run.db-wal", place, random.below(8)).await;
    }
    assert!(flips.noticed > 80, "{}", flips.noticed);
}

#[tokio::test]
async fn a_damaged_transaction_with_others_behind_it_keeps_a_run_from_going_on() {
    let (_keep, path) = folder();
    let store = open(&path).unwrap();
    record(&store).await;
    let killed = Utf8PathBuf::from(format!("{path}-killed"));
    copy(&path, &killed);
    store.close().await.unwrap();
    let log = killed.join("run.db-wal");
    let mut bytes = fs::read(&log).unwrap();
    // A page in the middle. SQLite would take the frame before it for the end, and lose what follows.
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&log, &bytes).unwrap();
    let error = open(&killed).unwrap_err();
    assert!(
        error.to_string().contains("transactions follow it"),
        "{error}"
    );
    assert_eq!(fs::read(&log).unwrap(), bytes, "it was written to");
    let to = Utf8PathBuf::from(format!("{path}-saved"));
    let saved = SqliteStore::salvage(
        &killed,
        &to,
        &RunName::new("saved").unwrap(),
        &KeyFolder::none(),
    )
    .unwrap();
    // What came after the damage is saved too.
    assert!(saved.results >= ROWS - 2, "{:?}", saved.lost);
}

#[tokio::test]
async fn a_log_that_a_kill_cut_short_is_no_damage() {
    let (_keep, path) = folder();
    let store = open(&path).unwrap();
    record(&store).await;
    let mut cut = 0;
    for back in [1, 23, 24, 100, 4096, 4120, 5000, 9000] {
        let killed = Utf8PathBuf::from(format!("{path}-cut-{back}"));
        copy(&path, &killed);
        let log = fs::OpenOptions::new()
            .write(true)
            .open(killed.join("run.db-wal"))
            .unwrap();
        let length = log.metadata().unwrap().len();
        log.set_len(length - back).unwrap();
        let report = SqliteStore::verify(&killed, &KeyFolder::none(), |_| {}).unwrap();
        assert!(report.is_whole(), "{back}: {:?}", report.damage);
        drop(open(&killed).unwrap());
        cut += 1;
    }
    assert_eq!(cut, 8);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_run_that_is_written_to_can_be_verified() {
    let (_keep, path) = folder();
    let store = open(&path).unwrap();
    record(&store).await;
    let report = SqliteStore::verify(&path, &KeyFolder::none(), |_| {}).unwrap();
    assert!(report.is_whole(), "{:?}", report.damage);
    assert!(report.holder.is_some());
    assert_eq!(report.checked.rollouts, ROWS + 3);
    assert_eq!(report.checked.calls, 3 * ROWS);
    assert_eq!(report.without_checksum, 0);
    store.close().await.unwrap();
}

#[tokio::test]
async fn what_was_lost_runs_again_and_the_rest_stays() {
    let (_keep, path) = folder();
    recorded(&path).await;
    let database = rusqlite::Connection::open(path.join("run.db")).unwrap();
    // A number that people read, a sample, a call's row, and the row of a rollout.
    database
        .execute_batch(
            "UPDATE rollouts SET reward = 99 WHERE rollout_id = 'r1-0';
             UPDATE samples SET reward = 99 WHERE rollout_id = 'r2-0';
             UPDATE calls SET prompt_tokens = 1 + coalesce(prompt_tokens, 0) WHERE rollout_id = 'r3-0';
             UPDATE rows SET body = '{}' WHERE row_index = 4;",
        )
        .unwrap();
    drop(database);
    let report = SqliteStore::verify(&path, &KeyFolder::none(), |_| {}).unwrap();
    let places: Vec<&str> = report.damage.iter().map(|d| d.place.as_str()).collect();
    for place in [
        "rollout_id r1-0",
        "rollout_id r2-0",
        "row_index 4",
        "call_id 10",
    ] {
        assert!(
            places.iter().any(|there| there.contains(place)),
            "{places:?}"
        );
    }
    let to = Utf8PathBuf::from(format!("{path}-new"));
    let name = RunName::new("new").unwrap();
    let saved = SqliteStore::salvage(&path, &to, &name, &KeyFolder::none()).unwrap();
    assert!(saved.has_record);
    assert_eq!(saved.results, ROWS - 4, "{:?}", saved.lost);
    assert_eq!((saved.steps, saved.batches, saved.rows), (5, 5, ROWS + 2));
    let store = open(&to).unwrap();
    let record = store.run().await.unwrap().unwrap();
    assert_eq!(
        (record.name.as_str(), record.status),
        ("new", RunStatus::Interrupted)
    );
    assert_eq!(store.rollout(&RolloutId::of(1, 0)).await.unwrap(), None);
    for lost in [2, 3] {
        let rollout = store
            .rollout(&RolloutId::of(lost, 0))
            .await
            .unwrap()
            .unwrap();
        assert_eq!((rollout.outcome, rollout.attempts), (None, 1));
    }
    let claim = claim_one(&store).await.unwrap();
    assert_eq!((claim.row_index, claim.attempt.0), (2, 2));
    assert!(store.samples(&claim.id).await.unwrap().is_empty());
    let kept = store.samples(&RolloutId::of(9, 0)).await.unwrap();
    assert_eq!(kept[0].id, SampleId::main());
    store.close().await.unwrap();
}
