//! Numbers as a line of small bars.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The last `width` values. Rewards are mostly shares, so 0 to 1 is the scale until a value is outside.
pub(crate) fn sparkline(values: &[f64], width: usize) -> String {
    let shown = &values[values.len().saturating_sub(width)..];
    let (low, high) = scale(values);
    shown
        .iter()
        .map(|value| bar((value - low) / (high - low)))
        .collect()
}

/// The smallest and largest value of an axis that shows all of these: at least 0 to 1.
pub(crate) fn scale(values: &[f64]) -> (f64, f64) {
    values
        .iter()
        .filter(|value| value.is_finite())
        .fold((0.0, 1.0), |(low, high), value| {
            (value.min(low), value.max(high))
        })
}

/// The bar of a height between 0 and 1.
pub(crate) fn bar(height: f64) -> char {
    let top = BARS.len() - 1;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a handful"
    )]
    let place = (height.clamp(0.0, 1.0) * top as f64).round() as usize;
    BARS[place.min(top)]
}

#[cfg(test)]
mod tests {
    use super::sparkline;

    #[test]
    fn shares_are_drawn_from_0_to_1_and_only_the_last_ones() {
        assert_eq!(sparkline(&[0.9, 0.0, 0.5, 1.0], 3), "▁▅█");
        assert_eq!(sparkline(&[], 3), "");
    }

    #[test]
    fn values_beyond_stretch_the_scale() {
        assert_eq!(sparkline(&[-1.0, 3.0], 9), "▁█");
    }
}
