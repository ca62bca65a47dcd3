//! What a token adds to the loss, and how the loss changes with its logprob.

use super::{LossRow, Objective, UpdateReport};

/// One token of the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Token {
    pub(super) weight: f64,
    pub(super) advantage: f64,
    pub(super) sampled_logprob: f64,
    pub(super) reference_logprob: Option<f64>,
}

impl Token {
    pub(super) fn of(row: &LossRow, token: usize) -> Self {
        Self {
            weight: f64::from(row.weights[token]),
            advantage: f64::from(row.advantages[token]),
            sampled_logprob: f64::from(row.sampled_logprobs[token]),
            reference_logprob: row
                .reference_logprobs
                .as_ref()
                .map(|logprobs| f64::from(logprobs[token])),
        }
    }
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
}

impl Tally {
    /// Adds a token and returns the derivative of the loss by its logprob.
    pub(super) fn add(
        &mut self,
        objective: Objective,
        token: Token,
        logprob: f64,
        entropy: f64,
    ) -> f64 {
        let Token {
            weight,
            advantage,
            sampled_logprob,
            reference_logprob,
        } = token;
        let size = weight.abs();
        self.tokens += 1;
        self.weight += size;
        self.entropy += size * entropy;
        match objective {
            Objective::Likelihood => {
                self.loss -= weight * logprob;
                -weight
            }
            Objective::ClippedPolicyGradient {
                clip_low,
                clip_high,
                kl_coef,
            } => {
                let ratio = (logprob - sampled_logprob).exp();
                let free = ratio * advantage;
                let held = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage;
                let clipped = held < free;
                let mut term = -free.min(held);
                let mut slope = if clipped { 0.0 } else { -free };
                if let Some(reference) = reference_logprob {
                    let gap = reference - logprob;
                    term += kl_coef * k3(gap);
                    slope += kl_coef * (1.0 - gap.exp());
                    self.kl_to_reference += size * k3(gap);
                    self.reference_weight += size;
                }
                let mismatch = (logprob - sampled_logprob).abs();
                self.loss += weight * term;
                self.clipped += if clipped { size } else { 0.0 };
                self.kl_to_sampled += size * k3(sampled_logprob - logprob);
                self.mismatch += size * mismatch;
                self.mismatch_max = self.mismatch_max.max(mismatch);
                weight * slope
            }
        }
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
            gradient_norm,
            tokens: self.tokens,
        }
    }
}

/// An estimate of KL from one sample that is never negative: `exp(gap) - gap - 1`.
fn k3(gap: f64) -> f64 {
    gap.exp_m1() - gap
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIPPED: Objective = Objective::ClippedPolicyGradient {
        clip_low: 0.2,
        clip_high: 0.3,
        kl_coef: 0.5,
    };

    fn token(advantage: f64) -> Token {
        Token {
            weight: 2.0,
            advantage,
            sampled_logprob: -1.0,
            reference_logprob: None,
        }
    }

    #[track_caller]
    fn check(token: Token, logprob: f64, loss: f64, slope: f64, clipped: bool) {
        let mut tally = Tally::default();
        let found = tally.add(CLIPPED, token, logprob, 0.0);
        assert!(
            (tally.loss - loss).abs() < 1e-12,
            "loss {}, not {loss}",
            tally.loss
        );
        assert!((found - slope).abs() < 1e-12, "slope {found}, not {slope}");
        assert_eq!(tally.report(0.0).clip_fraction > 0.5, clipped);
    }

    #[test]
    fn a_good_token_is_held_only_above_and_a_bad_one_only_below() {
        let (up, down) = (-1.0 + 2.0_f64.ln(), -1.0 + 0.5_f64.ln());
        check(token(1.0), -1.0, -2.0, -2.0, false);
        check(token(1.0), up, -2.6, 0.0, true);
        check(token(1.0), down, -1.0, -1.0, false);
        check(token(-1.0), up, 4.0, 4.0, false);
        check(token(-1.0), down, 1.6, 0.0, true);
    }

    #[test]
    fn the_reference_pulls_back() {
        let token = Token {
            reference_logprob: Some(-1.0 - 2.0_f64.ln()),
            ..token(0.0)
        };
        let k3 = 0.5 + 2.0_f64.ln() - 1.0;
        check(token, -1.0, 2.0 * 0.5 * k3, 2.0 * 0.5 * (1.0 - 0.5), false);
    }

    #[test]
    fn means_are_weighted() {
        let mut tally = Tally::default();
        tally.add(
            CLIPPED,
            Token {
                weight: 3.0,
                ..token(1.0)
            },
            -1.0,
            1.0,
        );
        let mut other = Tally::default();
        other.add(
            CLIPPED,
            Token {
                weight: -1.0,
                ..token(1.0)
            },
            0.0,
            2.0,
        );
        tally.merge(&other);
        let report = tally.report(7.0);
        assert_eq!((report.entropy, report.clip_fraction), (1.25, 0.25));
        assert_eq!((report.mismatch_mean, report.mismatch_max), (0.25, 1.0));
        assert_eq!(
            (report.tokens, report.gradient_norm, report.kl_to_reference),
            (2, 7.0, 0.0)
        );
        assert!((report.kl_to_sampled - 0.25 * (-1.0_f64).exp()).abs() < 1e-12);
    }

    #[test]
    fn likelihood_is_the_negative_logprob() {
        let mut tally = Tally::default();
        let slope = tally.add(Objective::Likelihood, token(5.0), -3.0, 0.5);
        assert_eq!((tally.loss, slope), (6.0, -2.0));
        assert_eq!(
            (
                tally.report(0.0).mismatch_max,
                tally.report(0.0).clip_fraction
            ),
            (0.0, 0.0)
        );
    }
}
