//! How fast the bare store records model calls, and how long checks of the run take afterwards.
//!
//! `cargo run --release -p osmosis-store-sqlite --example call_rate -- FOLDER CALLS`
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that measures and reports"
)]

use std::time::Instant;

use camino::Utf8PathBuf;
use osmosis_core::{Attempt, PolicyVersion, RolloutId, SampleId};
use osmosis_store::{CallPurpose, KeyFolder, NewCall, Store};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = Utf8PathBuf::from(arguments.next().unwrap());
    let count: u32 = arguments.next().unwrap().parse().unwrap();
    let store = SqliteStore::open(&folder, SqliteOptions::default()).unwrap();
    let began = Instant::now();
    for number in 0..count {
        store.record_call(call(number)).await.unwrap();
    }
    store.close().await.unwrap();
    let rate = f64::from(count) / began.elapsed().as_secs_f64();
    let megabytes = std::fs::metadata(folder.join("run.db")).unwrap().len() as f64 / 1e6;
    let began = Instant::now();
    let store = SqliteStore::open(&folder, SqliteOptions::default()).unwrap();
    let opened = began.elapsed().as_secs_f64();
    store.close().await.unwrap();
    let began = Instant::now();
    let report = SqliteStore::verify(&folder, &KeyFolder::none(), |_| {}).unwrap();
    let verified = began.elapsed().as_secs_f64();
    assert!(report.is_whole());
    println!(
        "{rate:.0} calls/s; {megabytes:.1} MB of database: {opened:.2} s to open, {verified:.2} s to verify"
    );
}

/// A short question and a short answer, in a conversation of four.
fn call(number: u32) -> NewCall {
    let question =
        "What is the answer to question number so-and-so? ".repeat(1 + number as usize % 4);
    NewCall {
        rollout_id: RolloutId::of(u64::from(number) / 4, 0),
        attempt: Attempt(1),
        sample_id: SampleId::main(),
        purpose: CallPurpose::Policy,
        dialect: "chat_completions".to_owned(),
        model: "osmosis-rollout".to_owned(),
        upstream: "http://127.0.0.1:8000/v1".to_owned(),
        policy_version: PolicyVersion(0),
        streamed: false,
        status: 200,
        error: None,
        prompt_tokens: Some(100),
        completion_tokens: Some(20),
        cached_tokens: None,
        reasoning_tokens: None,
        queued_at_ms: 1_700_000_000_000,
        sent_at_ms: Some(1_700_000_000_001),
        first_byte_at_ms: Some(1_700_000_000_002),
        done_at_ms: 1_700_000_000_003,
        request: question.into(),
        response: "The answer is forty-two, as everybody knows."
            .repeat(4)
            .into(),
        tokens: Vec::new(),
    }
}
