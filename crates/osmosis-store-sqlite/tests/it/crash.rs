//! Segments after a crash, or after a disk that lied: what is torn is cut, what is damaged is named,
//! and everything else is still there.

use std::fs::{self, OpenOptions};
use std::io::Write as _;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::{RolloutId, SampleId};
use osmosis_store::conformance::{call, claim_one, plan, scored};
use osmosis_store::{CallBody, CallQuery, KeyFolder, NewCall, Store, StoreError};
use osmosis_store_sqlite::SqliteStore;

use crate::folder::{folder, open};

const SEGMENT: &str = "segments/000001.seg";

fn request(row: u64) -> String {
    format!("{{\"question\":{row},\"context\":\"{}\"}}", "c".repeat(300))
}

fn response(row: u64) -> String {
    format!("answer {row} {}", "a".repeat(20))
}

/// Every other call has token records; they are the last it has in the segment.
fn tokens(row: u64) -> Vec<Bytes> {
    if row.is_multiple_of(2) {
        vec![format!("tokens {row}").into(), Bytes::from_static(b"!")]
    } else {
        Vec::new()
    }
}

/// A closed run with `rows` finished rollouts of one call each, all in one segment.
async fn recorded(path: &Utf8Path, rows: u64) {
    let store = open(path).unwrap();
    plan(&store, rows + 1, 1).await.unwrap();
    for row in 0..rows {
        record_next(&store, row).await;
    }
    store.close().await.unwrap();
}

async fn record_next(store: &SqliteStore, row: u64) {
    let claim = claim_one(store).await.unwrap();
    assert_eq!(claim.row_index, row);
    let new = NewCall {
        tokens: tokens(row),
        ..call(&claim, "main", request(row), response(row)).unwrap()
    };
    store.record_call(new).await.unwrap();
    store.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
}

async fn body(store: &SqliteStore, row: u64) -> Result<CallBody, StoreError> {
    let query = CallQuery {
        rollout_id: RolloutId::of(row, 0),
        attempt: None,
    };
    let calls = store.calls(query).await?;
    assert_eq!(calls.len(), 1, "row {row}");
    Ok(store.call_body(calls[0].call_id).await?.unwrap())
}

async fn assert_intact(store: &SqliteStore, row: u64) {
    let body = body(store, row).await.unwrap();
    assert_eq!(body.request, request(row));
    assert_eq!(body.response, response(row));
    assert_eq!(body.tokens, tokens(row));
    let records = store.token_records(&RolloutId::of(row, 0)).await.unwrap();
    let expected: Vec<_> = tokens(row)
        .into_iter()
        .map(|record| (SampleId::main(), record))
        .collect();
    assert_eq!(records, expected);
}

fn copy_of(run: &Utf8Path, to: &Utf8Path) {
    fs::create_dir_all(to.join("segments")).unwrap();
    for file in ["run.db", SEGMENT] {
        fs::copy(run.join(file), to.join(file)).unwrap();
    }
}

fn length(path: &Utf8Path) -> u64 {
    fs::metadata(path.join(SEGMENT)).unwrap().len()
}

fn cut(path: &Utf8Path, length: u64) {
    let file = OpenOptions::new()
        .write(true)
        .open(path.join(SEGMENT))
        .unwrap();
    file.set_len(length).unwrap();
}

fn append(path: &Utf8Path, bytes: &[u8]) {
    let mut file = OpenOptions::new()
        .append(true)
        .open(path.join(SEGMENT))
        .unwrap();
    file.write_all(bytes).unwrap();
}

/// A fresh copy of a recorded run for each case.
struct Copies {
    _keep: tempfile::TempDir,
    original: Utf8PathBuf,
    made: usize,
}

impl Copies {
    async fn of(rows: u64) -> Self {
        let (keep, original) = folder();
        recorded(&original, rows).await;
        Self {
            _keep: keep,
            original,
            made: 0,
        }
    }

    fn next(&mut self) -> Utf8PathBuf {
        self.made += 1;
        let copy = Utf8PathBuf::from(format!("{}-{}", self.original, self.made));
        copy_of(&self.original, &copy);
        copy
    }
}

/// The bytes of the last record, with its header of 12: the token records of the last call, each with a
/// length of 4, or else its response.
fn last_record(original: &Utf8Path, rows: u64) -> Vec<u8> {
    let bytes = fs::read(original.join(SEGMENT)).unwrap();
    let length = match tokens(rows - 1).as_slice() {
        [] => response(rows - 1).len(),
        records => records.iter().map(|record| record.len() + 4).sum(),
    };
    let record = bytes[bytes.len() - length - 12..].to_vec();
    assert!(record.starts_with(b"OSR1"));
    record
}

#[tokio::test]
async fn a_write_torn_at_any_byte_is_cut_off() {
    let mut copies = Copies::of(3).await;
    let whole = length(&copies.original);
    let record = last_record(&copies.original, 3);
    for torn in 1..record.len() {
        let copy = copies.next();
        append(&copy, &record[..torn]);
        let store = open(&copy).unwrap();
        assert_eq!(length(&copy), whole, "torn after {torn} bytes");
        record_next(&store, 3).await;
        for row in 0..4 {
            assert_intact(&store, row).await;
        }
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_tail_of_garbage_is_cut_off() {
    let mut copies = Copies::of(2).await;
    let whole = length(&copies.original);
    let mut record = last_record(&copies.original, 2);
    let corrupt = {
        let last = record.len() - 1;
        record[last] ^= 1;
        record.clone()
    };
    let huge = [&b"OSR1"[..], &[0xff; 20]].concat();
    for garbage in [
        vec![0; 5000],
        vec![0xa5; 100],
        corrupt,
        huge,
        b"OSR1".to_vec(),
    ] {
        let copy = copies.next();
        append(&copy, &garbage);
        let store = open(&copy).unwrap();
        assert_eq!(length(&copy), whole);
        record_next(&store, 2).await;
        for row in 0..3 {
            assert_intact(&store, row).await;
        }
    }
}

#[tokio::test]
async fn whole_records_that_nobody_refers_to_are_harmless() {
    let mut copies = Copies::of(2).await;
    let copy = copies.next();
    let record = last_record(&copies.original, 2);
    append(&copy, &record);
    append(&copy, &record);
    append(&copy, &record[..7]);
    let expected = length(&copies.original) + 2 * record.len() as u64;
    let store = open(&copy).unwrap();
    assert_eq!(length(&copy), expected);
    record_next(&store, 2).await;
    for row in 0..3 {
        assert_intact(&store, row).await;
    }
}

#[tokio::test]
async fn a_segment_that_lost_its_end_costs_that_call_alone() {
    let mut copies = Copies::of(3).await;
    let whole = length(&copies.original);
    let record = last_record(&copies.original, 3).len() as u64;
    for lost in 1..=record {
        let copy = copies.next();
        cut(&copy, whole - lost);
        let store = open(&copy).unwrap();
        record_next(&store, 3).await;
        assert_eq!(
            length(&copy),
            whole - lost,
            "nothing takes the place of what is lost"
        );
        let error = body(&store, 2).await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        let rollout = RolloutId::of(2, 0);
        let error = store.token_records(&rollout).await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        for row in [0, 1, 3] {
            assert_intact(&store, row).await;
        }
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_flipped_bit_anywhere_in_a_record_is_noticed() {
    let mut copies = Copies::of(2).await;
    let copy = copies.next();
    let store = SqliteStore::open_read_only(&copy, &KeyFolder::none()).unwrap();
    let bytes = fs::read(copy.join(SEGMENT)).unwrap();
    let record = last_record(&copies.original, 2).len();
    for position in bytes.len() - record..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[position] ^= 0x10;
        fs::write(copy.join(SEGMENT), &flipped).unwrap();
        let error = body(&store, 1).await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("000001.seg"), "{error}");
    }
    fs::write(copy.join(SEGMENT), &bytes).unwrap();
    assert_intact(&store, 1).await;
}

#[tokio::test]
async fn a_missing_segment_costs_its_calls_alone() {
    let mut copies = Copies::of(2).await;
    let copy = copies.next();
    fs::remove_file(copy.join(SEGMENT)).unwrap();
    let store = open(&copy).unwrap();
    record_next(&store, 2).await;
    assert_intact(&store, 2).await;
    let error = body(&store, 0).await.unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(!copy.join(SEGMENT).exists(), "its number is not used again");
}
