/// McNemar's exact test: of the rows whose result changed, `up` got better and `down` worse. Under no
/// difference each is a toss of a fair coin. Two-sided: twice the smaller binomial tail, at most 1.
///
/// Exact for any number of changes, so there is no second formula for many.
pub fn mcnemar_exact(up: u64, down: u64) -> f64 {
    let changed = up + down;
    let fewer = up.min(down);
    // The terms C(n, k) / 2^n underflow for large n, so the tail is summed from its largest term, as
    // logarithms: log C(n, k) is built up along the way.
    let mut log_term = -(changed as f64) * std::f64::consts::LN_2;
    for k in 1..=fewer {
        log_term += ((changed - k + 1) as f64 / k as f64).ln();
    }
    let (mut sum, mut ratio) = (0.0, 1.0);
    for k in (0..=fewer).rev() {
        sum += ratio;
        if k == 0 || ratio < 1e-20 {
            break;
        }
        ratio *= k as f64 / (changed - k + 1) as f64;
    }
    (2.0 * sum * log_term.exp()).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_hand_counts() {
        for (up, down, p) in [
            (0, 0, 1.0),
            (1, 0, 1.0),
            (5, 0, 2.0 / 32.0),
            (6, 0, 2.0 / 64.0),
            // 2 * (1 + 10 + 45) / 1024
            (8, 2, 0.109_375),
            (3, 3, 1.0),
        ] {
            assert!((mcnemar_exact(up, down) - p).abs() < 1e-12, "{up} {down}");
            assert!((mcnemar_exact(down, up) - p).abs() < 1e-12, "{down} {up}");
        }
    }

    #[test]
    fn many_changes_neither_overflow_nor_underflow() {
        assert!((mcnemar_exact(50_000, 50_000) - 1.0).abs() < 1e-9);
        assert!(mcnemar_exact(100_000, 0) < 1e-300);
    }
}
