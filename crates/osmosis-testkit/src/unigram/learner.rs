//! Gradient descent with momentum on the logits.

use std::sync::Arc;

use osmosis_core::learner::{
    KlEstimator, Learner, LearnerError, LearnerErrorKind, LearnerFiles, LossFunction, LossRow,
    ModelFiles, PolicyGradient, Surrogate, TrainableModel as _, UpdateReport, Weights,
};

use super::{UnigramModel, error, files, logits, logprobs, narrow, weights};

const MOMENTUM: f64 = 0.9;

#[derive(Debug)]
pub struct UnigramLearner {
    lr: f64,
    files: Arc<dyn ModelFiles>,
    logits: Vec<f32>,
    momentum: Vec<f32>,
    updates: u64,
}

/// A token that counts.
struct Token {
    id: usize,
    temperature: f32,
    weight: f64,
    advantage: f64,
    now: f64,
    sampled: f64,
    proximal: f64,
    reference: f64,
    /// The mean of now - sampled over the tokens of its row that count, and how many these are.
    sequence_gap: f64,
    row_tokens: f64,
    row: usize,
}

impl UnigramLearner {
    pub(super) fn new(model: &UnigramModel, lr: f64) -> Result<Self, LearnerError> {
        let logits = logits(&model.weights, model.vocabulary())?.to_vec();
        Ok(Self {
            lr,
            files: model.files(),
            momentum: vec![0.0; logits.len()],
            logits,
            updates: 0,
        })
    }

    fn check(&self, rows: &[LossRow]) -> Result<(), LearnerError> {
        for (index, row) in rows.iter().enumerate() {
            let unknown = row.ids.iter().any(|id| *id as usize >= self.logits.len());
            let cold = row
                .temperatures
                .iter()
                .skip(1)
                .any(|t| t.is_nan() || *t <= 0.0);
            if unknown || cold || row.temperatures.len() != row.ids.len() {
                return Err(invalid(format!("row {index} has bad ids or temperatures")));
            }
        }
        Ok(())
    }

    fn check_losses(rows: &[LossRow], loss: LossFunction) -> Result<(), LearnerError> {
        let (needs_reference, needs_proximal) = loss.needs();
        for (index, row) in rows.iter().enumerate() {
            let given = [
                Some(&row.weights),
                Some(&row.advantages),
                Some(&row.sampled_logprobs),
            ];
            let optional = [
                row.proximal_logprobs.as_ref(),
                row.reference_logprobs.as_ref(),
            ];
            let unfit = given.into_iter().chain(optional).flatten().any(|column| {
                column.len() != row.ids.len() || column.iter().any(|value| !value.is_finite())
            });
            if unfit || row.weights.first().is_some_and(|weight| *weight != 0.0) {
                return Err(invalid(format!("row {index} has columns that don't fit")));
            }
            if needs_reference && row.reference_logprobs.is_none()
                || needs_proximal && row.proximal_logprobs.is_none()
            {
                return Err(invalid(format!(
                    "row {index} lacks logprobs that the loss needs"
                )));
            }
        }
        if rows
            .iter()
            .flat_map(|row| &row.weights)
            .all(|weight| *weight == 0.0)
        {
            return Err(invalid("no token has a weight"));
        }
        Ok(())
    }

    fn tokens(rows: &[LossRow], now: &[Vec<f32>]) -> Vec<Token> {
        let mut tokens = Vec::new();
        for (index, (row, now)) in rows.iter().zip(now).enumerate() {
            let counted: Vec<usize> = (0..row.ids.len())
                .filter(|at| row.weights[*at] != 0.0)
                .collect();
            let row_tokens = counted.len() as f64;
            let gap = |at: &usize| f64::from(now[*at]) - f64::from(row.sampled_logprobs[*at]);
            let sequence_gap = counted.iter().map(gap).sum::<f64>() / row_tokens;
            for at in counted {
                let id = row.ids[at];
                let or_now = |column: &Option<Vec<f32>>| {
                    f64::from(column.as_ref().map_or(now[at], |column| column[at]))
                };
                tokens.push(Token {
                    id: id as usize,
                    temperature: row.temperatures[at],
                    weight: f64::from(row.weights[at]),
                    advantage: f64::from(row.advantages[at]),
                    now: f64::from(now[at]),
                    sampled: f64::from(row.sampled_logprobs[at]),
                    proximal: or_now(&row.proximal_logprobs),
                    reference: or_now(&row.reference_logprobs),
                    sequence_gap,
                    row_tokens,
                    row: index,
                });
            }
        }
        tokens
    }
}

impl Learner for UnigramLearner {
    fn update(
        &mut self,
        rows: &[LossRow],
        loss: LossFunction,
        accept: &mut dyn FnMut(&[Vec<f32>]) -> bool,
    ) -> Result<Option<UpdateReport>, LearnerError> {
        self.check(rows)?;
        Self::check_losses(rows, loss)?;
        let mut now = self.logprobs(rows)?;
        for (row, now) in rows.iter().zip(&mut now) {
            for (weight, logprob) in row.weights.iter().zip(now) {
                if *weight == 0.0 {
                    *logprob = 0.0;
                }
            }
        }
        if !accept(&now) {
            return Ok(None);
        }
        let tokens = Self::tokens(rows, &now);
        let mut gradient = vec![0.0_f64; self.logits.len()];
        let mut report = Sums::default();
        let chances_of = |token: &Token| {
            let chances = logprobs(&self.logits, token.temperature);
            let entropy: f64 = chances.iter().map(|logprob| -logprob.exp() * logprob).sum();
            (chances, entropy)
        };
        let mut slopes = Vec::with_capacity(tokens.len());
        let mut by_sequence = vec![0.0_f64; rows.len()];
        for token in &tokens {
            let slope = report.add(token, loss, chances_of(token).1);
            by_sequence[token.row] += slope.sequence_gap / token.row_tokens;
            slopes.push(slope);
        }
        for (token, slope) in tokens.iter().zip(slopes) {
            let (chances, entropy) = chances_of(token);
            let by_logprob = slope.logprob + by_sequence[token.row];
            for (id, (sum, logprob)) in gradient.iter_mut().zip(&chances).enumerate() {
                let hit = f64::from(u8::from(id == token.id));
                let chance = logprob.exp();
                let pull =
                    by_logprob * (hit - chance) - slope.entropy * chance * (logprob + entropy);
                *sum += pull / f64::from(token.temperature);
            }
        }
        let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        let each = self.momentum.iter().zip(&gradient);
        let momentum: Vec<f32> = each
            .map(|(before, g)| narrow(MOMENTUM * f64::from(*before) + g))
            .collect();
        let each = self.logits.iter().zip(&momentum);
        let logits: Vec<f32> = each
            .map(|(logit, m)| narrow(f64::from(*logit) - self.lr * f64::from(*m)))
            .collect();
        if logits
            .iter()
            .chain(&momentum)
            .any(|value| !value.is_finite())
        {
            let message = "the gradient is not finite, the update was not made";
            return Err(error(LearnerErrorKind::NotFinite, message));
        }
        (self.logits, self.momentum) = (logits, momentum);
        self.updates += 1;
        Ok(Some(report.report(norm)))
    }

    fn logprobs(&self, rows: &[LossRow]) -> Result<Vec<Vec<f32>>, LearnerError> {
        self.check(rows)?;
        let of_row = |row: &LossRow| {
            let tokens = row.ids.iter().zip(&row.temperatures).enumerate();
            tokens
                .map(|(at, (id, temperature))| match at {
                    0 => 0.0,
                    _ => narrow(logprobs(&self.logits, *temperature)[*id as usize]),
                })
                .collect()
        };
        Ok(rows.iter().map(of_row).collect())
    }

    fn updates(&self) -> u64 {
        self.updates
    }

    fn weights(&self) -> Result<Weights, LearnerError> {
        Ok(weights(&self.logits))
    }

    fn save(&self, files: LearnerFiles<'_>) -> Result<(), LearnerError> {
        self.files.write(files.model, &weights(&self.logits))?;
        files::write_numbers(files.optimizer, &self.momentum)
    }

    fn restore(&mut self, files: LearnerFiles<'_>, updates: u64) -> Result<(), LearnerError> {
        let weights = self.files.read(files.model)?;
        let momentum = files::read_numbers(files.optimizer)?;
        if momentum.len() != self.momentum.len() {
            let message = "this is not the optimizer's state of this model";
            return Err(error(LearnerErrorKind::Unreadable, message));
        }
        self.logits = logits(&weights, self.logits.len())?.to_vec();
        self.momentum = momentum;
        self.updates = updates;
        Ok(())
    }
}

/// Weighted sums over the tokens of an update.
#[derive(Default)]
struct Sums {
    weight: f64,
    loss: f64,
    entropy: f64,
    clipped: f64,
    kl_to_sampled: f64,
    kl_to_reference: f64,
    mismatch: f64,
    mismatch_max: f64,
    behaviour: Option<f64>,
    capped: f64,
    tokens: u64,
}

/// How the loss changes with a token's logprob, with the gap of its sequence, and with its entropy.
#[derive(Default)]
struct Slopes {
    logprob: f64,
    sequence_gap: f64,
    entropy: f64,
}

impl Sums {
    /// Adds a token, and returns how the loss changes with what it said.
    fn add(&mut self, token: &Token, loss: LossFunction, entropy: f64) -> Slopes {
        let Token { weight, now, .. } = *token;
        self.weight += weight;
        self.tokens += 1;
        self.entropy += weight * entropy;
        self.kl_to_sampled += weight * k3(now, token.sampled);
        let mismatch = (now - token.sampled).abs();
        self.mismatch += weight * mismatch;
        self.mismatch_max = self.mismatch_max.max(mismatch);
        let gradient = match loss {
            LossFunction::Likelihood => {
                self.loss -= weight * now;
                return Slopes {
                    logprob: -weight,
                    ..Slopes::default()
                };
            }
            LossFunction::PolicyGradient(gradient) => gradient,
        };
        let mut slopes = match gradient.surrogate {
            Surrogate::Clipped { dual_clip } => {
                let gap = now - token.sampled;
                let logprob = self.surrogate(token, gap, weight, &gradient, dual_clip);
                Slopes {
                    logprob,
                    ..Slopes::default()
                }
            }
            Surrogate::Decoupled {
                behaviour_weight_cap,
                dual_clip,
            } => {
                let behaviour = (token.proximal - token.sampled).exp();
                let sum = self.behaviour.get_or_insert_default();
                if behaviour > behaviour_weight_cap {
                    self.capped += weight;
                    return Slopes::default();
                }
                *sum += weight * behaviour;
                let (gap, weight) = (now - token.proximal, weight * behaviour);
                let logprob = self.surrogate(token, gap, weight, &gradient, dual_clip);
                Slopes {
                    logprob,
                    ..Slopes::default()
                }
            }
            Surrogate::Sequence => {
                let gap = token.sequence_gap;
                let sequence_gap = self.surrogate(token, gap, weight, &gradient, None);
                Slopes {
                    sequence_gap,
                    ..Slopes::default()
                }
            }
            Surrogate::ConstantWeight => {
                let ratio = (now - token.sampled).exp();
                let constant = ratio.clamp(1.0 - gradient.clip_low, 1.0 + gradient.clip_high);
                let whole = constant.to_bits() == ratio.to_bits();
                self.clipped += if whole { 0.0 } else { weight };
                self.loss -= weight * constant * token.advantage * now;
                Slopes {
                    logprob: -weight * constant * token.advantage,
                    ..Slopes::default()
                }
            }
        };
        slopes.logprob += self.kl(token, &gradient);
        self.loss -= gradient.entropy_coef * weight * entropy;
        slopes.entropy = -gradient.entropy_coef * weight;
        slopes
    }

    fn surrogate(
        &mut self,
        token: &Token,
        gap: f64,
        weight: f64,
        gradient: &PolicyGradient,
        dual_clip: Option<f64>,
    ) -> f64 {
        let ratio = gap.exp();
        let free = ratio * token.advantage;
        let clipped =
            ratio.clamp(1.0 - gradient.clip_low, 1.0 + gradient.clip_high) * token.advantage;
        let least = dual_clip.filter(|_| token.advantage < 0.0);
        let least = least.map_or(f64::NEG_INFINITY, |most| most * token.advantage);
        self.loss -= weight * free.min(clipped).max(least);
        if clipped < free || free < least {
            self.clipped += token.weight;
            0.0
        } else {
            -weight * free
        }
    }

    fn kl(&mut self, token: &Token, gradient: &PolicyGradient) -> f64 {
        let gap = token.reference - token.now;
        let (kl, slope) = match gradient.kl_estimator {
            KlEstimator::K2 => (0.5 * gap * gap, -gap),
            KlEstimator::K3 => (k3(token.now, token.reference), 1.0 - gap.exp()),
        };
        self.kl_to_reference += token.weight * k3(token.now, token.reference);
        self.loss += gradient.kl_coef * token.weight * kl;
        gradient.kl_coef * token.weight * slope
    }

    fn report(&self, gradient_norm: f64) -> UpdateReport {
        let mean = |sum: f64| sum / self.weight;
        UpdateReport {
            loss: self.loss,
            entropy: mean(self.entropy),
            clip_fraction: mean(self.clipped),
            kl_to_sampled: mean(self.kl_to_sampled),
            kl_to_reference: mean(self.kl_to_reference),
            mismatch_mean: mean(self.mismatch),
            mismatch_max: self.mismatch_max,
            behaviour_weight: self.behaviour.map(|sum| sum / (self.weight - self.capped)),
            capped_fraction: self.behaviour.map(|_| mean(self.capped)),
            gradient_norm,
            tokens: self.tokens,
        }
    }
}

/// An estimate of the divergence from `other` that is never negative.
fn k3(now: f64, other: f64) -> f64 {
    let ratio = (other - now).exp();
    ratio - 1.0 - (other - now)
}

fn invalid(message: impl Into<String>) -> LearnerError {
    error(LearnerErrorKind::Invalid, message)
}
