/// The unbiased estimate, from `n` rollouts of which `c` passed, of the chance that at least one of
/// `k` passes: `1 - C(n-c, k) / C(n, k)`.
///
/// `None` when it is not defined: `k` is 0 or more than `n`, or `c` is more than `n`.
pub fn pass_at_k(n: u32, c: u32, k: u32) -> Option<f64> {
    if k == 0 || k > n || c > n {
        return None;
    }
    Some(1.0 - all_of(n, n - c, k))
}

/// The unbiased estimate, from `n` rollouts of which `c` passed, of the chance that all of `k`
/// pass (pass^k): `C(c, k) / C(n, k)`.
///
/// `None` when it is not defined: `k` is 0 or more than `n`, or `c` is more than `n`.
pub fn pass_hat_k(n: u32, c: u32, k: u32) -> Option<f64> {
    if k == 0 || k > n || c > n {
        return None;
    }
    Some(all_of(n, c, k))
}

/// The chance that `k` drawn from `n` are all among `m` of them. A product, because the binomials
/// overflow long before the quotient does.
fn all_of(n: u32, m: u32, k: u32) -> f64 {
    if k > m {
        return 0.0;
    }
    (0..k)
        .map(|i| f64::from(m - i) / f64::from(n - i))
        .product()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(a: Option<f64>, b: f64) {
        let a = a.unwrap();
        assert!((a - b).abs() < 1e-12, "{a} is not {b}");
    }

    #[test]
    fn pass_at_k_agrees_with_hand_counts() {
        close(pass_at_k(5, 2, 1), 2.0 / 5.0);
        close(pass_at_k(5, 2, 2), 1.0 - 3.0 / 10.0);
        close(pass_at_k(5, 2, 3), 1.0 - 1.0 / 10.0);
        close(pass_at_k(5, 2, 4), 1.0);
        close(pass_at_k(5, 0, 5), 0.0);
        close(pass_at_k(1, 1, 1), 1.0);
        // 1 - C(180, 10) / C(200, 10), from the binomials as exact integers.
        close(pass_at_k(200, 20, 10), 0.660_225_623_763_214);
    }

    #[test]
    fn pass_hat_k_agrees_with_hand_counts() {
        close(pass_hat_k(5, 2, 1), 2.0 / 5.0);
        close(pass_hat_k(5, 2, 2), 1.0 / 10.0);
        close(pass_hat_k(5, 2, 3), 0.0);
        close(pass_hat_k(8, 6, 4), 15.0 / 70.0);
        close(pass_hat_k(5, 5, 5), 1.0);
    }

    #[test]
    fn what_is_not_defined_is_none() {
        for (n, c, k) in [(0, 0, 1), (3, 1, 4), (3, 1, 0), (3, 4, 1)] {
            assert_eq!(pass_at_k(n, c, k), None);
            assert_eq!(pass_hat_k(n, c, k), None);
        }
    }

    proptest! {
        #[test]
        fn more_tries_help_one_to_pass_and_hinder_all(n in 1u32..200, c_part in 0.0..=1.0f64) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "c <= n")]
            let c = (f64::from(n) * c_part) as u32;
            let (mut at, mut hat) = (0.0, 1.0);
            for k in 1..=n {
                let (next_at, next_hat) = (pass_at_k(n, c, k).unwrap(), pass_hat_k(n, c, k).unwrap());
                prop_assert!((0.0..=1.0).contains(&next_at) && (0.0..=1.0).contains(&next_hat));
                prop_assert!(next_at >= at - 1e-12 && next_hat <= hat + 1e-12);
                prop_assert!(next_hat <= next_at + 1e-12);
                // All of k fail exactly when none passes.
                prop_assert!((next_at - (1.0 - pass_hat_k(n, n - c, k).unwrap())).abs() < 1e-12);
                (at, hat) = (next_at, next_hat);
            }
            let rate = f64::from(c) / f64::from(n);
            prop_assert!((pass_at_k(n, c, 1).unwrap() - rate).abs() < 1e-12);
            prop_assert!((pass_hat_k(n, c, 1).unwrap() - rate).abs() < 1e-12);
        }
    }
}
