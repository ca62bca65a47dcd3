//! Gradients: the same decoder on candle operations, its objective and its optimizer.

mod check;
#[cfg(test)]
mod finite_differences;
mod gradient;
mod graph;
mod lanes;
mod matrix;
mod objective;
mod ops;
mod optimizer;
mod pieces;
mod tape;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use self::gradient::Batch;
use self::lanes::Lanes;
use self::matrix::Matrix;
use self::objective::Tally;
use self::ops::RopeTable;
use self::optimizer::{Parameter, Step};
use self::pieces::Piece;
use crate::{ModelConfig, NamedTensor, PolicyError, Weights};

/// Settings of the optimizer (AdamW).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearnerOptions {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub weight_decay: f64,
    /// The gradient is scaled down to this norm.
    pub max_gradient_norm: f64,
    /// Threads to use; 0 means all cores. The result does not depend on it.
    pub threads: usize,
    /// Most tokens (padding included) in one piece of a batch: bounds memory. The result depends on it
    /// only by rounding.
    pub tokens_per_piece: usize,
}

/// A sequence to learn from. All vectors have the length of `ids`; entry 0 is never trained on.
#[derive(Debug, Clone, PartialEq)]
pub struct LossRow {
    pub ids: Vec<u32>,
    /// What the token counts in the objective: 0 for tokens that were not sampled.
    pub weights: Vec<f32>,
    /// The advantage of the token.
    pub advantages: Vec<f32>,
    /// The logprob it was sampled with.
    pub sampled_logprobs: Vec<f32>,
    /// The logprob it had before the first update with the batch, for the decoupled objective.
    pub proximal_logprobs: Option<Vec<f32>>,
    /// The logprob the reference model gives it, when `kl_coef` is not 0.
    pub reference_logprobs: Option<Vec<f32>>,
    pub temperatures: Vec<f32>,
}

/// What is minimised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Objective {
    /// -Σ w·min(r·A, clip(r, 1-low, 1+high)·A) + kl_coef·Σ w·k3, with r = exp(logprob - sampled_logprob).
    ClippedPolicyGradient {
        clip_low: f64,
        clip_high: f64,
        kl_coef: f64,
    },
    /// -Σ w·b·min(u·A, clip(u, 1-low, 1+high)·A) + kl_coef·Σ w·k3, with b = exp(proximal_logprob -
    /// sampled_logprob) and u = exp(logprob - proximal_logprob): what is held near is the policy that the
    /// batch finds, however old the one is that sampled. Tokens with b above the cap are left out of the
    /// sums altogether, and the others count no more for it, as AReaL does it.
    DecoupledPolicyGradient {
        clip_low: f64,
        clip_high: f64,
        kl_coef: f64,
        /// More than 1.
        behaviour_weight_cap: f64,
    },
    /// -Σ w·logprob: plain supervised learning (the warm start).
    Likelihood,
}

/// What an update did. Means are weighted by `weights`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct UpdateReport {
    pub loss: f64,
    pub entropy: f64,
    pub clip_fraction: f64,
    /// k3 estimate against the policy that sampled.
    pub kl_to_sampled: f64,
    /// k3 estimate against the reference; 0 without one.
    pub kl_to_reference: f64,
    /// Mean and largest |logprob now - logprob when sampled|: on the first update of a step this is the
    /// mismatch between sampler and learner.
    pub mismatch_mean: f64,
    pub mismatch_max: f64,
    /// The mean of b over the tokens that it does not leave out; `None` unless the objective is decoupled,
    /// or when it leaves out all.
    pub behaviour_weight: Option<f64>,
    /// The part of the tokens that the cap on b leaves out; `None` unless the objective is decoupled.
    pub capped_fraction: Option<f64>,
    pub gradient_norm: f64,
    pub tokens: u64,
}

/// The model being trained, with its optimizer.
#[derive(Debug)]
pub struct Learner {
    config: ModelConfig,
    options: LearnerOptions,
    parameters: Vec<Parameter>,
    updates: u64,
    lanes: Lanes,
}

/// What a batch says before a step is taken.
struct BatchGradients {
    /// Of the weighted tokens; entries of others are 0.
    logprobs: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
    tally: Tally,
}

impl Learner {
    pub fn new(
        config: &ModelConfig,
        weights: &Weights,
        options: LearnerOptions,
    ) -> Result<Self, PolicyError> {
        check::options(&options)?;
        let weights = Weights::checked(config, weights.tensors.clone())?;
        let parameters = weights
            .tensors
            .into_iter()
            .map(|(name, tensor)| {
                if tensor.values.iter().any(|value| !value.is_finite()) {
                    return Err(PolicyError::NotFinite {
                        what: format!("a weight in `{name}`"),
                    });
                }
                let width = tensor.shape.last().copied().unwrap_or(1);
                Ok(Parameter {
                    value: Arc::new(Matrix::new(tensor.values.to_vec(), width)),
                    first: vec![0.0; tensor.values.len()],
                    second: vec![0.0; tensor.values.len()],
                    shape: tensor.shape,
                    name,
                })
            })
            .collect::<Result<_, PolicyError>>()?;
        let lanes = Lanes::new(options.threads)?;
        Ok(Self {
            config: config.clone(),
            options,
            parameters,
            updates: 0,
            lanes,
        })
    }

    /// One gradient step over all rows. Fails, changing nothing, when a gradient is missing or not finite.
    pub fn update(
        &mut self,
        rows: &[LossRow],
        objective: Objective,
    ) -> Result<UpdateReport, PolicyError> {
        let never = |_: &[Vec<f32>]| None::<Infallible>;
        match self.update_unless(rows, objective, never)? {
            Ok(report) => Ok(report),
            Err(never) => match never {},
        }
    }

    /// The same, unless something is wrong with the logprobs of the weighted tokens before the step
    /// (entries of others are 0): then nothing is changed, and what is wrong is returned.
    pub fn update_unless<R>(
        &mut self,
        rows: &[LossRow],
        objective: Objective,
        wrong: impl FnOnce(&[Vec<f32>]) -> Option<R>,
    ) -> Result<Result<UpdateReport, R>, PolicyError> {
        let computed = self.gradients(rows, objective)?;
        match wrong(&computed.logprobs) {
            Some(wrong) => Ok(Err(wrong)),
            None => Ok(Ok(self.step_along(&computed)?)),
        }
    }

    // This and `step_along` are not generic: generic code is compiled where it is called, and of our crates only
    // this one is optimised in a development build.
    fn gradients(
        &self,
        rows: &[LossRow],
        objective: Objective,
    ) -> Result<BatchGradients, PolicyError> {
        check::options(&self.options)?;
        check::objective(objective)?;
        check::rows(&self.config, rows)?;
        check::losses(rows, objective)?;
        let pieces = pieces::cut(rows, self.options.tokens_per_piece, |row, token| {
            row.weights[token] != 0.0
        });
        let batch = self.batch(rows, &pieces);
        let mut tally = Tally::default();
        let mut logprobs = rows
            .iter()
            .map(|row| vec![0.0; row.ids.len()])
            .collect::<Vec<_>>();
        let mut piece_places = pieces.iter();
        let mut gradients = self
            .parameters
            .iter()
            .map(|p| vec![0.0; p.first.len()])
            .collect::<Vec<_>>();
        self.lanes.in_order(
            pieces.len(),
            |index| batch.loss(&pieces[index], objective),
            |piece| {
                tally.merge(&piece.tally);
                let places = piece_places.next().into_iter().flat_map(|p| &p.wanted);
                for (at, logprob) in places.zip(&piece.logprobs) {
                    logprobs[at.row][at.token] = *logprob;
                }
                for (sum, gradient) in gradients.iter_mut().zip(&piece.gradients) {
                    for (sum, value) in sum.iter_mut().zip(gradient.values()?) {
                        *sum += value;
                    }
                }
                Ok(())
            },
        )?;
        Ok(BatchGradients {
            logprobs,
            gradients,
            tally,
        })
    }

    fn step_along(&mut self, computed: &BatchGradients) -> Result<UpdateReport, PolicyError> {
        let norm = self.norm(&computed.gradients, computed.tally.loss)?;
        let step = Step::new(&self.options, self.updates + 1, norm);
        for (parameter, gradient) in self.parameters.iter_mut().zip(&computed.gradients) {
            step.apply(parameter, gradient)?;
        }
        self.updates += 1;
        Ok(computed.tally.report(norm))
    }

    /// Logprobs of each token given those before it (entry 0 is 0), at each token's temperature, without gradients.
    pub fn logprobs(&self, rows: &[LossRow]) -> Result<Vec<Vec<f32>>, PolicyError> {
        check::rows(&self.config, rows)?;
        let pieces = pieces::cut(rows, self.options.tokens_per_piece, |_, _| true);
        let batch = self.batch(rows, &pieces);
        let mut all = rows
            .iter()
            .map(|row| vec![0.0; row.ids.len()])
            .collect::<Vec<_>>();
        let mut piece = pieces.iter();
        self.lanes.in_order(
            pieces.len(),
            |index| batch.logprobs(&pieces[index]),
            |logprobs| {
                for (at, logprob) in piece
                    .next()
                    .into_iter()
                    .flat_map(|p| &p.wanted)
                    .zip(logprobs)
                {
                    all[at.row][at.token] = logprob;
                }
                Ok(())
            },
        )?;
        Ok(all)
    }

    /// Takes effect with the next update.
    pub fn set_lr(&mut self, lr: f64) {
        self.options.lr = lr;
    }

    /// A copy of the weights as they are now.
    pub fn weights(&self) -> Result<Weights, PolicyError> {
        let tensors = self
            .parameters
            .iter()
            .map(|p| Ok((p.name.clone(), p.named(p.value.values()?))))
            .collect::<Result<_, PolicyError>>()?;
        Ok(Weights { tensors })
    }

    /// The optimizer's state by name, and how many updates it has made: for checkpoints. The running mean
    /// of a tensor's gradient is `m.NAME`, that of its square `v.NAME`.
    pub fn optimizer_state(&self) -> Result<(u64, BTreeMap<String, NamedTensor>), PolicyError> {
        let state = self
            .parameters
            .iter()
            .flat_map(|p| {
                [
                    (format!("m.{}", p.name), p.named(&p.first)),
                    (format!("v.{}", p.name), p.named(&p.second)),
                ]
            })
            .collect();
        Ok((self.updates, state))
    }

    /// Goes on where [`Self::optimizer_state`] was taken. Fails, changing nothing, when the state is not
    /// that of this model.
    pub fn restore_optimizer(
        &mut self,
        updates: u64,
        mut state: BTreeMap<String, NamedTensor>,
    ) -> Result<(), PolicyError> {
        let mut moments = Vec::with_capacity(self.parameters.len());
        for parameter in &self.parameters {
            let mut take = |name: String| {
                let Some(tensor) = state.remove(&name) else {
                    return Err(PolicyError::OptimizerState(format!("`{name}` is missing")));
                };
                if tensor.shape != parameter.shape || tensor.values.len() != parameter.first.len() {
                    let (found, expected) = (tensor.shape, &parameter.shape);
                    let message = format!("`{name}` has shape {found:?}, expected {expected:?}");
                    return Err(PolicyError::OptimizerState(message));
                }
                if tensor.values.iter().any(|value| !value.is_finite()) {
                    return Err(PolicyError::OptimizerState(format!(
                        "`{name}` is not finite"
                    )));
                }
                Ok(tensor.values.to_vec())
            };
            moments.push((
                take(format!("m.{}", parameter.name))?,
                take(format!("v.{}", parameter.name))?,
            ));
        }
        if let Some(name) = state.keys().next() {
            return Err(PolicyError::OptimizerState(format!(
                "the model has nothing for `{name}`"
            )));
        }
        for (parameter, (first, second)) in self.parameters.iter_mut().zip(moments) {
            parameter.first = first;
            parameter.second = second;
        }
        self.updates = updates;
        Ok(())
    }

    fn batch<'a>(&'a self, rows: &'a [LossRow], pieces: &[Piece]) -> Batch<'a, f32> {
        let longest = pieces.iter().map(|piece| piece.length).max().unwrap_or(0);
        Batch {
            config: &self.config,
            parameters: self
                .parameters
                .iter()
                .map(|p| (p.name.as_str(), &p.value))
                .collect(),
            rope: Arc::new(RopeTable::new(&self.config, longest)),
            rows,
        }
    }

    /// The norm of the whole gradient, when all of it is finite.
    fn norm(&self, gradients: &[Vec<f32>], loss: f64) -> Result<f64, PolicyError> {
        let mut squares = 0.0_f64;
        for (parameter, gradient) in self.parameters.iter().zip(gradients) {
            let sum: f64 = gradient.iter().map(|g| f64::from(*g) * f64::from(*g)).sum();
            if !sum.is_finite() {
                let what = format!("the gradient of `{}` (with loss `{loss}`)", parameter.name);
                return Err(PolicyError::NotFinite { what });
            }
            squares += sum;
        }
        if !loss.is_finite() {
            return Err(PolicyError::NotFinite {
                what: format!("the loss (`{loss}`)"),
            });
        }
        Ok(squares.sqrt())
    }
}
