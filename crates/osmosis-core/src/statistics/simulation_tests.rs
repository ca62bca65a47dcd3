//! Simulated evaluations whose true value is known: how often do the intervals cover it, how often do the
//! tests raise a false alarm? Rollouts of a row are correlated: each row has a difficulty of its own.
//! `cargo run -p osmosis-core --example coverage` looks at more scenarios.

use super::bootstrap::replicated;
use super::permutation::permuted;
use super::{
    Cluster, ClusteredMean, Comparison, Generator, Interval, RowValues, Spread, mcnemar_exact,
    pass_hat_k, reward_numbers,
};
use crate::RewardRange;

const RUNS: u32 = 2_000;

/// How the chance to pass varies over rows.
#[derive(Debug, Clone, Copy)]
enum Rows {
    /// Most rows are either easy or hard: Beta(1/2, 1/2), mean 1/2.
    EasyOrHard,
    /// Few rows can be done: Beta(1/4, 1), mean 1/5.
    MostlyHard,
    /// Most rows can be done: Beta(9, 1), mean 9/10.
    MostlyEasy,
}

impl Rows {
    fn mean(self) -> f64 {
        match self {
            Self::EasyOrHard => 0.5,
            Self::MostlyHard => 0.2,
            Self::MostlyEasy => 0.9,
        }
    }

    fn draw(self, generator: &mut Generator) -> f64 {
        let u = generator.unit();
        match self {
            Self::EasyOrHard => (std::f64::consts::FRAC_PI_2 * u).sin().powi(2),
            Self::MostlyHard => u.powi(4),
            Self::MostlyEasy => u.powf(1.0 / 9.0),
        }
    }
}

fn passes(n: u64, chance: f64, generator: &mut Generator) -> Cluster {
    let passed = (0..n).filter(|_| generator.unit() < chance).count();
    (n, passed as f64)
}

/// Rewards around the row's own level, skewed: mean `level`.
fn rewards(n: u64, level: f64, generator: &mut Generator) -> Cluster {
    let sum: f64 = (0..n)
        .map(|_| level + 0.3 * (-(1.0 - generator.unit()).ln() - 1.0))
        .sum();
    (n, sum)
}

/// The share of simulated runs whose interval holds the truth.
fn coverage(
    seed: u64,
    truth: f64,
    mut interval: impl FnMut(&mut Generator) -> Option<Interval>,
) -> f64 {
    let mut generator = Generator::new(seed);
    let covered = (0..RUNS)
        .filter(|_| interval(&mut generator).is_some_and(|i| i.low <= truth && truth <= i.high))
        .count();
    covered as f64 / f64::from(RUNS)
}

#[test]
fn intervals_of_the_pass_rate_cover_it_in_93_to_97_percent_of_runs() {
    for (rows, count, n) in [
        (Rows::EasyOrHard, 20, 4),
        (Rows::MostlyHard, 20, 8),
        (Rows::MostlyEasy, 30, 4),
        (Rows::EasyOrHard, 50, 2),
        (Rows::MostlyHard, 50, 4),
        (Rows::MostlyEasy, 50, 4),
        (Rows::EasyOrHard, 200, 1),
        (Rows::MostlyHard, 200, 4),
        (Rows::MostlyEasy, 200, 2),
    ] {
        let covered = coverage(11, rows.mean(), |generator| {
            let clusters: Vec<Cluster> = (0..count)
                .map(|_| {
                    let chance = rows.draw(generator);
                    passes(n, chance, generator)
                })
                .collect();
            ClusteredMean::of(clusters.iter().copied())?.share_interval()
        });
        assert!(
            (0.93..=0.97).contains(&covered),
            "{rows:?}, {count} rows of {n}: {covered}"
        );
    }
}

#[test]
fn intervals_of_the_chance_that_all_of_k_pass_cover_it_where_that_is_rare() {
    // The mean of u^(4 k) is 1 / (4 k + 1).
    for (count, n, k) in [(10, 16, 8), (50, 16, 15), (20, 8, 4), (20, 8, 2)] {
        let covered = coverage(22, 1.0 / f64::from(4 * k + 1), |generator| {
            let rows: Vec<Cluster> = (0..count)
                .map(|_| {
                    let chance = Rows::MostlyHard.draw(generator);
                    let passed = (0..n).map(|_| u32::from(generator.unit() < chance)).sum();
                    (1, pass_hat_k(n, passed, k).unwrap())
                })
                .collect();
            ClusteredMean::of(rows)?.share_interval()
        });
        assert!(covered >= 0.89, "{count} rows, pass^{k} of {n}: {covered}");
    }
}

#[test]
fn with_few_rows_of_one_rollout_the_pass_rate_is_covered_at_least_as_often() {
    for rows in [Rows::EasyOrHard, Rows::MostlyHard, Rows::MostlyEasy] {
        let covered = coverage(12, rows.mean(), |generator| {
            let clusters: Vec<Cluster> = (0..10)
                .map(|_| {
                    let chance = rows.draw(generator);
                    passes(1, chance, generator)
                })
                .collect();
            ClusteredMean::of(clusters.iter().copied())?.share_interval()
        });
        assert!(covered >= 0.93, "{rows:?}: {covered}");
    }
}

#[test]
fn intervals_of_the_reward_cover_it_in_93_to_97_percent_of_runs() {
    for (rows, count, n) in [
        (Rows::EasyOrHard, 10, 4),
        (Rows::MostlyHard, 50, 4),
        (Rows::MostlyEasy, 20, 8),
        (Rows::EasyOrHard, 100, 1),
    ] {
        let sample = |generator: &mut Generator| -> Vec<Cluster> {
            (0..count)
                .map(|_| {
                    let level = rows.draw(generator);
                    rewards(n, level, generator)
                })
                .collect()
        };
        let t = coverage(13, rows.mean(), |generator| {
            ClusteredMean::of(sample(generator))?.t_interval()
        });
        let drawn = coverage(14, rows.mean(), |generator| {
            replicated(&sample(generator), 300)
        });
        for (name, covered) in [("t", t), ("bootstrap", drawn)] {
            assert!(
                (0.93..=0.97).contains(&covered),
                "{name}, {rows:?}, {count} rows of {n}: {covered}"
            );
        }
    }
}

/// A reward between 0 and 1, whose mean is the row's own level: mostly one of the ends, or rather in between.
fn bounded_reward(level: f64, in_between: f64, generator: &mut Generator) -> f64 {
    let end = f64::from(u8::from(generator.unit() < level));
    (1.0 - in_between) * end + in_between * level
}

#[test]
fn intervals_of_rewards_in_a_range_cover_the_mean_in_93_to_97_percent_of_runs_and_stay_inside() {
    let range = RewardRange::new(-1.0, 3.0).unwrap();
    for (rows, count, n, in_between) in [
        (Rows::EasyOrHard, 20, 4, 0.3),
        (Rows::MostlyHard, 30, 8, 0.5),
        (Rows::MostlyEasy, 50, 4, 0.5),
        (Rows::EasyOrHard, 50, 1, 0.8),
        (Rows::MostlyHard, 200, 1, 0.3),
        (Rows::MostlyEasy, 100, 2, 0.9),
    ] {
        let covered = coverage(21, 4.0 * rows.mean() - 1.0, |generator| {
            let rows: Vec<Vec<f64>> = (0..count)
                .map(|_| {
                    let level = rows.draw(generator);
                    let mut draw = |_| 4.0 * bounded_reward(level, in_between, generator) - 1.0;
                    (0..n).map(&mut draw).collect()
                })
                .collect();
            let clusters: Vec<Cluster> = rows
                .iter()
                .map(|rewards| (rewards.len() as u64, rewards.iter().sum()))
                .collect();
            let spread = Spread::of(rows.concat());
            let found = reward_numbers::interval(&clusters, &spread, Some(range))?;
            assert!(found.low >= -1.0 && found.high <= 3.0, "{found:?}");
            Some(found)
        });
        assert!(
            (0.93..=0.97).contains(&covered),
            "{rows:?}, {count} rows of {n}, {in_between} in between: {covered}"
        );
    }
}

/// Rollouts that passed with this chance, as 0 and 1.
fn tosses(n: u64, chance: f64, generator: &mut Generator) -> Vec<f64> {
    (0..n)
        .map(|_| f64::from(u8::from(generator.unit() < chance)))
        .collect()
}

/// Two runs over the same rows; the second passes more often by `gain` of what is missing.
fn two_runs(
    rows: Rows,
    count: usize,
    n: (u64, u64),
    gain: f64,
    generator: &mut Generator,
) -> Vec<RowValues> {
    (0..count)
        .map(|_| {
            let chance = rows.draw(generator);
            RowValues {
                first: tosses(n.0, chance, generator),
                second: tosses(n.1, chance + gain * (1.0 - chance), generator),
            }
        })
        .collect()
}

fn p(rows: &[RowValues], draws: u64) -> f64 {
    permuted(&rows.iter().collect::<Vec<_>>(), draws).p
}

#[test]
fn intervals_of_the_difference_cover_it_in_92_to_98_percent_of_runs() {
    for (rows, count, n, gain) in [
        (Rows::EasyOrHard, 20, (4, 4), 0.0),
        (Rows::MostlyHard, 50, (4, 4), 0.2),
        (Rows::MostlyEasy, 50, (1, 1), 0.3),
        (Rows::EasyOrHard, 100, (1, 1), 0.1),
        (Rows::MostlyHard, 40, (2, 2), 0.9),
        (Rows::EasyOrHard, 40, (1, 8), 0.1),
        (Rows::MostlyHard, 40, (8, 1), 0.2),
        (Rows::MostlyEasy, 40, (2, 5), 0.3),
    ] {
        let truth = gain * (1.0 - rows.mean());
        let mut generator = Generator::new(15);
        let runs = 1_000;
        let covered = (0..runs)
            .filter(|_| {
                let rows = two_runs(rows, count, n, gain, &mut generator);
                let whole: Vec<&RowValues> = rows.iter().collect();
                let range = Some(RewardRange::UNIT);
                let found = Comparison::tested(&whole, range, &permuted(&whole, 119));
                found.difference.ci95.is_some_and(|found| {
                    assert!(found.low >= -1.0 && found.high <= 1.0);
                    found.low <= truth && truth <= found.high
                })
            })
            .count();
        let covered = covered as f64 / f64::from(runs);
        assert!(
            (0.92..=0.985).contains(&covered),
            "{rows:?}, {count} rows of {n:?}, gain {gain}: {covered}"
        );
    }
}

/// The share of simulated comparisons of a run with its like in which the test speaks of a difference.
fn false_alarms(seed: u64, mut p: impl FnMut(&mut Generator) -> f64) -> f64 {
    let mut generator = Generator::new(seed);
    let alarms = (0..RUNS).filter(|_| p(&mut generator) <= 0.05).count();
    alarms as f64 / f64::from(RUNS)
}

#[test]
fn paired_tests_hold_their_level() {
    let mcnemar = false_alarms(16, |generator| {
        let rows = two_runs(Rows::EasyOrHard, 60, (1, 1), 0.0, generator);
        let count = |sign: f64| rows.iter().filter(|p| sign * p.difference() > 0.0).count() as u64;
        mcnemar_exact(count(1.0), count(-1.0))
    });
    assert!((0.01..=0.06).contains(&mcnemar), "{mcnemar}");

    // With few rows that differ there are few patterns of signs, and the test is the more careful.
    for (rows, count, n, least) in [
        (Rows::EasyOrHard, 12, (4, 4), 0.005),
        (Rows::MostlyHard, 40, (4, 4), 0.025),
        (Rows::MostlyHard, 40, (1, 4), 0.01),
    ] {
        let found = false_alarms(17, |generator| {
            p(&two_runs(rows, count, n, 0.0, generator), 199)
        });
        assert!((least..=0.062).contains(&found), "{rows:?} {n:?}: {found}");
    }

    // Rows that truly changed, half of them for the better and half for the worse.
    let rewards_moved = false_alarms(18, |generator| {
        let rows: Vec<RowValues> = (0..40)
            .map(|_| {
                let moved = generator.unit() - 0.5;
                let mut reward = |level| rewards(1, level, generator).1;
                RowValues {
                    first: vec![reward(0.0), reward(0.0)],
                    second: vec![reward(moved), reward(moved)],
                }
            })
            .collect();
        p(&rows, 199)
    });
    assert!((0.035..=0.062).contains(&rewards_moved), "{rewards_moved}");
}

/// The share of simulated comparisons that find a gain: the power, and with no gain the level.
fn found(gain: f64, n: (u64, u64)) -> f64 {
    false_alarms(19, |generator| {
        p(&two_runs(Rows::MostlyHard, 100, n, gain, generator), 199)
    })
}

#[test]
fn a_planted_improvement_is_found_and_none_where_there_is_none() {
    let power = found(0.15, (4, 4));
    assert!(power > 0.8, "{power}");
    let level = found(0.0, (4, 4));
    assert!((0.035..=0.065).contains(&level), "{level}");
    let unequal = found(0.15, (2, 8));
    assert!(unequal > 0.7, "{unequal}");
}
