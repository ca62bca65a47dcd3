//! Lines that fit the terminal.

use console::measure_text_width;

/// Where the values of a report begin.
const VALUES_AT: usize = 14;
/// Parts of a line, where it may be broken.
const BREAKS: [&str; 2] = [" · ", "   "];

/// The text with lines that are too long broken where one value ends and the next begins, under the first value. Lines
/// without such a place stay as they are: a command must be copied whole.
pub(crate) fn wrapped(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else {
        return text.to_owned();
    };
    let lines = text.split('\n').map(|line| {
        if measure_text_width(line) <= width {
            line.to_owned()
        } else {
            broken(line, width)
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn broken(line: &str, width: usize) -> String {
    let indent = " ".repeat(VALUES_AT);
    let mut lines = vec![String::new()];
    for (separator, part) in parts(line) {
        let last = lines.last_mut();
        let Some(last) = last else { continue };
        let together = format!("{last}{separator}{part}");
        if last.trim().is_empty() || measure_text_width(&together) <= width {
            *last = together;
        } else {
            let dot = if separator.trim().is_empty() {
                ""
            } else {
                " ·"
            };
            last.push_str(dot);
            lines.push(format!("{indent}{part}"));
        }
    }
    lines.join("\n")
}

/// The parts of a line, each with what stands before it.
fn parts(line: &str) -> Vec<(&str, &str)> {
    let mut parts = vec![];
    let (mut separator, mut rest) = ("", line);
    // Spaces at the beginning, and those behind a label, are no break.
    let mut from = line
        .char_indices()
        .map(|(at, _)| at)
        .find(|at| measure_text_width(&line[..*at]) >= VALUES_AT)
        .unwrap_or(line.len());
    loop {
        let found = BREAKS.iter().filter_map(|wanted| {
            let at = rest.get(from..)?.find(wanted)? + from;
            Some((at, *wanted))
        });
        let Some((at, wanted)) = found.min() else {
            parts.push((separator, rest));
            return parts;
        };
        parts.push((separator, &rest[..at]));
        separator = &rest[at..at + wanted.len()];
        rest = rest[at + wanted.len()..].trim_start();
        from = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "  pass rate   60.0% [33.4%, 82.0%]   6 passed of 10 that ran
  model       40 calls · 3,100 prompt + 120 completion tokens
  time        3.2 s · queue 1 ms (p90 2 ms) · agent 300 ms (p90 400 ms) · model 280 ms (p90 390 ms)
  rollouts    osmosis eval show a-run-with-a-rather-long-name-20260101-120000";

    #[test]
    fn long_lines_are_broken_between_values() {
        assert_eq!(wrapped(REPORT, None), REPORT);
        assert_eq!(wrapped(REPORT, Some(120)), REPORT);
        assert_eq!(
            wrapped(REPORT, Some(80)).lines().collect::<Vec<_>>(),
            [
                "  pass rate   60.0% [33.4%, 82.0%]   6 passed of 10 that ran",
                "  model       40 calls · 3,100 prompt + 120 completion tokens",
                "  time        3.2 s · queue 1 ms (p90 2 ms) · agent 300 ms (p90 400 ms) ·",
                "              model 280 ms (p90 390 ms)",
                "  rollouts    osmosis eval show a-run-with-a-rather-long-name-20260101-120000",
            ]
        );
        assert_eq!(
            wrapped(REPORT, Some(50)).lines().collect::<Vec<_>>(),
            [
                "  pass rate   60.0% [33.4%, 82.0%]",
                "              6 passed of 10 that ran",
                "  model       40 calls ·",
                "              3,100 prompt + 120 completion tokens",
                "  time        3.2 s · queue 1 ms (p90 2 ms) ·",
                "              agent 300 ms (p90 400 ms) ·",
                "              model 280 ms (p90 390 ms)",
                "  rollouts    osmosis eval show a-run-with-a-rather-long-name-20260101-120000",
            ]
        );
    }
}
