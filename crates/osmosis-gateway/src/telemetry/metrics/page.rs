//! The text format: heads, lines, and histograms as many lines.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds in milliseconds, and as the page says them.
const BUCKETS: [(u64, &str); 16] = [
    (5, "0.005"),
    (10, "0.01"),
    (25, "0.025"),
    (50, "0.05"),
    (100, "0.1"),
    (250, "0.25"),
    (500, "0.5"),
    (1_000, "1"),
    (2_500, "2.5"),
    (5_000, "5"),
    (10_000, "10"),
    (30_000, "30"),
    (60_000, "60"),
    (120_000, "120"),
    (300_000, "300"),
    (600_000, "600"),
];

#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// How many fell into each bucket and no lower one; the last are beyond all of them.
    counts: [AtomicU64; BUCKETS.len() + 1],
    sum_ms: AtomicU64,
}

impl Histogram {
    pub(super) fn observe(&self, ms: u64) {
        let at = BUCKETS.partition_point(|(bound, _)| *bound < ms);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum_ms.fetch_add(ms, Ordering::Relaxed);
    }

    pub(super) fn render(&self, page: &mut Page, name: &str, labels: &[(&str, &str); 2]) {
        let mut so_far = 0;
        let bounds = BUCKETS.iter().map(|(_, text)| *text).chain(["+Inf"]);
        for (count, bound) in self.counts.iter().zip(bounds) {
            so_far += count.load(Ordering::Relaxed);
            let labels = [labels[0], labels[1], ("le", bound)];
            page.line(&format!("{name}_bucket"), &labels, so_far);
        }
        let sum = self.sum_ms.load(Ordering::Relaxed);
        let sum = format!("{}.{:03}", sum / 1000, sum % 1000);
        page.value(&format!("{name}_sum"), labels, &sum);
        page.line(&format!("{name}_count"), labels, so_far);
    }
}

#[derive(Default)]
pub(super) struct Page {
    pub(super) text: String,
}

// Writing into a `String` cannot fail.
impl Page {
    pub(super) fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(
            self.text,
            "# HELP osmosis_gateway_{name} {help}\n# TYPE osmosis_gateway_{name} {kind}"
        );
    }

    pub(super) fn line(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.value(name, labels, &value.to_string());
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        let _ = write!(self.text, "osmosis_gateway_{name}");
        for (at, (label, text)) in labels.iter().enumerate() {
            let open = if at == 0 { '{' } else { ',' };
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.text, "{open}{label}=\"{text}\"");
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }
}
