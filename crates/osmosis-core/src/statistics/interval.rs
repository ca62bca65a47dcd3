use serde::{Deserialize, Serialize};

use super::student_t_975;
use crate::RewardRange;

/// A 95% confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(from = "[f64; 2]", into = "[f64; 2]")]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

impl From<Interval> for [f64; 2] {
    fn from(interval: Interval) -> Self {
        [interval.low, interval.high]
    }
}

impl From<[f64; 2]> for Interval {
    fn from([low, high]: [f64; 2]) -> Self {
        Self { low, high }
    }
}

/// Values of one cluster (the rollouts of one dataset row), which are not independent: how many and
/// their sum.
pub type Cluster = (u64, f64);

/// The mean of values that come in clusters, and how certain it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClusteredMean {
    pub clusters: u64,
    pub values: u64,
    pub mean: f64,
    /// The cluster-robust standard error, `sqrt(G/(G-1) * Σ(S_g - n_g m)²) / N`; 0 with one cluster.
    pub standard_error: f64,
}

impl ClusteredMean {
    /// `None` without values.
    pub fn of(clusters: impl IntoIterator<Item = Cluster, IntoIter: Clone>) -> Option<Self> {
        let clusters = clusters.into_iter().filter(|(size, _)| *size > 0);
        let (mut count, mut values, mut sum) = (0u64, 0u64, 0.0);
        for (size, cluster_sum) in clusters.clone() {
            count += 1;
            values += size;
            sum += cluster_sum;
        }
        if values == 0 {
            return None;
        }
        let mean = sum / values as f64;
        let squares: f64 = clusters
            .map(|(size, cluster_sum)| (cluster_sum - size as f64 * mean).powi(2))
            .sum();
        let standard_error = match count {
            1 => 0.0,
            _ => (count as f64 / (count - 1) as f64 * squares).sqrt() / values as f64,
        };
        // Rounding leaves something where there is no spread at all.
        let nothing = standard_error <= 1e-12 * mean.abs();
        Some(Self {
            clusters: count,
            values,
            mean,
            standard_error: if nothing { 0.0 } else { standard_error },
        })
    }

    /// Student's t with a degree of freedom less than there are clusters: the interval of a mean of
    /// values without bounds.
    ///
    /// `None` with one cluster, and where all clusters agree: from neither can anything be known about
    /// the spread, and an interval of no width would claim certainty.
    pub fn t_interval(&self) -> Option<Interval> {
        let half = student_t_975(self.clusters - 1)? * self.standard_error;
        (half > 0.0).then_some(Interval {
            low: self.mean - half,
            high: self.mean + half,
        })
    }

    /// Wilson's score interval for a mean of values between 0 and 1, with the effective number of
    /// values that the standard error stands for, and Student's t.
    ///
    /// The effective number is `m(1-m) / se²`, at most the values there are. Where everything passed or
    /// everything failed it is the number of clusters: the values of a cluster may well be one and the same
    /// (10 rows that all pass say [0.66, 1], however often each was run). `None` with one cluster.
    pub fn share_interval(&self) -> Option<Interval> {
        self.bounded_interval(RewardRange::UNIT, self.mean * (1.0 - self.mean))
    }

    /// The same for a mean of values between the ends of a range, whose variance (over all values, with
    /// their number as divisor) is `variance`. Values that are all at one of the ends have the interval of
    /// a share.
    ///
    /// The interval holds the means μ that are at most t standard errors away, where the standard error
    /// shrinks towards the ends as that of a share does: `se sqrt(μ(1-μ) / m(1-m))` for a range from 0 to 1.
    /// So it never leaves the range, and far from the ends it is the t interval. The standard error is at
    /// least that of independent values. Where there is no spread at all, every cluster counts as one
    /// value at one of the ends.
    pub fn bounded_interval(&self, range: RewardRange, variance: f64) -> Option<Interval> {
        let t = student_t_975(self.clusters - 1)?;
        let mean = ((self.mean - range.low()) / range.width()).clamp(0.0, 1.0);
        let squared_error = self
            .standard_error
            .powi(2)
            .max(variance / self.values as f64)
            / range.width().powi(2);
        let spread = mean * (1.0 - mean);
        let effective = if spread == 0.0 || squared_error <= 0.0 {
            self.clusters as f64
        } else {
            spread / squared_error
        };
        let (low, high) = wilson(mean, effective, t);
        let back = |share: f64| (range.low() + share * range.width()).min(range.high());
        Some(Interval {
            low: back(low),
            high: back(high),
        })
    }
}

/// Wilson's score interval of a share, of so many values, with `t` for the normal quantile.
pub(super) fn wilson(share: f64, values: f64, t: f64) -> (f64, f64) {
    let pull = t * t / values;
    let centre = (share + pull / 2.0) / (1.0 + pull);
    let spread = share * (1.0 - share);
    let half = t / (1.0 + pull) * (spread / values + pull / (4.0 * values)).sqrt();
    (
        (centre - half).clamp(0.0, share),
        (centre + half).clamp(share, 1.0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(clusters: &[Cluster]) -> ClusteredMean {
        ClusteredMean::of(clusters.iter().copied()).unwrap()
    }

    fn close(found: Option<Interval>, low: f64, high: f64) {
        let found = found.unwrap();
        assert!(
            (found.low - low).abs() < 1e-9 && (found.high - high).abs() < 1e-9,
            "{found:?} is not [{low}, {high}]"
        );
    }

    #[test]
    fn one_value_per_cluster_gives_the_usual_interval() {
        // Values 1..5: mean 3, s = sqrt(2.5), half = 2.776445105 * sqrt(2.5 / 5).
        let half = 2.776_445_105_197_793 * 0.5f64.sqrt();
        let clusters = [1.0, 2.0, 3.0, 4.0, 5.0].map(|value| (1, value));
        close(of(&clusters).t_interval(), 3.0 - half, 3.0 + half);
        // What counts as no spread is measured against the mean.
        assert!(of(&[(1, 1e-9), (1, 3e-9)]).t_interval().is_some());
        assert_eq!(of(&[(1, 1e9), (1, 1e9 + 1e-6)]).t_interval(), None);
    }

    #[test]
    fn values_that_repeat_within_a_cluster_add_no_certainty() {
        let alone = of(&[(1, 0.0), (1, 1.0), (1, 1.0)]);
        let repeated = of(&[(10, 0.0), (10, 10.0), (10, 10.0)]);
        let (t, share) = (alone.t_interval().unwrap(), alone.share_interval().unwrap());
        close(repeated.t_interval(), t.low, t.high);
        close(repeated.share_interval(), share.low, share.high);
    }

    #[test]
    fn clusters_of_different_size_agree_with_a_hand_count() {
        // (1, 1), (0): mean 2/3, residual sums 2/3 and -2/3, squares 8/9, G/(G-1) = 2,
        // half = 12.706204736 * (4/3) / 3.
        let half = 12.706_204_736_174_7 * 4.0 / 9.0;
        let mean = 2.0 / 3.0;
        close(
            of(&[(2, 2.0), (1, 0.0)]).t_interval(),
            mean - half,
            mean + half,
        );
    }

    #[test]
    fn one_cluster_says_nothing_about_the_spread() {
        for clusters in [&[(10, 5.0)][..], &[(10, 5.0), (0, 0.0)]] {
            assert_eq!(of(clusters).t_interval(), None);
            assert_eq!(of(clusters).share_interval(), None);
        }
        assert_eq!(ClusteredMean::of([]), None);
    }

    #[test]
    fn clusters_that_agree_are_no_proof_of_certainty() {
        let tenths = of(&[(3, 0.3), (3, 0.1 + 0.1 + 0.1), (1, 0.1)]);
        assert_eq!(tenths.t_interval(), None);
        let all_pass: Vec<Cluster> = vec![(4, 4.0); 10];
        // n / (n + t²) with n = 10 rows and t = 2.262157163.
        close(of(&all_pass).share_interval(), 0.661_491_377, 1.0);
        let none_passes: Vec<Cluster> = vec![(4, 0.0); 10];
        close(of(&none_passes).share_interval(), 0.0, 0.338_508_623);
        // Every row passes half of the time: no more certain than 40 independent tosses.
        let half: Vec<Cluster> = vec![(4, 2.0); 10];
        let interval = of(&half).share_interval().unwrap();
        assert!(interval.high - interval.low > 0.28, "{interval:?}");
    }

    #[test]
    fn rewards_at_the_ends_of_a_range_have_the_interval_of_a_share() {
        let shares: [Cluster; 4] = [(2, 2.0), (2, 1.0), (1, 0.0), (2, 2.0)];
        let share = of(&shares).share_interval().unwrap();
        let range = RewardRange::new(-1.0, 3.0).unwrap();
        let scaled = shares.map(|(size, sum)| (size, 4.0 * sum - size as f64));
        let (m, n) = (5.0 / 7.0, 16.0);
        let found = of(&scaled).bounded_interval(range, n * m * (1.0 - m));
        close(found, 4.0 * share.low - 1.0, 4.0 * share.high - 1.0);
    }

    #[test]
    fn intervals_stay_inside_the_range_and_are_the_t_interval_far_from_its_ends() {
        // The audit's case: 0/1 rewards of few rows, mean 0.1, whose t interval is [-0.126, 0.326].
        let clusters: Vec<Cluster> = (0..10).map(|i| (1, f64::from(u8::from(i == 0)))).collect();
        let mean = of(&clusters);
        close(mean.t_interval(), -0.126_215_716, 0.326_215_716);
        let found = mean.bounded_interval(RewardRange::UNIT, 0.09).unwrap();
        assert_eq!(Some(found), mean.share_interval());
        assert!(found.low > 0.0 && found.high < 1.0, "{found:?}");

        let narrow: Vec<Cluster> = (0..50).map(|i| (1, 0.5 + f64::from(i % 5) / 1e3)).collect();
        let t = of(&narrow).t_interval().unwrap();
        let found = of(&narrow).bounded_interval(RewardRange::UNIT, 2e-6);
        let found = found.unwrap();
        assert!((found.low - t.low).abs() < 1e-6, "{found:?} {t:?}");
        assert!((found.high - t.high).abs() < 1e-6, "{found:?} {t:?}");
    }

    #[test]
    fn rows_that_agree_have_a_wide_interval_in_a_range() {
        let agreed: Vec<Cluster> = vec![(4, 2.0); 10];
        let found = of(&agreed)
            .bounded_interval(RewardRange::UNIT, 0.0)
            .unwrap();
        // As if each row were one toss.
        assert!(found.low < 0.25 && found.high > 0.75, "{found:?}");
    }

    #[test]
    fn the_score_interval_of_independent_values_is_wilsons() {
        // 81 of 263: Newcombe (1998), table I, with z for t (the effect of t at 262 is 0.0004).
        let clusters: Vec<Cluster> = (0..263).map(|i| (1, f64::from(u8::from(i < 81)))).collect();
        let interval = of(&clusters).share_interval().unwrap();
        assert!((interval.low - 0.2553).abs() < 6e-4, "{interval:?}");
        assert!((interval.high - 0.3662).abs() < 6e-4, "{interval:?}");
    }
}
