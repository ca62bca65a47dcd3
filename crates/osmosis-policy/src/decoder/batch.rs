//! Many sequences on several threads.

use rayon::prelude::*;

use super::forward::{Forward, Span};
use super::matrix::Matrix;
use super::packed::PackedWeights;
use crate::ModelConfig;

/// Fewer rows than this do not fill the kernel's registers several times over.
const LEAST_ROWS: usize = 12;

/// Weights beyond this many numbers come from memory rather than from a cache, and each part reads them all:
/// then parts must be larger and fewer.
const CACHED_PARAMETERS: usize = 4_000_000;

/// Runs passes on all threads of the pool it is called in.
///
/// A large batch is cut into parts of whole sequences, each of which goes through all layers on one thread:
/// threads meet once per pass. A small one goes through the layers together and the threads share the work
/// within each layer. The result is the same bits.
#[derive(Debug)]
pub(crate) struct Batch {
    threads: usize,
    /// Parts there may be, and the fewest rows of one.
    most_parts: usize,
    least_rows: usize,
    whole: Forward,
    parts: Vec<Forward>,
}

impl Batch {
    pub(crate) fn new(config: &ModelConfig, threads: usize) -> Self {
        let cached = config.parameters() <= CACHED_PARAMETERS;
        // More parts than threads: when another process takes a core away, the other threads go on.
        let most_parts = if cached { threads * 3 } else { threads };
        Self {
            threads,
            most_parts,
            least_rows: if cached { LEAST_ROWS } else { 2 * LEAST_ROWS },
            whole: Forward::new(config, threads),
            parts: (0..most_parts).map(|_| Forward::new(config, 1)).collect(),
        }
    }

    /// Runs the tokens and returns the logits that were asked for, one row each, in order.
    pub(crate) fn run(&mut self, weights: &PackedWeights, spans: &mut [Span<'_>]) -> Vec<&[f32]> {
        let rows: usize = spans.iter().map(|span| span.ids.len()).sum();
        let count = self.most_parts.min(rows / self.least_rows);
        let lengths = spans.iter().map(|span| span.ids.len());
        if self.threads == 1 || count < self.threads || !cuts_evenly(lengths, rows.div_ceil(count))
        {
            return self.whole.run(weights, spans).all_rows().collect();
        }
        let parts = cut(spans, rows.div_ceil(count));
        let logits: Vec<_> = self
            .parts
            .par_iter_mut()
            .zip(parts)
            .map(|(forward, spans)| forward.run(weights, spans))
            .collect();
        logits.into_iter().flat_map(Matrix::all_rows).collect()
    }
}

/// Whether no part that [`cut`] makes of spans of these lengths is more than an eighth above `rows`. Threads that are done
/// wait for the one with the largest part.
fn cuts_evenly(mut lengths: impl Iterator<Item = usize>, rows: usize) -> bool {
    let mut sum = 0;
    lengths.all(|length| {
        sum = length + if sum < rows { sum } else { 0 };
        sum * 8 <= rows * 9
    })
}

/// Cuts behind the span with which a part comes to have `rows` rows. There are never more parts than rows / `rows`,
/// rounded up.
fn cut<'a, 'b>(mut spans: &'a mut [Span<'b>], rows: usize) -> Vec<&'a mut [Span<'b>]> {
    let mut parts = Vec::new();
    while !spans.is_empty() {
        let mut sum = 0;
        let count = spans.iter().take_while(|span| {
            let more = sum < rows;
            sum += span.ids.len();
            more
        });
        let count = count.count();
        let (part, rest) = spans.split_at_mut(count);
        parts.push(part);
        spans = rest;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::cuts_evenly;

    #[test]
    fn parts_are_even_when_none_keeps_the_others_waiting() {
        for (lengths, rows, even) in [
            (vec![128, 128, 128, 128], 256, true),
            (vec![1; 24], 12, true),
            (vec![13, 14, 12], 13, true),
            (vec![13, 12, 12], 13, false),
            // One piece of a prompt beside sampled tokens, and the rest of a prompt behind whole ones.
            (vec![1, 1, 62], 32, false),
            (vec![128, 128, 4], 130, false),
            (vec![74], 37, false),
        ] {
            assert_eq!(
                cuts_evenly(lengths.iter().copied(), rows),
                even,
                "{lengths:?}"
            );
        }
    }
}
