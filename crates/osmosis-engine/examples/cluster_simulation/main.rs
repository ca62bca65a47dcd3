//! A thousand nodes in virtual time: the real engine on each, a modelled PostgreSQL and modelled servers around them.
//!
//! `cargo run --release -p osmosis-engine --example cluster_simulation -- --help`. What an operation costs the database is
//! measured by `many_nodes` of `osmosis-store-postgres`, which prints the options for it. A rollout goes to a server by the
//! gateway's own rule (`osmosis_core::endpoint_choice`), by what its node knows of them. A seed repeats a simulation.
#![expect(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a program that simulates and reports"
)]

mod database;
mod machines;
mod node_store;
mod records;
mod report;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use osmosis_core::Redactor;
use osmosis_core::config::ModelErrors;
use osmosis_engine::{Claims, Engine, EngineOptions, Measuring, NodeEnds, Stop};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::database::{Costs, Database};
use crate::machines::{KnownServers, ModelServer, NoSessions, Random, SimulatedExecutor, row_body};
use crate::node_store::NodeStore;
use crate::report::{Loss, Measured};

/// As `osmosis-run` has it.
const LEASE: Duration = Duration::from_mins(1);

const HELP: &str = "\
cluster_simulation [--nodes N] [--rollouts N] [--in-flight N] [--lose PART] [--seed N] [--scaling]
    [--commit US] [--rollout US] [--call US] [--lease US] [--look US] [--notified US] [--flush MS] [--processors N]
US: microseconds of the database server's processors for each. --scaling: 100 to 3,000 nodes, one after the other.";

#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) nodes: usize,
    pub(crate) rollouts: u64,
    pub(crate) in_flight: usize,
    /// Which part of the nodes vanishes when half of the rollouts are done.
    pub(crate) lose: f64,
    pub(crate) seed: u64,
    pub(crate) costs: Costs,
    pub(crate) scaling: bool,
}

fn main() {
    let Some(scenario) = scenario() else {
        println!("{HELP}");
        return;
    };
    println!("seed {}; {:?}", scenario.seed, scenario.costs);
    if scenario.scaling {
        report::scaling_header();
        for nodes in [100, 300, 1000, 3000] {
            let scenario = Scenario {
                nodes,
                rollouts: nodes as u64 * 250,
                lose: 0.0,
                ..scenario.clone()
            };
            report::scaling_line(&scenario, &simulate(&scenario));
        }
    } else {
        report::whole(&scenario, &simulate(&scenario));
    }
}

fn scenario() -> Option<Scenario> {
    let mut scenario = Scenario {
        nodes: 1000,
        rollouts: 1_000_000,
        in_flight: 16,
        lose: 0.1,
        seed: 1,
        costs: Costs {
            commit: 250.0,
            rollout: 120.0,
            call: 150.0,
            lease: 40.0,
            look: 100.0,
            notified: 20.0,
            flush: Duration::from_millis(2),
            processors: 16,
        },
        scaling: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        if name == "--scaling" {
            scenario.scaling = true;
            continue;
        }
        let value: f64 = arguments.next()?.parse().ok()?;
        let whole = value as u64;
        match name.as_str() {
            "--nodes" => scenario.nodes = usize::try_from(whole).ok()?,
            "--rollouts" => scenario.rollouts = whole,
            "--in-flight" => scenario.in_flight = usize::try_from(whole).ok()?,
            "--lose" => scenario.lose = value,
            "--seed" => scenario.seed = whole,
            "--commit" => scenario.costs.commit = value,
            "--rollout" => scenario.costs.rollout = value,
            "--call" => scenario.costs.call = value,
            "--lease" => scenario.costs.lease = value,
            "--look" => scenario.costs.look = value,
            "--notified" => scenario.costs.notified = value,
            "--flush" => scenario.costs.flush = Duration::from_secs_f64(value / 1e3),
            "--processors" => scenario.costs.processors = usize::try_from(whole).ok()?,
            _ => return None,
        }
    }
    Some(scenario)
}

fn simulate(scenario: &Scenario) -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(run(scenario)),
        Err(error) => {
            println!("no runtime: {error}");
            std::process::exit(1);
        }
    }
}

struct Node {
    store: Arc<NodeStore>,
    /// Ends with this.
    engine: JoinSet<()>,
}

async fn run(scenario: &Scenario) -> Measured {
    let real = std::time::Instant::now();
    let database = Arc::new(Database::new(
        scenario.rollouts,
        scenario.nodes,
        scenario.costs,
    ));
    let servers = Arc::new(model_servers(scenario));
    let random = Arc::new(Random::new(scenario.seed));
    let began = Instant::now();
    let mut nodes = vec![];
    for number in 0..scenario.nodes {
        nodes.extend(start(scenario, number, &database, &servers, &random));
        // They don't come at the same moment.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let loss = lose(scenario, &database, &mut nodes).await;
    for mut node in nodes {
        // One that failed has said so.
        while node.engine.join_next().await.is_some() {}
    }
    Measured::of(&database, &servers, began, real.elapsed(), loss)
}

/// Ten servers with room for all rollouts of all nodes together; the last is three times as slow.
fn model_servers(scenario: &Scenario) -> Vec<ModelServer> {
    let capacity = (scenario.nodes * scenario.in_flight).div_ceil(10);
    (0..10)
        .map(|n| ModelServer::new(capacity, if n == 9 { 9.0 } else { 3.0 }, 0.8))
        .collect()
}

fn start(
    scenario: &Scenario,
    number: usize,
    database: &Arc<Database>,
    servers: &Arc<Vec<ModelServer>>,
    random: &Arc<Random>,
) -> Option<Node> {
    let store = Arc::new(NodeStore::join(Arc::clone(database), number, row_body()?)?);
    database.listeners.fetch_add(1, Ordering::Relaxed);
    let executor = Arc::new(SimulatedExecutor {
        servers: Arc::clone(servers),
        known: KnownServers::new(servers.len()),
        store: Arc::clone(&store),
        random: Arc::clone(random),
        // One machine in twenty is four times as slow as the others.
        slowness: if number % 20 == 7 { 4.0 } else { 1.0 },
    });
    let (events, mut told) = mpsc::channel(1024);
    let engine = Engine::new(
        Arc::<NodeStore>::clone(&store),
        Arc::new(NoSessions),
        executor,
        options(scenario, number),
        events,
    );
    let open = Arc::clone(&store);
    let mut running = JoinSet::new();
    running.spawn(async move {
        let stop = Stop::default();
        let driving = engine.run_as_node(&stop, NodeEnds::WhenNothingIsLeft);
        tokio::pin!(driving);
        loop {
            tokio::select! {
                ended = &mut driving => {
                    if let Err(error) = ended {
                        println!("node {number} failed: {error}");
                    }
                    break;
                }
                Some(_) = told.recv() => {}
            }
        }
        let _ = osmosis_store::Store::close(&*open).await;
    });
    Some(Node {
        store,
        engine: running,
    })
}

fn options(scenario: &Scenario, number: usize) -> EngineOptions {
    EngineOptions {
        owner: format!("node {number}"),
        max_in_flight: scenario.in_flight,
        claims: Claims::Everything,
        agent_limit: Duration::from_hours(1),
        grade_limit: Duration::from_mins(10),
        pass_threshold: 1.0,
        reward_range: None,
        model_errors: ModelErrors::Infrastructure,
        max_failures: 3,
        retry_wait: Duration::from_millis(500),
        lease: LEASE,
        artifacts_root: None,
        measuring: Measuring::Everything,
        redactor: Redactor::default(),
    }
}

/// When half is done, some vanish without a word. Returns when what they held is done by others.
async fn lose(
    scenario: &Scenario,
    database: &Arc<Database>,
    nodes: &mut Vec<Node>,
) -> Option<Loss> {
    let lost = (scenario.nodes as f64 * scenario.lose) as usize;
    if lost == 0 {
        return None;
    }
    let half = usize::try_from(scenario.rollouts / 2).unwrap_or(usize::MAX);
    let done = || database.table.lock().done;
    while done() < half {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let at = Instant::now();
    for mut node in nodes.drain(..lost) {
        node.engine.abort_all();
        node.store.vanish();
        database.listeners.fetch_sub(1, Ordering::Relaxed);
    }
    let held = database.table.lock().held_by(|node| node < lost);
    let mut claimed = None;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let table = database.table.lock();
        let by_lost = held.iter().any(|&n| {
            let state = table.rows[n].state;
            matches!(state, database::State::Leased { node, .. } if node < lost)
                || state == database::State::Queued
        });
        if !by_lost && claimed.is_none() {
            claimed = Some(at.elapsed());
        }
        if held.iter().all(|&n| table.rows[n].done.is_some()) {
            break;
        }
    }
    Some(Loss {
        nodes: lost,
        rollouts: held.len(),
        claimed_again: claimed.unwrap_or_default(),
        all_done: at.elapsed(),
        at,
    })
}
