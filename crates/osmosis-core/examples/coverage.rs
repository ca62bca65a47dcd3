//! How often 95% intervals of a pass rate cover it, by simulation: the table in `docs/compare.md`.
//!
//! `cargo run --release -p osmosis-core --example coverage [-- RUNS]`
//!
//! Rollouts of a row are correlated: each row has a chance to pass of its own. The bootstrap, which costs more, gets
//! a tenth of the runs.
#![expect(clippy::print_stdout, reason = "a program that reports")]

use osmosis_core::statistics::{Cluster, ClusteredMean, Generator, Interval, bootstrap_interval};

/// How the chance to pass varies over rows.
struct Rows {
    name: &'static str,
    mean: f64,
    /// The chance of a row, from a uniform number.
    chance: fn(f64) -> f64,
}

const ROWS: [Rows; 3] = [
    Rows {
        name: "easy or hard",
        mean: 0.5,
        chance: |u| (std::f64::consts::FRAC_PI_2 * u).sin().powi(2),
    },
    Rows {
        name: "mostly hard",
        mean: 0.2,
        chance: |u| u.powi(4),
    },
    Rows {
        name: "mostly easy",
        mean: 0.9,
        chance: |u| u.powf(1.0 / 9.0),
    },
];

fn main() {
    let runs: u32 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(2_000);
    println!("| rows | rollouts each | chance to pass | t | score (ours) | bootstrap |");
    println!("|---|---|---|---|---|---|");
    for count in [5u32, 10, 20, 50, 200] {
        for n in [1u32, 4] {
            for Rows {
                name,
                mean: truth,
                chance,
            } in ROWS
            {
                let mut generator = Generator::new(u64::from(count * 10 + n));
                let mut sample = || -> Vec<Cluster> {
                    (0..count)
                        .map(|_| {
                            let p = chance(generator.unit());
                            let passed = (0..n).filter(|_| generator.unit() < p).count();
                            (u64::from(n), passed as f64)
                        })
                        .collect()
                };
                let mut covered = [0u32; 3];
                let holds = |interval: Option<Interval>| {
                    u32::from(interval.is_some_and(|i| i.low <= truth && truth <= i.high))
                };
                for run in 0..runs {
                    let rows = sample();
                    let mean = ClusteredMean::of(rows.iter().copied());
                    covered[0] += holds(mean.and_then(|mean| mean.t_interval()));
                    covered[1] += holds(mean.and_then(|mean| mean.share_interval()));
                    if run % 10 == 0 {
                        covered[2] += holds(bootstrap_interval(&rows));
                    }
                }
                let drawn = runs.div_ceil(10);
                let share = |count: u32, of: u32| 100.0 * f64::from(count) / f64::from(of);
                println!(
                    "| {count} | {n} | {name} | {:.1}% | {:.1}% | {:.0}% |",
                    share(covered[0], runs),
                    share(covered[1], runs),
                    share(covered[2], drawn)
                );
            }
        }
    }
}
