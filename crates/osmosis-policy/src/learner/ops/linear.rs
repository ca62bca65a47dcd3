use candle_core::Result;

use super::Real;
use crate::learner::matrix::Form::{Plain, Transposed};
use crate::learner::matrix::Matrix;
use crate::learner::tape::Operation;

/// `x · wᵀ` for `x` of rows × in and `w` of out × in.
pub(in crate::learner) struct Linear;

impl<T: Real> Operation<T, 2> for Linear {
    fn forward(&self, [x, w]: [&Matrix<T>; 2]) -> Result<Matrix<T>> {
        x.product(Plain, w, Transposed)
    }
    fn backward(&self, [x, w]: [&Matrix<T>; 2], gradient: Matrix<T>) -> Result<[Matrix<T>; 2]> {
        Ok([
            gradient.product(Plain, w, Plain)?,
            gradient.product(Transposed, x, Plain)?,
        ])
    }
}

/// Adds one bias to every row.
pub(in crate::learner) struct AddBias;

impl<T: Real> Operation<T, 2> for AddBias {
    fn forward(&self, [x, bias]: [&Matrix<T>; 2]) -> Result<Matrix<T>> {
        let (mut sum, bias) = (x.values()?.to_vec(), bias.values()?);
        for row in sum.chunks_exact_mut(bias.len()) {
            for (value, bias) in row.iter_mut().zip(bias) {
                *value += *bias;
            }
        }
        Ok(Matrix::new(sum, x.width()))
    }
    fn backward(&self, [x, _]: [&Matrix<T>; 2], gradient: Matrix<T>) -> Result<[Matrix<T>; 2]> {
        let mut sum = vec![T::ZERO; x.width()];
        for row in gradient.values()?.chunks_exact(sum.len()) {
            for (sum, value) in sum.iter_mut().zip(row) {
                *sum += *value;
            }
        }
        Ok([gradient, Matrix::new(sum, x.width())])
    }
}

/// The sum of two matrices.
pub(in crate::learner) struct Add;

impl<T: Real> Operation<T, 2> for Add {
    const KEEPS_INPUTS: bool = false;

    fn forward(&self, [a, b]: [&Matrix<T>; 2]) -> Result<Matrix<T>> {
        let sum = a
            .values()?
            .iter()
            .zip(b.values()?)
            .map(|(a, b)| *a + *b)
            .collect();
        Ok(Matrix::new(sum, a.width()))
    }
    fn backward(&self, _: [&Matrix<T>; 2], gradient: Matrix<T>) -> Result<[Matrix<T>; 2]> {
        Ok([gradient.clone(), gradient])
    }
}
