//! What came out, as tables.

use std::time::Duration;

use tokio::time::Instant;

use crate::Scenario;
use crate::database::{Database, Operations};
use crate::machines::ModelServer;

/// What happened after nodes vanished.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loss {
    pub(crate) nodes: usize,
    pub(crate) rollouts: usize,
    pub(crate) claimed_again: Duration,
    pub(crate) all_done: Duration,
    pub(crate) at: Instant,
}

#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) real: Duration,
    pub(crate) took: Duration,
    pub(crate) done: usize,
    pub(crate) operations: Operations,
    pub(crate) utilisation: f64,
    /// Of commits, sorted.
    pub(crate) waits: Vec<Duration>,
    /// Rollouts that each node completed, sorted.
    pub(crate) per_node: Vec<u64>,
    /// From first claim to result, sorted.
    pub(crate) latencies: Vec<Duration>,
    /// From the moment when the queue was empty to the end.
    pub(crate) tail: Duration,
    pub(crate) again: usize,
    pub(crate) loss: Option<Loss>,
    /// Results per second before the loss, in the minute after it, and after that.
    pub(crate) around_loss: [f64; 3],
    pub(crate) server_use: f64,
}

impl Measured {
    pub(crate) fn of(
        database: &Database,
        servers: &[ModelServer],
        began: Instant,
        real: Duration,
        loss: Option<Loss>,
    ) -> Self {
        let table = database.table.lock();
        let took = began.elapsed();
        let mut latencies: Vec<Duration> = table
            .rows
            .iter()
            .filter_map(|row| Some(row.done? - row.first_claimed?))
            .collect();
        latencies.sort_unstable();
        let last_claim = table.rows.iter().filter_map(|row| row.first_claimed).max();
        let mut waits = std::mem::take(&mut *database.waits.lock());
        waits.sort_unstable();
        let mut per_node = database.per_node.lock().clone();
        per_node.sort_unstable();
        let busy: f64 = servers.iter().map(|s| s.busy.lock().as_secs_f64()).sum();
        let slots: usize = servers.iter().map(ModelServer::capacity).sum();
        Self {
            real,
            took,
            done: table.done,
            operations: *database.operations.lock(),
            utilisation: database.utilisation(),
            waits,
            per_node,
            latencies,
            tail: last_claim.map(|at| began + took - at).unwrap_or_default(),
            again: table.rows.iter().filter(|row| row.attempt > 1).count(),
            around_loss: loss.map_or([0.0; 3], |loss| around(&table.rows, began, loss)),
            loss,
            server_use: busy / (slots as f64 * took.as_secs_f64()),
        }
    }
}

fn around(rows: &[crate::database::Row], began: Instant, loss: Loss) -> [f64; 3] {
    let minute = Duration::from_mins(1);
    let rate = |from: Instant, to: Instant| {
        let within = |row: &&crate::database::Row| row.done.is_some_and(|at| at >= from && at < to);
        rows.iter().filter(within).count() as f64 / (to - from).as_secs_f64().max(1e-9)
    };
    let before = loss.at.checked_sub(2 * minute).unwrap_or(began).max(began);
    [
        rate(before, loss.at),
        rate(loss.at, loss.at + minute),
        rate(loss.at + 2 * minute, loss.at + 4 * minute),
    ]
}

fn at<T: Copy + Default>(sorted: &[T], part: f64) -> T {
    let last = sorted.len().saturating_sub(1);
    let place = (last as f64 * part).round() as usize;
    sorted.get(place).copied().unwrap_or_default()
}

fn per_second(count: u64, measured: &Measured) -> f64 {
    count as f64 / measured.took.as_secs_f64()
}

pub(crate) fn whole(scenario: &Scenario, measured: &Measured) {
    let Operations {
        commits,
        claims,
        empty_claims,
        completions,
        fenced,
        heartbeats,
        calls,
        looks,
        notifications,
    } = measured.operations;
    println!(
        "{} nodes, {} in flight on each, {} rollouts: {:.0} s of virtual time in {:.0} s",
        scenario.nodes,
        scenario.in_flight,
        scenario.rollouts,
        measured.took.as_secs_f64(),
        measured.real.as_secs_f64()
    );
    println!(
        "done {} of {}, {} claimed more than once, {fenced} late results fenced",
        measured.done, scenario.rollouts, measured.again
    );
    println!("\n| the database, per second | |\n|---|---|");
    for (name, count) in [
        ("commits", commits),
        ("claims", claims),
        ("claims that found nothing", empty_claims),
        ("results", completions),
        ("model calls", calls),
        ("heartbeats", heartbeats),
        ("questions", looks),
        ("notifications", notifications),
    ] {
        println!("| {name} | {:.0} |", per_second(count, measured));
    }
    println!(
        "\nits {} processors were busy {:.1}% of the time; commit p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
        scenario.costs.processors,
        100.0 * measured.utilisation,
        ms(at(&measured.waits, 0.5)),
        ms(at(&measured.waits, 0.99)),
        ms(at(&measured.waits, 1.0))
    );
    println!(
        "model servers: {:.1}% of their slots busy",
        100.0 * measured.server_use
    );
    println!(
        "fairness, rollouts per node: least {}, p10 {}, median {}, most {}",
        at(&measured.per_node, 0.0),
        at(&measured.per_node, 0.1),
        at(&measured.per_node, 0.5),
        at(&measured.per_node, 1.0)
    );
    println!(
        "a rollout: p50 {:.0} s, p99 {:.0} s, longest {:.0} s; after the last first claim: {:.0} s",
        at(&measured.latencies, 0.5).as_secs_f64(),
        at(&measured.latencies, 0.99).as_secs_f64(),
        at(&measured.latencies, 1.0).as_secs_f64(),
        measured.tail.as_secs_f64()
    );
    if let Some(loss) = measured.loss {
        println!(
            "{} nodes vanished with {} rollouts: all claimed again after {:.1} s, all done after {:.0} s",
            loss.nodes,
            loss.rollouts,
            loss.claimed_again.as_secs_f64(),
            loss.all_done.as_secs_f64()
        );
        let [before, during, after] = measured.around_loss;
        println!(
            "results/s: {before:.0} in the two minutes before, {during:.0} in the minute after, {after:.0} later"
        );
    }
}

pub(crate) fn scaling_header() {
    println!(
        "| nodes | results/s | calls/s | commits/s | questions/s | notifications/s heard | processors busy | commit p99 |"
    );
    println!("|---|---|---|---|---|---|---|---|");
}

pub(crate) fn scaling_line(scenario: &Scenario, measured: &Measured) {
    let operations = measured.operations;
    println!(
        "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0}% | {:.0} ms |",
        scenario.nodes,
        per_second(operations.completions, measured),
        per_second(operations.calls, measured),
        per_second(operations.commits, measured),
        per_second(operations.looks, measured),
        per_second(operations.notifications * scenario.nodes as u64, measured),
        100.0 * measured.utilisation,
        ms(at(&measured.waits, 0.99))
    );
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
