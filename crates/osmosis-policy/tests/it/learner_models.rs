//! Small random models and rows for the tests of the learner.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows tests by their attribute, not what they call"
)]

use osmosis_policy::{
    Architecture, DecoderLearner, LearnerOptions, LossFunction, LossRow, ModelConfig, NamedTensor,
    RopeScaling, Weights,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) const ARCHITECTURES: [Architecture; 3] = [
    Architecture::Llama,
    Architecture::Qwen2,
    Architecture::Qwen3,
];

pub(crate) const CLIPPED: LossFunction = LossFunction::clipped(0.2, 0.2, 0.0);

pub(crate) const DECOUPLED: LossFunction = LossFunction::decoupled(0.2, 0.2, 0.0, 5.0);

pub(crate) const OPTIONS: LearnerOptions = LearnerOptions {
    lr: 1e-2,
    beta1: 0.9,
    beta2: 0.99,
    epsilon: 1e-8,
    weight_decay: 0.01,
    max_gradient_norm: 1.0,
    threads: 2,
    tokens_per_piece: 64,
};

pub(crate) fn config(architecture: Architecture) -> ModelConfig {
    ModelConfig {
        architecture,
        vocabulary: 37,
        width: 24,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_width: 8,
        mlp_width: 40,
        context: 64,
        norm_epsilon: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::None,
        tied_embeddings: architecture != Architecture::Qwen2,
        source: serde_json::Value::Null,
    }
}

pub(crate) fn weights(config: &ModelConfig, seed: u64) -> Weights {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let tensors = config.tensors().into_iter().map(|(name, shape)| {
        let centre = if name.ends_with("norm.weight") {
            1.0
        } else {
            0.0
        };
        let count = shape.iter().product::<usize>();
        let values = (0..count)
            .map(|_| centre + random.random_range(-0.2..0.2))
            .collect();
        (name, NamedTensor { shape, values })
    });
    Weights {
        tensors: tensors.collect(),
    }
}

pub(crate) fn learner(architecture: Architecture, options: LearnerOptions) -> DecoderLearner {
    let config = config(architecture);
    DecoderLearner::new(&config, &weights(&config, 7), options).unwrap()
}

/// A row that trains on all tokens but the first.
pub(crate) fn row(ids: Vec<u32>) -> LossRow {
    let length = ids.len();
    let weights = (0..length).map(|token| if token == 0 { 0.0 } else { 1.0 });
    LossRow {
        weights: weights.collect(),
        advantages: vec![1.0; length],
        sampled_logprobs: vec![-3.0; length],
        proximal_logprobs: None,
        reference_logprobs: None,
        temperatures: vec![1.0; length],
        ids,
        constrained: vec![],
    }
}

/// Random rows of different lengths, with advantages, temperatures and weights that differ.
pub(crate) fn rows(count: usize, seed: u64) -> Vec<LossRow> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count)
        .map(|_| {
            let length = random.random_range(2..40);
            let mut row = row((0..length).map(|_| random.random_range(0..37)).collect());
            for token in 1..length {
                row.weights[token] = if random.random_bool(0.5) { 0.1 } else { 0.0 };
                row.advantages[token] = random.random_range(-1.0..1.0);
                row.temperatures[token] = random.random_range(0.5..1.5);
            }
            row
        })
        .collect()
}
