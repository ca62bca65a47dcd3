use serde::Serialize;

use crate::generation::Constraint;

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
    /// Where tokens were sampled under a grammar, in order and without overlap. There, logprobs and entropies are
    /// those of the allowed tokens alone, as when the token was sampled.
    pub constrained: Vec<ConstrainedTokens>,
}

/// Consecutive tokens of a row that were sampled under one grammar, from its beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConstrainedTokens {
    /// The place of the first one.
    pub first: usize,
    pub constraint: Constraint,
    /// How many tokens were allowed at each place. Who finds another number has another grammar library or another
    /// tokenizer, and must not train.
    pub allowed: Vec<u32>,
}

/// What is minimised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LossFunction {
    PolicyGradient(PolicyGradient),
    /// -Σ w·logprob: plain supervised learning (the warm start).
    Likelihood,
}

/// Σ w·(surrogate + kl_coef·kl - entropy_coef·H), over the tokens with a weight. `w` is the token's weight, `kl` the
/// estimate of the distance to the reference, and `H` the entropy of the distribution that the token is drawn from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolicyGradient {
    pub surrogate: Surrogate,
    /// Ratios are clipped to 1 - `clip_low` and 1 + `clip_high`.
    pub clip_low: f64,
    pub clip_high: f64,
    pub kl_coef: f64,
    pub kl_estimator: KlEstimator,
    pub entropy_coef: f64,
}

/// What a token's advantage `A` adds to the loss, with r = exp(logprob - sampled_logprob).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Surrogate {
    /// -min(r·A, clip(r)·A): PPO's.
    Clipped {
        /// More than 1: with A < 0 the term is at most -c·A, however much likelier the token became.
        dual_clip: Option<f64>,
    },
    /// -b·min(u·A, clip(u)·A), with b = exp(proximal_logprob - sampled_logprob) and u = exp(logprob -
    /// proximal_logprob): what is held near is the policy that the batch finds, however old the one is that sampled.
    /// Tokens with b above the cap are left out of the sums altogether, and the others count no more for it, as
    /// AReaL does it.
    Decoupled {
        /// More than 1.
        behaviour_weight_cap: f64,
        dual_clip: Option<f64>,
    },
    /// -min(s·A, clip(s)·A), where s is the geometric mean of r over the row's tokens with a weight: GSPO's.
    Sequence,
    /// -c·A·logprob with the constant c = clip(r), which no gradient passes through: CISPO's.
    ConstantWeight,
}

/// An estimate of the KL divergence to the reference from one token, with d = reference_logprob - logprob.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// d² / 2: its gradient is that of the divergence, where the policy itself sampled.
    K2,
    /// exp(d) - d - 1: never negative, with less variance.
    #[default]
    K3,
}

impl PolicyGradient {
    /// PPO's, without a reference.
    pub const CLIPPED: Self = Self {
        surrogate: Surrogate::Clipped { dual_clip: None },
        clip_low: 0.2,
        clip_high: 0.2,
        kl_coef: 0.0,
        kl_estimator: KlEstimator::K3,
        entropy_coef: 0.0,
    };

    /// Whether rows must have `proximal_logprobs`.
    pub fn needs_proximal(&self) -> bool {
        match self.surrogate {
            Surrogate::Decoupled { .. } => true,
            Surrogate::Clipped { .. } | Surrogate::Sequence | Surrogate::ConstantWeight => false,
        }
    }

    /// Whether rows must have `reference_logprobs`.
    pub fn needs_reference(&self) -> bool {
        self.kl_coef != 0.0
    }
}

impl LossFunction {
    pub const fn clipped(clip_low: f64, clip_high: f64, kl_coef: f64) -> Self {
        Self::PolicyGradient(PolicyGradient {
            clip_low,
            clip_high,
            kl_coef,
            ..PolicyGradient::CLIPPED
        })
    }

    pub const fn decoupled(
        clip_low: f64,
        clip_high: f64,
        kl_coef: f64,
        behaviour_weight_cap: f64,
    ) -> Self {
        Self::PolicyGradient(PolicyGradient {
            surrogate: Surrogate::Decoupled {
                behaviour_weight_cap,
                dual_clip: None,
            },
            clip_low,
            clip_high,
            kl_coef,
            ..PolicyGradient::CLIPPED
        })
    }

    /// Whether rows must have `reference_logprobs`, and whether they must have `proximal_logprobs`.
    pub fn needs(&self) -> (bool, bool) {
        match self {
            Self::PolicyGradient(gradient) => {
                (gradient.needs_reference(), gradient.needs_proximal())
            }
            Self::Likelihood => (false, false),
        }
    }
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
