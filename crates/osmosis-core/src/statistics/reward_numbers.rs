use serde::{Deserialize, Serialize};

use super::{Cluster, ClusteredMean, Interval, Spread, bootstrap_interval};
use crate::RewardRange;

/// The rewards of the scored rollouts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RewardNumbers {
    pub count: u64,
    pub mean: Option<f64>,
    pub std: Option<f64>,
    pub min: Option<f64>,
    pub p25: Option<f64>,
    pub median: Option<f64>,
    pub p75: Option<f64>,
    pub max: Option<f64>,
    /// Rows with a scored rollout.
    pub rows: u64,
    /// Where rewards lie: as stated, or 0 to 1 when all are 0 or 1; the interval stays inside.
    pub range: Option<RewardRange>,
    pub ci95: Option<Interval>,
    pub ci95_bootstrap: Option<Interval>,
}

impl RewardNumbers {
    /// Of the rewards of rollouts, each with its row and its number in the row.
    pub(super) fn of(mut rewards: Vec<(u64, u32, f64)>, stated: Option<RewardRange>) -> Self {
        // Sums of floats depend on their order, and a resumed run finishes in another one.
        rewards.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)));
        let mut clusters: Vec<Cluster> = Vec::new();
        let mut row = None;
        for (row_index, _, reward) in &rewards {
            if row != Some(*row_index) {
                row = Some(*row_index);
                clusters.push((0, 0.0));
            }
            if let Some((size, sum)) = clusters.last_mut() {
                *size += 1;
                *sum += reward;
            }
        }
        let spread = Spread::of(rewards.into_iter().map(|(_, _, reward)| reward).collect());
        let range = spread.range(stated);
        let ci95 = interval(&clusters, &spread, range);
        Self {
            count: spread.count(),
            mean: spread.mean(),
            std: spread.std(),
            min: spread.min(),
            p25: spread.quantile(0.25),
            median: spread.quantile(0.5),
            p75: spread.quantile(0.75),
            max: spread.max(),
            rows: clusters.len() as u64,
            range,
            ci95,
            ci95_bootstrap: bootstrap_interval(&clusters),
        }
    }
}

/// The interval of the mean: inside the range of the rewards, when that is known.
pub(super) fn interval(
    clusters: &[Cluster],
    spread: &Spread,
    range: Option<RewardRange>,
) -> Option<Interval> {
    let mean = ClusteredMean::of(clusters.iter().copied())?;
    match range {
        Some(range) => mean.bounded_interval(range, spread.variance()?),
        None => mean.t_interval(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::ClusteredMean;

    fn of(rewards: &[f64], range: Option<RewardRange>) -> RewardNumbers {
        let rewards = (0..).zip(rewards).map(|(row, reward)| (row, 0, *reward));
        RewardNumbers::of(rewards.collect(), range)
    }

    #[test]
    fn rewards_of_0_and_1_have_the_interval_of_the_pass_rate() {
        let mut rewards = vec![0.0; 12];
        rewards[3] = 1.0;
        let found = of(&rewards, None);
        assert_eq!(found.range, Some(RewardRange::UNIT));
        let share = ClusteredMean::of(rewards.iter().map(|reward| (1, *reward)));
        assert_eq!(found.ci95, share.unwrap().share_interval());
        assert!(found.ci95.unwrap().low > 0.0);
        // All of them 1: no certainty, and an interval that says so.
        let found = of(&[1.0; 12], None).ci95.unwrap();
        assert!(found.low < 0.8, "{found:?}");
    }

    #[test]
    fn a_stated_range_bounds_the_interval_and_beats_the_implied_one() {
        let rewards = [-1.0, -1.0, -0.7, -1.0, 2.0];
        let low = |range| of(&rewards, range).ci95.unwrap().low;
        assert!(low(None) < -1.0, "{}", low(None));
        let stated = RewardRange::new(-1.0, 2.0).ok();
        assert!(low(stated) > -1.0, "{}", low(stated));
        // What does not hold bounds nothing.
        let wrong = RewardRange::new(-0.5, 2.0).ok();
        assert_eq!(of(&rewards, wrong), of(&rewards, None));
        let wide = RewardRange::new(0.0, 5.0).ok();
        let found = of(&[1.0, 0.0], wide);
        assert_eq!(found.range, wide);
        assert!(found.ci95.unwrap().high > 1.0);
    }
}
