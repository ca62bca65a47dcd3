use std::f64::consts::FRAC_2_PI;

/// The 97.5% quantile of the normal distribution.
const Z_975: f64 = 1.959_963_984_540_054;

/// From here on the expansion is as exact as the sum, which gets long.
const MANY: u64 = 200;

/// The 97.5% quantile of Student's t: the half width of a two-sided 95% interval in standard errors.
/// `None` without a degree of freedom.
pub fn student_t_975(degrees_of_freedom: u64) -> Option<f64> {
    match degrees_of_freedom {
        0 => None,
        1..MANY => Some(by_bisection(degrees_of_freedom)),
        many => Some(by_expansion(many as f64)),
    }
}

fn by_bisection(degrees_of_freedom: u64) -> f64 {
    // The quantile falls from 12.7 at one degree of freedom to the normal one.
    let (mut low, mut high) = (Z_975, 13.0);
    loop {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            return middle;
        }
        if within(middle, degrees_of_freedom) < 0.95 {
            low = middle;
        } else {
            high = middle;
        }
    }
}

/// P(|T| <= t), the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4.
fn within(t: f64, degrees_of_freedom: u64) -> f64 {
    let n = degrees_of_freedom as f64;
    let theta = (t / n.sqrt()).atan();
    let (sin, cos) = theta.sin_cos();
    let odd = degrees_of_freedom % 2 == 1;
    let mut term = if odd { cos } else { 1.0 };
    let mut sum = 0.0;
    // Exponents of the cosine: 1, 3, .. n - 2 or 0, 2, .. n - 2.
    let mut exponent = if odd { 1.0 } else { 0.0 };
    while exponent <= n - 2.0 {
        sum += term;
        term *= cos * cos * (exponent + 1.0) / (exponent + 2.0);
        exponent += 2.0;
    }
    if odd {
        FRAC_2_PI * (theta + sin * sum)
    } else {
        sin * sum
    }
}

/// The Cornish-Fisher expansion, Abramowitz and Stegun 26.7.5.
fn by_expansion(n: f64) -> f64 {
    let x = Z_975;
    let x2 = x * x;
    let g1 = x * (x2 + 1.0) / 4.0;
    let g2 = x * ((5.0 * x2 + 16.0) * x2 + 3.0) / 96.0;
    let g3 = x * (((3.0 * x2 + 19.0) * x2 + 17.0) * x2 - 15.0) / 384.0;
    let g4 = x * ((((79.0 * x2 + 776.0) * x2 + 1482.0) * x2 - 1920.0) * x2 - 945.0) / 92160.0;
    x + (g1 + (g2 + (g3 + g4 / n) / n) / n) / n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_agree_with_published_tables() {
        for (degrees_of_freedom, quantile) in [
            (1, 12.706_204_736),
            (2, 4.302_652_730),
            (3, 3.182_446_305),
            (4, 2.776_445_105),
            (5, 2.570_581_836),
            (9, 2.262_157_163),
            (10, 2.228_138_852),
            (29, 2.045_229_642),
            (30, 2.042_272_456),
            (60, 2.000_297_822),
            (99, 1.984_216_952),
            (120, 1.979_930_405),
            (1000, 1.962_339_081),
        ] {
            let found = student_t_975(degrees_of_freedom).unwrap();
            assert!(
                (found - quantile).abs() < 1e-8,
                "{degrees_of_freedom}: {found} is not {quantile}"
            );
        }
        assert_eq!(student_t_975(0), None);
    }

    #[test]
    fn both_ways_agree_where_they_meet() {
        for degrees_of_freedom in [MANY - 1, MANY, MANY + 1] {
            let difference =
                by_bisection(degrees_of_freedom) - by_expansion(degrees_of_freedom as f64);
            assert!(difference.abs() < 1e-10, "{difference}");
        }
        let huge = student_t_975(u64::MAX).unwrap();
        assert!((huge - Z_975).abs() < 1e-12);
    }

    #[test]
    fn quantiles_fall_with_the_degrees_of_freedom() {
        let quantiles: Vec<f64> = (1..400).filter_map(student_t_975).collect();
        assert!(quantiles.is_sorted_by(|a, b| a > b));
    }
}
