use serde::{Deserialize, Serialize};

use super::interval::wilson;
use super::{Cluster, Interval, student_t_975};

/// The same row in two runs: what each of them has of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pair {
    pub first: Cluster,
    pub second: Cluster,
}

impl Pair {
    /// Whether both runs have something to compare.
    pub fn is_whole(&self) -> bool {
        self.first.0 > 0 && self.second.0 > 0
    }

    /// Mean of the second minus mean of the first; 0 unless the pair is whole.
    pub fn difference(&self) -> f64 {
        if !self.is_whole() {
            return 0.0;
        }
        let first = self.first.1 / self.first.0 as f64;
        let apart = self.second.1 / self.second.0 as f64 - first;
        // Means of the same values may differ in their last digit.
        if apart.abs() <= 1e-12 * first.abs() {
            0.0
        } else {
            apart
        }
    }
}

/// How the mean of the second run differs from that of the first, over the rows that both have.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PairedDifference {
    /// Rows that have a value in both.
    pub rows: u64,
    pub first: f64,
    pub second: f64,
    /// `second - first`.
    pub difference: f64,
    /// `None` with one row, and where all rows differ by the same amount.
    pub ci95: Option<Interval>,
}

impl PairedDifference {
    /// The difference of two means with its t interval, clustered by row: the standard error is that of
    /// the sum, over rows, of how each row moves the two means apart. With as many values in every row it is
    /// the paired t interval of the row means. `None` when no row has a value in both.
    pub fn of(pairs: &[Pair]) -> Option<Self> {
        Self::within(pairs, None)
    }

    /// The same of values that lie in a range of this width, so that no difference is larger. The interval
    /// is the score interval of `(difference + width) / (2 width)`, which never leaves the range of
    /// differences, as [`super::ClusteredMean::bounded_interval`] does for one mean.
    pub fn within(pairs: &[Pair], width: Option<f64>) -> Option<Self> {
        let whole = || pairs.iter().filter(|pair| pair.is_whole());
        let (mut rows, mut sizes, mut sums) = (0u64, (0u64, 0u64), (0.0, 0.0));
        for pair in whole() {
            rows += 1;
            sizes = (sizes.0 + pair.first.0, sizes.1 + pair.second.0);
            sums = (sums.0 + pair.first.1, sums.1 + pair.second.1);
        }
        if rows == 0 {
            return None;
        }
        let (first, second) = (sums.0 / sizes.0 as f64, sums.1 / sizes.1 as f64);
        let residual =
            |(size, sum): Cluster, mean: f64, all: u64| (sum - size as f64 * mean) / all as f64;
        let squares: f64 = whole()
            .map(|pair| {
                let apart =
                    residual(pair.second, second, sizes.1) - residual(pair.first, first, sizes.0);
                apart.powi(2)
            })
            .sum();
        let difference = second - first;
        let error = (rows as f64 / (rows as f64 - 1.0) * squares).sqrt();
        let ci95 = student_t_975(rows - 1).and_then(|t| {
            let scale = first.abs().max(second.abs());
            (t * error > 1e-12 * scale).then(|| match width {
                None => Interval {
                    low: difference - t * error,
                    high: difference + t * error,
                },
                Some(width) => bounded(difference, error, t, width),
            })
        });
        Some(Self {
            rows,
            first,
            second,
            difference,
            ci95,
        })
    }
}

fn bounded(difference: f64, error: f64, t: f64, width: f64) -> Interval {
    let share = ((difference + width) / (2.0 * width)).clamp(0.0, 1.0);
    let effective = share * (1.0 - share) / (error / (2.0 * width)).powi(2);
    let (low, high) = wilson(share, effective, t);
    Interval {
        low: (2.0 * low - 1.0) * width,
        high: (2.0 * high - 1.0) * width,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(first: Cluster, second: Cluster) -> Pair {
        Pair { first, second }
    }

    #[test]
    fn one_value_per_row_gives_the_paired_t_interval() {
        // Differences 1, 2, 3, 4, 5: mean 3, half = 2.776445105 * sqrt(2.5 / 5).
        let pairs: Vec<Pair> = (1..=5u32)
            .map(|i| pair((1, f64::from(i * i)), (1, f64::from(i * i + i))))
            .collect();
        let found = PairedDifference::of(&pairs).unwrap();
        let half = 2.776_445_105_197_793 * 0.5f64.sqrt();
        let interval = found.ci95.unwrap();
        assert!((found.difference - 3.0).abs() < 1e-12);
        assert!((interval.low - (3.0 - half)).abs() < 1e-9, "{interval:?}");
        assert!((interval.high - (3.0 + half)).abs() < 1e-9, "{interval:?}");
    }

    #[test]
    fn rows_that_only_one_run_has_are_left_out() {
        let pairs = [
            pair((1, 0.0), (1, 1.0)),
            pair((1, 1.0), (1, 1.0)),
            pair((4, 4.0), (0, 0.0)),
            pair((0, 0.0), (2, 0.0)),
        ];
        let found = PairedDifference::of(&pairs).unwrap();
        assert_eq!((found.rows, found.first, found.second), (2, 0.5, 1.0));
        assert_eq!(PairedDifference::of(&pairs[2..]), None);
    }

    #[test]
    fn rows_that_all_differ_by_the_same_have_no_interval_and_small_values_have_one() {
        let nothing = [pair((1, 0.0), (1, 0.0)); 3];
        assert_eq!(PairedDifference::of(&nothing).unwrap().ci95, None);
        let small = [0.0, 1e-9, 3e-9].map(|sum| pair((1, 1e-9), (1, sum)));
        let found = PairedDifference::of(&small).unwrap().ci95.unwrap();
        assert!(found.low < 0.0 && found.high > 1e-9, "{found:?}");
    }

    #[test]
    fn differences_of_bounded_values_stay_inside_their_bounds() {
        let pairs = [
            pair((1, 0.0), (1, 1.0)),
            pair((1, 0.0), (1, 1.0)),
            pair((1, 1.0), (1, 1.0)),
        ];
        let free = PairedDifference::of(&pairs).unwrap().ci95.unwrap();
        assert!(free.high > 1.0 && free.low < -0.7, "{free:?}");
        let found = PairedDifference::within(&pairs, Some(1.0)).unwrap();
        let interval = found.ci95.unwrap();
        assert!(
            interval.low > -1.0 && interval.high < 1.0 && interval.high > found.difference,
            "{interval:?}"
        );
        let back: Vec<Pair> = pairs
            .iter()
            .map(|p| Pair {
                first: p.second,
                second: p.first,
            })
            .collect();
        let other = PairedDifference::within(&back, Some(1.0)).unwrap();
        let other = other.ci95.unwrap();
        assert!((interval.low + other.high).abs() < 1e-12);
        assert!((interval.high + other.low).abs() < 1e-12);
        // A width that is far away bounds nothing.
        let wide = PairedDifference::within(&pairs, Some(1e6)).unwrap().ci95;
        assert!((wide.unwrap().low - free.low).abs() < 1e-5, "{wide:?}");
    }

    #[test]
    fn rows_that_all_differ_alike_leave_the_spread_unknown() {
        let pairs = [pair((2, 1.0), (2, 2.0)), pair((2, 0.0), (2, 1.0))];
        let found = PairedDifference::of(&pairs).unwrap();
        assert_eq!((found.difference, found.ci95), (0.5, None));
        let one = PairedDifference::of(&pairs[..1]).unwrap();
        assert_eq!(one.ci95, None);
    }
}
