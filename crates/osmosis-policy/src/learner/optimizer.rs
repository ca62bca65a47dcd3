//! AdamW.

use std::sync::Arc;

use candle_core::Result;
use osmosis_core::learner::{NumberStorage, Numbers};

use super::LearnerOptions;
use super::matrix::Matrix;
use crate::NamedTensor;

/// One parameter and its running moments.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) value: Arc<Matrix<f32>>,
    /// The running mean of the gradient.
    pub(super) first: Arc<Vec<f32>>,
    /// The running mean of its square.
    pub(super) second: Arc<Vec<f32>>,
}

impl Parameter {
    /// Numbers of this parameter's shape. They are shared: an update copies what somebody still has.
    pub(super) fn named(&self, values: &Arc<impl NumberStorage>) -> NamedTensor {
        NamedTensor {
            shape: self.shape.clone(),
            values: Numbers::shared(Arc::clone(values)),
        }
    }
}

/// What one update does to each parameter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    lr: f32,
    decay: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    /// The moments start at 0; these undo what that does to them.
    first_correction: f32,
    second_correction: f32,
    /// Scales the gradient down to the largest norm allowed.
    gradient_scale: f32,
}

#[expect(clippy::cast_possible_truncation, reason = "the moments are in f32")]
fn single(value: f64) -> f32 {
    value as f32
}

impl Step {
    /// The `number`th update, beginning with 1, for a gradient of this norm.
    pub(super) fn new(options: &LearnerOptions, number: u64, gradient_norm: f64) -> Self {
        let number = number as f64;
        let scale = if gradient_norm > options.max_gradient_norm {
            options.max_gradient_norm / gradient_norm
        } else {
            1.0
        };
        Self {
            lr: single(options.lr),
            decay: single(options.lr * options.weight_decay),
            beta1: single(options.beta1),
            beta2: single(options.beta2),
            epsilon: single(options.epsilon),
            first_correction: single(1.0 / (1.0 - options.beta1.powf(number))),
            second_correction: single(1.0 / (1.0 - options.beta2.powf(number))),
            gradient_scale: single(scale),
        }
    }

    pub(super) fn apply(&self, parameter: &mut Parameter, gradient: &[f32]) -> Result<()> {
        let decay = if decays(&parameter.name) {
            self.decay
        } else {
            0.0
        };
        let values = Arc::make_mut(&mut parameter.value).values_mut()?;
        for (((value, first), second), gradient) in values
            .iter_mut()
            .zip(Arc::make_mut(&mut parameter.first))
            .zip(Arc::make_mut(&mut parameter.second))
            .zip(gradient)
        {
            let gradient = gradient * self.gradient_scale;
            *first = self.beta1 * *first + (1.0 - self.beta1) * gradient;
            *second = self.beta2 * *second + (1.0 - self.beta2) * gradient * gradient;
            let direction = (*first * self.first_correction)
                / ((*second * self.second_correction).sqrt() + self.epsilon);
            *value -= decay * *value + self.lr * direction;
        }
        Ok(())
    }
}

/// Weight decay pulls the matrices of the layers to 0. Norms and biases are scales that should not
/// shrink, and an embedding row only gets a gradient when its token occurs: rare tokens would fade.
fn decays(name: &str) -> bool {
    name.ends_with("_proj.weight")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: LearnerOptions = LearnerOptions {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-6,
        weight_decay: 0.5,
        max_gradient_norm: 1.0,
        threads: 1,
        tokens_per_piece: 1,
    };

    fn parameter(name: &str) -> Parameter {
        Parameter {
            name: name.to_owned(),
            shape: vec![2],
            value: Arc::new(Matrix::new(vec![1.0, -2.0], 2)),
            first: Arc::new(vec![0.0; 2]),
            second: Arc::new(vec![0.0; 2]),
        }
    }

    /// The same in f64, as the paper says it.
    fn expected(gradients: &[[f64; 2]], decay: f64) -> [f64; 2] {
        let (mut value, mut first, mut second) = ([1.0, -2.0_f64], [0.0; 2], [0.0; 2]);
        for (number, gradient) in (1..).zip(gradients) {
            for i in 0..2 {
                first[i] = 0.9 * first[i] + 0.1 * gradient[i];
                second[i] = 0.99 * second[i] + 0.01 * gradient[i] * gradient[i];
                let mean = first[i] / (1.0 - 0.9_f64.powi(number));
                let square: f64 = second[i] / (1.0 - 0.99_f64.powi(number));
                value[i] -= 0.1 * decay * value[i];
                value[i] -= 0.1 * mean / (square.sqrt() + 1e-6);
            }
        }
        value
    }

    #[track_caller]
    fn check(name: &str, decay: f64) {
        let mut parameter = parameter(name);
        Step::new(&OPTIONS, 1, 0.5)
            .apply(&mut parameter, &[0.3, 0.4])
            .unwrap();
        // A norm of 5 is scaled down to 1.
        Step::new(&OPTIONS, 2, 5.0)
            .apply(&mut parameter, &[-3.0, 4.0])
            .unwrap();
        let expected = expected(&[[0.3, 0.4], [-0.6, 0.8]], decay);
        for (found, expected) in parameter.value.values().unwrap().iter().zip(expected) {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-6,
                "{found}, not {expected}"
            );
        }
    }

    #[test]
    fn two_steps_are_those_of_adamw() {
        check("model.layers.0.mlp.up_proj.weight", 0.5);
    }

    #[test]
    fn norms_biases_and_embeddings_do_not_decay() {
        check("model.layers.0.input_layernorm.weight", 0.0);
        check("model.layers.0.self_attn.q_proj.bias", 0.0);
        check("model.embed_tokens.weight", 0.0);
        check("lm_head.weight", 0.0);
    }
}
