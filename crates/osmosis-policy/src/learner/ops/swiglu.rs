use candle_core::Result;

use super::Real;
use crate::learner::matrix::Matrix;
use crate::learner::tape::Operation;

/// `silu(gate) · up`.
pub(in crate::learner) struct SwiGlu;

impl<T: Real> Operation<T, 2> for SwiGlu {
    fn forward(&self, [gate, up]: [&Matrix<T>; 2]) -> Result<Matrix<T>> {
        Ok(Matrix::new(
            gated(gate.values()?, up.values()?),
            gate.width(),
        ))
    }
    fn backward(&self, [gate, up]: [&Matrix<T>; 2], gradient: Matrix<T>) -> Result<[Matrix<T>; 2]> {
        let (for_gate, for_up) = slopes(gate.values()?, up.values()?, gradient.values()?);
        Ok([
            Matrix::new(for_gate, gate.width()),
            Matrix::new(for_up, up.width()),
        ])
    }
}

kernel! {
    fn gated(gate: &'a [T], up: &'a [T]) -> Vec<T> {
        let mut product = vec![T::ZERO; gate.len()];
        for ((out, gate), up) in product.iter_mut().zip(gate).zip(up) {
            *out = *gate * sigmoid(*gate) * *up;
        }
        product
    }
}

kernel! {
    fn slopes(gate: &'a [T], up: &'a [T], gradient: &'a [T]) -> (Vec<T>, Vec<T>) {
        let mut for_gate = vec![T::ZERO; gate.len()];
        let mut for_up = vec![T::ZERO; gate.len()];
        for ((((for_gate, for_up), gate), up), gradient) in
            for_gate.iter_mut().zip(for_up.iter_mut()).zip(gate).zip(up).zip(gradient)
        {
            let sigmoid = sigmoid(*gate);
            let silu = *gate * sigmoid;
            *for_up = *gradient * silu;
            *for_gate = *gradient * *up * (sigmoid + silu * (T::ONE - sigmoid));
        }
        (for_gate, for_up)
    }
}

#[inline(always)]
fn sigmoid<T: Real>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exponential())
}
