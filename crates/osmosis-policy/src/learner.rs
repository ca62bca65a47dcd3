//! Gradients: the same decoder on candle operations, its objective and its optimizer.

mod check;
mod constrained;
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

use osmosis_core::learner::Numbers;
use osmosis_tokens::ChatFormat;

use self::gradient::Batch;
use self::lanes::Lanes;
use self::matrix::Matrix;
use self::objective::Tally;
use self::ops::RopeTable;
use self::optimizer::{Parameter, Step};
use self::pieces::Piece;
use crate::lora::{self, FrozenModel};
use crate::{
    LossFunction, LossRow, ModelConfig, NamedTensor, PolicyError, UpdateReport, Weights, weights,
};

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

/// The model being trained, with its optimizer.
#[derive(Debug)]
pub struct DecoderLearner {
    config: ModelConfig,
    options: LearnerOptions,
    parameters: Vec<Parameter>,
    /// What the parameters are the adapters of; `None` when they are the weights themselves.
    frozen: Option<FrozenModel>,
    updates: u64,
    lanes: Lanes,
    /// Whose grammars rows were sampled under.
    chat: Option<Arc<ChatFormat>>,
}

/// What a batch says before a step is taken.
struct BatchGradients {
    /// Of the weighted tokens; entries of others are 0.
    logprobs: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
    tally: Tally,
}

impl DecoderLearner {
    pub fn new(
        config: &ModelConfig,
        weights: &Weights,
        options: LearnerOptions,
    ) -> Result<Self, PolicyError> {
        let weights = weights::checked(config, weights.tensors.clone())?;
        Self::of_parameters(config, weights, None, options)
    }

    /// Learns the adapters of frozen weights.
    pub(crate) fn of_adapters(
        config: &ModelConfig,
        frozen: &FrozenModel,
        adapters: &Weights,
        options: LearnerOptions,
    ) -> Result<Self, PolicyError> {
        let adapters = lora::checked(config, &frozen.lora, adapters.tensors.clone())?;
        Self::of_parameters(config, adapters, Some(frozen.clone()), options)
    }

    fn of_parameters(
        config: &ModelConfig,
        weights: Weights,
        frozen: Option<FrozenModel>,
        options: LearnerOptions,
    ) -> Result<Self, PolicyError> {
        check::options(&options)?;
        let parameters = finite(weights)?
            .tensors
            .into_iter()
            .map(|(name, tensor)| Parameter {
                value: matrix_of(&tensor),
                first: Arc::new(vec![0.0; tensor.values.len()]),
                second: Arc::new(vec![0.0; tensor.values.len()]),
                shape: tensor.shape,
                name,
            })
            .collect();
        let lanes = Lanes::new(options.threads)?;
        Ok(Self {
            config: config.clone(),
            options,
            parameters,
            frozen,
            updates: 0,
            lanes,
            chat: None,
        })
    }

    /// The same, able to train on rows that were sampled under grammars of this tokenizer.
    #[must_use]
    pub fn with_chat(mut self, chat: &Arc<ChatFormat>) -> Self {
        self.chat = Some(Arc::clone(chat));
        self
    }

    /// One gradient step over all rows. Fails, changing nothing, when a gradient is missing or not finite.
    pub fn update(
        &mut self,
        rows: &[LossRow],
        objective: LossFunction,
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
        objective: LossFunction,
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
        objective: LossFunction,
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

    /// Updates made so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Takes effect with the next update.
    pub fn set_lr(&mut self, lr: f64) {
        self.options.lr = lr;
    }

    /// The weights as they are now; later updates don't change them. The learner's own memory: an update copies
    /// those of the tensors that somebody still has.
    pub fn weights(&self) -> Result<Weights, PolicyError> {
        let parameters = self.parameters.iter();
        Ok(Weights {
            tensors: parameters
                .map(|p| (p.name.clone(), p.named(&p.value)))
                .collect(),
        })
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

    /// Goes on with these weights and this state of the optimizer. Fails, changing nothing, when one of them
    /// is not this model's.
    pub fn restore(
        &mut self,
        weights: &Weights,
        updates: u64,
        state: BTreeMap<String, NamedTensor>,
    ) -> Result<(), PolicyError> {
        let shapes = self
            .parameters
            .iter()
            .map(|p| (p.name.clone(), p.shape.clone()));
        let weights = finite(weights::checked_shapes(shapes, weights.tensors.clone())?)?;
        self.restore_optimizer(updates, state)?;
        // Both are in the order of names.
        for (parameter, tensor) in self.parameters.iter_mut().zip(weights.tensors.values()) {
            parameter.value = matrix_of(tensor);
        }
        Ok(())
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
            parameter.first = Arc::new(first);
            parameter.second = Arc::new(second);
        }
        self.updates = updates;
        Ok(())
    }

    fn batch<'a>(&'a self, rows: &'a [LossRow], pieces: &[Piece]) -> Batch<'a, f32> {
        let longest = pieces.iter().map(Piece::longest).max().unwrap_or(0);
        let constrained = rows.iter().any(|row| !row.constrained.is_empty());
        let chat = self.chat.as_ref().filter(|_| constrained);
        let grammars = chat.and_then(|chat| chat.grammars().ok());
        Batch {
            config: &self.config,
            parameters: self
                .parameters
                .iter()
                .map(|p| (p.name.as_str(), &p.value))
                .collect(),
            frozen: self.frozen.as_ref(),
            rope: Arc::new(RopeTable::new(&self.config, longest)),
            rows,
            grammars,
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

/// Numbers that a learner takes over without a copy.
pub(crate) fn numbers(values: Vec<f32>, shape: &[usize]) -> Numbers {
    Numbers::shared(Arc::new(Matrix::new(values, width(shape))))
}

fn matrix_of(tensor: &NamedTensor) -> Arc<Matrix<f32>> {
    let width = width(&tensor.shape);
    match tensor.values.storage().downcast::<Matrix<f32>>() {
        Ok(matrix) if matrix.width() == width => matrix,
        Ok(_) | Err(_) => Arc::new(Matrix::new(tensor.values.to_vec(), width)),
    }
}

fn width(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}

fn finite(weights: Weights) -> Result<Weights, PolicyError> {
    match weights.not_finite() {
        None => Ok(weights),
        Some(name) => Err(PolicyError::NotFinite {
            what: format!("a weight in `{name}`"),
        }),
    }
}
