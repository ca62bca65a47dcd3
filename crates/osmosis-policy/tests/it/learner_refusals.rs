//! What the learner refuses, and that nothing has changed then.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows tests by their attribute, not what they call"
)]

use osmosis_policy::{
    Architecture, DecoderLearner, LearnerOptions, LossFunction, LossRow, PolicyError,
    PolicyErrorKind,
};

use crate::learner_models::{CLIPPED, DECOUPLED, OPTIONS, config, learner, row, rows, weights};

#[test]
fn optimizer_state_of_another_model_is_refused() {
    let mut learner = learner(Architecture::Llama, OPTIONS);
    learner.update(&rows(4, 1), CLIPPED).unwrap();
    let (updates, state) = learner.optimizer_state().unwrap();

    let mut missing = state.clone();
    missing.remove("v.model.norm.weight");
    let message = learner
        .restore_optimizer(updates, missing)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("`v.model.norm.weight` is missing"),
        "{message}"
    );

    let mut wrong = state.clone();
    wrong.get_mut("m.model.norm.weight").unwrap().shape = vec![3];
    let message = learner
        .restore_optimizer(updates, wrong)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("`m.model.norm.weight` has shape [3], expected [24]"),
        "{message}"
    );

    let mut extra = state.clone();
    extra.insert(
        "m.lm_head.weight".to_owned(),
        state["m.model.norm.weight"].clone(),
    );
    let error = learner.restore_optimizer(updates, extra).unwrap_err();
    assert_eq!(error.kind(), PolicyErrorKind::Unreadable);
    assert!(
        error.to_string().contains("nothing for `m.lm_head.weight`"),
        "{error}"
    );

    assert!(
        learner.optimizer_state().unwrap() == (updates, state),
        "nothing has changed"
    );
}

/// Does `update` and checks that it fails and that the learner is as it was.
#[track_caller]
fn refused(rows: &[LossRow], objective: LossFunction, message: &str) {
    let mut learner = learner(Architecture::Llama, OPTIONS);
    learner
        .update(&crate::learner_models::rows(4, 1), CLIPPED)
        .unwrap();
    let before = (
        learner.weights().unwrap(),
        learner.optimizer_state().unwrap(),
    );
    let error = learner.update(rows, objective).unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
    assert_eq!(error.kind(), PolicyErrorKind::Invalid);
    assert!(
        before
            == (
                learner.weights().unwrap(),
                learner.optimizer_state().unwrap()
            )
    );
}

#[test]
fn rows_that_make_no_sense_are_refused_and_named() {
    let good = || row(vec![1, 2, 3]);
    let broken = |change: fn(&mut LossRow)| {
        let mut row = good();
        change(&mut row);
        [good(), row]
    };
    refused(&[], CLIPPED, "there are none");
    let mut silent = good();
    silent.weights.fill(0.0);
    refused(
        &[silent.clone(), silent],
        CLIPPED,
        "no token of 2 rows has a weight",
    );
    refused(
        &broken(|row| row.weights[2] = f32::NAN),
        CLIPPED,
        "row 1 has `NaN` in `weights` at token 2",
    );
    refused(
        &broken(|row| row.advantages[1] = f32::INFINITY),
        CLIPPED,
        "`inf` in `advantages`",
    );
    refused(
        &broken(|row| row.sampled_logprobs[1] = f32::NAN),
        CLIPPED,
        "in `sampled_logprobs`",
    );
    refused(
        &broken(|row| row.weights[0] = 1.0),
        CLIPPED,
        "row 1 has a weight at its first token",
    );
    refused(
        &broken(|row| row.temperatures[2] = 0.0),
        CLIPPED,
        "has temperature `0`",
    );
    refused(
        &broken(|row| row.ids[0] = 37),
        CLIPPED,
        "has token `37`, the vocabulary has 37",
    );
    refused(
        &broken(|row| row.advantages.truncate(1)),
        CLIPPED,
        "has 3 ids and 1 `advantages`",
    );
    refused(
        &[row(vec![1; 65])],
        CLIPPED,
        "has 65 tokens, the model's context is 64",
    );
    let pull = LossFunction::clipped(0.2, 0.2, 0.1);
    refused(&[good()], pull, "has no `reference_logprobs`");
    let odd = LossFunction::clipped(f64::NAN, 0.2, 0.0);
    refused(&[good()], odd, "`clip_low`");
    refused(&[good()], DECOUPLED, "has no `proximal_logprobs`");
    refused(
        &broken(|row| row.proximal_logprobs = Some(vec![f32::NAN; 3])),
        CLIPPED,
        "row 1 has `NaN` in `proximal_logprobs` at token 0",
    );
    for cap in [1.0, f64::INFINITY] {
        let odd = LossFunction::decoupled(0.2, 0.2, 0.0, cap);
        refused(&[good()], odd, "`behaviour_weight_cap`");
    }
}

#[test]
fn numbers_that_run_away_fail_the_update_and_change_nothing() {
    let mut learner = learner(Architecture::Llama, OPTIONS);
    learner.update(&rows(4, 1), CLIPPED).unwrap();
    let before = (
        learner.weights().unwrap(),
        learner.optimizer_state().unwrap(),
    );
    let mut rows = rows(4, 1);
    rows[0].advantages.fill(-1.0);
    // The ratio overflows f32: exp(200).
    rows[0].sampled_logprobs.fill(-200.0);
    let error = learner.update(&rows, CLIPPED).unwrap_err();
    assert!(matches!(error, PolicyError::NotFinite { .. }), "{error}");
    assert_eq!(error.kind(), PolicyErrorKind::NotFinite);
    assert!(error.to_string().contains("gradient of `model."), "{error}");
    assert!(
        before
            == (
                learner.weights().unwrap(),
                learner.optimizer_state().unwrap()
            )
    );
    learner
        .update(&crate::learner_models::rows(4, 1), CLIPPED)
        .unwrap();
}

#[test]
fn weights_that_are_not_numbers_are_refused() {
    let config = config(Architecture::Llama);
    let mut weights = weights(&config, 1);
    let name = "model.layers.1.mlp.up_proj.weight";
    let tensor = weights.tensors.get_mut(name).unwrap();
    let mut values = tensor.values.to_vec();
    values[5] = f32::NAN;
    tensor.values = values.into();
    let error = DecoderLearner::new(&config, &weights, OPTIONS).unwrap_err();
    assert!(error.to_string().contains(name), "{error}");
    weights.tensors.remove(name);
    let error = DecoderLearner::new(&config, &weights, OPTIONS).unwrap_err();
    assert!(error.to_string().contains(name), "{error}");
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let config = config(Architecture::Llama);
    let check = |options: LearnerOptions, message: &str| {
        let error = DecoderLearner::new(&config, &weights(&config, 1), options).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(error.kind(), PolicyErrorKind::Invalid);
    };
    check(
        LearnerOptions {
            lr: f64::NAN,
            ..OPTIONS
        },
        "`lr`",
    );
    check(
        LearnerOptions {
            beta1: 1.0,
            ..OPTIONS
        },
        "`beta1`",
    );
    check(
        LearnerOptions {
            epsilon: 0.0,
            ..OPTIONS
        },
        "`epsilon`",
    );
    check(
        LearnerOptions {
            max_gradient_norm: 0.0,
            ..OPTIONS
        },
        "`max_gradient_norm`",
    );
    check(
        LearnerOptions {
            tokens_per_piece: 0,
            ..OPTIONS
        },
        "`tokens_per_piece`",
    );
    let mut learner = learner(Architecture::Llama, OPTIONS);
    learner.set_lr(f64::INFINITY);
    let error = learner.update(&rows(2, 1), CLIPPED).unwrap_err();
    assert!(error.to_string().contains("`lr`"), "{error}");
}
