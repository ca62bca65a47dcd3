use std::sync::Arc;

use candle_core::Result;

use super::Real;
use super::multiply::{Rows, View, add_product};
use super::reduce::{dot, largest, sum};
use crate::learner::matrix::Matrix;
use crate::learner::pieces::Segment;
use crate::learner::tape::Operation;

/// Causal grouped-query attention over segments of sequences, from rotated q, k and v with a row per token and heads
/// side by side. A token sees its segment up to itself and the segments before. Nothing above the diagonal is
/// computed, and the backward pass computes the probabilities again instead of keeping them.
#[derive(Debug, Clone)]
pub(in crate::learner) struct Attention {
    pub(in crate::learner) segments: Arc<[Segment]>,
    pub(in crate::learner) heads: usize,
    pub(in crate::learner) kv_heads: usize,
    pub(in crate::learner) head_width: usize,
}

/// Query positions in one product.
const BLOCK: usize = 4;

/// Gradients of q, k and v.
type Gradients<T> = (Vec<T>, Vec<T>, Vec<T>);

impl Attention {
    fn query_width(&self) -> usize {
        self.heads * self.head_width
    }
    fn kv_width(&self) -> usize {
        self.kv_heads * self.head_width
    }

    /// One head of keys or values of all positions that a segment sees, with positions side by side, `padded` for
    /// each number of the head. `rows` begins with the head of the first row of the piece.
    #[inline(always)]
    fn transpose<T: Real>(&self, rows: &[T], segment: &Segment, padded: usize, out: &mut [T]) {
        let mut position = 0;
        for range in segment.before.iter().chain([&segment.tokens]) {
            for place in range.clone() {
                let row = &rows[place * self.kv_width()..][..self.head_width];
                for (index, value) in row.iter().enumerate() {
                    out[index * padded + position] = *value;
                }
                position += 1;
            }
        }
    }

    /// Turns scores of one position into probabilities over itself and the positions before.
    #[inline(always)]
    fn softmax<T: Real>(&self, row: &mut [T], position: usize) {
        let (seen, unseen) = row.split_at_mut(position + 1);
        unseen.fill(T::ZERO);
        let peak = largest(seen);
        let scale = T::from_f64(1.0 / (self.head_width as f64).sqrt());
        for value in seen.iter_mut() {
            *value = ((*value - peak) * scale).exponential();
        }
        let inverse = T::ONE / sum(seen);
        for value in seen.iter_mut() {
            *value *= inverse;
        }
    }

    /// `out = left · rightᵀ` for `count` positions of `left` and the first `seen` positions of `right`, which has
    /// positions side by side, `padded` of them.
    #[inline(always)]
    fn scores<T: Real>(
        &self,
        left: &[T],
        right: &[T],
        (count, seen, padded): (usize, usize, usize),
        out: &mut [T],
    ) {
        out.fill(T::ZERO);
        let left = View {
            values: left,
            row_step: self.query_width(),
            column_step: 1,
        };
        let right = Rows {
            values: right,
            step: padded,
        };
        let size = (count, self.head_width, seen.next_multiple_of(8));
        add_product(out, padded, size, left, right);
    }
}

/// Blocks of positions that go through a product together: where each begins and how long it is.
fn blocks(length: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..length)
        .step_by(BLOCK)
        .map(move |start| (start, BLOCK.min(length - start)))
}

/// Rows of scores are padded, so that most of them are whole vectors.
fn padded(segment: &Segment) -> usize {
    (segment.position() + segment.tokens.len()).next_multiple_of(8)
}

/// As many zeros as are needed now.
fn clear<T: Real>(room: &mut Vec<T>, length: usize) {
    room.clear();
    room.resize(length, T::ZERO);
}

impl<T: Real> Operation<T, 3> for Attention {
    fn forward(&self, [q, k, v]: [&Matrix<T>; 3]) -> Result<Matrix<T>> {
        Ok(Matrix::new(
            attend(self, q.values()?, k.values()?, v.values()?),
            q.width(),
        ))
    }
    fn backward(&self, [q, k, v]: [&Matrix<T>; 3], gradient: Matrix<T>) -> Result<[Matrix<T>; 3]> {
        let (for_q, for_k, for_v) = slopes(
            self,
            q.values()?,
            k.values()?,
            v.values()?,
            gradient.values()?,
        );
        Ok([
            Matrix::new(for_q, q.width()),
            Matrix::new(for_k, k.width()),
            Matrix::new(for_v, v.width()),
        ])
    }
}

kernel! {
    fn attend(attention: &'a Attention, q: &'a [T], k: &'a [T], v: &'a [T]) -> Vec<T> {
        let (q_width, kv_width, width) = (attention.query_width(), attention.kv_width(), attention.head_width);
        let mut out = vec![T::ZERO; q.len()];
        let (mut keys, mut chances) = (Vec::new(), Vec::new());
        let group = attention.heads / attention.kv_heads;
        for segment in attention.segments.iter() {
            let (first, past, padded) = (segment.tokens.start, segment.position(), padded(segment));
            clear(&mut keys, width * padded);
            clear(&mut chances, BLOCK * padded);
            for kv_head in 0..attention.kv_heads {
                let column = kv_head * width;
                attention.transpose(&k[column..], segment, padded, &mut keys);
                for head in kv_head * group..(kv_head + 1) * group {
                    for (start, count) in blocks(segment.tokens.len()) {
                        let at = (first + start) * q_width + head * width;
                        let chances = &mut chances[..count * padded];
                        let end = start + count;
                        attention.scores(&q[at..], &keys, (count, past + end, padded), chances);
                        for (index, row) in chances.chunks_exact_mut(padded).enumerate() {
                            attention.softmax(row, past + start + index);
                        }
                        let mut position = 0;
                        let own = first..first + end;
                        for range in segment.before.iter().chain([&own]) {
                            let left = View { values: &chances[position..], row_step: padded, column_step: 1 };
                            let values = Rows { values: &v[range.start * kv_width + column..], step: kv_width };
                            add_product(&mut out[at..], q_width, (count, range.len(), width), left, values);
                            position += range.len();
                        }
                    }
                }
            }
        }
        out
    }
}

kernel! {
    fn slopes(attention: &'a Attention, q: &'a [T], k: &'a [T], v: &'a [T], gradient: &'a [T]) -> Gradients<T> {
        let (q_width, kv_width, width) = (attention.query_width(), attention.kv_width(), attention.head_width);
        let scale = T::from_f64(1.0 / (width as f64).sqrt());
        let mut for_q = vec![T::ZERO; q.len()];
        let mut for_k = vec![T::ZERO; k.len()];
        let mut for_v = vec![T::ZERO; v.len()];
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        // Probabilities and gradients of scores of one head: query positions × key positions.
        let (mut chances, mut slopes) = (Vec::new(), Vec::new());
        let group = attention.heads / attention.kv_heads;
        for segment in attention.segments.iter() {
            let (first, past, padded) = (segment.tokens.start, segment.position(), padded(segment));
            let length = segment.tokens.len();
            clear(&mut keys, width * padded);
            clear(&mut values, width * padded);
            clear(&mut chances, length * padded);
            clear(&mut slopes, length * padded);
            for kv_head in 0..attention.kv_heads {
                let column = kv_head * width;
                attention.transpose(&k[column..], segment, padded, &mut keys);
                attention.transpose(&v[column..], segment, padded, &mut values);
                for head in kv_head * group..(kv_head + 1) * group {
                    let head_start = first * q_width + head * width;
                    for (start, count) in blocks(length) {
                        let at = head_start + start * q_width;
                        let block = start * padded..(start + count) * padded;
                        let size = (count, past + start + count, padded);
                        let chances = &mut chances[block.clone()];
                        attention.scores(&q[at..], &keys, size, chances);
                        let slopes = &mut slopes[block];
                        attention.scores(&gradient[at..], &values, size, slopes);
                        for (index, (chances, slopes)) in
                            chances.chunks_exact_mut(padded).zip(slopes.chunks_exact_mut(padded)).enumerate()
                        {
                            attention.softmax(chances, past + start + index);
                            let mean = dot(chances, slopes);
                            for (slope, chance) in slopes.iter_mut().zip(chances) {
                                *slope = (*slope - mean) * *chance * scale;
                            }
                        }
                        let mut position = 0;
                        let own = first..first + start + count;
                        for range in segment.before.iter().chain([&own]) {
                            let left = View { values: &slopes[position..], row_step: padded, column_step: 1 };
                            let keys = Rows { values: &k[range.start * kv_width + column..], step: kv_width };
                            add_product(&mut for_q[at..], q_width, (count, range.len(), width), left, keys);
                            position += range.len();
                        }
                    }
                    let mut position = 0;
                    for range in segment.before.iter().chain([&segment.tokens]) {
                        for (start, count) in blocks(range.len()) {
                            // Positions of the segment itself are seen from there on, earlier ones by all of it.
                            let from = if range.start == first { start } else { 0 };
                            let at = head_start + from * q_width;
                            let kv_at = (range.start + start) * kv_width + column;
                            let size = (count, length - from, width);
                            let place = from * padded + position + start;
                            let slopes = View { values: &slopes[place..], row_step: 1, column_step: padded };
                            let queries = Rows { values: &q[at..], step: q_width };
                            add_product(&mut for_k[kv_at..], kv_width, size, slopes, queries);
                            let chances = View { values: &chances[place..], row_step: 1, column_step: padded };
                            let gradients = Rows { values: &gradient[at..], step: q_width };
                            add_product(&mut for_v[kv_at..], kv_width, size, chances, gradients);
                        }
                        position += range.len();
                    }
                }
            }
        }
        (for_q, for_k, for_v)
    }
}
