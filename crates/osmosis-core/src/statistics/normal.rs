//! The normal distribution.

/// P(Z <= z): the continued fraction of the tail (Abramowitz and Stegun 26.2.14) far out, the series
/// 26.2.11 near the middle.
pub(super) fn below(z: f64) -> f64 {
    let x = z.abs();
    let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let upper = if x < 3.0 {
        let (mut term, mut sum, mut odd) = (x, 0.0, 1.0);
        while term > 1e-18 {
            sum += term;
            odd += 2.0;
            term *= x * x / odd;
        }
        0.5 - density * sum
    } else {
        let mut fraction = x;
        for k in (1..=60u32).rev() {
            fraction = x + f64::from(k) / fraction;
        }
        density / fraction
    };
    if z < 0.0 { upper } else { 1.0 - upper }
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn tails_agree_with_published_values() {
        for (z, share) in [
            (0.0, 0.5),
            (-1.0, 0.158_655_253_931_457),
            (-1.959_963_984_540_054, 0.025),
            (-2.999, 0.001_354_336_533_727),
            (-3.001, 0.001_345_472_825_085),
            (-5.0, 2.866_515_718_791_939e-7),
            (1.644_853_626_951_472, 0.95),
            (-40.0, 0.0),
        ] {
            assert!(
                (below(z) - share).abs() < 1e-12,
                "{z}: {} is not {share}",
                below(z)
            );
        }
    }
}
