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

/// A case of `objectives.json`, which the tests of the torch trainer read too.
#[derive(Debug, serde::Deserialize)]
struct Case {
    name: String,
    loss: CaseLoss,
    rows: Vec<Vec<CaseToken>>,
    value: f64,
    slopes: Vec<Vec<f64>>,
    #[serde(default)]
    entropy_slopes: Option<Vec<Vec<f64>>>,
    clip_fraction: f64,
}

#[derive(Debug, serde::Deserialize)]
struct CaseLoss {
    objective: String,
    clip_low: f64,
    clip_high: f64,
    dual_clip: Option<f64>,
    behaviour_weight_cap: Option<f64>,
    kl_coef: f64,
    kl_estimator: String,
    entropy_coef: f64,
}

#[derive(Debug, serde::Deserialize)]
struct CaseToken {
    weight: f64,
    advantage: f64,
    p_sampled: f64,
    p_now: f64,
    p_proximal: Option<f64>,
    p_reference: Option<f64>,
    #[serde(default)]
    entropy: f64,
}

impl CaseLoss {
    fn gradient(&self) -> PolicyGradient {
        let dual_clip = self.dual_clip;
        PolicyGradient {
            surrogate: match self.objective.as_str() {
                "clipped" => Surrogate::Clipped { dual_clip },
                "decoupled" => Surrogate::Decoupled {
                    behaviour_weight_cap: self.behaviour_weight_cap.unwrap(),
                    dual_clip,
                },
                "gspo" => Surrogate::Sequence,
                "cispo" => Surrogate::ConstantWeight,
                other => panic!("objective `{other}`"),
            },
            clip_low: self.clip_low,
            clip_high: self.clip_high,
            kl_coef: self.kl_coef,
            kl_estimator: match self.kl_estimator.as_str() {
                "k2" => KlEstimator::K2,
                "k3" => KlEstimator::K3,
                other => panic!("estimator `{other}`"),
            },
            entropy_coef: self.entropy_coef,
        }
    }
}

impl CaseToken {
    fn scored(&self) -> ScoredToken {
        let token = Token {
            weight: self.weight,
            advantage: self.advantage,
            sampled_logprob: self.p_sampled.ln(),
            proximal_logprob: self.p_proximal.map(f64::ln),
            reference_logprob: self.p_reference.map(f64::ln),
            sequence_gap: 0.0,
        };
        ScoredToken {
            token,
            logprob: self.p_now.ln(),
            entropy: self.entropy,
        }
    }
}

#[track_caller]
fn close(name: &str, found: f64, expected: f64) {
    let apart = (found - expected).abs();
    assert!(apart < 1e-12, "{name}: {found}, by hand {expected}");
}

#[test]
fn losses_and_their_slopes_are_those_computed_by_hand() {
    #[derive(serde::Deserialize)]
    struct Cases {
        losses: Vec<Case>,
    }
    let text = include_str!("../../../../osmosis-core/fixtures/objectives.json");
    let cases: Cases = serde_json::from_str(text).unwrap();
    for case in &cases.losses {
        let (name, mut tally) = (&case.name, Tally::default());
        let objective = LossFunction::PolicyGradient(case.loss.gradient());
        for (at, (row, expected)) in case.rows.iter().zip(&case.slopes).enumerate() {
            let tokens: Vec<ScoredToken> = row.iter().map(CaseToken::scored).collect();
            let slopes = tally.add_row(objective, &tokens);
            assert_eq!(slopes.len(), expected.len(), "{name}");
            for (place, (slope, expected)) in slopes.iter().zip(expected).enumerate() {
                close(name, slope.logprob, *expected);
                let entropy = case.entropy_slopes.as_ref();
                close(
                    name,
                    slope.entropy,
                    entropy.map_or(0.0, |all| all[at][place]),
                );
            }
        }
        let report = tally.report(0.0);
        close(name, report.loss, case.value);
        close(name, report.clip_fraction, case.clip_fraction);
    }
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
