//! Claims, completions and calls per second of PostgreSQL beside SQLite, in interleaved rounds; and how much room the
//! bodies of calls take compressed by us and by the server.
//!
//! `cargo run --release -p osmosis-store-postgres --example store_rates -- ROLLOUTS ROUNDS`; `benches/stores.py` makes
//! tables of what it prints. It starts a PostgreSQL of its own, with fsync.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that measures and reports"
)]

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use osmosis_core::{
    Durations, JsonText, Outcome, PolicyVersion, Reward, RolloutId, RunName, Sample, SampleId,
};
use osmosis_store::{
    CallPurpose, CallSummary, Catalogue, Claim, Completion, NewCall, NewRollout, NewRow, RunKey,
    RunKind, Store, StoreUrl,
};
use osmosis_store_postgres::{PostgresCatalogue, PostgresOptions};
use osmosis_store_sqlite::{SqliteCatalogue, SqliteOptions};
use osmosis_testkit::postgres_server::PostgresServer;
use tokio::task::JoinSet;

/// As many results on their way at once as an engine with its default would have.
const IN_FLIGHT: usize = 64;
/// Turns of the conversation that a rollout has.
const TURNS: usize = 6;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|text| text.parse::<u64>().unwrap());
    let count = arguments.next().unwrap_or(2000);
    let rounds = arguments.next().unwrap_or(5);
    let server = PostgresServer::start();
    let keep = tempfile::tempdir().unwrap();
    let folder = Utf8PathBuf::try_from(keep.path().to_owned()).unwrap();
    let url = StoreUrl::parse(&server.url()).unwrap();
    let postgres = PostgresCatalogue::at(&url, PostgresOptions::default()).unwrap();
    let url = StoreUrl::of_folder(&folder).unwrap();
    let sqlite = SqliteCatalogue::at(url, SqliteOptions::default()).unwrap();
    for round in 0..rounds {
        // The one that begins takes turns, too.
        let mut both: [(&str, &dyn Catalogue); 2] = [("postgres", &postgres), ("sqlite", &sqlite)];
        both.rotate_left(usize::from(round % 2 == 1));
        for (name, catalogue) in both {
            let rates = measure(catalogue, round, count).await;
            println!("{name} {:.0} {:.0} {:.0}", rates.0, rates.1, rates.2);
        }
    }
    room(&postgres, &server).await;
}

async fn measure(catalogue: &dyn Catalogue, round: u64, count: u64) -> (f64, f64, f64) {
    let run = RunKey {
        kind: RunKind::Evaluation,
        name: RunName::new(format!("round-{round}")).unwrap(),
    };
    let store = catalogue.create(&run).await.unwrap();
    plan(&*store, count).await;
    let rate = |began: Instant, n: u64| n as f64 / began.elapsed().as_secs_f64();

    let began = Instant::now();
    let mut claims = vec![];
    while (claims.len() as u64) < count {
        claims.extend(
            store
                .claim("bench", 8, Duration::from_mins(10))
                .await
                .unwrap(),
        );
    }
    let claimed = rate(began, count);

    let began = Instant::now();
    in_flight(&store, &claims, |store, claim| async move {
        for turn in 0..TURNS {
            store.record_call(call(&claim, turn)).await.unwrap();
        }
    })
    .await;
    // The next write comes back when they are durable.
    let held = [(claims[0].id.clone(), claims[0].attempt)];
    store
        .heartbeat(&held, Duration::from_mins(10))
        .await
        .unwrap();
    let recorded = rate(began, count * TURNS as u64);

    let began = Instant::now();
    in_flight(&store, &claims, |store, claim| async move {
        store.complete(result(&claim)).await.unwrap();
    })
    .await;
    let completed = rate(began, count);
    assert_eq!(store.counts().await.unwrap().done, count);
    store.close().await.unwrap();
    (claimed, completed, recorded)
}

async fn in_flight<F>(
    store: &Arc<dyn Store>,
    claims: &[Claim],
    work: impl Fn(Arc<dyn Store>, Claim) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut flying = JoinSet::new();
    for claim in claims {
        if flying.len() == IN_FLIGHT {
            flying.join_next().await;
        }
        flying.spawn(work(Arc::clone(store), claim.clone()));
    }
    flying.join_all().await;
}

async fn plan(store: &dyn Store, count: u64) {
    let body = JsonText::parse(r#"{"user_prompt": "say 1", "ground_truth": "1"}"#).unwrap();
    let rows = (0..count).map(|row_index| NewRow {
        row_index,
        line: row_index + 1,
        body: body.clone(),
    });
    let rollouts = (0..count).map(|row_index| NewRollout {
        id: RolloutId::of(row_index, 0),
        row_index,
        run_index: 0,
    });
    store
        .enqueue(rows.collect(), rollouts.collect())
        .await
        .unwrap();
}

fn words(seed: u64, count: usize) -> String {
    const WORDS: [&str; 16] = [
        "the", "search", "result", "of", "a", "tool", "call", "with", "many", "numbers", "and",
        "files", "in", "it", "which", "follow",
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = String::new();
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let word = WORDS[usize::try_from(state % 16).unwrap()];
        let _ = write!(text, "{word} {} ", state % 1000);
    }
    text
}

/// A conversation with a system prompt of 4 kB and tools, to which each turn adds a message of about 1 kB.
fn call(claim: &Claim, turn: usize) -> NewCall {
    let messages: Vec<String> = (0..=turn)
        .map(|n| {
            format!(
                r#"{{"role":"user","content":"{}"}}"#,
                words(claim.row_index * 100 + n as u64, 120)
            )
        })
        .collect();
    let request = format!(
        r#"{{"model":"m","messages":[{{"role":"system","content":"{}"}},{}],"tools":[{}]}}"#,
        words(7, 450),
        messages.join(","),
        words(8, 100)
    );
    let response = format!(
        r#"{{"id":"chatcmpl-{}-{turn}","object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":"{}"}},"finish_reason":"stop"}}]}}"#,
        claim.id,
        words(claim.row_index * 100 + turn as u64 + 50, 120)
    );
    NewCall {
        rollout_id: claim.id.clone(),
        attempt: claim.attempt,
        sample_id: SampleId::main(),
        purpose: CallPurpose::Policy,
        dialect: "chat_completions".to_owned(),
        model: "m".to_owned(),
        upstream: "script".to_owned(),
        policy_version: PolicyVersion(0),
        streamed: false,
        status: 200,
        error: None,
        prompt_tokens: Some(1000),
        completion_tokens: Some(100),
        cached_tokens: None,
        reasoning_tokens: None,
        queued_at_ms: 1,
        sent_at_ms: Some(1),
        first_byte_at_ms: Some(2),
        done_at_ms: 3,
        request: request.into(),
        response: response.into(),
        tokens: vec![],
    }
}

fn result(claim: &Claim) -> Completion {
    let reward = Reward::new(1.0).unwrap();
    Completion {
        id: claim.id.clone(),
        attempt: claim.attempt,
        outcome: Outcome::Scored {
            reward,
            passed: true,
        },
        samples: vec![Sample {
            id: SampleId::main(),
            messages: JsonText::parse(format!(
                r#"[{{"role":"assistant","content":"{}"}}]"#,
                words(claim.row_index, 60)
            ))
            .unwrap(),
            reward: Some(reward),
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

/// The bodies as they are stored, and what the server's own compression would make of the same bytes.
async fn room(catalogue: &PostgresCatalogue, server: &PostgresServer) {
    let run = RunKey {
        kind: RunKind::Evaluation,
        name: RunName::new("round-0").unwrap(),
    };
    let reader = catalogue.open_read_only(&run).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    client
        .batch_execute(
            "CREATE TABLE plain (n bigint, request bytea COMPRESSION lz4, response bytea COMPRESSION lz4);
             CREATE TABLE deltas (n bigint, request bytea COMPRESSION lz4, response bytea COMPRESSION lz4);",
        )
        .await
        .unwrap();
    let mut raw = 0;
    let mut whole = 0;
    let mut n: i64 = 0;
    for row in 0..200 {
        let id = RolloutId::of(row, 0);
        let query = osmosis_store::CallQuery {
            rollout_id: id,
            attempt: None,
        };
        let mut before = bytes::Bytes::new();
        for call in reader.calls(query).await.unwrap() {
            let body = reader.call_body(call.call_id).await.unwrap().unwrap();
            let shared = osmosis_store::encoding::Shared::of(&before, &body.request);
            let middle = shared.middle(&body.request);
            whole += body.request.len() + body.response.len();
            raw += middle.len() + body.response.len();
            n += 1;
            for (table, request) in [("plain", &body.request[..]), ("deltas", middle)] {
                let insert = format!("INSERT INTO {table} VALUES ($1, $2, $3)");
                client
                    .execute(&insert, &[&n, &request, &&body.response[..]])
                    .await
                    .unwrap();
            }
            before = body.request;
        }
    }
    let ours = "SELECT sum(octet_length(request) + octet_length(response))::bigint FROM osmosis.calls AS calls
        JOIN osmosis.runs USING (run_id) JOIN osmosis.rollouts AS rollouts USING (run_id, rollout_id)
        WHERE runs.name = 'round-0' AND rollouts.row_index < 200";
    let row = client.query_one(ours, &[]).await.unwrap();
    println!("room whole {whole}");
    println!("room deltas {raw}");
    println!("room deltas+zstd {}", row.get::<_, i64>(0));
    for table in ["plain", "deltas"] {
        let sum = format!(
            "SELECT sum(pg_column_size(request) + pg_column_size(response))::bigint FROM {table}"
        );
        let row = client.query_one(&sum, &[]).await.unwrap();
        println!("room {table}+lz4 {}", row.get::<_, i64>(0));
    }
    reader.close().await.unwrap();
}
