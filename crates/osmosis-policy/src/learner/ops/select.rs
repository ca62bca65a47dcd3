use candle_core::Result;

use super::Real;
use crate::learner::matrix::Matrix;
use crate::learner::tape::Operation;

/// The rows with these numbers, in this order.
pub(in crate::learner) struct Select(pub(in crate::learner) Vec<u32>);

impl<T: Real> Operation<T, 1> for Select {
    fn forward(&self, [table]: [&Matrix<T>; 1]) -> Result<Matrix<T>> {
        let (width, values) = (table.width(), table.values()?);
        let mut chosen = Vec::with_capacity(self.0.len() * width);
        for row in &self.0 {
            chosen.extend_from_slice(&values[*row as usize * width..][..width]);
        }
        Ok(Matrix::new(chosen, width))
    }
    fn backward(&self, [table]: [&Matrix<T>; 1], gradient: Matrix<T>) -> Result<[Matrix<T>; 1]> {
        let width = table.width();
        let mut sums = vec![T::ZERO; table.rows() * width];
        for (row, gradient) in self.0.iter().zip(gradient.values()?.chunks_exact(width)) {
            let sums = &mut sums[*row as usize * width..][..width];
            for (sum, value) in sums.iter_mut().zip(gradient) {
                *sum += *value;
            }
        }
        Ok([Matrix::new(sums, width)])
    }
}
