use candle_core::Result;

use super::Real;
use super::reduce::dot;
use crate::learner::matrix::Matrix;
use crate::learner::tape::Operation;

/// Root-mean-square norm of rows as wide as the weight: `x / sqrt(mean(x²) + ε) · w`. A tensor whose rows
/// are several times as wide is taken as that many rows (norm per head).
pub(in crate::learner) struct RmsNorm {
    pub(in crate::learner) epsilon: f64,
}

impl<T: Real> Operation<T, 2> for RmsNorm {
    fn forward(&self, [x, w]: [&Matrix<T>; 2]) -> Result<Matrix<T>> {
        Ok(Matrix::new(
            normed(x.values()?, w.values()?, self.epsilon),
            x.width(),
        ))
    }
    fn backward(&self, [x, w]: [&Matrix<T>; 2], gradient: Matrix<T>) -> Result<[Matrix<T>; 2]> {
        let (for_x, for_w) = slopes(x.values()?, w.values()?, gradient.values()?, self.epsilon);
        Ok([Matrix::new(for_x, x.width()), Matrix::new(for_w, w.width())])
    }
}

kernel! {
    fn normed(x: &'a [T], w: &'a [T], epsilon: f64) -> Vec<T> {
        let mut normed = vec![T::ZERO; x.len()];
        for (row, out) in x.chunks_exact(w.len()).zip(normed.chunks_exact_mut(w.len())) {
            let scale = inverse_rms(row, epsilon);
            for ((out, x), w) in out.iter_mut().zip(row).zip(w) {
                *out = *x * scale * *w;
            }
        }
        normed
    }
}

kernel! {
    fn slopes(x: &'a [T], w: &'a [T], gradient: &'a [T], epsilon: f64) -> (Vec<T>, Vec<T>) {
        let width = w.len();
        let mut for_x = vec![T::ZERO; x.len()];
        let mut for_w = vec![T::ZERO; width];
        let share = T::from_f64(1.0 / width as f64);
        for ((x, gradient), out) in x
            .chunks_exact(width)
            .zip(gradient.chunks_exact(width))
            .zip(for_x.chunks_exact_mut(width))
        {
            let scale = inverse_rms(x, epsilon);
            // How much of the gradient only changes the length of the row.
            for ((out, w), gradient) in out.iter_mut().zip(w).zip(gradient) {
                *out = *gradient * *w;
            }
            let along = dot(out, x) * share * scale * scale;
            for (((out, x), gradient), for_w) in
                out.iter_mut().zip(x).zip(gradient).zip(for_w.iter_mut())
            {
                *out = (*out - *x * along) * scale;
                *for_w += *gradient * *x * scale;
            }
        }
        (for_x, for_w)
    }
}

#[inline(always)]
fn inverse_rms<T: Real>(row: &[T], epsilon: f64) -> T {
    let mean = dot(row, row) * T::from_f64(1.0 / row.len() as f64);
    T::ONE / (mean + T::from_f64(epsilon)).root()
}
