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
