use std::sync::Arc;

use candle_core::Result;

use super::Real;
use crate::ModelConfig;
use crate::learner::matrix::Matrix;
use crate::learner::pieces::Segment;
use crate::learner::tape::Operation;

/// Cosines and sines of every position and frequency.
#[derive(Debug)]
pub(in crate::learner) struct RopeTable {
    head_width: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    pub(in crate::learner) fn new(config: &ModelConfig, positions: usize) -> Self {
        let (cos, sin) = config.rotations(positions);
        Self {
            head_width: config.head_width,
            cos,
            sin,
        }
    }
}

/// Rotates each head by its position: element `i` with element `i + half` of the head.
/// Rows are tokens, in the order of the segments.
pub(in crate::learner) struct Rope {
    pub(in crate::learner) table: Arc<RopeTable>,
    pub(in crate::learner) segments: Arc<[Segment]>,
}

impl<T: Real> Operation<T, 1> for Rope {
    const KEEPS_INPUTS: bool = false;

    fn forward(&self, [x]: [&Matrix<T>; 1]) -> Result<Matrix<T>> {
        Ok(Matrix::new(
            rotate(self, x.values()?, x.width(), 1.0),
            x.width(),
        ))
    }
    fn backward(&self, _: [&Matrix<T>; 1], gradient: Matrix<T>) -> Result<[Matrix<T>; 1]> {
        let width = gradient.width();
        Ok([Matrix::new(
            rotate(self, gradient.values()?, width, -1.0),
            width,
        )])
    }
}

kernel! {
    /// `direction` is 1 to rotate and -1 to rotate back, which is also the gradient.
    fn rotate(rope: &'a Rope, x: &'a [T], width: usize, direction: f32) -> Vec<T> {
        let mut rotated = vec![T::ZERO; x.len()];
        let half = rope.table.head_width / 2;
        let positions = rope.segments.iter().flat_map(|segment| {
            let first = segment.position();
            first..first + segment.tokens.len()
        });
        let rows = x.chunks_exact(width).zip(rotated.chunks_exact_mut(width));
        for (position, (row, out)) in positions.zip(rows) {
            let cos = &rope.table.cos[position * half..][..half];
            let sin = &rope.table.sin[position * half..][..half];
            for (head, out) in row.chunks_exact(2 * half).zip(out.chunks_exact_mut(2 * half)) {
                let (a, b) = head.split_at(half);
                let (out_a, out_b) = out.split_at_mut(half);
                for i in 0..half {
                    let (cos, sin) = (T::of_single(cos[i]), T::of_single(direction * sin[i]));
                    out_a[i] = a[i] * cos - b[i] * sin;
                    out_b[i] = b[i] * cos + a[i] * sin;
                }
            }
        }
        rotated
    }
}
