//! How long an update takes: `cargo run --release -p osmosis-policy --example update_rate [THREADS] [TOKENS]`.
//!
//! 128 rows of about 110 tokens, half of them trained on, for a model of the size of `builtin/tiny`.
//! `TOKENS` is `tokens_per_piece`.

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::time::{Duration, Instant};
use std::{env, fs};

use osmosis_policy::{
    Architecture, DecoderLearner, LearnerOptions, LossFunction, LossRow, ModelConfig, NamedTensor,
    PolicyError, RopeScaling, UpdateReport, Weights,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const ROWS: usize = 128;
const UPDATES: u32 = 10;
const POLICY_GRADIENT: LossFunction = LossFunction::clipped(0.2, 0.2, 0.0);

fn main() -> Result<(), PolicyError> {
    let mut arguments = env::args()
        .skip(1)
        .filter_map(|argument| argument.parse().ok());
    let threads = arguments.next().unwrap_or(0);
    let tokens_per_piece = arguments.next().unwrap_or(1024);
    let config = config();
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let options = LearnerOptions {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.0,
        max_gradient_norm: 1.0,
        threads,
        tokens_per_piece,
    };
    let mut learner = DecoderLearner::new(&config, &weights(&config, &mut random), options)?;
    let mut rows = rows(&config, &mut random);
    let logprobs = learner.logprobs(&rows)?;
    for (row, logprobs) in rows.iter_mut().zip(logprobs) {
        row.sampled_logprobs = logprobs;
    }
    learner.update(&rows, POLICY_GRADIENT)?;

    let (begin, busy) = (Instant::now(), cpu_time());
    let mut report = UpdateReport::default();
    for _ in 0..UPDATES {
        report = learner.update(&rows, POLICY_GRADIENT)?;
    }
    let wall = begin.elapsed();
    let busy = cpu_time().saturating_sub(busy);
    let tokens: usize = rows.iter().map(|row| row.ids.len()).sum();
    println!(
        "update: {} parameters, {tokens} tokens, {:.3} s, {:.3} s of cores, {:.2} cores busy",
        config.parameters(),
        wall.as_secs_f64() / f64::from(UPDATES),
        busy.as_secs_f64() / f64::from(UPDATES),
        busy.as_secs_f64() / wall.as_secs_f64(),
    );
    // To see that the result does not depend on the machine.
    println!(
        "after {UPDATES} updates: loss {}, gradient norm {}",
        report.loss, report.gradient_norm
    );
    let begin = Instant::now();
    learner.logprobs(&rows)?;
    println!(
        "logprobs of all tokens: {:.3} s",
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}

fn config() -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Llama,
        vocabulary: 512,
        width: 96,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_width: 24,
        mlp_width: 256,
        context: 512,
        norm_epsilon: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::None,
        tied_embeddings: true,
        source: serde_json::Value::Null,
    }
}

fn weights(config: &ModelConfig, random: &mut ChaCha8Rng) -> Weights {
    let tensors = config.tensors().into_iter().map(|(name, shape)| {
        let count = shape.iter().product::<usize>();
        let values = if name.ends_with("norm.weight") {
            vec![1.0; count]
        } else {
            (0..count)
                .map(|_| random.random_range(-0.05..0.05))
                .collect()
        };
        (
            name,
            NamedTensor {
                shape,
                values: values.into(),
            },
        )
    });
    Weights {
        tensors: tensors.collect(),
    }
}

fn rows(config: &ModelConfig, random: &mut ChaCha8Rng) -> Vec<LossRow> {
    let vocabulary = u32::try_from(config.vocabulary).unwrap_or(u32::MAX);
    (0..ROWS)
        .map(|_| {
            let length = random.random_range(90..131);
            let weights = (0..length).map(|token| if token < length / 2 { 0.0 } else { 1e-3 });
            LossRow {
                ids: (0..length)
                    .map(|_| random.random_range(0..vocabulary))
                    .collect(),
                weights: weights.collect(),
                advantages: vec![random.random_range(-1.0..1.0); length],
                sampled_logprobs: vec![0.0; length],
                proximal_logprobs: None,
                reference_logprobs: None,
                temperatures: vec![1.0; length],
                constrained: vec![],
            }
        })
        .collect()
}

/// Time this process has spent on cores so far; 0 where the system does not tell.
fn cpu_time() -> Duration {
    // After the name in parentheses: user and system time are the 12th and 13th fields, in 1/100 s.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let ticks: u64 = fields
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}
