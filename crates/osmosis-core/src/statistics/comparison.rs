use serde::{Deserialize, Serialize};

use super::permutation::{DRAWS, Permuted, permuted, permuted_shares};
use super::{PairedDifference, RowValues};
use crate::RewardRange;

/// How a p value came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PairedTest {
    /// McNemar's exact test: one rollout of every row in each run.
    McnemarExact,
    /// Every pattern of signs was looked at.
    SignFlipExact,
    /// 9,999 patterns of signs were drawn, with fixed random numbers.
    SignFlip,
    /// The runs have other numbers of rollouts: up to 9,999 permutations of the rollouts of each row between the runs
    /// were drawn, with fixed random numbers.
    Permutation,
}

/// One number of two runs, compared over the rows that both have.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "ComparedNumber"))]
pub struct Comparison {
    #[serde(flatten)]
    pub difference: PairedDifference,
    pub p: f64,
    pub test: PairedTest,
    /// Rows where the second run has more, less, or the same.
    pub rows_up: u64,
    pub rows_down: u64,
    pub rows_same: u64,
}

impl Comparison {
    /// Of shares: 1 for each rollout that passed (or failed) and 0 for each other that ran.
    ///
    /// Rollouts of one row are one piece of evidence. Pairing them one by one would be arbitrary (the first
    /// rollout of a row in one run has nothing to do with the first in the other) and would count correlated
    /// rollouts as independent; a majority vote would throw away how sure it was. So with several rollouts the
    /// rows' shares are compared, by permutations of which McNemar's exact test is the case with one.
    pub fn of_shares(rows: &[RowValues]) -> Option<Self> {
        let whole = whole(rows);
        let range = Some(RewardRange::UNIT);
        (!whole.is_empty()).then(|| Self::tested(&whole, range, &permuted_shares(&whole, DRAWS)))
    }

    /// Of values, such as the rewards of scored rollouts, which lie in this range when there is one; `None`
    /// when no row has a value in both runs.
    pub fn of_means(rows: &[RowValues], range: Option<RewardRange>) -> Option<Self> {
        let whole = whole(rows);
        (!whole.is_empty()).then(|| Self::tested(&whole, range, &permuted(&whole, DRAWS)))
    }

    /// Of rows that have values in both runs.
    pub(super) fn tested(
        whole: &[&RowValues],
        range: Option<RewardRange>,
        tested: &Permuted,
    ) -> Self {
        let count = |wanted: fn(f64) -> bool| {
            whole.iter().filter(|row| wanted(row.difference())).count() as u64
        };
        Self {
            difference: PairedDifference::new(whole, range, tested),
            p: tested.p,
            test: tested.test,
            rows_up: count(|d| d > 0.0),
            rows_down: count(|d| d < 0.0),
            rows_same: count(|d| d == 0.0),
        }
    }

    /// Whether no row differs at all.
    pub fn is_same(&self) -> bool {
        self.rows_up == 0 && self.rows_down == 0
    }
}

/// The rows that have values in both runs.
pub(super) fn whole(rows: &[RowValues]) -> Vec<&RowValues> {
    rows.iter().filter(|row| row.is_whole()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of which so many of so many rollouts passed in each run.
    fn passed(first: (usize, usize), second: (usize, usize)) -> RowValues {
        let values =
            |(passed, ran): (usize, usize)| [vec![1.0; passed], vec![0.0; ran - passed]].concat();
        RowValues {
            first: values(first),
            second: values(second),
        }
    }

    #[test]
    fn single_rollouts_are_compared_by_mcnemars_test() {
        let mut rows = vec![passed((0, 1), (1, 1)); 8];
        rows.extend(vec![passed((1, 1), (0, 1)); 2]);
        rows.extend(vec![passed((1, 1), (1, 1)); 30]);
        rows.push(passed((1, 1), (0, 0)));
        let found = Comparison::of_shares(&rows).unwrap();
        assert_eq!(found.test, PairedTest::McnemarExact);
        assert!((found.p - 0.109_375).abs() < 1e-12);
        assert_eq!(
            (found.rows_up, found.rows_down, found.rows_same),
            (8, 2, 30)
        );
        assert_eq!(Comparison::of_shares(&rows[40..]), None);
    }

    #[test]
    fn several_rollouts_of_a_row_are_one_piece_of_evidence() {
        // Each of 3 rows moves from 0 of 50 to 50 of 50: three flips of a coin, not 150.
        let found = Comparison::of_shares(&vec![passed((0, 50), (50, 50)); 3]).unwrap();
        assert_eq!(found.test, PairedTest::SignFlipExact);
        assert!((found.p - 0.25).abs() < 1e-12);
    }

    #[test]
    fn the_same_rewards_in_another_order_are_the_same() {
        let rows = [RowValues {
            first: vec![0.1, 0.2, 0.3],
            second: vec![0.3, 0.2, 0.1],
        }];
        let found = Comparison::of_means(&rows, None).unwrap();
        assert!(found.is_same() && found.p > 0.99);
    }
}
