//! Learner and sampler compute the same model.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows tests by their attribute, not what they call"
)]

use osmosis_policy::{Architecture, Decoder, DecoderLearner, ModelConfig, RopeScaling};

use crate::learner_models::{ARCHITECTURES, OPTIONS, config, rows, weights};

#[track_caller]
fn check(config: &ModelConfig) {
    let weights = weights(config, 3);
    let learner = DecoderLearner::new(config, &weights, OPTIONS).unwrap();
    let decoder = Decoder::new(config, &weights, 1).unwrap();
    let rows = rows(20, 5);
    for (row, logprobs) in rows.iter().zip(learner.logprobs(&rows).unwrap()) {
        let logits = decoder.logits(&row.ids).unwrap();
        assert_eq!((logprobs.len(), logprobs[0]), (row.ids.len(), 0.0));
        for token in 1..row.ids.len() {
            let temperature = f64::from(row.temperatures[token]);
            let scaled = logits[token - 1]
                .iter()
                .map(|logit| f64::from(*logit) / temperature);
            let scaled = scaled.collect::<Vec<_>>();
            let sum: f64 = scaled.iter().map(|logit| logit.exp()).sum();
            let expected = scaled[row.ids[token] as usize] - sum.ln();
            let found = f64::from(logprobs[token]);
            assert!(
                (found - expected).abs() < 1e-5,
                "{:?}, token {token}: {found} by the learner, {expected} by the sampler",
                config.architecture,
            );
        }
    }
}

#[test]
fn logprobs_of_learner_and_sampler_agree() {
    for architecture in ARCHITECTURES {
        check(&config(architecture));
    }
}

#[test]
fn logprobs_agree_with_stretched_positions() {
    let stretched = [
        RopeScaling::Linear { factor: 4.0 },
        RopeScaling::Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original_context: 32.0,
        },
    ];
    for rope_scaling in stretched {
        check(&ModelConfig {
            rope_scaling,
            ..config(Architecture::Llama)
        });
    }
}

#[test]
fn rows_too_short_to_have_logprobs_are_no_error() {
    let config = config(Architecture::Llama);
    let learner = DecoderLearner::new(&config, &weights(&config, 3), OPTIONS).unwrap();
    let rows = [vec![], vec![5], vec![5, 6]].map(crate::learner_models::row);
    let logprobs = learner.logprobs(&rows).unwrap();
    assert_eq!(logprobs[..2], [vec![], vec![0.0]]);
    assert!(logprobs[2][1] < 0.0);
    assert!(learner.logprobs(&[]).unwrap().is_empty());
}
