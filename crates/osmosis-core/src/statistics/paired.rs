use serde::Serialize;

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
        if self.is_whole() {
            self.second.1 / self.second.0 as f64 - self.first.1 / self.first.0 as f64
        } else {
            0.0
        }
    }
}

/// How the mean of the second run differs from that of the first, over the rows that both have.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
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
        let ci95 = student_t_975(rows - 1).and_then(|t| {
            let half = t * (rows as f64 / (rows - 1) as f64 * squares).sqrt();
            let scale = first.abs().max(second.abs());
            (half > 1e-12 * scale).then_some(Interval {
                low: second - first - half,
                high: second - first + half,
            })
        });
        Some(Self {
            rows,
            first,
            second,
            difference: second - first,
            ci95,
        })
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
    fn rows_that_all_differ_alike_leave_the_spread_unknown() {
        let pairs = [pair((2, 1.0), (2, 2.0)), pair((2, 0.0), (2, 1.0))];
        let found = PairedDifference::of(&pairs).unwrap();
        assert_eq!((found.difference, found.ci95), (0.5, None));
        let one = PairedDifference::of(&pairs[..1]).unwrap();
        assert_eq!(one.ci95, None);
    }
}
