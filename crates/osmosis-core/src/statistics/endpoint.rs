//! The numbers of a comparison, and the tests behind them.

use serde::{Deserialize, Serialize};

use super::comparison::whole;
use super::permutation::{LEVEL, Permuted};
use super::{Comparison, RowValues};
use crate::RewardRange;

/// A number of two runs, compared, with its p value adjusted for all that were tested beside it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Endpoint {
    #[serde(flatten)]
    pub comparison: Comparison,
    /// By Holm's correction; `None` when it is no question of its own and was not tested.
    pub p_adjusted: Option<f64>,
    /// Which of the tests it is; endpoints that always agree share one.
    #[serde(skip)]
    pub(super) test: Option<usize>,
}

/// In which direction a number moved, beyond chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    Not,
    Up,
    Down,
}

impl Endpoint {
    pub(super) fn new(comparison: Comparison, test: Option<usize>) -> Self {
        Self {
            comparison,
            p_adjusted: Some(comparison.p),
            test,
        }
    }

    pub(super) fn moved(&self) -> Moved {
        if self.p_adjusted.is_none_or(|p| p > LEVEL) {
            return Moved::Not;
        }
        if self.comparison.difference.difference > 0.0 {
            Moved::Up
        } else {
            Moved::Down
        }
    }

    pub(super) fn adjust(&mut self, p_adjusted: f64) {
        self.p_adjusted = Some(p_adjusted);
        if p_adjusted > LEVEL {
            self.comparison.difference.include_zero();
        }
    }

    /// Whether more than chance makes it larger in the second run.
    pub fn is_up(&self) -> bool {
        self.moved() == Moved::Up
    }

    /// Whether more than chance makes it smaller in the second run.
    pub fn is_down(&self) -> bool {
        self.moved() == Moved::Down
    }
}

/// The different tests of a comparison. Two numbers whose rows differ in proportion (0/1 rewards and passes)
/// are one question: correcting for two would only cost power.
#[derive(Debug, Default)]
pub(super) struct Tests(Vec<Test>);

#[derive(Debug)]
struct Test {
    found: Permuted,
    differences: Vec<f64>,
}

impl Tests {
    pub(super) fn p_values(&self) -> Vec<f64> {
        self.0.iter().map(|test| test.found.p).collect()
    }

    pub(super) fn endpoint(
        &mut self,
        rows: &[RowValues],
        range: Option<RewardRange>,
        test: impl Fn(&[&RowValues]) -> Permuted,
    ) -> Option<Endpoint> {
        let whole = whole(rows);
        if whole.is_empty() {
            return None;
        }
        let differences: Vec<f64> = rows.iter().map(RowValues::difference).collect();
        let same =
            self.0.iter().enumerate().find_map(|(place, test)| {
                Some((place, proportion(&test.differences, &differences)?))
            });
        if let Some((place, factor)) = same {
            let mut found = self.0[place].found;
            found.seen *= factor.signum();
            let compared = Comparison::tested(&whole, range, &found);
            return Some(Endpoint::new(compared, Some(place)));
        }
        let found = test(&whole);
        let compared = Comparison::tested(&whole, range, &found);
        // What is the same in every row is no question.
        let is_question = self.0.is_empty() || !compared.is_same();
        let place = is_question.then(|| {
            self.0.push(Test { found, differences });
            self.0.len() - 1
        });
        Some(Endpoint::new(compared, place))
    }
}

/// By which number, that is not 0, the first have to be multiplied to be the second.
fn proportion(first: &[f64], second: &[f64]) -> Option<f64> {
    let largest = (0..first.len()).max_by(|a, b| first[*a].abs().total_cmp(&first[*b].abs()))?;
    let factor = second[largest] / first[largest];
    let scale = second.iter().fold(0.0, |most: f64, d| most.max(d.abs()));
    let holds = factor.is_finite()
        && factor != 0.0
        && first
            .iter()
            .zip(second)
            .all(|(one, other)| (other - factor * one).abs() <= 1e-9 * scale);
    holds.then_some(factor)
}
