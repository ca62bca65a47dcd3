//! Rollouts that failed outside the agent may be others than those that ran: what if they had ended as they suit one run?

use super::{RowOutcome, RowPair};
use crate::RewardRange;

/// The run that lost rollouts are counted for: its own as passed, those of the other as not passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Favoured {
    First,
    Second,
}

impl Favoured {
    pub(super) const BOTH: [Self; 2] = [Self::First, Self::Second];

    fn passes(self, side: Self) -> bool {
        self == side
    }
}

pub(super) fn count(rows: &[RowPair]) -> u64 {
    rows.iter()
        .map(|row| row.first.lost + row.second.lost)
        .sum()
}

/// The rows with at most so many of the lost rollouts counted, those first that change most. In a declared range, their
/// rewards are its ends; otherwise they have none.
pub(super) fn counted(
    rows: &[RowPair],
    favoured: Favoured,
    range: Option<RewardRange>,
    most: u64,
) -> Vec<RowPair> {
    let mut changes: Vec<(f64, usize, Favoured)> = vec![];
    for (place, row) in rows.iter().enumerate() {
        for side in Favoured::BOTH {
            let outcome = side_of(row, side);
            let end = f64::from(u8::from(favoured.passes(side)));
            let (mut ran, mut passed) = (outcome.ran as f64, outcome.passed as f64);
            for _ in 0..outcome.lost {
                // A row that was not compared before: between no change and the largest.
                let mean = if ran > 0.0 { passed / ran } else { 0.5 };
                changes.push(((end - mean).abs() / (ran + 1.0), place, side));
                ran += 1.0;
                passed += end;
            }
        }
    }
    changes.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut rows = rows.to_vec();
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    for (_, place, side) in changes.into_iter().take(most) {
        let row = &mut rows[place];
        let outcome = match side {
            Favoured::First => &mut row.first,
            Favoured::Second => &mut row.second,
        };
        let passes = favoured.passes(side);
        outcome.lost -= 1;
        outcome.ran += 1;
        outcome.passed += u64::from(passes);
        let reward = range.map(|range| if passes { range.high() } else { range.low() });
        outcome.rewards.extend(reward);
    }
    rows
}

fn side_of(row: &RowPair, side: Favoured) -> &RowOutcome {
    match side {
        Favoured::First => &row.first,
        Favoured::Second => &row.second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_rollouts_count_for_one_run_and_against_the_other() {
        let row = |ran, passed, lost| RowOutcome {
            ran,
            passed,
            lost,
            rewards: vec![0.5; 2],
            ..RowOutcome::default()
        };
        let rows = [
            RowPair {
                first: row(2, 2, 0),
                second: row(2, 0, 1),
            },
            RowPair {
                first: row(2, 2, 1),
                second: row(2, 2, 1),
            },
        ];
        assert_eq!(count(&rows), 3);
        let range = RewardRange::new(-1.0, 2.0).ok();
        let all = counted(&rows, Favoured::Second, range, u64::MAX);
        assert_eq!(count(&all), 0);
        assert_eq!((all[0].second.ran, all[0].second.passed), (3, 1));
        assert_eq!(all[0].second.rewards, [0.5, 0.5, 2.0]);
        assert_eq!((all[1].first.ran, all[1].first.passed), (3, 2));
        assert_eq!(all[1].first.rewards, [0.5, 0.5, -1.0]);
        assert_eq!((all[1].second.ran, all[1].second.passed), (3, 3));
        // The first that are counted are those that change something.
        let two = counted(&rows, Favoured::Second, None, 2);
        assert_eq!((two[0].second.lost, two[1].first.lost), (0, 0));
        assert_eq!(two[1].second.lost, 1);
        assert_eq!(two[0].second.rewards, [0.5, 0.5]);
    }
}
