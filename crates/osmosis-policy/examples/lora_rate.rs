//! What training takes, with all weights and with adapters:
//! `cargo run --release -p osmosis-policy --example lora_rate MODEL (full|f32|bf16|q8_0) [RANK] [STEPS] [MODULES]`,
//! where MODULES are names with commas between them, such as `q_proj,v_proj`; all seven without it.
//!
//! It does what a training does, but for the agents: a sampler and a learner of one model, and in each step an update
//! on 16 rows of 256 tokens, half of them trained on, and the new weights in the sampler's place. It prints the time of
//! an update and of a step, tokens per second, and the most memory that the process took. Each run is one process,
//! because memory that was used before counts.

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::time::{Duration, Instant};
use std::{env, fs};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::PolicyVersion;
use osmosis_core::config::{Lora, LoraBase, LoraModule};
use osmosis_core::learner::{
    LearnerError, LearnerFiles, LossFunction, LossRow, TrainableModel, WeightSink,
};
use osmosis_policy::{EmbeddedModel, SamplerOptions, StartModel};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const ROWS: usize = 16;
const TOKENS: usize = 256;
const POLICY_GRADIENT: LossFunction = LossFunction::clipped(0.2, 0.2, 0.0);

fn main() -> Result<(), LearnerError> {
    let mut arguments = env::args().skip(1);
    let path = Utf8PathBuf::from(arguments.next().unwrap_or_default());
    let kind = arguments.next().unwrap_or_else(|| "f32".to_owned());
    let rank = arguments.next().and_then(|text| text.parse().ok());
    let steps = arguments.next().and_then(|text| text.parse().ok());
    let steps: u32 = steps.unwrap_or(2);
    let modules = arguments.next().unwrap_or_default();
    let modules: Vec<LoraModule> = modules.split(',').filter_map(LoraModule::of_name).collect();
    let lora = LoraBase::of_name(&kind).map(|base| {
        let all = Lora::default();
        Lora {
            rank: rank.unwrap_or(16),
            base,
            target_modules: if modules.is_empty() {
                all.target_modules.clone()
            } else {
                modules
            },
            ..all
        }
    });
    let model = EmbeddedModel::open(&path)?;
    let vocabulary = u32::try_from(model.config.vocabulary).unwrap_or(u32::MAX);
    let start = StartModel::new(model, lora);
    let trained = start
        .adapter_parameters()
        .unwrap_or_else(|| start.parts().config.parameters());
    let base = Utf8Path::from_path(&env::temp_dir())
        .map(|folder| folder.join(format!("lora-rate-{}", std::process::id())))
        .unwrap_or_default();
    start.freeze(1, &base)?;
    let options = SamplerOptions {
        max_batch: 64,
        threads: 0,
        cache_bytes: 1 << 28,
    };
    let sampler = start.sampler(PolicyVersion(0), options)?;
    let mut learner = start.learner(1e-4)?;
    start.begun();
    println!(
        "{kind}: {trained} numbers trained; begun with {} MB",
        memory("VmRSS")
    );

    let mut rows = rows(vocabulary);
    let logprobs = learner.logprobs(&rows)?;
    for (row, logprobs) in rows.iter_mut().zip(logprobs) {
        row.sampled_logprobs = logprobs;
    }
    learner.update(&rows, POLICY_GRADIENT, &mut |_| true)?;
    let (mut updating, begin) = (Duration::ZERO, Instant::now());
    for step in 0..steps {
        let began = Instant::now();
        learner.update(&rows, POLICY_GRADIENT, &mut |_| true)?;
        updating += began.elapsed();
        sampler.load(&learner.weights()?, PolicyVersion(u64::from(step) + 1))?;
    }
    let step = begin.elapsed().as_secs_f64() / f64::from(steps);
    println!(
        "{kind}: update {:.2} s, step {step:.2} s, {:.0} tokens/s, peak {} MB",
        updating.as_secs_f64() / f64::from(steps),
        (ROWS * TOKENS) as f64 / step,
        memory("VmHWM"),
    );
    let saved = base.with_extension("saved");
    learner.save(LearnerFiles {
        model: &saved,
        optimizer: &saved.join("trainer/optimizer.safetensors"),
    })?;
    println!(
        "{kind}: {} MB now, peak {} MB with saving",
        memory("VmRSS"),
        memory("VmHWM")
    );
    let _ = fs::remove_dir_all(&saved);
    let _ = fs::remove_dir_all(&base);
    Ok(())
}

fn rows(vocabulary: u32) -> Vec<LossRow> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    (0..ROWS)
        .map(|_| {
            let weights = (0..TOKENS).map(|token| if token < TOKENS / 2 { 0.0 } else { 1e-3 });
            LossRow {
                ids: (0..TOKENS)
                    .map(|_| random.random_range(0..vocabulary))
                    .collect(),
                weights: weights.collect(),
                advantages: vec![random.random_range(-1.0..1.0); TOKENS],
                sampled_logprobs: vec![0.0; TOKENS],
                proximal_logprobs: None,
                reference_logprobs: None,
                temperatures: vec![1.0; TOKENS],
                constrained: vec![],
            }
        })
        .collect()
}

/// A line of `/proc/self/status`, in MB; 0 where the system does not tell.
fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) / 1024
}
