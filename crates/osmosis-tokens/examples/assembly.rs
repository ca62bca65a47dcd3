//! How long the tree and the rows of a long rollout take: 200 turns, 100,000 tokens.
//!
//! `cargo run --release -p osmosis-tokens --example assembly`
#![expect(clippy::print_stdout, reason = "its output is what it is for")]
#![expect(
    clippy::unwrap_used,
    reason = "a measurement that goes wrong shall stop"
)]

use std::time::{Duration, Instant};

use osmosis_core::{PolicyVersion, SampleId};
use osmosis_tokens::{CallTree, Given, TokenRecord};

const TURNS: usize = 200;
const NEW_IN_PROMPT: usize = 250;
const SAMPLED: usize = 250;
const REPEATS: usize = 21;

fn main() {
    let mut planning = Vec::new();
    let mut assembling = Vec::new();
    for _ in 0..REPEATS {
        let began = Instant::now();
        let stored = recorded();
        planning.push(began.elapsed());

        let began = Instant::now();
        let records: Vec<TokenRecord> = stored
            .iter()
            .map(|bytes| TokenRecord::decode(bytes).unwrap())
            .collect();
        let rows = CallTree::rows(&SampleId::main(), &records).unwrap();
        assembling.push(began.elapsed());
        assert_eq!(rows.len(), 1, "every turn continues the one before");
        assert_eq!(rows[0].ids.len(), TURNS * (NEW_IN_PROMPT + SAMPLED));
    }
    let (tree, rows) = (median(planning), median(assembling));
    println!(
        "{TURNS} turns, {} tokens, medians of {REPEATS}:",
        TURNS * (NEW_IN_PROMPT + SAMPLED)
    );
    println!("  tree: find what each call continues, and encode it  {tree:.2?}");
    println!("  rows: decode the records, and put the row together  {rows:.2?}");
    println!(
        "  both                                                {:.2?}",
        tree + rows
    );
}

/// The records of the calls, as they are stored.
fn recorded() -> Vec<Vec<u8>> {
    let mut tree = CallTree::default();
    let mut conversation: Vec<u32> = Vec::new();
    let mut next = 0_u32;
    let mut fresh = |count: usize| -> Vec<u32> {
        (0..count)
            .map(|_| {
                next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                next >> 15
            })
            .collect()
    };
    (0..TURNS)
        .map(|_| {
            conversation.extend(fresh(NEW_IN_PROMPT));
            let prompt = tree.plan_ids(conversation.clone());
            let sampled = fresh(SAMPLED);
            conversation.extend(&sampled);
            let record = tree.finished_ids(
                prompt,
                sampled,
                vec![-0.5; SAMPLED],
                vec![PolicyVersion(3); SAMPLED],
                1.0,
                Given::Whole,
            );
            record.encode()
        })
        .collect()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
