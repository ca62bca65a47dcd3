//! GRPO on `builtin/tiny` without Python and HTTP: finds settings for `examples/calculator`.
//!
//! ```text
//! cargo run --release -p osmosis-policy --example tiny_loop -- --seeds 8 --steps 30 --lr 1e-3
//! ```
//!
//! It examines the model on the tuning rows. The held-out rows are for the settings that were chosen, once:
//! `--report held-out`.

#![expect(
    clippy::print_stdout,
    reason = "a program that prints what it measures"
)]

#[path = "make_tiny/conversation.rs"]
#[expect(
    dead_code,
    reason = "this program makes no conversations for the warm start"
)]
mod conversation;
#[path = "make_tiny/dataset.rs"]
#[expect(dead_code, reason = "this program writes no rows")]
mod dataset;
#[path = "make_tiny/environment.rs"]
mod environment;
#[path = "make_tiny/questions.rs"]
mod questions;
#[path = "make_tiny/scores.rs"]
mod scores;

use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};

use osmosis_core::PolicyVersion;
use osmosis_policy::{
    DecoderLearner, EmbeddedModel, LearnerOptions, LossFunction, LossRow, Sampler, SamplerOptions,
    UpdateReport,
};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use dataset::Dataset;
use environment::{Episode, play};
use questions::{Operation, Question};
use scores::Scores;

type AnyError = Box<dyn Error + Send + Sync>;

#[derive(Debug, Clone)]
struct Arguments {
    /// A file of `make_tiny`; `builtin/tiny` without one.
    model: Option<String>,
    first_seed: u64,
    seeds: u64,
    steps: u64,
    groups: usize,
    group_size: usize,
    lr: f64,
    updates: usize,
    clip: f64,
    eval_interval: u64,
    /// The rows that are examined at the end are the held-out ones, and nothing is examined in between.
    report_held_out: bool,
    /// Prints each step that is a multiple of this.
    verbose: u64,
}

impl Arguments {
    fn read() -> Result<Self, AnyError> {
        let mut read = Self {
            model: None,
            first_seed: 1,
            seeds: 5,
            steps: 30,
            groups: 16,
            group_size: 8,
            lr: 1e-3,
            updates: 1,
            clip: 0.2,
            eval_interval: 10,
            report_held_out: false,
            verbose: 0,
        };
        let mut given = std::env::args().skip(1);
        while let Some(flag) = given.next() {
            let value = given.next().ok_or(format!("`{flag}` needs a value"))?;
            match flag.as_str() {
                "--model" => read.model = Some(value),
                "--first-seed" => read.first_seed = value.parse()?,
                "--seeds" => read.seeds = value.parse()?,
                "--steps" => read.steps = value.parse()?,
                "--groups" => read.groups = value.parse()?,
                "--group-size" => read.group_size = value.parse()?,
                "--lr" => read.lr = value.parse()?,
                "--updates" => read.updates = value.parse()?,
                "--clip" => read.clip = value.parse()?,
                "--eval-interval" => read.eval_interval = value.parse()?,
                "--report" => match value.as_str() {
                    "tuning" => read.report_held_out = false,
                    "held-out" => read.report_held_out = true,
                    _ => return Err(format!("`--report {value}`: `tuning` or `held-out`").into()),
                },
                "--verbose" => read.verbose = value.parse()?,
                _ => return Err(format!("unknown argument `{flag}`").into()),
            }
        }
        Ok(read)
    }
}

fn main() -> Result<(), AnyError> {
    let arguments = Arguments::read()?;
    let model = match &arguments.model {
        Some(path) => EmbeddedModel::from_one_file(path, &std::fs::read(path)?)?,
        None => EmbeddedModel::builtin("tiny")?,
    };
    let dataset = Dataset::draw();
    println!("{arguments:?}");
    for seed in arguments.first_seed..arguments.first_seed + arguments.seeds {
        train(&model, &dataset, seed, &arguments)?;
    }
    Ok(())
}

#[derive(Default)]
struct Spent {
    rollouts: Duration,
    update: Duration,
    swap: Duration,
}

fn train(
    model: &EmbeddedModel,
    dataset: &Dataset,
    seed: u64,
    arguments: &Arguments,
) -> Result<(), AnyError> {
    let sampler = Sampler::start(
        model,
        PolicyVersion(0),
        SamplerOptions {
            max_batch: arguments.groups * arguments.group_size,
            threads: 0,
            cache_bytes: 1 << 30,
        },
    )?;
    let mut learner = DecoderLearner::new(
        &model.config,
        &model.weights,
        LearnerOptions {
            lr: arguments.lr,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_gradient_norm: 1.0,
            threads: 0,
            tokens_per_piece: 4096,
        },
    )?;
    let objective = LossFunction::clipped(arguments.clip, arguments.clip, 0.0);
    let mut order = dataset.training.clone();
    let mut spent = Spent::default();
    let (name, rows) = if arguments.report_held_out {
        ("held-out", &dataset.held_out)
    } else {
        ("tuning", &dataset.tuning)
    };
    let examined = |version: u64| {
        let key = (seed, u64::MAX - version);
        Scores::measure(&sampler, &model.chat, rows, key)
    };
    let (before, _) = examined(0)?;
    println!("seed {seed}, {name} rows, step 0: {before}");
    let mut last = before;
    for step in 0..arguments.steps {
        let per_epoch = order.len() / arguments.groups;
        let place = usize::try_from(step)? % per_epoch;
        if place == 0 {
            order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed << 32 | step));
        }
        let questions: Vec<Question> = order[place * arguments.groups..][..arguments.groups]
            .iter()
            .flat_map(|question| vec![question.clone(); arguments.group_size])
            .collect();
        let began = Instant::now();
        let episodes = play(&sampler, &model.chat, &questions, 1.0, (seed, step))?;
        spent.rollouts += began.elapsed();

        let began = Instant::now();
        let (rows, skipped) = loss_rows(&episodes, arguments.group_size);
        let mut report = UpdateReport::default();
        let mut mismatch = 0.0;
        if !rows.is_empty() {
            for update in 0..arguments.updates {
                report = learner.update(&rows, objective)?;
                if update == 0 {
                    mismatch = report.mismatch_max;
                }
            }
        }
        spent.update += began.elapsed();
        let began = Instant::now();
        sampler.swap(&model.config, &learner.weights()?, PolicyVersion(step + 1))?;
        spent.swap += began.elapsed();

        let reward = mean_reward(&episodes);
        if arguments.verbose > 0 && step % arguments.verbose == 0 {
            println!(
                "step {:3}  reward {reward:.3}  {}  skipped {skipped}  mismatch {mismatch:.1e}  kl {:.4}  clipped {:.3}  gradient {:.2}  entropy {:.3}",
                step + 1,
                by_operation(&episodes),
                report.kl_to_sampled,
                report.clip_fraction,
                report.gradient_norm,
                report.entropy
            );
        }
        let due = (step + 1) % arguments.eval_interval == 0 && !arguments.report_held_out;
        if due || step + 1 == arguments.steps {
            let (scores, episodes) = examined(step + 1)?;
            println!("seed {seed}, {name} rows, step {}: {scores}", step + 1);
            last = scores;
            if arguments.verbose > 0 {
                println!("{}", failures(&episodes));
            }
        }
    }
    sampler.shut_down();
    let steps = f64::from(u32::try_from(arguments.steps)?);
    println!(
        "seed {seed}, {name} rows: sampled {:.3} -> {:.3}, greedy {:.3} -> {:.3}; rollouts {:.2} s, update {:.2} s, swap {:.3} s per step",
        before.sampled,
        last.sampled,
        before.greedy,
        last.greedy,
        spent.rollouts.as_secs_f64() / steps,
        spent.update.as_secs_f64() / steps,
        spent.swap.as_secs_f64() / steps,
    );
    Ok(())
}

/// Rows with group-normalised advantages, and how many groups had all rewards equal.
fn loss_rows(episodes: &[Episode], group_size: usize) -> (Vec<LossRow>, usize) {
    let mut rows = Vec::new();
    let mut skipped = 0;
    for group in episodes.chunks(group_size) {
        let mean = mean_reward(group);
        let variance = group
            .iter()
            .map(|one| (one.reward - mean).powi(2))
            .sum::<f32>()
            / group.len() as f32;
        if variance < 1e-8 {
            skipped += 1;
            continue;
        }
        for episode in group {
            let advantage = (episode.reward - mean) / (variance.sqrt() + 1e-6);
            for row in &episode.rows {
                rows.push(LossRow {
                    ids: row.ids.clone(),
                    weights: row
                        .loss_mask
                        .iter()
                        .map(|sampled| f32::from(u8::from(*sampled)))
                        .collect(),
                    advantages: vec![advantage; row.ids.len()],
                    sampled_logprobs: row.logprobs.clone(),
                    proximal_logprobs: None,
                    reference_logprobs: None,
                    temperatures: row.temperatures.clone(),
                    constrained: vec![],
                });
            }
        }
    }
    let samples = (episodes.len() - skipped * group_size) as f32;
    for row in &mut rows {
        let tokens: f32 = row.weights.iter().sum();
        for weight in &mut row.weights {
            *weight /= tokens * samples;
        }
    }
    (rows, skipped)
}

fn mean_reward(episodes: &[Episode]) -> f32 {
    episodes.iter().map(|episode| episode.reward).sum::<f32>() / episodes.len() as f32
}

/// Which questions, their numbers left out, were answered wrongly and why.
fn failures(episodes: &[Episode]) -> String {
    let mut counted: BTreeMap<(String, String), usize> = BTreeMap::new();
    for episode in episodes.iter().filter(|episode| episode.reward == 0.0) {
        let why = match episode.operation {
            Some(operation) if operation != episode.question.operation() => operation.name(),
            _ if !episode.well_formed => "form",
            _ if !episode.copied_numbers => "numbers",
            _ if episode.copied_result == Some(false) => "result",
            _ => "order",
        };
        let words = episode
            .question
            .text
            .replace(|letter: char| letter.is_ascii_digit(), "");
        *counted.entry((words, why.to_owned())).or_default() += 1;
    }
    let lines: Vec<String> = counted
        .iter()
        .map(|((words, why), count)| format!("  {count} x {words:?}: {why}"))
        .collect();
    lines.join("\n")
}

fn by_operation(episodes: &[Episode]) -> String {
    let shares = Operation::ASKED.map(|operation| {
        let asked: Vec<f32> = episodes
            .iter()
            .filter(|episode| episode.question.operation() == operation)
            .map(|episode| episode.reward)
            .collect();
        format!(
            "{} {:.2}",
            &operation.name()[..3],
            asked.iter().sum::<f32>() / asked.len() as f32
        )
    });
    shares.join(" ")
}
