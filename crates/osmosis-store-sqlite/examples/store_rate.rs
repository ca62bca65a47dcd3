//! How fast the bare store hands out rollouts and takes their results: the ceiling of any engine.
//!
//! `cargo run --release -p osmosis-store-sqlite --example store_rate -- FOLDER ROLLOUTS`
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that measures and reports"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use osmosis_core::{Durations, JsonText, Outcome, Reward, RolloutId, RunName, Sample, SampleId};
use osmosis_store::{
    CallSummary, Claim, Completion, NewRollout, NewRow, RunKind, RunRecord, RunStatus, Store,
};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use tokio::task::JoinSet;

/// As many results on their way at once as an engine with its default would have.
const IN_FLIGHT: usize = 64;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = Utf8PathBuf::from(arguments.next().unwrap());
    let count: u64 = arguments.next().unwrap().parse().unwrap();
    std::fs::create_dir_all(&folder).unwrap();
    let store: Arc<dyn Store> =
        Arc::new(SqliteStore::open(&folder, SqliteOptions::default()).unwrap());
    prepare(&store, count).await;

    let began = Instant::now();
    let mut flying = JoinSet::new();
    let mut done = 0;
    while done < count {
        if flying.len() < IN_FLIGHT {
            let room = IN_FLIGHT - flying.len();
            for claim in store
                .claim("bench", room, Duration::from_mins(1))
                .await
                .unwrap()
            {
                let store = Arc::clone(&store);
                flying.spawn(async move { store.complete(result(&claim)).await.unwrap() });
            }
        }
        if flying.join_next().await.is_some() {
            done += 1;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{:.0}", count as f64 / seconds);
    store.close().await.unwrap();
}

async fn prepare(store: &Arc<dyn Store>, count: u64) {
    let body = JsonText::parse(r#"{"user_prompt": "say 1", "ground_truth": "1"}"#).unwrap();
    let run = RunRecord {
        name: RunName::new("bench").unwrap(),
        kind: RunKind::Evaluation,
        status: RunStatus::Running,
        created_at_ms: 0,
        finished_at_ms: None,
        config_toml: String::new(),
        pinned: JsonText::parse("{}").unwrap(),
    };
    store.create_run(run).await.unwrap();
    for start in (0..count).step_by(500) {
        let range = start..(start + 500).min(count);
        let rows = range.clone().map(|row_index| NewRow {
            row_index,
            line: row_index + 1,
            body: body.clone(),
        });
        let rollouts = range.map(|row_index| NewRollout {
            id: RolloutId::of(row_index, 0),
            row_index,
            run_index: 0,
        });
        store
            .enqueue(rows.collect(), rollouts.collect())
            .await
            .unwrap();
    }
}

fn result(claim: &Claim) -> Completion {
    Completion {
        id: claim.id.clone(),
        attempt: claim.attempt,
        outcome: Outcome::Scored {
            reward: Reward::new(1.0).unwrap(),
            passed: true,
        },
        samples: vec![Sample {
            id: SampleId::main(),
            messages: JsonText::parse(
                r#"[{"role":"user","content":"say 1"},{"role":"assistant","content":"1"}]"#,
            )
            .unwrap(),
            reward: Some(Reward::new(1.0).unwrap()),
            remove_sample: false,
            metrics: None,
            extra_fields: None,
        }],
        metrics: None,
        durations: Durations::default(),
        calls: CallSummary::default(),
        started_at_ms: 1,
        finished_at_ms: 2,
    }
}
