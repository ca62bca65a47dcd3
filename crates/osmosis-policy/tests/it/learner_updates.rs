//! What updates do to a model.

use osmosis_policy::{
    Architecture, DecoderLearner, LearnerOptions, LossFunction, LossRow, UpdateReport,
};

use crate::learner_models::{
    ARCHITECTURES, CLIPPED, DECOUPLED, OPTIONS, config, learner, row, rows, weights,
};

#[test]
fn likelihood_learns_sequences_by_heart() {
    for architecture in ARCHITECTURES {
        let mut learner = learner(
            architecture,
            LearnerOptions {
                weight_decay: 0.0,
                ..OPTIONS
            },
        );
        let rows = [
            vec![1, 5, 9, 13, 2],
            vec![8, 6, 6, 6, 30, 31, 2],
            vec![3, 4],
        ]
        .map(row);
        let first = learner.update(&rows, LossFunction::Likelihood).unwrap();
        let mut last = first;
        for _ in 0..150 {
            last = learner.update(&rows, LossFunction::Likelihood).unwrap();
        }
        assert_eq!(first.tokens, 11);
        assert!(
            first.loss > 11.0 * 2.0,
            "{architecture:?} began at {}",
            first.loss
        );
        assert!(last.loss < 0.5, "{architecture:?} ended at {}", last.loss);
        assert!(last.entropy < first.entropy / 4.0);
    }
}

/// Each step all answers are tried as often as the model gives them; one of them is rewarded.
#[test]
fn policy_gradient_finds_the_rewarded_token() {
    let mut learner = learner(
        Architecture::Qwen3,
        LearnerOptions {
            lr: 3e-3,
            ..OPTIONS
        },
    );
    let answers = (0..37).map(|answer| {
        let mut row = row(vec![1, 2, 3, answer]);
        row.weights = vec![0.0, 0.0, 0.0, 1.0];
        row
    });
    let mut rows = answers.collect::<Vec<LossRow>>();
    let chance =
        |learner: &DecoderLearner, rows: &[LossRow]| learner.logprobs(rows).unwrap()[17][3].exp();
    let before = chance(&learner, &rows);
    for _ in 0..40 {
        let logprobs = learner.logprobs(&rows).unwrap();
        let right = logprobs[17][3].exp();
        for (answer, (row, logprobs)) in rows.iter_mut().zip(logprobs).enumerate() {
            let reward = if answer == 17 { 1.0 } else { 0.0 };
            row.weights[3] = logprobs[3].exp();
            row.advantages[3] = reward - right;
            row.sampled_logprobs = logprobs;
        }
        let report = learner.update(&rows, CLIPPED).unwrap();
        assert!(report.mismatch_max < 1e-5, "the learner agrees with itself");
    }
    let after = chance(&learner, &rows);
    assert!(before < 0.1 && after > 0.9, "from {before} to {after}");
}

#[test]
fn tokens_without_advantage_change_nothing_but_the_metrics() {
    let mut learner = learner(
        Architecture::Llama,
        LearnerOptions {
            weight_decay: 0.0,
            ..OPTIONS
        },
    );
    let before = learner.weights().unwrap();
    let mut rows = rows(3, 1);
    for row in &mut rows {
        row.advantages.fill(0.0);
    }
    let report = learner.update(&rows, CLIPPED).unwrap();
    assert_eq!((report.loss, report.gradient_norm), (0.0, 0.0));
    assert!(report.entropy > 3.0, "the entropy of an untrained model");
    assert!(before == learner.weights().unwrap());
}

#[test]
fn the_pull_to_the_reference_lowers_its_divergence() {
    let objective = LossFunction::clipped(0.2, 0.2, 1.0);
    let mut learner = learner(
        Architecture::Llama,
        LearnerOptions {
            lr: 1e-3,
            ..OPTIONS
        },
    );
    let other = DecoderLearner::new(
        &config(Architecture::Llama),
        &weights(&config(Architecture::Llama), 8),
        OPTIONS,
    );
    let mut rows = rows(4, 2);
    let reference = other.unwrap().logprobs(&rows).unwrap();
    for (row, reference) in rows.iter_mut().zip(reference) {
        row.advantages.fill(0.0);
        row.reference_logprobs = Some(reference);
    }
    let first = learner.update(&rows, objective).unwrap().kl_to_reference;
    for _ in 0..20 {
        learner.update(&rows, objective).unwrap();
    }
    let last = learner.update(&rows, objective).unwrap().kl_to_reference;
    assert!(last < first / 2.0, "from {first} to {last}");
}

#[test]
fn one_update_with_what_the_learner_itself_would_sample_is_decoupled_and_clipped_the_same() {
    let learner = || learner(Architecture::Llama, OPTIONS);
    let mut rows = rows(6, 3);
    let logprobs = learner().logprobs(&rows).unwrap();
    for (row, logprobs) in rows.iter_mut().zip(logprobs) {
        row.sampled_logprobs.clone_from(&logprobs);
        row.proximal_logprobs = Some(logprobs);
    }
    let (mut one, mut other) = (learner(), learner());
    let clipped = one.update(&rows, CLIPPED).unwrap();
    let decoupled = other.update(&rows, DECOUPLED).unwrap();
    assert_eq!(
        UpdateReport {
            behaviour_weight: None,
            capped_fraction: None,
            ..decoupled
        },
        clipped
    );
    assert_eq!(decoupled.behaviour_weight, Some(1.0));
    assert_eq!(decoupled.capped_fraction, Some(0.0));
    assert!(one.weights().unwrap() == other.weights().unwrap());
}

#[test]
fn updates_after_the_first_are_held_near_where_the_batch_found_the_policy() {
    let mut rows = rows(6, 3);
    let mut learner = learner(Architecture::Llama, OPTIONS);
    let found = learner.logprobs(&rows).unwrap();
    for (row, found) in rows.iter_mut().zip(found) {
        // Sampled long ago: half as likely then, which a clip around it would not let it forget.
        row.sampled_logprobs = found.iter().map(|logprob| logprob - 0.7).collect();
        row.proximal_logprobs = Some(found);
        row.advantages.fill(1.0);
    }
    let first = learner.update(&rows, DECOUPLED).unwrap();
    assert_eq!(
        (first.clip_fraction, first.capped_fraction),
        (0.0, Some(0.0))
    );
    assert!((first.behaviour_weight.unwrap() - 0.7_f64.exp()).abs() < 1e-4);
    for _ in 0..5 {
        learner.update(&rows, DECOUPLED).unwrap();
    }
    let last = learner.update(&rows, DECOUPLED).unwrap();
    assert!(last.clip_fraction > 0.0, "{last:?}");
    assert_eq!(last.behaviour_weight, first.behaviour_weight);

    let clipped = self::learner(Architecture::Llama, OPTIONS)
        .update(&rows, CLIPPED)
        .unwrap();
    assert!(
        (clipped.clip_fraction - 1.0).abs() < 1e-9,
        "nothing is learned"
    );
}

#[test]
fn an_update_is_the_same_bit_for_bit_whatever_the_number_of_threads() {
    for architecture in ARCHITECTURES {
        let run = |threads: usize| {
            let mut learner = learner(architecture, LearnerOptions { threads, ..OPTIONS });
            let reports = [1, 2, 3].map(|seed| learner.update(&rows(30, seed), CLIPPED).unwrap());
            let logprobs = learner.logprobs(&rows(30, 4)).unwrap();
            (reports, learner.weights().unwrap(), logprobs)
        };
        let one = run(1);
        for threads in [1, 2, 3, 0] {
            assert!(
                one == run(threads),
                "{architecture:?} with {threads} threads"
            );
        }
    }
}

#[test]
fn the_size_of_pieces_matters_only_by_rounding() {
    let run = |tokens_per_piece: usize| {
        let mut learner = learner(
            Architecture::Qwen2,
            LearnerOptions {
                tokens_per_piece,
                ..OPTIONS
            },
        );
        learner.update(&rows(30, 1), CLIPPED).unwrap()
    };
    let (small, large) = (run(1), run(10_000));
    assert!((small.loss - large.loss).abs() < 1e-5);
    assert!((small.gradient_norm - large.gradient_norm).abs() < 1e-4 * large.gradient_norm);
    assert!((small.entropy - large.entropy).abs() < 1e-5);
}

#[test]
fn a_restored_optimizer_goes_on_bit_for_bit() {
    let mut straight = learner(Architecture::Qwen3, OPTIONS);
    for seed in 1..4 {
        straight.update(&rows(8, seed), CLIPPED).unwrap();
    }
    let (updates, state) = straight.optimizer_state().unwrap();
    assert_eq!(updates, 3);
    assert!(state.contains_key("m.model.embed_tokens.weight"));
    assert!(state.contains_key("v.model.layers.1.self_attn.q_norm.weight"));
    let saved = straight.weights().unwrap();
    let mut restored = DecoderLearner::new(&config(Architecture::Qwen3), &saved, OPTIONS).unwrap();
    restored.restore_optimizer(updates, state).unwrap();
    for seed in 4..6 {
        let reports = [&mut straight, &mut restored]
            .map(|learner| learner.update(&rows(8, seed), CLIPPED).unwrap());
        assert_eq!(reports[0], reports[1]);
    }
    assert!(straight.weights().unwrap() == restored.weights().unwrap());
    assert!(straight.weights().unwrap() != saved, "weights are a copy");
}

#[test]
fn the_learning_rate_can_change_between_updates() {
    let mut learner = learner(
        Architecture::Llama,
        LearnerOptions {
            weight_decay: 0.0,
            ..OPTIONS
        },
    );
    let before = learner.weights().unwrap();
    learner.set_lr(0.0);
    learner.update(&rows(2, 1), CLIPPED).unwrap();
    assert!(before == learner.weights().unwrap());
    learner.set_lr(0.1);
    learner.update(&rows(2, 1), CLIPPED).unwrap();
    assert!(before != learner.weights().unwrap());
}
