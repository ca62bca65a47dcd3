use serde::{Deserialize, Serialize};

use super::sign_flip::{self, flipped};
use super::{Pair, PairedDifference, mcnemar_exact};

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
    /// The sum of the rows' differences: what is tested. Runs with other numbers of rollouts may differ in
    /// the other direction when all rollouts count the same.
    #[serde(skip)]
    pub(super) tested_difference: f64,
}

impl Comparison {
    /// Of shares: rollouts that ran, and how many of them passed (or failed).
    ///
    /// Rollouts of one row are one piece of evidence. Pairing them one by one would be arbitrary (the first
    /// rollout of a row in one run has nothing to do with the first in the other) and would count correlated
    /// rollouts as independent; a majority vote would throw away how sure it was. So with several rollouts the
    /// rows' shares are compared by sign flips, of which McNemar's exact test is the case with one.
    pub fn of_shares(pairs: &[Pair]) -> Option<Self> {
        Self::shares_by(pairs, sign_flip::DRAWS)
    }

    pub(super) fn shares_by(pairs: &[Pair], draws: u64) -> Option<Self> {
        let single = pairs
            .iter()
            .filter(|pair| pair.is_whole())
            .all(|pair| pair.first.0 == 1 && pair.second.0 == 1);
        let mut compared = Self::by_sign_flips(pairs, Some(1.0), (!single).then_some(draws))?;
        if single {
            compared.p = mcnemar_exact(compared.rows_up, compared.rows_down);
            compared.test = PairedTest::McnemarExact;
        }
        Some(compared)
    }

    /// Of values, such as the rewards of scored rollouts, which lie in a range of this width when there is
    /// one; `None` when no row has a value in both runs.
    pub fn of_means(pairs: &[Pair], width: Option<f64>) -> Option<Self> {
        Self::means_by(pairs, width, sign_flip::DRAWS)
    }

    pub(super) fn means_by(pairs: &[Pair], width: Option<f64>, draws: u64) -> Option<Self> {
        Self::by_sign_flips(pairs, width, Some(draws))
    }

    /// Without draws it is not tested.
    fn by_sign_flips(pairs: &[Pair], width: Option<f64>, draws: Option<u64>) -> Option<Self> {
        let difference = PairedDifference::within(pairs, width)?;
        let rows: Vec<f64> = pairs
            .iter()
            .filter(|pair| pair.is_whole())
            .map(Pair::difference)
            .collect();
        let count = |wanted: fn(f64) -> bool| rows.iter().filter(|d| wanted(**d)).count() as u64;
        let (p, exact) = draws.map_or((1.0, true), |draws| {
            let found = flipped(&rows, draws);
            (found.p, found.exact)
        });
        Some(Self {
            difference,
            p,
            test: if exact {
                PairedTest::SignFlipExact
            } else {
                PairedTest::SignFlip
            },
            rows_up: count(|d| d > 0.0),
            rows_down: count(|d| d < 0.0),
            rows_same: count(|d| d == 0.0),
            tested_difference: rows.iter().sum(),
        })
    }

    /// Whether no row differs at all.
    pub fn is_same(&self) -> bool {
        self.rows_up == 0 && self.rows_down == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(first: (u64, f64), second: (u64, f64)) -> Pair {
        Pair { first, second }
    }

    #[test]
    fn single_rollouts_are_compared_by_mcnemars_test() {
        let mut pairs = vec![pair((1, 0.0), (1, 1.0)); 8];
        pairs.extend(vec![pair((1, 1.0), (1, 0.0)); 2]);
        pairs.extend(vec![pair((1, 1.0), (1, 1.0)); 30]);
        pairs.push(pair((1, 1.0), (0, 0.0)));
        let found = Comparison::of_shares(&pairs).unwrap();
        assert_eq!(found.test, PairedTest::McnemarExact);
        assert!((found.p - 0.109_375).abs() < 1e-12);
        assert_eq!(
            (found.rows_up, found.rows_down, found.rows_same),
            (8, 2, 30)
        );
    }

    #[test]
    fn several_rollouts_of_a_row_are_one_piece_of_evidence() {
        // Each of 3 rows moves from 0 of 50 to 50 of 50: three flips of a coin, not 150.
        let pairs = vec![pair((50, 0.0), (50, 50.0)); 3];
        let found = Comparison::of_shares(&pairs).unwrap();
        assert_eq!(found.test, PairedTest::SignFlipExact);
        assert!((found.p - 0.25).abs() < 1e-12);
    }

    #[test]
    fn the_same_rewards_in_another_order_are_the_same() {
        let pairs = [pair((3, 0.1 + 0.2 + 0.3), (3, 0.3 + 0.2 + 0.1))];
        let found = Comparison::of_means(&pairs, None).unwrap();
        assert!(found.is_same() && found.p > 0.99);
    }
}
