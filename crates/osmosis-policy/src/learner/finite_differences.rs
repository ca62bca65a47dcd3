//! Every gradient against differences of the loss, in f64.

use std::collections::BTreeMap;
use std::sync::Arc;

use osmosis_core::config::{Lora, LoraBase, LoraModule};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::gradient::Batch;
use super::matrix::Matrix;
use super::objective::Tally;
use super::ops::RopeTable;
use super::pieces::Piece;
use super::{LossFunction, LossRow, pieces};
use crate::decoder::PackedBase;
use crate::lora::{self, BaseOrigin, FrozenModel};
use crate::{
    Architecture, KlEstimator, ModelConfig, NamedTensor, PolicyError, PolicyGradient, RopeScaling,
    Surrogate, Weights,
};

const POLICY_GRADIENT: LossFunction = LossFunction::clipped(0.2, 0.3, 0.1);

const DECOUPLED: LossFunction = LossFunction::decoupled(0.2, 0.3, 0.1, 1.2);

fn config(
    architecture: Architecture,
    tied_embeddings: bool,
    rope_scaling: RopeScaling,
) -> ModelConfig {
    ModelConfig {
        architecture,
        vocabulary: 13,
        width: 12,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_width: 6,
        mlp_width: 10,
        context: 64,
        norm_epsilon: 1e-5,
        rope_theta: 100.0,
        rope_scaling,
        tied_embeddings,
        source: serde_json::Value::Null,
    }
}

fn parameters(config: &ModelConfig, random: &mut ChaCha8Rng) -> BTreeMap<String, Arc<Matrix<f64>>> {
    config
        .tensors()
        .into_iter()
        .map(|(name, shape)| {
            let centre = if name.ends_with("norm.weight") {
                1.0
            } else {
                0.0
            };
            let count = shape.iter().product::<usize>();
            let values = (0..count)
                .map(|_| centre + random.random_range(-0.5..0.5))
                .collect::<Vec<f64>>();
            (name, Arc::new(Matrix::new(values, shape[shape.len() - 1])))
        })
        .collect()
}

/// The first, the third and the last begin alike, and the last two of these go on together.
fn rows(config: &ModelConfig, random: &mut ChaCha8Rng) -> Vec<LossRow> {
    let mut rows = unrelated_rows(config, random);
    let [first, _, third, _, last] = &mut rows[..] else {
        panic!("five rows");
    };
    third.ids[..4].copy_from_slice(&first.ids[..4]);
    last.ids[..6].copy_from_slice(&third.ids[..6]);
    rows
}

fn unrelated_rows(config: &ModelConfig, random: &mut ChaCha8Rng) -> Vec<LossRow> {
    let vocabulary = u32::try_from(config.vocabulary).unwrap();
    [9, 5, 11, 2, 11]
        .into_iter()
        .map(|length| {
            let mut numbers = |low: f32, high: f32| {
                (0..length)
                    .map(|_| random.random_range(low..high))
                    .collect::<Vec<f32>>()
            };
            let weights = numbers(-1.0, 1.0)
                .into_iter()
                .map(|w| w.max(0.0))
                .collect::<Vec<_>>();
            let weights = weights
                .into_iter()
                .enumerate()
                .map(|(i, w)| if i == 0 { 0.0 } else { w });
            let (advantages, sampled) = (numbers(-2.0, 2.0), numbers(-3.0, -2.0));
            let reference = numbers(-3.0, -2.0);
            LossRow {
                weights: weights.collect(),
                advantages,
                sampled_logprobs: sampled,
                proximal_logprobs: Some(reference.iter().rev().copied().collect()),
                reference_logprobs: Some(reference),
                temperatures: numbers(0.5, 1.5),
                ids: (0..length)
                    .map(|_| random.random_range(0..vocabulary))
                    .collect(),
                constrained: vec![],
            }
        })
        .collect()
}

struct Case {
    config: ModelConfig,
    frozen: Option<FrozenModel>,
    parameters: BTreeMap<String, Arc<Matrix<f64>>>,
    rows: Vec<LossRow>,
    objective: LossFunction,
}

impl Case {
    fn new(config: ModelConfig, objective: LossFunction) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(11);
        let parameters = parameters(&config, &mut random);
        let rows = rows(&config, &mut random);
        Self {
            config,
            frozen: None,
            parameters,
            rows,
            objective,
        }
    }

    /// Adapters of frozen weights, all of them away from 0.
    fn adapted(config: ModelConfig, lora: Lora, objective: LossFunction) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(12);
        let whole = Self::new(config, objective);
        let tensor = |name: &str, shape: Vec<usize>| {
            let values = whole.parameters[name].values().unwrap().iter();
            #[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
            let values = values.map(|value| *value as f32).collect();
            NamedTensor { shape, values }
        };
        let tensors = whole.config.tensors().into_iter();
        let weights = Weights {
            tensors: tensors
                .map(|(name, shape)| (name.clone(), tensor(&name, shape)))
                .collect(),
        };
        let base = PackedBase::pack_alone(&whole.config, weights.clone(), lora.base).unwrap();
        let adapters = lora::tensors(&whole.config, &lora).into_iter();
        let parameters = adapters
            .map(|(name, shape)| {
                let count = shape.iter().product::<usize>();
                let values = (0..count).map(|_| random.random_range(-0.5..0.5));
                let matrix = Matrix::new(values.collect::<Vec<f64>>(), shape[1]);
                (name, Arc::new(matrix))
            })
            .collect();
        Self {
            parameters,
            frozen: Some(FrozenModel {
                base: Arc::new(base),
                lora: Arc::new(lora),
                origin: Arc::new(BaseOrigin {
                    folder: "base".into(),
                    sha256: String::new(),
                }),
            }),
            ..whole
        }
    }

    fn batch(&self) -> Batch<'_, f64> {
        Batch {
            config: &self.config,
            parameters: self
                .parameters
                .iter()
                .map(|(name, data)| (name.as_str(), data))
                .collect(),
            frozen: self.frozen.as_ref(),
            rope: Arc::new(RopeTable::new(&self.config, 16)),
            rows: &self.rows,
            grammars: None,
        }
    }

    fn pieces(&self) -> Vec<Piece> {
        // Few pieces, so that rows which begin alike are in one.
        pieces::cut_at_least(2, &self.rows, 24, |row, token| row.weights[token] != 0.0)
    }

    /// The loss, and its gradient by each parameter.
    fn loss(&self) -> (f64, Vec<Matrix<f64>>) {
        self.loss_of(&self.pieces())
    }

    fn loss_of(&self, pieces: &[Piece]) -> (f64, Vec<Matrix<f64>>) {
        let batch = self.batch();
        let mut tally = Tally::default();
        let mut sums: Vec<Matrix<f64>> = Vec::new();
        for piece in pieces {
            let loss = batch.loss(piece, self.objective).unwrap();
            tally.merge(&loss.tally);
            if sums.is_empty() {
                sums = loss.gradients;
            } else {
                sums.iter_mut()
                    .zip(&loss.gradients)
                    .for_each(|(a, b)| a.add(b).unwrap());
            }
        }
        (tally.loss, sums)
    }

    /// The loss with one parameter moved.
    fn loss_at(&mut self, name: &str, direction: &[f64], distance: f64) -> f64 {
        let start = Arc::clone(&self.parameters[name]);
        let moved = start
            .values()
            .unwrap()
            .iter()
            .zip(direction)
            .map(|(v, d)| v + d * distance)
            .collect();
        let moved = Arc::new(Matrix::new(moved, start.width()));
        self.parameters.insert(name.to_owned(), moved);
        let (loss, _) = self.loss();
        self.parameters.insert(name.to_owned(), start);
        loss
    }

    /// The largest relative error over all parameters, with its name.
    fn worst_error(&mut self) -> (f64, String) {
        let (_, gradients) = self.loss();
        self.worst_error_of(&gradients)
    }

    fn worst_error_of(&mut self, gradients: &[Matrix<f64>]) -> (f64, String) {
        const STEP: f64 = 1e-5;
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let mut worst = (0.0, String::new());
        let names = self.parameters.keys().cloned().collect::<Vec<_>>();
        for (name, gradient) in names.into_iter().zip(gradients) {
            let gradient = gradient.values().unwrap();
            let direction = gradient
                .iter()
                .map(|_| random.random_range(-1.0..1.0))
                .collect::<Vec<f64>>();
            let slope: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
            let rise =
                self.loss_at(&name, &direction, STEP) - self.loss_at(&name, &direction, -STEP);
            let difference = rise / (2.0 * STEP);
            // A gradient of 0 everywhere would pass any check.
            assert!(difference.abs() > 1e-6, "`{name}` does not change the loss");
            let error = (slope - difference).abs() / difference.abs();
            if error > worst.0 {
                worst = (error, name);
            }
        }
        worst
    }
}

fn check(config: ModelConfig, objective: LossFunction) {
    let (error, name) = Case::new(config, objective).worst_error();
    assert!(error < 1e-6, "`{name}` is off by {error:e}");
}

#[test]
fn gradients_of_llama_match_differences() {
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low: 1.0,
        high: 4.0,
        original_context: 32.0,
    };
    check(
        config(Architecture::Llama, true, RopeScaling::None),
        POLICY_GRADIENT,
    );
    check(
        config(Architecture::Llama, false, llama3),
        LossFunction::Likelihood,
    );
}

#[test]
fn rows_that_begin_alike_have_the_gradient_that_they_have_alone() {
    let model = config(Architecture::Qwen3, true, RopeScaling::None);
    let case = Case::new(model, POLICY_GRADIENT);
    let wants = |row: &LossRow, token: usize| row.weights[token] != 0.0;
    let together = case.pieces();
    let alone = pieces::cut(&case.rows, 1, wants);
    let tokens = |pieces: &[Piece]| pieces.iter().map(|piece| piece.ids.len()).sum::<usize>();
    assert!(alone.iter().all(|piece| piece.segments.len() == 1));
    assert!(
        tokens(&together) < tokens(&alone),
        "what is shared is there once"
    );
    let ((loss, gradients), (loss_alone, gradients_alone)) =
        (case.loss_of(&together), case.loss_of(&alone));
    assert!((loss - loss_alone).abs() < 1e-12 * loss.abs());
    for (together, alone) in gradients.iter().zip(&gradients_alone) {
        let (together, alone) = (together.values().unwrap(), alone.values().unwrap());
        let largest = alone
            .iter()
            .fold(0.0, |most: f64, value| most.max(value.abs()));
        for (a, b) in together.iter().zip(alone) {
            assert!((a - b).abs() < 1e-12 * largest, "{a} together, {b} alone");
        }
    }
}

#[test]
fn gradients_of_qwen2_match_differences() {
    check(
        config(
            Architecture::Qwen2,
            true,
            RopeScaling::Linear { factor: 2.0 },
        ),
        POLICY_GRADIENT,
    );
    check(
        config(Architecture::Qwen2, false, RopeScaling::None),
        LossFunction::Likelihood,
    );
}

#[test]
fn gradients_of_qwen3_match_differences() {
    check(
        config(Architecture::Qwen3, true, RopeScaling::None),
        POLICY_GRADIENT,
    );
    check(
        config(Architecture::Qwen3, false, RopeScaling::None),
        LossFunction::Likelihood,
    );
}

#[test]
fn gradients_of_the_decoupled_objective_match_differences() {
    let model = config(Architecture::Qwen3, true, RopeScaling::None);
    let case = Case::new(model.clone(), DECOUPLED);
    let pieces = case.pieces().into_iter();
    let mut tally = Tally::default();
    pieces.for_each(|piece| tally.merge(&case.batch().loss(&piece, DECOUPLED).unwrap().tally));
    let capped = tally.report(0.0).capped_fraction.unwrap();
    assert!(capped > 0.1 && capped < 0.7, "{capped}");
    check(model, DECOUPLED);
}

fn policy_gradient(surrogate: Surrogate) -> PolicyGradient {
    PolicyGradient {
        surrogate,
        clip_low: 0.2,
        clip_high: 0.3,
        kl_coef: 0.1,
        ..PolicyGradient::CLIPPED
    }
}

/// The share of tokens that the clip holds.
fn clip_fraction(model: &ModelConfig, objective: LossFunction) -> f64 {
    let case = Case::new(model.clone(), objective);
    let mut tally = Tally::default();
    for piece in case.pieces() {
        tally.merge(&case.batch().loss(&piece, objective).unwrap().tally);
    }
    tally.report(0.0).clip_fraction
}

#[test]
fn gradients_of_sequence_ratios_match_differences() {
    let model = config(Architecture::Qwen3, true, RopeScaling::None);
    let objective = LossFunction::PolicyGradient(policy_gradient(Surrogate::Sequence));
    let clipped = clip_fraction(&model, objective);
    assert!(clipped > 0.1 && clipped < 0.9, "{clipped}");
    check(model, objective);
}

#[test]
fn gradients_of_dual_clip_and_of_the_k2_estimate_match_differences() {
    let model = config(Architecture::Llama, true, RopeScaling::None);
    let single =
        LossFunction::PolicyGradient(policy_gradient(Surrogate::Clipped { dual_clip: None }));
    let dual = LossFunction::PolicyGradient(PolicyGradient {
        kl_estimator: KlEstimator::K2,
        ..policy_gradient(Surrogate::Clipped {
            dual_clip: Some(1.2),
        })
    });
    assert!(clip_fraction(&model, dual) > clip_fraction(&model, single));
    check(model, dual);
}

#[test]
fn gradients_of_the_entropy_bonus_match_differences() {
    for (architecture, surrogate) in [
        (Architecture::Llama, Surrogate::Clipped { dual_clip: None }),
        (Architecture::Qwen2, Surrogate::Sequence),
    ] {
        let model = config(architecture, false, RopeScaling::None);
        let with_bonus = |entropy_coef| {
            LossFunction::PolicyGradient(PolicyGradient {
                entropy_coef,
                ..policy_gradient(surrogate)
            })
        };
        let loss = |coefficient| Case::new(model.clone(), with_bonus(coefficient)).loss().0;
        assert!(
            loss(0.0) - loss(0.7) > 0.1,
            "the bonus is no part of the loss"
        );
        check(model.clone(), with_bonus(0.7));
    }
}

/// No loss has the gradient of a clipped weight that is held constant. With the weights as they are at one
/// place written into the rows, the likelihood has it there.
#[test]
fn gradients_of_constant_weights_match_differences_with_the_weights_held() {
    let model = config(Architecture::Qwen3, true, RopeScaling::None);
    let gradient = PolicyGradient {
        clip_low: 1.0,
        kl_coef: 0.0,
        ..policy_gradient(Surrogate::ConstantWeight)
    };
    let objective = LossFunction::PolicyGradient(gradient);
    let clipped = clip_fraction(&model, objective);
    assert!(clipped > 0.1 && clipped < 0.9, "{clipped}");
    let case = Case::new(model.clone(), objective);
    let (_, gradients) = case.loss();
    let mut held = Case::new(model, LossFunction::Likelihood);
    for piece in case.pieces() {
        let logprobs = case.batch().logprobs(&piece).unwrap();
        for (at, logprob) in piece.wanted.iter().zip(logprobs) {
            let row = &mut held.rows[at.row];
            let ratio = (logprob - f64::from(row.sampled_logprobs[at.token])).exp();
            let constant = ratio.min(1.3) * f64::from(row.advantages[at.token]);
            #[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
            let weight = (f64::from(row.weights[at.token]) * constant) as f32;
            row.weights[at.token] = weight;
        }
    }
    let (error, name) = held.worst_error_of(&gradients);
    assert!(error < 1e-5, "`{name}` is off by {error:e}");
}

#[test]
fn gradients_of_adapters_match_differences() {
    let some = vec![LoraModule::KProj, LoraModule::OProj, LoraModule::UpProj];
    for (architecture, tied, base, target_modules) in [
        (
            Architecture::Llama,
            true,
            LoraBase::F32,
            LoraModule::ALL.to_vec(),
        ),
        (
            Architecture::Qwen2,
            false,
            LoraBase::Bf16,
            LoraModule::ALL.to_vec(),
        ),
        (Architecture::Qwen3, true, LoraBase::Q8, some),
    ] {
        let lora = Lora {
            rank: 3,
            alpha: 4.5,
            target_modules,
            base,
            dropout: 0.0,
        };
        let model = config(architecture, tied, RopeScaling::None);
        let (error, name) = Case::adapted(model, lora, POLICY_GRADIENT).worst_error();
        assert!(error < 1e-6, "`{name}` is off by {error:e}");
    }
}

#[test]
fn a_parameter_that_the_gradient_does_not_reach_is_named() {
    let mut case = Case::new(
        config(Architecture::Llama, true, RopeScaling::None),
        POLICY_GRADIENT,
    );
    case.parameters.insert(
        "model.lost.weight".to_owned(),
        Arc::new(Matrix::new(vec![1.0], 1)),
    );
    let result = case.batch().loss(&case.pieces()[0], POLICY_GRADIENT);
    let Err(PolicyError::MissingGradient { parameter }) = result else {
        panic!("the update goes on without a gradient");
    };
    assert_eq!(parameter, "model.lost.weight");
}
