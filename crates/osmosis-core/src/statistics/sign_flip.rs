use super::generator::{Generator, dealt};

/// Up to this many differences that are not 0, every pattern of signs is looked at.
const EXACT: usize = 16;
/// Patterns that are drawn when there are too many to look at all.
pub(super) const DRAWS: u64 = 9_999;
/// More differences than this are dealt into as many piles, which are flipped instead.
const MOST_UNITS: usize = 2_000;
const SEED: u64 = 0x6f73_6d6f_7369_7332;

/// The p value of a sign-flip permutation test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SignFlip {
    /// Two-sided.
    pub p: f64,
    /// Whether all patterns were looked at; otherwise `p` comes from 9,999 drawn ones and is never
    /// below 1 / 10,000.
    pub exact: bool,
}

/// Tests that paired differences lie symmetrically around 0, one difference for each pair (dataset row).
///
/// If both runs are alike in a row, the difference of that row might as well have had the other sign. The
/// p value is the share of sign patterns whose sum is at least as far from 0 as the one that was seen. With
/// differences of -1, 0 and 1 that is McNemar's exact test.
pub fn sign_flip_test(differences: &[f64]) -> SignFlip {
    flipped(differences, DRAWS)
}

pub(super) fn flipped(differences: &[f64], draws: u64) -> SignFlip {
    let nonzero: Vec<f64> = differences.iter().copied().filter(|d| *d != 0.0).collect();
    // Sums in another order differ in their last digits; equal sums must count as equal.
    let scale: f64 = nonzero.iter().map(|d| d.abs()).sum();
    let seen = nonzero.iter().sum::<f64>().abs() - 1e-10 * scale;
    if nonzero.len() <= EXACT {
        return SignFlip {
            p: share_of_all(&nonzero, seen),
            exact: true,
        };
    }
    let mut generator = Generator::new(SEED);
    let units = dealt(&nonzero, MOST_UNITS, &mut generator, |pile, d| *pile += d);
    let mut as_far: u64 = 1;
    for _ in 0..draws {
        let mut sum = 0.0;
        for part in units.chunks(64) {
            let mut bits = generator.bits();
            for unit in part {
                sum += if bits & 1 == 0 { *unit } else { -*unit };
                bits >>= 1;
            }
        }
        as_far += u64::from(f64::abs(sum) >= seen);
    }
    SignFlip {
        p: as_far as f64 / (draws + 1) as f64,
        exact: false,
    }
}

fn share_of_all(values: &[f64], seen: f64) -> f64 {
    let (left, right) = values.split_at(values.len() / 2);
    // Every pattern is one of the left half with one of the right: an addition for each.
    let (left, right) = (signed_sums(left), signed_sums(right));
    let as_far = left
        .iter()
        .flat_map(|one| right.iter().map(move |other| one + other))
        .filter(|sum| sum.abs() >= seen)
        .count();
    as_far as f64 / (left.len() * right.len()) as f64
}

/// The sums of all patterns of signs.
fn signed_sums(values: &[f64]) -> Vec<f64> {
    values.iter().fold(vec![0.0], |sums, value| {
        sums.iter()
            .flat_map(|sum| [sum + value, sum - value])
            .collect()
    })
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
    use super::super::mcnemar_exact;
    use super::*;

    #[test]
    fn no_difference_is_no_evidence() {
        assert_eq!(
            sign_flip_test(&[]),
            SignFlip {
                p: 1.0,
                exact: true
            }
        );
        assert_eq!(
            sign_flip_test(&[0.0; 50]),
            SignFlip {
                p: 1.0,
                exact: true
            }
        );
    }

    #[test]
    fn a_few_differences_agree_with_a_hand_count() {
        // Sums of ±1 ±2 ±3: |6| twice, |4| twice, |2| twice, 0 twice.
        assert!((sign_flip_test(&[1.0, 2.0, 3.0]).p - 0.25).abs() < 1e-12);
        assert!((sign_flip_test(&[-1.0, 2.0, 3.0]).p - 0.5).abs() < 1e-12);
        assert!((sign_flip_test(&[0.1, 0.2, 0.0, -0.3]).p - 1.0).abs() < 1e-12);
    }

    #[test]
    fn with_single_tosses_it_is_mcnemars_test() {
        let few: Vec<f64> = [vec![1.0; 8], vec![-1.0; 2], vec![0.0; 30]].concat();
        assert!((sign_flip_test(&few).p - mcnemar_exact(8, 2)).abs() < 1e-12);
        let many: Vec<f64> = [vec![1.0; 60], vec![-1.0; 40]].concat();
        let (drawn, exact) = (sign_flip_test(&many), mcnemar_exact(60, 40));
        assert!(
            !drawn.exact && (drawn.p - exact).abs() < 0.01,
            "{drawn:?} {exact}"
        );
    }

    #[test]
    fn thousands_of_rows_are_flipped_in_piles() {
        let clear: Vec<f64> = (0..6000).map(|i| f64::from(i % 10) - 4.0).collect();
        let found = sign_flip_test(&clear);
        assert_eq!(
            found,
            SignFlip {
                p: 0.0001,
                exact: false
            }
        );
        let nothing: Vec<f64> = (0..6000).map(|i| f64::from(i % 9) - 4.0).collect();
        assert!(sign_flip_test(&nothing).p > 0.05);
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
