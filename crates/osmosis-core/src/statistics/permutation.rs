use super::generator::{Generator, dealt};
use super::{PairedTest, RowValues, mcnemar_exact};

/// Up to this many rows whose difference is not 0, every pattern of signs is looked at.
const EXACT: usize = 16;
/// Permutations that are drawn when there are too many to look at all.
pub(super) const DRAWS: u64 = 9_999;
/// Fewer are drawn where each takes many random numbers, down to this.
const LEAST_DRAWS: u64 = 999;
/// Random numbers for one test.
const EFFORT: u64 = 60_000_000;
/// More sign-flipped rows than this are dealt into as many piles, which are flipped instead.
const MOST_UNITS: usize = 2_000;
/// A p value at or below this speaks of a difference.
pub(super) const LEVEL: f64 = 0.05;
const SEED: u64 = 0x6f73_6d6f_7369_7332;
/// Sums in another order differ in their last digits; equal statistics must count as equal.
const TIE: f64 = 1e-9;

/// The result of a permutation test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Permuted {
    /// Two-sided: twice the share of permutations at least as far in the direction that was seen.
    pub(super) p: f64,
    pub(super) test: PairedTest,
    /// The statistic of what was seen.
    pub(super) seen: f64,
    /// The largest statistic, in the direction of what was seen, that the test does not reject.
    pub(super) critical: f64,
}

/// Tests that the rollouts of each row come from the same policy in both runs.
///
/// If they do, any of a row's rollouts might as well be the other run's. So the rollouts are permuted between
/// the runs within each row, and the p value is the share of permutations that are as extreme as what was
/// seen. This holds the level for any values and any numbers of rollouts. In rows with as many rollouts in both
/// runs the permutations are those that exchange the runs, which turn the sign of the row's difference. They hold
/// the level too when rows differ truly, as often in one direction as in the other.
///
/// The statistic is the sum of the rows' differences of means, divided by the root of the sum of their
/// squares: Student's t in another scale. Dividing matters where runs have other numbers of rollouts, because their
/// differences are skewed. Each direction has half of the level for the same reason.
///
/// The p value is at least 2 / 2^k, where k is the number of rows that changed: a row is one piece of evidence,
/// however many rollouts it has.
pub(super) fn permuted(rows: &[&RowValues], draws: u64) -> Permuted {
    let differences: Vec<f64> = rows.iter().map(|row| row.difference()).collect();
    let seen = Sums::of(&differences).statistic();
    let changed = differences.iter().filter(|d| **d != 0.0).count();
    let is_balanced = |row: &&&RowValues| row.first.len() == row.second.len();
    // Rows in which all values are the same, in both runs, add nothing to any permutation.
    let mut mixed: Vec<Mixed> = rows
        .iter()
        .filter(|row| !is_balanced(row))
        .filter_map(|row| Mixed::new(row))
        .collect();
    let flipped: Vec<f64> = rows
        .iter()
        .zip(&differences)
        .filter(|(row, difference)| is_balanced(row) && **difference != 0.0)
        .map(|(_, difference)| *difference)
        .collect();
    if seen.abs() < TIE {
        return Permuted {
            p: 1.0,
            test: if !mixed.is_empty() {
                PairedTest::Permutation
            } else if flipped.len() <= EXACT {
                PairedTest::SignFlipExact
            } else {
                PairedTest::SignFlip
            },
            seen,
            critical: f64::INFINITY,
        };
    }
    let (mut statistics, test) = if mixed.is_empty() && flipped.len() <= EXACT {
        (every_pattern(&flipped), PairedTest::SignFlipExact)
    } else {
        let each: u64 = mixed.iter().map(|row| row.taken as u64).sum();
        let draws = draws.min((EFFORT / each.max(1)).max(LEAST_DRAWS));
        let mut drawn = drawn(&flipped, &mut mixed, draws);
        // What was seen is a permutation, too.
        drawn.push(seen);
        let test = if mixed.is_empty() {
            PairedTest::SignFlip
        } else {
            PairedTest::Permutation
        };
        (drawn, test)
    };
    if seen < 0.0 {
        for statistic in &mut statistics {
            *statistic = -*statistic;
        }
    }
    let as_far = statistics
        .iter()
        .filter(|statistic| **statistic >= seen.abs() - TIE)
        .count();
    let share = 2.0 * as_far as f64 / statistics.len() as f64;
    // As many as may be beyond the critical one: 2.5% of them.
    let beyond = statistics.len() / 40;
    statistics.sort_unstable_by(|a, b| b.total_cmp(a));
    let at_least = 0.5f64.powi(i32::try_from(changed).unwrap_or(i32::MAX) - 1);
    Permuted {
        p: share.max(at_least).min(1.0),
        test,
        seen,
        critical: if at_least > LEVEL {
            f64::INFINITY
        } else {
            statistics[beyond]
        },
    }
}

/// The same for values of 0 and 1: with one rollout of every row in each run it is McNemar's exact test.
pub(super) fn permuted_shares(rows: &[&RowValues], draws: u64) -> Permuted {
    if !rows.iter().all(|row| row.is_single()) {
        return permuted(rows, draws);
    }
    let differences: Vec<f64> = rows.iter().map(|row| row.difference()).collect();
    let count = |wanted: fn(f64) -> bool| differences.iter().filter(|d| wanted(**d)).count() as u64;
    let (up, down) = (count(|d| d > 0.0), count(|d| d < 0.0));
    let seen = Sums::of(&differences).statistic();
    Permuted {
        p: mcnemar_exact(up, down),
        test: PairedTest::McnemarExact,
        seen,
        // The next smaller result.
        critical: seen.abs() - 2.0 / ((up + down).max(1) as f64).sqrt(),
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    sum: f64,
    squares: f64,
}

impl Sums {
    fn of(differences: &[f64]) -> Self {
        let mut sums = Self::default();
        for difference in differences {
            sums.add(*difference);
        }
        sums
    }

    fn add(&mut self, difference: f64) {
        self.sum += difference;
        self.squares += difference * difference;
    }

    fn statistic(self) -> f64 {
        if self.squares > 0.0 {
            self.sum / self.squares.sqrt()
        } else {
            0.0
        }
    }
}

/// A row with another number of rollouts in each run.
#[derive(Debug)]
struct Mixed {
    /// The values of both runs, in an order that every draw changes.
    values: Vec<f64>,
    sum: f64,
    /// How many belong to the run that has fewer.
    taken: usize,
    /// 1 when the second run has more, otherwise -1.
    sign: f64,
    /// Differences below this are rounding.
    nothing: f64,
}

impl Mixed {
    fn new(row: &RowValues) -> Option<Self> {
        let values = [&row.first[..], &row.second[..]].concat();
        let all_alike = values
            .windows(2)
            .all(|two| two[0].total_cmp(&two[1]).is_eq());
        let largest = values.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
        (!all_alike).then(|| Self {
            sum: values.iter().sum(),
            values,
            taken: row.first.len().min(row.second.len()),
            sign: if row.second.len() > row.first.len() {
                1.0
            } else {
                -1.0
            },
            nothing: 1e-12 * largest,
        })
    }

    /// The difference of the means after the values were dealt to the runs again.
    fn draw(&mut self, generator: &mut Generator) -> f64 {
        let mut fewer = 0.0;
        for place in 0..self.taken {
            let other = place + generator.index(self.values.len() - place);
            self.values.swap(place, other);
            fewer += self.values[place];
        }
        let more = (self.sum - fewer) / (self.values.len() - self.taken) as f64;
        let apart = self.sign * (more - fewer / self.taken as f64);
        if apart.abs() <= self.nothing {
            0.0
        } else {
            apart
        }
    }
}

fn drawn(flipped: &[f64], mixed: &mut [Mixed], draws: u64) -> Vec<f64> {
    let mut generator = Generator::new(SEED);
    // A square does not change with the sign.
    let squares = Sums::of(flipped).squares;
    let units = dealt(flipped, MOST_UNITS, &mut generator, |pile, d| *pile += d);
    let draw = |_| {
        let mut sums = Sums { sum: 0.0, squares };
        for part in units.chunks(64) {
            let mut bits = generator.bits();
            for unit in part {
                sums.sum += if bits & 1 == 0 { *unit } else { -*unit };
                bits >>= 1;
            }
        }
        for row in &mut *mixed {
            sums.add(row.draw(&mut generator));
        }
        sums.statistic()
    };
    (0..draws).map(draw).collect()
}

/// The statistics of all patterns of signs.
fn every_pattern(differences: &[f64]) -> Vec<f64> {
    let root = Sums::of(differences).squares.sqrt();
    let sums = differences.iter().fold(vec![0.0], |sums, value| {
        sums.iter()
            .flat_map(|sum| [sum + value, sum - value])
            .collect()
    });
    sums.into_iter().map(|sum: f64| sum / root).collect()
}

/// Holm's correction: p values of several tests, adjusted so that the chance of any false alarm among
/// them stays what it was for one. In the order they came.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut adjusted = vec![0.0; p_values.len()];
    let mut highest: f64 = 0.0;
    for (rank, place) in order.into_iter().enumerate() {
        let left = (p_values.len() - rank) as f64;
        highest = highest.max((left * p_values[place]).min(1.0));
        adjusted[place] = highest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of one rollout in each run, with these differences.
    fn single(differences: &[f64]) -> Vec<RowValues> {
        let row = |d: &f64| RowValues {
            first: vec![0.0],
            second: vec![*d],
        };
        differences.iter().map(row).collect()
    }

    fn of(rows: &[RowValues]) -> Permuted {
        permuted(&rows.iter().collect::<Vec<_>>(), DRAWS)
    }

    fn p(rows: &[RowValues]) -> f64 {
        of(rows).p
    }

    #[test]
    fn no_difference_is_no_evidence() {
        assert_eq!(p(&[]).to_bits(), 1f64.to_bits());
        assert_eq!(p(&single(&[0.0; 50])).to_bits(), 1f64.to_bits());
        let alike = RowValues {
            first: vec![0.3; 3],
            second: vec![0.3; 7],
        };
        assert_eq!(p(&vec![alike; 30]).to_bits(), 1f64.to_bits());
    }

    #[test]
    fn a_few_differences_agree_with_a_hand_count() {
        // Sums of ±1 ±2 ±3: |6| twice, |4| twice, |2| twice, 0 twice.
        assert!((p(&single(&[1.0, 2.0, 3.0])) - 0.25).abs() < 1e-12);
        assert!((p(&single(&[-1.0, 2.0, 3.0])) - 0.5).abs() < 1e-12);
        assert!((p(&single(&[0.1, 0.2, 0.0, -0.3])) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn rows_with_other_numbers_of_rollouts_agree_with_a_hand_count() {
        // Of 1 and 2 rollouts one has a 1: it is the first run's in a third of the permutations, with a
        // difference of -1, and otherwise the second's, with 1/2. In 8 rows -1 each: (1/3)^8 has all.
        let row = RowValues {
            first: vec![1.0],
            second: vec![0.0, 0.0],
        };
        let found = of(&vec![row.clone(); 8]);
        assert_eq!(found.test, PairedTest::Permutation);
        // The rows bound it.
        assert!((found.p - 2.0 / 256.0).abs() < 1e-12, "{found:?}");
        // The other way around, (2/3)^8 = 3.9% have all, twice that is the p value.
        let row = RowValues {
            first: vec![0.0],
            second: vec![1.0, 0.0],
        };
        let found = of(&vec![row; 8]);
        assert!(
            (found.p - 2.0 * (2.0f64 / 3.0).powi(8)).abs() < 0.01,
            "{found:?}"
        );
    }

    #[test]
    fn many_rollouts_of_few_rows_prove_nothing() {
        let row = RowValues {
            first: vec![0.0; 16],
            second: vec![1.0; 15],
        };
        assert!((p(&vec![row.clone(); 5]) - 2.0 / 32.0).abs() < 1e-12);
        assert!((p(&vec![row; 6]) - 2.0 / 64.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_rejected_is_beyond_the_critical_statistic_and_nothing_else() {
        let mut generator = Generator::new(5);
        let mut rejected = 0;
        for (n_first, n_second) in [(1, 1), (2, 2), (1, 3), (5, 2)] {
            for gain in [0.0, 0.2, 0.3] {
                for _ in 0..20 {
                    let mut values = |n: usize, gain: f64| -> Vec<f64> {
                        (0..n).map(|_| generator.unit() + gain).collect()
                    };
                    let rows: Vec<RowValues> = (0..24)
                        .map(|_| RowValues {
                            first: values(n_first, 0.0),
                            second: values(n_second, gain),
                        })
                        .collect();
                    let found = permuted(&rows.iter().collect::<Vec<_>>(), 399);
                    rejected += u32::from(found.p <= 0.05);
                    assert_eq!(
                        found.p <= 0.05,
                        found.seen.abs() > found.critical + TIE,
                        "{found:?}"
                    );
                }
            }
        }
        assert!((40..200).contains(&rejected), "{rejected}");
    }

    #[test]
    fn with_single_tosses_it_is_mcnemars_test() {
        let few: Vec<f64> = [vec![1.0; 8], vec![-1.0; 2], vec![0.0; 30]].concat();
        assert!((p(&single(&few)) - mcnemar_exact(8, 2)).abs() < 1e-12);
        let many: Vec<f64> = [vec![1.0; 60], vec![-1.0; 40]].concat();
        let (drawn, exact) = (of(&single(&many)), mcnemar_exact(60, 40));
        assert_eq!(drawn.test, PairedTest::SignFlip);
        assert!((drawn.p - exact).abs() < 0.012, "{drawn:?} {exact}");
    }

    #[test]
    fn thousands_of_rows_are_flipped_in_piles() {
        let clear: Vec<f64> = (0..6000).map(|i| f64::from(i % 10) - 4.0).collect();
        let found = of(&single(&clear));
        assert!((found.p - 0.0002).abs() < 1e-12, "{found:?}");
        let nothing: Vec<f64> = (0..6000).map(|i| f64::from(i % 9) - 4.0).collect();
        assert!(p(&single(&nothing)) > 0.05);
    }

    #[test]
    fn holm_agrees_with_a_hand_count() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (found, expected) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((found - expected).abs() < 1e-12, "{adjusted:?}");
        }
        assert_eq!(holm(&[0.7, 0.6]), [1.0, 1.0]);
        assert_eq!(holm(&[]), [0.0; 0]);
    }
}
