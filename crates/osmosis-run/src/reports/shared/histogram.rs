use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// So many different rewards have a bar each.
const MAX_VALUES: usize = 11;
const BINS: usize = 12;

/// Rewards from `low` to `high`: below it, but for the last bar; both are the same where a bar is one value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistogramBar {
    pub low: f64,
    pub high: f64,
    pub count: u64,
}

pub(super) fn of(rewards: &[f64]) -> Vec<HistogramBar> {
    let mut sorted = rewards.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut bars: Vec<HistogramBar> = Vec::new();
    for reward in &sorted {
        if let Some(bar) = bars.last_mut()
            && bar.low.total_cmp(reward).is_eq()
        {
            bar.count += 1;
        } else if bars.len() > MAX_VALUES {
            break;
        } else {
            bars.push(HistogramBar {
                low: *reward,
                high: *reward,
                count: 1,
            });
        }
    }
    if bars.len() <= MAX_VALUES {
        return bars;
    }
    let (Some(low), Some(high)) = (sorted.first().copied(), sorted.last().copied()) else {
        return Vec::new();
    };
    // Divided first: the rewards of both ends may be as large as floats are.
    let width = high / BINS as f64 - low / BINS as f64;
    let edge = |bin: usize| low + width * bin as f64;
    let mut bars: Vec<HistogramBar> = (0..BINS)
        .map(|bin| HistogramBar {
            low: edge(bin),
            high: if bin + 1 == BINS { high } else { edge(bin + 1) },
            count: 0,
        })
        .collect();
    let mut bin = 0;
    for reward in sorted {
        while bin + 1 < BINS && reward >= bars[bin].high {
            bin += 1;
        }
        bars[bin].count += 1;
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(rewards: &[f64]) -> Vec<(f64, f64, u64)> {
        let bars = of(rewards).into_iter();
        bars.map(|bar| (bar.low, bar.high, bar.count)).collect()
    }

    #[test]
    fn a_few_values_have_a_bar_each_and_many_share_them() {
        assert_eq!(counts(&[]), []);
        assert_eq!(counts(&[1.0, 0.0, 1.0]), [(0.0, 0.0, 1), (1.0, 1.0, 2)]);
        let many: Vec<f64> = (0..=120).map(f64::from).collect();
        let bars = of(&many);
        assert_eq!(bars.len(), BINS);
        assert_eq!(bars.iter().map(|bar| bar.count).sum::<u64>(), 121);
        assert_eq!((bars[0].low, bars[0].high, bars[0].count), (0.0, 10.0, 10));
        assert_eq!((bars[11].high, bars[11].count), (120.0, 11));
        let huge: Vec<f64> = (0..50)
            .map(|i| f64::MAX / 25.0 * f64::from(i) - f64::MAX)
            .collect();
        assert_eq!(of(&huge).iter().map(|bar| bar.count).sum::<u64>(), 50);
    }
}
