use serde::{Serialize, Serializer};

use super::student_t_975;

/// A 95% confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// The part of it that lies between 0 and 1, for shares.
    #[must_use]
    pub fn of_share(self) -> Self {
        Self {
            low: self.low.clamp(0.0, 1.0),
            high: self.high.clamp(0.0, 1.0),
        }
    }
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        [self.low, self.high].serialize(serializer)
    }
}

/// The 95% interval of the mean of values that come in clusters, each given as its size and sum.
///
/// Values of one cluster (the rollouts of one dataset row) are not independent, so the clusters are
/// what is counted: the cluster-robust standard error of the mean, `sqrt(G/(G-1) * Σ(S_g - n_g m)²) / N`,
/// times Student's t with `G - 1` degrees of freedom. With one value per cluster this is the usual
/// interval. `None` with fewer than two clusters, from which nothing about the spread can be known.
pub fn clustered_interval(
    clusters: impl IntoIterator<Item = (u64, f64), IntoIter: Clone>,
) -> Option<Interval> {
    let clusters = clusters.into_iter().filter(|(size, _)| *size > 0);
    let (mut count, mut values, mut sum) = (0u64, 0u64, 0.0);
    for (size, cluster_sum) in clusters.clone() {
        count += 1;
        values += size;
        sum += cluster_sum;
    }
    let t = student_t_975(count.checked_sub(1)?)?;
    let mean = sum / values as f64;
    let squares: f64 = clusters
        .map(|(size, cluster_sum)| (cluster_sum - size as f64 * mean).powi(2))
        .sum();
    let correction = count as f64 / (count - 1) as f64;
    let half = t * (correction * squares).sqrt() / values as f64;
    Some(Interval {
        low: mean - half,
        high: mean + half,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        close(clustered_interval(clusters), 3.0 - half, 3.0 + half);
    }

    #[test]
    fn values_that_repeat_within_a_cluster_add_no_certainty() {
        let alone = clustered_interval([(1, 0.0), (1, 1.0), (1, 1.0)]).unwrap();
        let repeated = clustered_interval([(10, 0.0), (10, 10.0), (10, 10.0)]);
        close(repeated, alone.low, alone.high);
    }

    #[test]
    fn clusters_of_different_size_agree_with_a_hand_count() {
        // (1, 1), (0): mean 2/3, residual sums 2/3 and -2/3, squares 8/9, G/(G-1) = 2,
        // half = 12.706204736 * (4/3) / 3.
        let half = 12.706_204_736_174_7 * 4.0 / 9.0;
        let mean = 2.0 / 3.0;
        let interval = clustered_interval([(2, 2.0), (1, 0.0)]);
        close(interval, mean - half, mean + half);
        close(interval.map(Interval::of_share), 0.0, 1.0);
    }

    #[test]
    fn one_cluster_says_nothing_about_the_spread() {
        assert_eq!(clustered_interval([(10, 5.0)]), None);
        assert_eq!(clustered_interval([(10, 5.0), (0, 0.0)]), None);
        assert_eq!(clustered_interval([]), None);
    }
}
