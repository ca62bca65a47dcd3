//! What a token adds to the loss, and how the loss changes with its logprob and with the entropy at it.

use osmosis_core::learner::{KlEstimator, PolicyGradient, Surrogate};

use super::{LossFunction, LossRow, UpdateReport};

/// One token of the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Token {
    pub(super) weight: f64,
    pub(super) advantage: f64,
    pub(super) sampled_logprob: f64,
    pub(super) proximal_logprob: Option<f64>,
    pub(super) reference_logprob: Option<f64>,
    /// The mean of logprob - sampled_logprob over the weighted tokens of the row, for objectives of whole sequences:
    /// [`Tally::add_row`] sets it.
    sequence_gap: f64,
}

/// A token with what the weights say of it now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ScoredToken {
    pub(super) token: Token,
    pub(super) logprob: f64,
    pub(super) entropy: f64,
}

impl Token {
    pub(super) fn of(row: &LossRow, token: usize) -> Self {
        let entry = |column: &Option<Vec<f32>>| column.as_ref().map(|all| f64::from(all[token]));
        Self {
            weight: f64::from(row.weights[token]),
            advantage: f64::from(row.advantages[token]),
            sampled_logprob: f64::from(row.sampled_logprobs[token]),
            proximal_logprob: entry(&row.proximal_logprobs),
            reference_logprob: entry(&row.reference_logprobs),
            sequence_gap: 0.0,
        }
    }
}

/// How the loss changes with what a token's distribution says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Slopes {
    /// With the token's logprob.
    pub(super) logprob: f64,
    /// With the row's `sequence_gap`, a mean over the row's tokens. [`Tally::add_row`] makes it a part of `logprob`.
    sequence_gap: f64,
    /// With the entropy at the token.
    pub(super) entropy: f64,
}

/// Sums over tokens. Adding tallies in the same order gives the same bits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) loss: f64,
    tokens: u64,
    weight: f64,
    entropy: f64,
    clipped: f64,
    kl_to_sampled: f64,
    kl_to_reference: f64,
    reference_weight: f64,
    mismatch: f64,
    mismatch_max: f64,
    decoupled: bool,
    behaviour: f64,
    kept: f64,
    capped: f64,
}

impl Tally {
    /// Adds the weighted tokens of a row and returns the derivatives of the loss by what each said.
    pub(super) fn add_row(
        &mut self,
        objective: LossFunction,
        tokens: &[ScoredToken],
    ) -> Vec<Slopes> {
        let count = tokens.len() as f64;
        let gaps = tokens
            .iter()
            .map(|scored| scored.logprob - scored.token.sampled_logprob);
        let sequence_gap = gaps.sum::<f64>() / count;
        let mut slopes: Vec<Slopes> = tokens
            .iter()
            .map(|scored| {
                let token = Token {
                    sequence_gap,
                    ..scored.token
                };
                self.add(objective, token, scored.logprob, scored.entropy)
            })
            .collect();
        let by_sequence: f64 = slopes.iter().map(|slope| slope.sequence_gap).sum();
        if by_sequence != 0.0 {
            // The gap of the sequence is the mean of its tokens' gaps: each has the same part in it.
            for slope in &mut slopes {
                slope.logprob += by_sequence / count;
            }
        }
        slopes
    }

    /// Adds a token and returns the derivatives of the loss by what it said.
    fn add(&mut self, objective: LossFunction, token: Token, logprob: f64, entropy: f64) -> Slopes {
        let weight = token.weight;
        let size = weight.abs();
        self.tokens += 1;
        self.weight += size;
        self.entropy += size * entropy;
        match objective {
            LossFunction::Likelihood => {
                self.loss -= weight * logprob;
                Slopes {
                    logprob: -weight,
                    ..Slopes::default()
                }
            }
            LossFunction::PolicyGradient(gradient) => {
                self.add_distance(token, logprob);
                self.add_policy_gradient(gradient, token, logprob, entropy)
            }
        }
    }

    fn add_policy_gradient(
        &mut self,
        gradient: PolicyGradient,
        token: Token,
        logprob: f64,
        entropy: f64,
    ) -> Slopes {
        let sampled = token.sampled_logprob;
        let surrogate = match gradient.surrogate {
            Surrogate::Clipped { dual_clip } => {
                Term::held(gradient, token.advantage, logprob - sampled, dual_clip)
            }
            Surrogate::Decoupled {
                behaviour_weight_cap,
                dual_clip,
            } => {
                self.decoupled = true;
                // Always there: rows without are refused.
                let proximal = token.proximal_logprob.unwrap_or(sampled);
                let behaviour = (proximal - sampled).exp();
                let size = token.weight.abs();
                if behaviour > behaviour_weight_cap {
                    self.capped += size;
                    return Slopes::default();
                }
                self.kept += size;
                self.behaviour += size * behaviour;
                let near = Term::held(gradient, token.advantage, logprob - proximal, dual_clip);
                Term {
                    value: near.value * behaviour,
                    slope: near.slope * behaviour,
                    ..near
                }
            }
            Surrogate::Sequence => {
                let near = Term::held(gradient, token.advantage, token.sequence_gap, None);
                Term {
                    slope: 0.0,
                    sequence_slope: near.slope,
                    ..near
                }
            }
            Surrogate::ConstantWeight => {
                let ratio = (logprob - sampled).exp();
                let constant = ratio.clamp(1.0 - gradient.clip_low, 1.0 + gradient.clip_high);
                Term {
                    value: -constant * token.advantage * logprob,
                    slope: -constant * token.advantage,
                    sequence_slope: 0.0,
                    clipped: constant.to_bits() != ratio.to_bits(),
                }
            }
        };
        self.add_term(gradient, token, logprob, entropy, surrogate)
    }

    /// Adds the surrogate with what pulls to the reference and to a higher entropy.
    fn add_term(
        &mut self,
        gradient: PolicyGradient,
        token: Token,
        logprob: f64,
        entropy: f64,
        surrogate: Term,
    ) -> Slopes {
        let size = token.weight.abs();
        let (mut term, mut slope) = (surrogate.value, surrogate.slope);
        if let Some(reference) = token.reference_logprob {
            let gap = reference - logprob;
            let (kl, kl_slope) = match gradient.kl_estimator {
                KlEstimator::K2 => (0.5 * gap * gap, -gap),
                KlEstimator::K3 => (k3(gap), 1.0 - gap.exp()),
            };
            term += gradient.kl_coef * kl;
            slope += gradient.kl_coef * kl_slope;
            self.kl_to_reference += size * k3(gap);
            self.reference_weight += size;
        }
        let mut entropy_slope = 0.0;
        if gradient.entropy_coef != 0.0 {
            term -= gradient.entropy_coef * entropy;
            entropy_slope = -token.weight * gradient.entropy_coef;
        }
        self.loss += token.weight * term;
        self.clipped += if surrogate.clipped { size } else { 0.0 };
        Slopes {
            logprob: token.weight * slope,
            sequence_gap: token.weight * surrogate.sequence_slope,
            entropy: entropy_slope,
        }
    }

    /// How far the token's logprob is from that it was sampled with.
    fn add_distance(&mut self, token: Token, logprob: f64) {
        let size = token.weight.abs();
        let mismatch = (logprob - token.sampled_logprob).abs();
        self.kl_to_sampled += size * k3(token.sampled_logprob - logprob);
        self.mismatch += size * mismatch;
        self.mismatch_max = self.mismatch_max.max(mismatch);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.loss += other.loss;
        self.tokens += other.tokens;
        self.weight += other.weight;
        self.entropy += other.entropy;
        self.clipped += other.clipped;
        self.kl_to_sampled += other.kl_to_sampled;
        self.kl_to_reference += other.kl_to_reference;
        self.reference_weight += other.reference_weight;
        self.mismatch += other.mismatch;
        self.mismatch_max = self.mismatch_max.max(other.mismatch_max);
        self.decoupled |= other.decoupled;
        self.behaviour += other.behaviour;
        self.kept += other.kept;
        self.capped += other.capped;
    }

    pub(super) fn report(&self, gradient_norm: f64) -> UpdateReport {
        let mean = |sum: f64, weight: f64| if weight > 0.0 { sum / weight } else { 0.0 };
        UpdateReport {
            loss: self.loss,
            entropy: mean(self.entropy, self.weight),
            clip_fraction: mean(self.clipped, self.weight),
            kl_to_sampled: mean(self.kl_to_sampled, self.weight),
            kl_to_reference: mean(self.kl_to_reference, self.reference_weight),
            mismatch_mean: mean(self.mismatch, self.weight),
            mismatch_max: self.mismatch_max,
            behaviour_weight: (self.kept > 0.0).then(|| self.behaviour / self.kept),
            capped_fraction: self.decoupled.then(|| mean(self.capped, self.weight)),
            gradient_norm,
            tokens: self.tokens,
        }
    }
}

/// What the advantage of a token adds to the loss, before its weight.
#[derive(Debug, Clone, Copy)]
struct Term {
    value: f64,
    /// By the token's logprob.
    slope: f64,
    /// By the gap of its sequence.
    sequence_slope: f64,
    clipped: bool,
}

impl Term {
    /// PPO's: the ratio, of which `gap` is the logarithm, earns nothing beyond its bounds.
    fn held(gradient: PolicyGradient, advantage: f64, gap: f64, dual_clip: Option<f64>) -> Self {
        let ratio = gap.exp();
        let free = ratio * advantage;
        let held = ratio.clamp(1.0 - gradient.clip_low, 1.0 + gradient.clip_high) * advantage;
        let clipped = held < free;
        let term = |worth: f64, slope: f64, clipped: bool| Self {
            value: -worth,
            slope,
            sequence_slope: 0.0,
            clipped,
        };
        let worth = free.min(held);
        match dual_clip {
            // A token that must become rarer and became much likelier: its pull is bounded.
            Some(most) if advantage < 0.0 && worth < most * advantage => {
                term(most * advantage, 0.0, true)
            }
            Some(_) | None => term(worth, if clipped { 0.0 } else { -free }, clipped),
        }
    }
}

/// An estimate of KL from one sample that is never negative: `exp(gap) - gap - 1`.
fn k3(gap: f64) -> f64 {
    gap.exp_m1() - gap
}

#[cfg(test)]
mod tests;
