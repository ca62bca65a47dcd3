use serde::{Deserialize, Serialize};

use super::permutation::{LEVEL, Permuted};
use super::{ClusteredMean, Interval, RowValues, Spread, student_t_975};
use crate::RewardRange;

/// How the mean of the second run differs from that of the first, over the rows that both have. Every row counts
/// the same, however many rollouts it has.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PairedDifference {
    /// Rows that have a value in both.
    pub rows: u64,
    /// The mean over these rows of the mean of a row's rollouts.
    pub first: f64,
    pub second: f64,
    /// `second - first`.
    pub difference: f64,
    /// Excludes 0 exactly when the test rejects. `None` with one row, and where all rows differ by the same amount.
    pub ci95: Option<Interval>,
}

impl PairedDifference {
    /// The difference of two means with its interval. Of values that lie in a range it is put together from the
    /// score intervals of the two means ([`ClusteredMean::bounded_interval`]), of others it is the paired t interval
    /// of the rows' means. `test` decides whether it excludes 0.
    pub(super) fn new(rows: &[&RowValues], range: Option<RewardRange>, test: &Permuted) -> Self {
        let count = rows.len() as f64;
        let means: Vec<(f64, f64)> = rows.iter().map(|row| row.means()).collect();
        let first = means.iter().map(|(first, _)| first).sum::<f64>() / count;
        let second = means.iter().map(|(_, second)| second).sum::<f64>() / count;
        let differences: Vec<f64> = rows.iter().map(|row| row.difference()).collect();
        let difference = differences.iter().sum::<f64>() / count;
        let squares: f64 = differences.iter().map(|d| (d - difference).powi(2)).sum();
        let error = (squares / (count * (count - 1.0))).sqrt();
        let t = student_t_975(rows.len() as u64 - 1);
        let scale = first.abs().max(second.abs());
        let ci95 = t.filter(|t| t * error > 1e-12 * scale).map(|t| {
            let interval = match range {
                Some(range) => of_bounded(rows, &means, range, difference),
                None => of_any(difference, error, t, count, test),
            };
            agreeing(interval, difference, test)
        });
        Self {
            rows: rows.len() as u64,
            first,
            second,
            difference,
            ci95,
        }
    }

    /// Widens the interval to 0, for a test that does not reject once it is adjusted for others.
    pub(super) fn include_zero(&mut self) {
        if let Some(interval) = &mut self.ci95 {
            interval.low = interval.low.min(0.0);
            interval.high = interval.high.max(0.0);
        }
    }
}

/// The t interval. Where the permutations have heavier tails than Student's t, it goes as far as they do.
fn of_any(difference: f64, error: f64, t: f64, rows: f64, test: &Permuted) -> Interval {
    // The critical statistic in the scale of t.
    let left = rows - test.critical.powi(2);
    let heavy = if test.critical > 0.0 && left > 0.0 {
        test.critical * ((rows - 1.0) / left).sqrt()
    } else {
        t
    };
    let half = error * t.max(heavy);
    Interval {
        low: difference - half,
        high: difference + half,
    }
}

/// The interval of a difference from those of its two parts (Newcombe 1998, method 10; Zou and Donner 2008): a part that is
/// all at one end of the range says nothing of its spread, but has an interval.
fn of_bounded(
    rows: &[&RowValues],
    means: &[(f64, f64)],
    range: RewardRange,
    difference: f64,
) -> Interval {
    let correlation = correlation(means);
    let apart = |near: f64, far: f64| {
        (near.powi(2) + far.powi(2) - 2.0 * correlation * near * far)
            .max(0.0)
            .sqrt()
    };
    let (first_below, first_above) = arms(rows.iter().map(|row| &row.first[..]), range);
    let (second_below, second_above) = arms(rows.iter().map(|row| &row.second[..]), range);
    let width = range.width();
    Interval {
        low: (difference - apart(second_below, first_above)).max(-width),
        high: (difference + apart(second_above, first_below)).min(width),
    }
}

/// How far the interval of one run's mean goes below and above it.
fn arms<'v>(rows: impl Iterator<Item = &'v [f64]> + Clone, range: RewardRange) -> (f64, f64) {
    let clusters = rows
        .clone()
        .map(|values| (values.len() as u64, values.iter().sum()));
    let spread = Spread::of(rows.flatten().copied().collect());
    let interval = ClusteredMean::of(clusters).and_then(|mean| {
        let interval = mean.bounded_interval(range, spread.variance()?)?;
        Some((mean.mean - interval.low, interval.high - mean.mean))
    });
    interval.unwrap_or((range.width(), range.width()))
}

/// Pearson's, of the rows' means in the two runs; 0 where one of them does not vary.
fn correlation(means: &[(f64, f64)]) -> f64 {
    let count = means.len() as f64;
    let (first, second) = means
        .iter()
        .fold((0.0, 0.0), |sums, mean| (sums.0 + mean.0, sums.1 + mean.1));
    let (mut of_first, mut of_second, mut of_both) = (0.0, 0.0, 0.0);
    for mean in means {
        let (one, other) = (mean.0 - first / count, mean.1 - second / count);
        of_first += one * one;
        of_second += other * other;
        of_both += one * other;
    }
    let both = (of_first * of_second).sqrt();
    if both > 0.0 {
        (of_both / both).clamp(-1.0, 1.0)
    } else {
        0.0
    }
}

/// The interval, moved as little as possible so that it excludes 0 exactly when the test rejects.
fn agreeing(interval: Interval, difference: f64, test: &Permuted) -> Interval {
    let Interval { mut low, mut high } = interval;
    if test.p > LEVEL {
        low = low.min(0.0);
        high = high.max(0.0);
    } else {
        // In the scale of the test: the difference less what the test does not reject.
        let end = difference * (1.0 - test.critical.max(0.0) / test.seen.abs());
        if difference > 0.0 && low <= 0.0 {
            low = end;
        } else if difference < 0.0 && high >= 0.0 {
            high = end;
        }
    }
    Interval { low, high }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::permutation::{DRAWS, permuted};

    fn row(first: &[f64], second: &[f64]) -> RowValues {
        RowValues {
            first: first.to_vec(),
            second: second.to_vec(),
        }
    }

    fn of(rows: &[RowValues], range: Option<RewardRange>) -> PairedDifference {
        let whole: Vec<&RowValues> = rows.iter().collect();
        PairedDifference::new(&whole, range, &permuted(&whole, DRAWS))
    }

    #[test]
    fn one_value_per_row_gives_the_paired_t_interval() {
        // Differences 1, 2, 3, 4, 5: mean 3, half = 2.776445105 * sqrt(2.5 / 5). With 5 rows no test rejects.
        let rows: Vec<RowValues> = (1..=5u32)
            .map(|i| row(&[f64::from(i * i)], &[f64::from(i * i + i)]))
            .collect();
        let found = of(&rows, None);
        let half = 2.776_445_105_197_793 * 0.5f64.sqrt();
        let interval = found.ci95.unwrap();
        assert!((found.difference - 3.0).abs() < 1e-12);
        assert!((interval.low - 0f64.min(3.0 - half)).abs() < 1e-9);
        assert!((interval.high - (3.0 + half)).abs() < 1e-9, "{interval:?}");
    }

    #[test]
    fn every_row_counts_the_same() {
        let rows = [
            row(&[1.0], &[0.0]),
            row(&[0.0; 2], &[1.0; 200]),
            row(&[1.0], &[0.0]),
        ];
        let found = of(&rows, None);
        assert!((found.difference + 1.0 / 3.0).abs() < 1e-12);
        assert!((found.second - found.first - found.difference).abs() < 1e-12);
    }

    #[test]
    fn rows_that_all_differ_by_the_same_have_no_interval_and_small_values_have_one() {
        let nothing = vec![row(&[0.0], &[0.0]); 3];
        assert_eq!(of(&nothing, None).ci95, None);
        let small = [0.0, 1e-9, 3e-9].map(|value| row(&[1e-9], &[value]));
        let found = of(&small, None).ci95.unwrap();
        assert!(found.low < 0.0 && found.high > 1e-9, "{found:?}");
        let alike = [row(&[0.5, 0.5], &[1.0, 1.0]), row(&[0.0, 0.0], &[0.5, 0.5])];
        let found = of(&alike, Some(RewardRange::UNIT));
        assert_eq!((found.difference, found.ci95), (0.5, None));
        assert_eq!(of(&alike[..1], None).ci95, None);
    }

    #[test]
    fn differences_of_bounded_values_stay_inside_their_bounds() {
        let rows = [
            row(&[0.0], &[1.0]),
            row(&[0.0], &[1.0]),
            row(&[1.0], &[1.0]),
        ];
        let free = of(&rows, None).ci95.unwrap();
        assert!(free.high > 1.0 && free.low < -0.7, "{free:?}");
        let found = of(&rows, Some(RewardRange::UNIT)).ci95.unwrap();
        assert!(
            found.low > -1.0 && found.high < 1.0 && found.high > 0.67,
            "{found:?}"
        );
        let back = rows.clone().map(|row| RowValues {
            first: row.second,
            second: row.first,
        });
        let other = of(&back, Some(RewardRange::UNIT)).ci95.unwrap();
        assert!((found.low + other.high).abs() < 1e-12);
        assert!((found.high + other.low).abs() < 1e-12);
    }

    #[test]
    fn a_run_whose_rollouts_all_passed_could_have_failed_some() {
        // 8 rows of one rollout that all passed: their chance may be 70%, and the other run no worse.
        let mut rows = vec![row(&[1.0], &[1.0; 8]); 5];
        let mut once = [1.0; 8];
        once[0] = 0.0;
        rows.extend(vec![row(&[1.0], &once); 3]);
        let found = of(&rows, Some(RewardRange::UNIT)).ci95.unwrap();
        assert!(found.high > 0.1, "{found:?}");
    }

    #[test]
    fn the_interval_excludes_0_exactly_when_the_test_rejects() {
        let found = Interval {
            low: 0.02,
            high: 0.3,
        };
        let test = |p, seen| Permuted {
            p,
            test: super::super::PairedTest::Permutation,
            seen,
            critical: 2.0,
        };
        assert_eq!(agreeing(found, 0.16, &test(0.04, 2.1)), found);
        let kept = agreeing(found, 0.16, &test(0.06, 1.9));
        assert_eq!((kept.low, kept.high), (0.0, 0.3));
        let wide = Interval {
            low: -0.02,
            high: 0.3,
        };
        let moved = agreeing(wide, 0.16, &test(0.04, 2.5));
        assert!((moved.low - 0.16 * 0.2).abs() < 1e-12);
        let down = Interval {
            low: -0.3,
            high: 0.02,
        };
        let moved = agreeing(down, -0.16, &test(0.04, -2.5));
        assert!((moved.high + 0.16 * 0.2).abs() < 1e-12);
    }
}
