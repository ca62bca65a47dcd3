//! Counts of durations, by how long they were.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds in milliseconds.
const BOUNDS_MS: [u64; 16] = [
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000,
    600_000,
];

#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// How many fell into each bucket and no lower one; the last are beyond all of them.
    counts: [AtomicU64; BOUNDS_MS.len() + 1],
    sum_ms: AtomicU64,
}

impl Histogram {
    pub(super) fn observe(&self, ms: u64) {
        let at = BOUNDS_MS.partition_point(|bound| *bound < ms);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// In seconds.
    pub(super) fn sum(&self) -> f64 {
        seconds(self.sum_ms.load(Ordering::Relaxed))
    }

    /// Upper bounds in seconds, each with how many fell between it and the bound below.
    pub(super) fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS_MS.iter().map(|bound| seconds(*bound));
        let counts = self.counts.iter().map(|it| it.load(Ordering::Relaxed));
        bounds.chain([f64::INFINITY]).zip(counts).collect()
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}
