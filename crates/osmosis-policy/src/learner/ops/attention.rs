use candle_core::Result;

use super::Real;
use super::multiply::{Rows, View, add_product};
use super::reduce::{dot, largest, sum};
use crate::learner::matrix::Matrix;
use crate::learner::tape::Operation;

/// Causal grouped-query attention over whole sequences of one length, from rotated q, k and v with a row
/// per token and heads side by side. Nothing above the diagonal is computed, and the backward pass
/// computes the probabilities again instead of keeping them.
#[derive(Debug, Clone, Copy)]
pub(in crate::learner) struct Attention {
    pub(in crate::learner) length: usize,
    pub(in crate::learner) heads: usize,
    pub(in crate::learner) kv_heads: usize,
    pub(in crate::learner) head_width: usize,
}

/// Query positions in one product.
const BLOCK: usize = 4;

/// Gradients of q, k and v.
type Gradients<T> = (Vec<T>, Vec<T>, Vec<T>);

impl Attention {
    fn query_width(self) -> usize {
        self.heads * self.head_width
    }
    fn kv_width(self) -> usize {
        self.kv_heads * self.head_width
    }
    /// Rows of scores are padded, so that most of them are whole vectors.
    fn padded(self) -> usize {
        self.length.next_multiple_of(8)
    }

    /// One head of keys or values of one sequence with positions side by side.
    #[inline(always)]
    fn transpose<T: Real>(self, rows: &[T], out: &mut [T]) {
        for position in 0..self.length {
            let row = &rows[position * self.kv_width()..][..self.head_width];
            for (index, value) in row.iter().enumerate() {
                out[index * self.padded() + position] = *value;
            }
        }
    }

    /// Turns scores of one position into probabilities over itself and the positions before.
    #[inline(always)]
    fn softmax<T: Real>(self, row: &mut [T], position: usize) {
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

    /// Blocks of positions that go through a product together: where each begins and how long it is.
    fn blocks(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.length)
            .step_by(BLOCK)
            .map(move |start| (start, BLOCK.min(self.length - start)))
    }

    /// `out = left · rightᵀ` for some positions of `left` from `start` on and all positions up to the last
    /// of them of `right`, which has positions side by side.
    #[inline(always)]
    fn scores<T: Real>(self, left: &[T], right: &[T], start: usize, count: usize, out: &mut [T]) {
        let padded = self.padded();
        out.fill(T::ZERO);
        let width = (start + count).next_multiple_of(8);
        let left = View {
            values: left,
            row_step: self.query_width(),
            column_step: 1,
        };
        let right = Rows {
            values: right,
            step: padded,
        };
        add_product(out, padded, (count, self.head_width, width), left, right);
    }
}

impl<T: Real> Operation<T, 3> for Attention {
    fn forward(&self, [q, k, v]: [&Matrix<T>; 3]) -> Result<Matrix<T>> {
        Ok(Matrix::new(
            attend(*self, q.values()?, k.values()?, v.values()?),
            q.width(),
        ))
    }
    fn backward(&self, [q, k, v]: [&Matrix<T>; 3], gradient: Matrix<T>) -> Result<[Matrix<T>; 3]> {
        let (for_q, for_k, for_v) = slopes(
            *self,
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
    fn attend(attention: Attention, q: &'a [T], k: &'a [T], v: &'a [T]) -> Vec<T> {
        let (q_width, kv_width, width) = (attention.query_width(), attention.kv_width(), attention.head_width);
        let padded = attention.padded();
        let mut out = vec![T::ZERO; q.len()];
        let mut keys = vec![T::ZERO; width * padded];
        let mut chances = vec![T::ZERO; BLOCK * padded];
        let group = attention.heads / attention.kv_heads;
        for sequence in 0..q.len() / (attention.length * q_width) {
            let first = sequence * attention.length;
            for kv_head in 0..attention.kv_heads {
                let kv_start = first * kv_width + kv_head * width;
                let values = Rows { values: &v[kv_start..], step: kv_width };
                attention.transpose(&k[kv_start..], &mut keys);
                for head in kv_head * group..(kv_head + 1) * group {
                    for (start, count) in attention.blocks() {
                        let at = (first + start) * q_width + head * width;
                        let chances = &mut chances[..count * padded];
                        attention.scores(&q[at..], &keys, start, count, chances);
                        for (index, row) in chances.chunks_exact_mut(padded).enumerate() {
                            attention.softmax(row, start + index);
                        }
                        let left = View { values: chances, row_step: padded, column_step: 1 };
                        add_product(&mut out[at..], q_width, (count, start + count, width), left, values);
                    }
                }
            }
        }
        out
    }
}

kernel! {
    fn slopes(attention: Attention, q: &'a [T], k: &'a [T], v: &'a [T], gradient: &'a [T]) -> Gradients<T> {
        let (q_width, kv_width, width) = (attention.query_width(), attention.kv_width(), attention.head_width);
        let (length, padded) = (attention.length, attention.padded());
        let scale = T::from_f64(1.0 / (width as f64).sqrt());
        let mut for_q = vec![T::ZERO; q.len()];
        let mut for_k = vec![T::ZERO; k.len()];
        let mut for_v = vec![T::ZERO; v.len()];
        let mut keys = vec![T::ZERO; width * padded];
        let mut values = vec![T::ZERO; width * padded];
        // Probabilities and gradients of scores of one head: query positions × key positions.
        let mut chances = vec![T::ZERO; length * padded];
        let mut slopes = vec![T::ZERO; length * padded];
        let group = attention.heads / attention.kv_heads;
        for sequence in 0..q.len() / (length * q_width) {
            let first = sequence * length;
            for kv_head in 0..attention.kv_heads {
                let kv_start = first * kv_width + kv_head * width;
                let key_rows = Rows { values: &k[kv_start..], step: kv_width };
                attention.transpose(&k[kv_start..], &mut keys);
                attention.transpose(&v[kv_start..], &mut values);
                for head in kv_head * group..(kv_head + 1) * group {
                    let head_start = first * q_width + head * width;
                    for (start, count) in attention.blocks() {
                        let at = head_start + start * q_width;
                        let block = start * padded..(start + count) * padded;
                        let chances = &mut chances[block.clone()];
                        attention.scores(&q[at..], &keys, start, count, chances);
                        let slopes = &mut slopes[block];
                        attention.scores(&gradient[at..], &values, start, count, slopes);
                        for (index, (chances, slopes)) in
                            chances.chunks_exact_mut(padded).zip(slopes.chunks_exact_mut(padded)).enumerate()
                        {
                            attention.softmax(chances, start + index);
                            let mean = dot(chances, slopes);
                            for (slope, chance) in slopes.iter_mut().zip(chances) {
                                *slope = (*slope - mean) * *chance * scale;
                            }
                        }
                        let left = View { values: slopes, row_step: padded, column_step: 1 };
                        let size = (count, start + count, width);
                        add_product(&mut for_q[at..], q_width, size, left, key_rows);
                    }
                    for (start, count) in attention.blocks() {
                        let at = head_start + start * q_width;
                        let kv_at = kv_start + start * kv_width;
                        let size = (count, length - start, width);
                        let column = |values| View { values, row_step: 1, column_step: padded };
                        let slopes = column(&slopes[start * padded + start..]);
                        let queries = Rows { values: &q[at..], step: q_width };
                        add_product(&mut for_k[kv_at..], kv_width, size, slopes, queries);
                        let chances = column(&chances[start * padded + start..]);
                        let gradients = Rows { values: &gradient[at..], step: q_width };
                        add_product(&mut for_v[kv_at..], kv_width, size, chances, gradients);
                    }
                }
            }
        }
        (for_q, for_k, for_v)
    }
}
