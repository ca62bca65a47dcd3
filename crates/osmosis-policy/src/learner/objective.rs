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
    /// The mean of logprob - sampled_logprob over the weighted tokens of the row, for objectives of whole sequences.
    pub(super) sequence_gap: f64,
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
    /// With the row's `sequence_gap`, a mean over the row's tokens.
    pub(super) sequence_gap: f64,
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
    /// Adds a token and returns the derivatives of the loss by what it said.
    pub(super) fn add(
        &mut self,
        objective: LossFunction,
        token: Token,
        logprob: f64,
        entropy: f64,
    ) -> Slopes {
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
mod tests {
    use super::*;

    const CLIPPED: LossFunction = LossFunction::clipped(0.2, 0.3, 0.5);

    fn token(advantage: f64) -> Token {
        Token {
            weight: 2.0,
            advantage,
            sampled_logprob: -1.0,
            proximal_logprob: None,
            reference_logprob: None,
            sequence_gap: 0.0,
        }
    }

    #[track_caller]
    fn check(token: Token, logprob: f64, loss: f64, slope: f64, clipped: bool) {
        let mut tally = Tally::default();
        let found = tally.add(CLIPPED, token, logprob, 0.0).logprob;
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

    const DECOUPLED: LossFunction = LossFunction::decoupled(0.2, 0.3, 0.5, 2.0);

    /// Sampled by weights that gave it `1 / behaviour` of what it had when the batch came.
    fn old_token(advantage: f64, behaviour: f64) -> Token {
        Token {
            proximal_logprob: Some(-1.0 + behaviour.ln()),
            ..token(advantage)
        }
    }

    #[test]
    fn the_ratio_is_held_near_the_proximal_policy_and_weighed_by_how_it_was_sampled() {
        for (advantage, moved, expected, clipped) in [
            (1.0, 1.0, -2.0 * 0.5, false),
            // Far from what sampled it, and not far from where the batch found it.
            (1.0, 1.2, -2.0 * 0.5 * 1.2, false),
            (1.0, 2.0, -2.0 * 0.5 * 1.3, true),
            (-1.0, 2.0, 2.0 * 0.5 * 2.0, false),
            (-1.0, 0.5, 2.0 * 0.5 * 0.8, true),
        ] {
            let token = old_token(advantage, 0.5);
            let logprob = token.proximal_logprob.unwrap() + f64::ln(moved);
            let mut tally = Tally::default();
            let slope = tally.add(DECOUPLED, token, logprob, 0.0).logprob;
            assert!((tally.loss - expected).abs() < 1e-12, "{}", tally.loss);
            let expected = if clipped { 0.0 } else { expected };
            assert!((slope - expected).abs() < 1e-12, "{slope}");
            let report = tally.report(0.0);
            assert_eq!(report.clip_fraction > 0.5, clipped);
            assert!((report.behaviour_weight.unwrap() - 0.5).abs() < 1e-12);
            assert_eq!(report.capped_fraction, Some(0.0));
        }
    }

    #[test]
    fn a_token_above_the_cap_counts_nothing_and_the_others_no_more_for_it() {
        let reference = |token: Token| Token {
            reference_logprob: Some(-1.5),
            ..token
        };
        let mut alone = Tally::default();
        alone.add(DECOUPLED, reference(old_token(1.0, 1.9)), -1.0, 0.0);
        let mut tally = alone;
        let slope = tally
            .add(DECOUPLED, reference(old_token(1.0, 2.1)), -1.0, 0.0)
            .logprob;
        assert_eq!((slope, tally.loss), (0.0, alone.loss));
        let report = tally.report(0.0);
        assert_eq!(report.capped_fraction, Some(0.5));
        assert!((report.behaviour_weight.unwrap() - 1.9).abs() < 1e-12);
        assert!((report.kl_to_reference - alone.report(0.0).kl_to_reference).abs() < 1e-12);

        let mut none = Tally::default();
        none.add(DECOUPLED, old_token(1.0, 2.1), -1.0, 0.0);
        let report = none.report(0.0);
        assert_eq!(
            (report.behaviour_weight, report.capped_fraction),
            (None, Some(1.0))
        );
    }

    #[test]
    fn what_the_proximal_policy_sampled_is_decoupled_and_clipped_the_same_to_the_bit() {
        for (advantage, logprob) in [(1.0, -1.0), (0.3, -0.4), (-0.7, -2.5), (0.0, -1.1)] {
            let token = Token {
                proximal_logprob: Some(-1.0),
                reference_logprob: Some(-1.3),
                ..token(advantage)
            };
            let (mut one, mut other) = (Tally::default(), Tally::default());
            let slope = one.add(CLIPPED, token, logprob, 0.5).logprob;
            let decoupled = other.add(DECOUPLED, token, logprob, 0.5).logprob;
            assert_eq!(slope.to_bits(), decoupled.to_bits());
            let expected = UpdateReport {
                behaviour_weight: Some(1.0),
                capped_fraction: Some(0.0),
                ..one.report(0.0)
            };
            assert_eq!(other.report(0.0), expected);
            assert_eq!(one.report(0.0).capped_fraction, None);
        }
    }

    fn gradient(surrogate: Surrogate) -> PolicyGradient {
        PolicyGradient {
            surrogate,
            clip_low: 0.2,
            clip_high: 0.3,
            ..PolicyGradient::CLIPPED
        }
    }

    #[test]
    fn dual_clip_bounds_what_a_bad_token_that_became_likelier_costs() {
        let dual = gradient(Surrogate::Clipped {
            dual_clip: Some(3.0),
        });
        for (advantage, ratio, loss, slope, clipped) in [
            (-1.0, 2.0, 4.0, 4.0, false),
            (-1.0, 5.0, 6.0, 0.0, true),
            (-1.0, 0.5, 1.6, 0.0, true),
            (1.0, 5.0, -2.6, 0.0, true),
        ] {
            let mut tally = Tally::default();
            let logprob = -1.0 + f64::ln(ratio);
            let objective = LossFunction::PolicyGradient(dual);
            let found = tally.add(objective, token(advantage), logprob, 0.0);
            assert!((tally.loss - loss).abs() < 1e-12, "{ratio}: {}", tally.loss);
            assert!((found.logprob - slope).abs() < 1e-12, "{ratio}: {found:?}");
            assert_eq!(tally.report(0.0).clip_fraction > 0.5, clipped);
        }
    }

    #[test]
    fn a_sequence_is_clipped_as_a_whole_and_passes_its_slope_to_all_of_it() {
        let objective = LossFunction::PolicyGradient(gradient(Surrogate::Sequence));
        for (ratio, loss, slope) in [(1.1, -2.2, -2.2), (1.5, -2.6, 0.0), (0.5, -1.0, -1.0)] {
            let token = Token {
                sequence_gap: f64::ln(ratio),
                ..token(1.0)
            };
            let mut tally = Tally::default();
            // Its own ratio is of no importance.
            let found = tally.add(objective, token, -4.0, 0.0);
            assert!((tally.loss - loss).abs() < 1e-12, "{}", tally.loss);
            assert!((found.sequence_gap - slope).abs() < 1e-12, "{found:?}");
            assert!(found.logprob == 0.0, "{found:?}");
        }
    }

    #[test]
    fn a_constant_weight_is_clipped_and_the_token_keeps_its_gradient() {
        let objective = LossFunction::PolicyGradient(PolicyGradient {
            clip_low: 1.0,
            ..gradient(Surrogate::ConstantWeight)
        });
        for (ratio, constant) in [(1.0, 1.0), (5.0, 1.3), (0.1, 0.1)] {
            let logprob = -1.0 + f64::ln(ratio);
            let mut tally = Tally::default();
            let found = tally.add(objective, token(-1.0), logprob, 0.0).logprob;
            assert!((found - 2.0 * constant).abs() < 1e-12, "{found}");
            assert!((tally.loss - 2.0 * constant * logprob).abs() < 1e-12);
            let clipped = tally.report(0.0).clip_fraction > 0.5;
            assert_eq!(clipped, ratio > 1.3);
        }
    }

    #[test]
    fn k2_is_half_the_square_and_the_entropy_earns_its_coefficient() {
        let objective = LossFunction::PolicyGradient(PolicyGradient {
            kl_coef: 0.5,
            kl_estimator: KlEstimator::K2,
            entropy_coef: 0.25,
            ..gradient(Surrogate::Clipped { dual_clip: None })
        });
        let token = Token {
            reference_logprob: Some(-3.0),
            ..token(0.0)
        };
        let mut tally = Tally::default();
        let found = tally.add(objective, token, -1.0, 1.5);
        assert!((tally.loss - 2.0 * (0.5 * 2.0 - 0.25 * 1.5)).abs() < 1e-12);
        assert!((found.logprob - 2.0 * 0.5 * 2.0).abs() < 1e-12, "{found:?}");
        assert!((found.entropy + 2.0 * 0.25).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn likelihood_is_the_negative_logprob() {
        let mut tally = Tally::default();
        let slope = tally
            .add(LossFunction::Likelihood, token(5.0), -3.0, 0.5)
            .logprob;
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
