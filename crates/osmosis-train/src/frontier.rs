//! Which rows are worth another visit: those whose attempts will probably not all end alike.
//!
//! Of a row that was tried `n` times and passed `c` times, the pass rate `p` is taken to be distributed as
//! Beta(c + ½, n - c + ½), Jeffreys' interval for a share. The chance that `k` further attempts neither all pass nor all
//! fail is then 1 - E[p^k] - E[(1-p)^k]. It is near 1 for a row that passes half the time, and falls slowly for a row
//! that always ends alike: with few attempts little is known of it.

use std::collections::BTreeMap;

use osmosis_store::RolloutRecord;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The random numbers of a step's choice are a stream of their own, apart from those of epochs.
const STREAM: u64 = 1 << 62;

/// What is recorded of a row: attempts that ran, and how many of them passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowRecord {
    pub attempts: u64,
    pub passed: u64,
}

/// What is recorded of each row that was tried.
pub type RowRecords = BTreeMap<u64, RowRecord>;

impl RowRecord {
    /// The chance that so many further attempts neither all pass nor all fail.
    pub fn chance_of_variance(self, further: u32) -> f64 {
        let passed = self.passed as f64 + 0.5;
        let failed = self.attempts.saturating_sub(self.passed) as f64 + 0.5;
        // E[p^k] of Beta(a, b) is the product of (a + i) / (a + b + i).
        let all = |alike: f64| -> f64 {
            let each = (0..further).map(f64::from);
            each.map(|i| (alike + i) / (passed + failed + i)).product()
        };
        (1.0 - all(passed) - all(failed)).clamp(0.0, 1.0)
    }
}

/// Adds the results of rollouts that ran.
pub fn note<'r>(records: &mut RowRecords, rollouts: impl IntoIterator<Item = &'r RolloutRecord>) {
    let facts = rollouts.into_iter().filter_map(RolloutRecord::fact);
    for fact in facts.filter(|fact| fact.kind.ran()) {
        let record = records.entry(fact.row_index).or_default();
        record.attempts += 1;
        record.passed += u64::from(fact.passed);
    }
}

/// All rows in the order in which step `step` takes them. Rows that were never tried come first, in the order in which
/// they are given. The others are drawn one by one, each with a chance that is proportional to its
/// [chance of variance](RowRecord::chance_of_variance).
pub fn order(rows: &[u64], records: &RowRecords, attempts: u32, seed: u64, step: u64) -> Vec<u64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(STREAM | step);
    let (mut untried, mut tried) = (Vec::new(), Vec::new());
    for row in rows {
        // Above 0, at most 1. Every row has one, so that what is drawn for a row does not depend on the others.
        let unit = ((random.next_u64() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        match records.get(row).filter(|record| record.attempts > 0) {
            None => untried.push(*row),
            Some(record) => {
                // With times of waiting that are exponential in the weights, the first ones to come are a weighted
                // draw without replacement.
                let weight = record.chance_of_variance(attempts.max(2));
                tried.push((-unit.ln() / weight.max(f64::MIN_POSITIVE), *row));
            }
        }
    }
    tried.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    untried.extend(tried.into_iter().map(|(_, row)| row));
    untried
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(attempts: u64, passed: u64) -> RowRecord {
        RowRecord { attempts, passed }
    }

    #[test]
    fn the_chance_is_that_of_the_beta_binomial() {
        // E[p²] of Beta(½, ½) is 3/8, twice.
        assert!((record(0, 0).chance_of_variance(2) - 0.25).abs() < 1e-12);
        // Beta(2.5, 2.5): 2.5·3.5 / (5·6), twice.
        assert!((record(4, 2).chance_of_variance(2) - (1.0 - 2.0 * 8.75 / 30.0)).abs() < 1e-12);
        assert!(record(4, 2).chance_of_variance(1) == 0.0);
    }

    #[test]
    fn rows_in_between_are_worth_more_and_certainty_grows_with_attempts() {
        let chance = |attempts, passed| record(attempts, passed).chance_of_variance(8);
        assert!(chance(8, 4) > 0.95);
        assert!(chance(8, 1) > chance(8, 0));
        assert!(chance(8, 0) > chance(16, 0) && chance(16, 0) > chance(64, 0));
        assert!(chance(8, 0) > 0.1, "one visit is not the end of a row");
        assert!((chance(8, 0) - chance(8, 8)).abs() < 1e-12);
    }

    #[test]
    fn rows_that_were_never_tried_come_first_in_their_order() {
        let records = RowRecords::from([(1, record(4, 2)), (3, record(4, 4)), (5, record(0, 0))]);
        let order = order(&[9, 1, 5, 3, 7], &records, 4, 3, 2);
        assert_eq!(order[..3], [9, 5, 7]);
        assert_eq!(order.len(), 5);
    }

    #[test]
    fn the_draw_follows_the_weights_and_repeats() {
        let rows: Vec<u64> = (0..4).collect();
        let records = RowRecords::from([
            (0, record(8, 4)),
            (1, record(64, 0)),
            (2, record(64, 64)),
            (3, record(8, 0)),
        ]);
        let first = |step| order(&rows, &records, 8, 11, step)[0];
        let steps = 4000;
        let mut counts = [0.0; 4];
        for step in 1..=steps {
            counts[usize::try_from(first(step)).unwrap()] += 1.0;
            assert_eq!(first(step), order(&rows, &records, 8, 11, step)[0]);
        }
        let weights = rows.iter().map(|row| records[row].chance_of_variance(8));
        let total: f64 = weights.clone().sum();
        for (count, weight) in counts.iter().zip(weights) {
            let (share, expected) = (count / steps as f64, weight / total);
            assert!((share - expected).abs() < 0.03, "{share}, not {expected}");
        }
    }

    #[test]
    fn another_step_or_seed_draws_anew() {
        let rows: Vec<u64> = (0..40).collect();
        let records: RowRecords = rows.iter().map(|row| (*row, record(4, 2))).collect();
        let draw = |seed, step| order(&rows, &records, 4, seed, step);
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
    }
}
