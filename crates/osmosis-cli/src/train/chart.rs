//! The reward curve in a terminal.

use std::fmt::Write as _;

use super::sparkline::scale;

const HEIGHT: usize = 6;
const WIDTH: usize = 60;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Columns over steps with an axis; with many steps a column is the mean of several.
pub(crate) fn chart(points: &[(u64, f64)]) -> String {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return String::new();
    };
    let values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
    let (low, high) = scale(&values);
    let columns = columns(&values);
    // Few steps get broad columns.
    let breadth = (WIDTH / columns.len()).clamp(1, 4);
    let mut text = String::new();
    for line in (0..HEIGHT).rev() {
        let label = match line {
            _ if line == HEIGHT - 1 => format!("{high:.1} ┤"),
            0 => format!("{low:.1} ┤"),
            _ => "│".to_owned(),
        };
        let _ = write!(text, "{label:>8}");
        let row: String = columns
            .iter()
            .flat_map(|value| {
                let height = (value - low) / (high - low) * HEIGHT as f64;
                std::iter::repeat_n(cell(height - line as f64), breadth)
            })
            .collect();
        let _ = writeln!(text, "{}", row.trim_end());
    }
    let width = columns.len() * breadth;
    let _ = writeln!(text, "{:>8}{}", "└", "─".repeat(width));
    let end = format!("step {}", last.0);
    let pad = width.saturating_sub(first.0.to_string().len());
    let _ = write!(text, "{:>8}{}{end:>pad$}", "", first.0);
    text
}

/// What of a column is seen in one line, `filled` of it being 1.
fn cell(filled: f64) -> char {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a handful"
    )]
    let eighths = (filled.clamp(0.0, 1.0) * 8.0).round() as usize;
    EIGHTHS[eighths]
}

fn columns(values: &[f64]) -> Vec<f64> {
    let size = values.len().div_ceil(WIDTH).max(1);
    values
        .chunks(size)
        .map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_columns_an_axis_and_steps() {
        let points: Vec<(u64, f64)> = (1..=10).map(|step| (step, step as f64 / 10.0)).collect();
        insta::assert_snapshot!(chart(&points));
    }

    #[test]
    fn many_steps_are_gathered() {
        let points: Vec<(u64, f64)> = (1..=1000).map(|step| (step, 0.5)).collect();
        let text = chart(&points);
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH + 8),
            "{text}"
        );
        assert!(text.contains("step 1000"), "{text}");
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert_eq!(chart(&[]), "");
    }
}
