use crate::RewardRange;

/// Values in order, for everything that asks how they are spread.
#[derive(Debug, Clone, Default)]
pub struct Spread {
    sorted: Vec<f64>,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self::sorted(values)
    }

    /// Of values that are in order already.
    pub(super) fn sorted(sorted: Vec<f64>) -> Self {
        Self { sorted }
    }

    pub fn count(&self) -> u64 {
        self.sorted.len() as u64
    }

    pub fn mean(&self) -> Option<f64> {
        (!self.sorted.is_empty())
            .then(|| self.sorted.iter().sum::<f64>() / self.sorted.len() as f64)
    }

    /// The sample standard deviation (`n - 1`); `None` for fewer than two values.
    pub fn std(&self) -> Option<f64> {
        let mean = self.mean()?;
        let squares: f64 = self.sorted.iter().map(|value| (value - mean).powi(2)).sum();
        (self.sorted.len() > 1).then(|| (squares / (self.sorted.len() - 1) as f64).sqrt())
    }

    /// The variance with the number of values as divisor.
    pub fn variance(&self) -> Option<f64> {
        let mean = self.mean()?;
        let squares: f64 = self.sorted.iter().map(|value| (value - mean).powi(2)).sum();
        Some(squares / self.sorted.len() as f64)
    }

    /// Where the values lie: in the stated range, or from 0 to 1 when all are 0 or 1. `None` when nothing is
    /// known, or what is stated does not hold.
    pub fn range(&self, stated: Option<RewardRange>) -> Option<RewardRange> {
        let is_0_or_1 = |value: &f64| RewardRange::UNIT.is_end(*value);
        match stated {
            Some(range) => [self.min()?, self.max()?]
                .iter()
                .all(|end| range.contains(*end))
                .then_some(range),
            None => (!self.sorted.is_empty() && self.sorted.iter().all(is_0_or_1))
                .then_some(RewardRange::UNIT),
        }
    }

    pub fn min(&self) -> Option<f64> {
        self.sorted.first().copied()
    }

    pub fn max(&self) -> Option<f64> {
        self.sorted.last().copied()
    }

    /// The quantile at `share` (0 to 1), interpolated between its neighbours as numpy does.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let last = self.sorted.len().checked_sub(1)?;
        let place = share.clamp(0.0, 1.0) * last as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and the last index"
        )]
        let below = place.floor() as usize;
        let low = self.sorted[below];
        let high = self.sorted[(below + 1).min(last)];
        Some(low + (high - low) * (place - below as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_of_a_few_values_agrees_with_numpy() {
        let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0, 10.0]);
        assert_eq!(spread.count(), 5);
        assert_eq!(spread.mean(), Some(4.0));
        assert!((spread.std().unwrap() - 12.5f64.sqrt()).abs() < 1e-12);
        assert_eq!((spread.min(), spread.max()), (Some(1.0), Some(10.0)));
        assert_eq!(spread.quantile(0.5), Some(3.0));
        assert_eq!(spread.quantile(0.25), Some(2.0));
        assert!((spread.quantile(0.9).unwrap() - 7.6).abs() < 1e-12);
        assert_eq!(spread.quantile(1.0), Some(10.0));
    }

    #[test]
    fn one_value_has_no_deviation_and_none_has_nothing() {
        let one = Spread::of(vec![7.0]);
        assert_eq!((one.mean(), one.std()), (Some(7.0), None));
        assert_eq!(one.quantile(0.9), Some(7.0));
        let none = Spread::default();
        assert_eq!(
            (none.mean(), none.quantile(0.5), none.max()),
            (None, None, None)
        );
    }
}
