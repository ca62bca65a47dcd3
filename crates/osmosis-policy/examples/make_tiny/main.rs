//! Makes `builtin/tiny`, and the rows of `examples/calculator`, from nothing but this program.
//!
//! ```text
//! cargo run --release -p osmosis-policy --example make_tiny -- \
//!     --out crates/osmosis-policy/builtin/tiny.safetensors --data examples/calculator/data
//! ```
//!
//! What it makes is described in `builtin/README.md`.

#![expect(clippy::print_stdout, reason = "a program that tells how far it is")]

mod conversation;
mod dataset;
mod environment;
mod model;
mod questions;
mod tokenizer;
mod warm_start;

use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use osmosis_core::PolicyVersion;
use osmosis_policy::{EmbeddedModel, Learner, LearnerOptions, Sampler, SamplerOptions};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use dataset::Dataset;
use environment::{Episode, play};
use questions::{Operation, Question};

/// Questions asked to measure the form.
const EXAMINED: usize = 1024;

struct Arguments {
    out: PathBuf,
    data: Option<PathBuf>,
    steps: usize,
    lr: f64,
    seed: u64,
}

impl Arguments {
    fn read() -> Result<Self, String> {
        let mut arguments = Self {
            out: PathBuf::new(),
            data: None,
            steps: 2000,
            lr: 3e-3,
            seed: 1,
        };
        let mut given = std::env::args().skip(1);
        while let Some(flag) = given.next() {
            let value = given.next().ok_or(format!("`{flag}` needs a value"))?;
            match flag.as_str() {
                "--out" => arguments.out = PathBuf::from(value),
                "--data" => arguments.data = Some(PathBuf::from(value)),
                "--steps" => arguments.steps = number(&flag, &value)?,
                "--seed" => arguments.seed = number(&flag, &value)?,
                "--lr" => arguments.lr = number(&flag, &value)?,
                _ => return Err(format!("unknown argument `{flag}`")),
            }
        }
        if arguments.out.as_os_str().is_empty() {
            return Err("say where the model goes: `--out FILE`".to_owned());
        }
        Ok(arguments)
    }
}

fn number<T: FromStr>(flag: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("`{value}` is not a number for `{flag}`"))
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let began = Instant::now();
    let arguments = Arguments::read()?;
    let dataset = Dataset::draw();
    if let Some(folder) = &arguments.data {
        dataset.write(folder)?;
    }
    let kept_out = dataset.held_out_texts();
    let mut rng = ChaCha8Rng::seed_from_u64(arguments.seed);

    let chat = Arc::new(tokenizer::trained_format(&kept_out, &mut rng)?);
    let config = model::config(chat.vocabulary_size(), chat.end_of_turn()[0])?;
    let weights = model::initial_weights(&config, &mut rng);
    let shown = warm_start::lesson(&chat, &kept_out, &mut rng)?;
    println!(
        "{} parameters, {} tokens, a conversation of {}:\n{}",
        config.parameters(),
        chat.vocabulary_size(),
        shown.row.ids.len(),
        shown
            .row
            .ids
            .iter()
            .filter_map(|id| chat.token_text(*id))
            .collect::<Vec<_>>()
            .join("·"),
    );

    let options = LearnerOptions {
        lr: arguments.lr,
        beta1: 0.9,
        beta2: 0.98,
        epsilon: 1e-8,
        weight_decay: 0.01,
        max_gradient_norm: 1.0,
        threads: 0,
        tokens_per_piece: 4096,
    };
    let mut learner = Learner::new(&config, &weights, options)?;
    let mut loss = 0.0;
    for step in 0..arguments.steps {
        learner.set_lr(warm_start::learning_rate(
            arguments.lr,
            step,
            arguments.steps,
        ));
        let progress = warm_start::update(&mut learner, &chat, &kept_out, &mut rng)?;
        loss = if step == 0 {
            progress.learnable
        } else {
            loss * 0.95 + progress.learnable * 0.05
        };
        if step % 25 == 0 || step + 1 == arguments.steps {
            println!(
                "step {step:4}  loss {:.4}  without chance {loss:.4}  {:.0} s",
                progress.loss,
                began.elapsed().as_secs_f64()
            );
        }
    }

    let model = EmbeddedModel {
        config,
        weights: Arc::new(learner.weights()?),
        chat,
        name: "builtin/tiny".to_owned(),
    };
    let file = model.to_one_file()?;
    std::fs::write(&arguments.out, &file)?;
    println!(
        "{} bytes, {:.0} s",
        file.len(),
        began.elapsed().as_secs_f64()
    );
    examine(&model, &dataset, arguments.seed, &mut rng)
}

/// Says how well the form is kept at temperature 1, and what the held-out rows give.
fn examine(
    model: &EmbeddedModel,
    dataset: &Dataset,
    seed: u64,
    rng: &mut ChaCha8Rng,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let sampler = Sampler::start(
        model,
        PolicyVersion(0),
        SamplerOptions {
            max_batch: 128,
            threads: 0,
            cache_bytes: 1 << 30,
        },
    )?;
    let questions: Vec<Question> = (0..EXAMINED).map(|_| Question::draw(rng)).collect();
    let episodes = play(&sampler, &model.chat, &questions, 1.0, (seed, 0))?;
    let share = |fits: &dyn Fn(&Episode) -> bool| {
        episodes.iter().filter(|episode| fits(episode)).count() as f64 / episodes.len() as f64
    };
    let copied: Vec<bool> = episodes
        .iter()
        .filter_map(|episode| episode.copied_result)
        .collect();
    println!(
        "well formed {:.3}  both numbers {:.3}  result {:.3}  continued {:.3}",
        share(&|episode| episode.well_formed),
        share(&|episode| episode.copied_numbers),
        copied.iter().filter(|copied| **copied).count() as f64 / copied.len() as f64,
        share(&|episode| episode.continued),
    );
    for operation in Operation::ALL {
        println!(
            "  {:9} called {:.3}",
            operation.name(),
            share(&|episode| episode.operation == Some(operation)),
        );
    }
    for draw in 1..=5 {
        let episodes = play(&sampler, &model.chat, &dataset.held_out, 1.0, (seed, draw))?;
        let reward: f32 = episodes.iter().map(|episode| episode.reward).sum();
        println!("  held-out reward {:.3}", reward / episodes.len() as f32);
    }
    sampler.shut_down();
    Ok(())
}
