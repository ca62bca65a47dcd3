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
