//! What nodes cost the database: processor time of the server for each operation, and how many rollouts per second it
//! bears as more members claim from one run.
//!
//! `cargo run --release -p osmosis-store-postgres --example many_nodes -- ROLLOUTS`. It starts a PostgreSQL of its own, with
//! fsync. The last line is how `cluster_simulation` of `osmosis-engine` is called with these costs.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that measures and reports"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use osmosis_core::{
    Durations, JsonText, Outcome, PolicyVersion, Reward, RolloutId, RunName, Sample, SampleId,
};
use osmosis_store::{
    CallPurpose, CallSummary, Catalogue as _, Claim, Completion, NewCall, NewRollout, NewRow,
    RunKey, RunKind, Store, StoreUrl,
};
use osmosis_store_postgres::{PostgresCatalogue, PostgresOptions};
use osmosis_testkit::postgres_server::PostgresServer;
use tokio::task::JoinSet;

const LEASE: Duration = Duration::from_mins(10);
/// Model calls of a rollout.
const CALLS: usize = 6;

#[tokio::main]
async fn main() {
    let count: u64 = std::env::args()
        .nth(1)
        .map_or(400, |text| text.parse().unwrap());
    let server = PostgresServer::start();
    let url = StoreUrl::parse(&server.url()).unwrap();
    let catalogue = PostgresCatalogue::at(&url, PostgresOptions::default()).unwrap();
    let processor = Processor::of(&server);
    println!("| one at a time, by one node | per second | server, µs each |\n|---|---|---|");
    let costs = single(&catalogue, &processor, count).await;
    let notified = notified(&server, &processor, count).await;
    println!(
        "\n| nodes at once, each: claim 4, {CALLS} calls each, complete 4 | rollouts/s | server, µs per rollout | claim p99 |\n|---|---|---|---|"
    );
    for nodes in [1, 2, 4, 8, 16, 32] {
        together(&catalogue, &processor, nodes, count).await;
    }
    println!("\ncluster_simulation {costs} --notified {notified:.1}");
}

/// Sessions that listen.
const LISTENERS: usize = 32;

/// What a notification costs the server for each session that hears it.
async fn notified(server: &PostgresServer, processor: &Processor, count: u64) -> f64 {
    let url = server.url();
    let mut connections = JoinSet::new();
    let mut clients = vec![];
    for _ in 0..=LISTENERS {
        let connecting = tokio_postgres::connect(&url, tokio_postgres::NoTls);
        let (client, connection) = connecting.await.unwrap();
        connections.spawn(async move {
            let _ = connection.await;
        });
        clients.push(client);
    }
    let announcing = clients.pop().unwrap();
    let mut alone = 0.0;
    for listeners in [0, LISTENERS] {
        for client in &clients[..listeners] {
            client.batch_execute("LISTEN many_nodes").await.unwrap();
        }
        let before = processor.seconds();
        for _ in 0..count {
            announcing.batch_execute("NOTIFY many_nodes").await.unwrap();
        }
        // Whoever is to hear it has heard it.
        for client in &clients {
            client.batch_execute("SELECT 1").await.unwrap();
        }
        let used = (processor.seconds() - before) / count as f64 * 1e6;
        println!("| notification, {listeners} listen | | {used:.0} |");
        if listeners == 0 {
            alone = used;
        } else {
            return (used - alone).max(0.0) / listeners as f64;
        }
    }
    0.0
}

/// What the operations cost, as `cluster_simulation` takes it.
fn as_options(used: &BTreeMap<&'static str, f64>) -> String {
    let [claim, claims, beat, beats, call, result, look] = [
        "claim of 1",
        "claim of 16",
        "heartbeat of 1",
        "heartbeat of 16",
        "call, durable",
        "result",
        "standing (a look of a node)",
    ]
    .map(|name| used.get(name).copied().unwrap_or(0.0));
    let of_claim = ((claims - claim) / 15.0).max(0.0);
    let lease = ((beats - beat) / 15.0).max(0.0);
    // A transaction, whatever is in it.
    let commit = (beat - lease).max(0.0);
    // A rollout is claimed once and completed once: each is half of both.
    let rollout = f64::midpoint(of_claim, (result - commit).max(0.0));
    format!(
        "--commit {commit:.0} --rollout {rollout:.0} --call {:.0} --lease {lease:.0} --look {look:.0}",
        (call - commit).max(0.0)
    )
}

async fn new_run(
    catalogue: &PostgresCatalogue,
    name: &str,
    count: u64,
) -> (RunKey, Arc<dyn Store>) {
    let run = RunKey {
        kind: RunKind::Evaluation,
        name: RunName::new(name).unwrap(),
    };
    let store = catalogue.create(&run).await.unwrap();
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
    (run, store)
}

/// Each operation alone, so that its commit is its own.
async fn single(catalogue: &PostgresCatalogue, processor: &Processor, count: u64) -> String {
    let mut used = BTreeMap::new();
    let (run, controller) = new_run(catalogue, "single", count * 18).await;
    let node = catalogue.join(&run).await.unwrap();
    let mut claims = vec![];
    let mut line = Line::begin("claim of 1", processor);
    for _ in 0..count {
        claims.extend(node.claim("bench", 1, LEASE).await.unwrap());
    }
    line.end(count, &mut used);
    line = Line::begin("claim of 16", processor);
    for _ in 0..count / 4 {
        claims.extend(node.claim("bench", 16, LEASE).await.unwrap());
    }
    line.end(count / 4, &mut used);
    let held: Vec<_> = claims
        .iter()
        .take(16)
        .map(|claim| (claim.id.clone(), claim.attempt))
        .collect();
    line = Line::begin("heartbeat of 16", processor);
    for _ in 0..count {
        node.heartbeat(&held, LEASE).await.unwrap();
    }
    line.end(count, &mut used);
    line = Line::begin("heartbeat of 1", processor);
    for _ in 0..count {
        node.heartbeat(&held[..1], LEASE).await.unwrap();
    }
    line.end(count, &mut used);
    line = Line::begin("call, durable", processor);
    for n in 0..count {
        let claim = &claims[usize::try_from(n).unwrap()];
        node.record_call_durably(call(claim, 0)).await.unwrap();
    }
    line.end(count, &mut used);
    line = Line::begin("result", processor);
    for n in 0..count {
        let claim = &claims[usize::try_from(n).unwrap()];
        node.complete(result(claim)).await.unwrap();
    }
    line.end(count, &mut used);
    if let Some(shared) = node.shared() {
        line = Line::begin("standing (a look of a node)", processor);
        for _ in 0..count {
            shared.standing().await.unwrap();
        }
        line.end(count, &mut used);
    }
    while !node.claim("bench", 1000, LEASE).await.unwrap().is_empty() {}
    line = Line::begin("claim that finds nothing", processor);
    for _ in 0..count {
        node.claim("bench", 16, LEASE).await.unwrap();
    }
    line.end(count, &mut used);
    node.close().await.unwrap();
    controller.close().await.unwrap();
    as_options(&used)
}

/// Several nodes that do nothing but claim, record and complete, as fast as the database lets them.
async fn together(catalogue: &PostgresCatalogue, processor: &Processor, nodes: u64, count: u64) {
    let total = count * 4;
    let (run, controller) = new_run(catalogue, &format!("together-{nodes}"), total).await;
    let mut members = vec![];
    for _ in 0..nodes {
        members.push(catalogue.join(&run).await.unwrap());
    }
    let before = processor.seconds();
    let began = Instant::now();
    let mut running = JoinSet::new();
    for node in members {
        running.spawn(work(node));
    }
    let mut waits: Vec<Duration> = running.join_all().await.into_iter().flatten().collect();
    let took = began.elapsed().as_secs_f64();
    let used = processor.seconds() - before;
    waits.sort_unstable();
    let p99 = waits[waits.len() * 99 / 100];
    println!(
        "| {nodes} | {:.0} | {:.0} | {:.0} ms |",
        total as f64 / took,
        used / total as f64 * 1e6,
        p99.as_secs_f64() * 1e3
    );
    assert_eq!(controller.counts().await.unwrap().done, total);
    controller.close().await.unwrap();
}

async fn work(node: Arc<dyn Store>) -> Vec<Duration> {
    let mut waits = vec![];
    loop {
        let asked = Instant::now();
        let claims = node.claim("bench", 4, LEASE).await.unwrap();
        waits.push(asked.elapsed());
        if claims.is_empty() {
            node.close().await.unwrap();
            return waits;
        }
        let mut rollouts = JoinSet::new();
        for claim in claims {
            let node = Arc::clone(&node);
            rollouts.spawn(async move {
                for turn in 0..CALLS {
                    node.record_call(call(&claim, turn)).await.unwrap();
                }
                node.complete(result(&claim)).await.unwrap();
            });
        }
        rollouts.join_all().await;
    }
}

/// The processor time of the server and of all its processes.
struct Processor {
    postmaster: u32,
}

impl Processor {
    fn of(server: &PostgresServer) -> Self {
        let file: PathBuf = server.folder().join("data/postmaster.pid");
        let text = std::fs::read_to_string(file).unwrap();
        let postmaster = text.lines().next().unwrap().trim().parse().unwrap();
        Self { postmaster }
    }

    fn seconds(&self) -> f64 {
        let mut ticks = 0;
        for entry in std::fs::read_dir("/proc").unwrap() {
            let path = entry.unwrap().path().join("stat");
            let Ok(text) = std::fs::read_to_string(&path) else {
                continue;
            };
            // After the name, which may hold anything.
            let Some((before, after)) = text.rsplit_once(')') else {
                continue;
            };
            let pid: u32 = before.split(' ').next().unwrap().parse().unwrap_or(0);
            let fields: Vec<&str> = after.split_whitespace().collect();
            let number = |at: usize| fields[at].parse::<u64>().unwrap_or(0);
            if pid == self.postmaster {
                // Itself, and those of its processes that have ended.
                ticks += number(11) + number(12) + number(13) + number(14);
            } else if number(1) == u64::from(self.postmaster) {
                ticks += number(11) + number(12);
            }
        }
        ticks as f64 / 100.0
    }
}

struct Line<'a> {
    name: &'static str,
    began: Instant,
    processor: &'a Processor,
    before: f64,
}

impl<'a> Line<'a> {
    fn begin(name: &'static str, processor: &'a Processor) -> Self {
        Self {
            name,
            began: Instant::now(),
            processor,
            before: processor.seconds(),
        }
    }

    fn end(&self, count: u64, used: &mut BTreeMap<&'static str, f64>) {
        let each = (self.processor.seconds() - self.before) / count as f64 * 1e6;
        println!(
            "| {} | {:.0} | {each:.0} |",
            self.name,
            count as f64 / self.began.elapsed().as_secs_f64(),
        );
        used.insert(self.name, each);
    }
}

/// A conversation of about 5 kB, to which each turn adds 1 kB.
fn call(claim: &Claim, turn: usize) -> NewCall {
    let words = "the result of a tool call with many numbers in it, which follow. ".repeat(16);
    let messages: Vec<String> = (0..=turn)
        .map(|n| format!(r#"{{"role":"user","content":"{} {n} {words}"}}"#, claim.id))
        .collect();
    let system = "a tool, its arguments, and when to call it. ".repeat(100);
    let request = format!(
        r#"{{"model":"m","messages":[{{"role":"system","content":"{system}"}},{}]}}"#,
        messages.join(",")
    );
    let response = format!(
        r#"{{"id":"chatcmpl-{}-{turn}","choices":[{{"message":{{"role":"assistant","content":"{words}"}}}}]}}"#,
        claim.id
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
            messages: JsonText::parse(r#"[{"role":"assistant","content":"42"}]"#).unwrap(),
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
