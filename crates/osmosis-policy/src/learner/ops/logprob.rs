use candle_core::Result;

use super::Real;
use super::reduce::{dot, largest, sum};
use crate::learner::matrix::Matrix;
use crate::learner::tape::Operation;

/// For each row of logits: the logprob of its target, and the entropy, of `softmax(logits / temperature)`.
/// The result has two rows: logprobs, then entropies. Both have gradients.
pub(in crate::learner) struct TokenLogprob {
    pub(in crate::learner) targets: Vec<u32>,
    pub(in crate::learner) temperatures: Vec<f32>,
    /// The places of rows that were sampled under a grammar, ascending, each with the ids that were allowed there,
    /// which the target is one of: the softmax is over these alone, and other logits have no gradient.
    pub(in crate::learner) allowed: Vec<(usize, Vec<u32>)>,
}

impl TokenLogprob {
    /// The allowed ids of a row, where not all are.
    #[inline(always)]
    fn allowed(&self, row: usize) -> Option<&[u32]> {
        let place = self.allowed.binary_search_by_key(&row, |(row, _)| *row);
        place.ok().map(|place| self.allowed[place].1.as_slice())
    }
}

/// The distribution of one row.
struct Softmax<T> {
    probabilities: Vec<T>,
    /// `logits / temperature - log_norm` are logprobs.
    log_norm: T,
    entropy: T,
}

impl<T: Real> Softmax<T> {
    fn new(width: usize) -> Self {
        Self {
            probabilities: vec![T::ZERO; width],
            log_norm: T::ZERO,
            entropy: T::ZERO,
        }
    }

    #[inline(always)]
    fn fill(&mut self, logits: &[T], cold: T) {
        self.probabilities.resize(logits.len(), T::ZERO);
        let peak = largest(logits) * cold;
        for (out, logit) in self.probabilities.iter_mut().zip(logits) {
            *out = (*logit * cold - peak).exponential();
        }
        let sum = sum(&self.probabilities);
        // The mean of `logit / temperature`.
        let mean = dot(&self.probabilities, logits) * cold / sum;
        let inverse = T::ONE / sum;
        for probability in &mut self.probabilities {
            *probability *= inverse;
        }
        self.log_norm = peak + sum.logarithm();
        self.entropy = self.log_norm - mean;
    }
}

impl<T: Real> Operation<T, 1> for TokenLogprob {
    fn forward(&self, [logits]: [&Matrix<T>; 1]) -> Result<Matrix<T>> {
        Ok(Matrix::new(
            scores(self, logits.values()?, logits.width()),
            logits.rows(),
        ))
    }
    fn backward(&self, [logits]: [&Matrix<T>; 1], gradient: Matrix<T>) -> Result<[Matrix<T>; 1]> {
        let back = slopes(self, logits.values()?, logits.width(), gradient.values()?);
        Ok([Matrix::new(back, logits.width())])
    }
}

kernel! {
    fn scores(tokens: &'a TokenLogprob, logits: &'a [T], width: usize) -> Vec<T> {
        let rows = tokens.targets.len();
        let mut out = vec![T::ZERO; 2 * rows];
        let mut softmax = Softmax::new(width);
        let mut chosen = Vec::new();
        for (index, row) in logits.chunks_exact(width).enumerate() {
            let cold = T::ONE / T::of_single(tokens.temperatures[index]);
            match tokens.allowed(index) {
                None => softmax.fill(row, cold),
                Some(allowed) => {
                    chosen.clear();
                    chosen.extend(allowed.iter().map(|id| row[*id as usize]));
                    softmax.fill(&chosen, cold);
                }
            }
            out[index] = row[tokens.targets[index] as usize] * cold - softmax.log_norm;
            out[rows + index] = softmax.entropy;
        }
        out
    }
}

kernel! {
    fn slopes(tokens: &'a TokenLogprob, logits: &'a [T], width: usize, gradient: &'a [T]) -> Vec<T> {
        let rows = tokens.targets.len();
        let mut out = vec![T::ZERO; logits.len()];
        let mut softmax = Softmax::new(width);
        let mut chosen = Vec::new();
        for (index, (row, out)) in logits.chunks_exact(width).zip(out.chunks_exact_mut(width)).enumerate() {
            let cold = T::ONE / T::of_single(tokens.temperatures[index]);
            let (by_logprob, by_entropy) = (gradient[index] * cold, gradient[rows + index] * cold);
            if let Some(allowed) = tokens.allowed(index) {
                chosen.clear();
                chosen.extend(allowed.iter().map(|id| row[*id as usize]));
                softmax.fill(&chosen, cold);
                let base = softmax.entropy - softmax.log_norm;
                for ((id, p), logit) in allowed.iter().zip(&softmax.probabilities).zip(&chosen) {
                    let slope = by_logprob + by_entropy * (*logit * cold + base);
                    out[*id as usize] = -(slope * *p);
                }
                out[tokens.targets[index] as usize] += by_logprob;
                continue;
            }
            softmax.fill(row, cold);
            for (out, p) in out.iter_mut().zip(&softmax.probabilities) {
                *out = -(by_logprob * *p);
            }
            out[tokens.targets[index] as usize] += by_logprob;
            if by_entropy != T::ZERO {
                let base = softmax.entropy - softmax.log_norm;
                for ((out, p), logit) in out.iter_mut().zip(&softmax.probabilities).zip(row) {
                    *out -= by_entropy * *p * (*logit * cold + base);
                }
            }
        }
        out
    }
}
