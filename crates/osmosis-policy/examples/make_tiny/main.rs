//! Makes `builtin/tiny`, and the rows of `examples/calculator`, from nothing but this program.
//!
//! ```text
//! cargo run --release -p osmosis-policy --example make_tiny -- \
//!     --out crates/osmosis-policy/builtin/tiny.safetensors --data examples/calculator/data
//! cargo run --release -p osmosis-policy --example make_tiny -- \
//!     --check crates/osmosis-policy/builtin/tiny.safetensors
//! ```
//!
//! `cargo xtask tiny` runs both. What it makes is described in `builtin/README.md`.

#![expect(clippy::print_stdout, reason = "a program that reports its progress")]

mod conversation;
mod cpu;
mod dataset;
mod drawn;
mod environment;
mod inputs;
mod model;
mod questions;
mod scores;
mod settings;
mod tokenizer;
mod warm_start;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use osmosis_core::PolicyVersion;
use osmosis_policy::{DecoderLearner, EmbeddedModel, LearnerOptions, Sampler, SamplerOptions};
use safetensors::SafeTensors;

use dataset::Dataset;
use drawn::{Conversations, Purpose, random_numbers};
use environment::{Episode, play};
use questions::{Operation, Phrasing, Question, Reserved};
use scores::Scores;
use settings::Settings;

type AnyError = Box<dyn Error + Send + Sync>;

/// Questions asked to measure the form.
const EXAMINED: usize = 1024;

#[derive(Default)]
struct Arguments {
    /// Where the model goes.
    out: Option<PathBuf>,
    /// Where the rows go.
    data: Option<PathBuf>,
    /// A file that must be what this program makes.
    check: Option<PathBuf>,
    /// A file to measure.
    examine: Option<PathBuf>,
    settings: Settings,
}

impl Arguments {
    fn read() -> Result<Self, String> {
        let mut arguments = Self::default();
        let settings = &mut arguments.settings;
        let mut given = std::env::args().skip(1);
        while let Some(flag) = given.next() {
            let value = given.next().ok_or(format!("`{flag}` needs a value"))?;
            match flag.as_str() {
                "--out" => arguments.out = Some(PathBuf::from(value)),
                "--data" => arguments.data = Some(PathBuf::from(value)),
                "--check" => arguments.check = Some(PathBuf::from(value)),
                "--examine" => arguments.examine = Some(PathBuf::from(value)),
                "--updates" => settings.updates = number(&flag, &value)?,
                "--seed" => settings.seed = number(&flag, &value)?,
                "--lr" => settings.lr = number(&flag, &value)?,
                "--batch" => settings.batch = number(&flag, &value)?,
                "--right-operation" => settings.right_operation = number(&flag, &value)?,
                "--decoy-operation" => settings.decoy_operation = number(&flag, &value)?,
                "--right-order" => settings.right_order = number(&flag, &value)?,
                _ => return Err(format!("unknown argument `{flag}`")),
            }
        }
        let Self {
            out,
            data,
            check,
            examine,
            ..
        } = &arguments;
        if [out, data, check, examine].iter().all(|one| one.is_none()) {
            return Err(
                "give `--out FILE`, `--data FOLDER`, `--check FILE` or `--examine FILE`".to_owned(),
            );
        }
        Ok(arguments)
    }
}

fn number<T: FromStr>(flag: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("`{value}` is not a number for `{flag}`"))
}

fn main() -> Result<(), AnyError> {
    let arguments = Arguments::read()?;
    let dataset = Dataset::draw();
    if let Some(folder) = &arguments.data {
        dataset.write(folder)?;
    }
    if let Some(path) = &arguments.out {
        let (model, file) = make(&arguments.settings, &dataset)?;
        std::fs::write(path, &file)?;
        examine(&model, &dataset, &arguments.settings)?;
    }
    if let Some(path) = &arguments.examine {
        let model = EmbeddedModel::from_one_file("builtin/tiny", &std::fs::read(path)?)?;
        examine(&model, &dataset, &arguments.settings)?;
    }
    if let Some(path) = &arguments.check {
        check(path, &arguments.settings, &dataset)?;
    }
    Ok(())
}

/// The model, and the bytes of its file.
fn make(settings: &Settings, dataset: &Dataset) -> Result<(EmbeddedModel, Vec<u8>), AnyError> {
    let began = Instant::now();
    let kept_out = dataset.kept_out();
    let conversations = |purpose| Conversations::new(settings, &kept_out, purpose);
    let chat = Arc::new(tokenizer::trained_format(
        settings,
        &mut conversations(Purpose::TokenizerTexts),
    )?);
    let config = model::config(chat.vocabulary_size(), chat.end_of_turn()[0])?;
    let weights = model::initial_weights(
        &config,
        &mut random_numbers(settings.seed, Purpose::InitialWeights),
    );
    let shown = warm_start::lesson(&chat, &mut conversations(Purpose::Conversations))?;
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
        lr: settings.lr,
        beta1: settings.beta1,
        beta2: settings.beta2,
        epsilon: settings.epsilon,
        weight_decay: settings.weight_decay,
        max_gradient_norm: settings.max_gradient_norm,
        threads: 0,
        tokens_per_piece: settings.tokens_per_piece,
    };
    let mut learner = DecoderLearner::new(&config, &weights, options)?;
    let mut conversations = conversations(Purpose::Conversations);
    let mut loss = 0.0;
    for update in 0..settings.updates {
        learner.set_lr(settings.learning_rate(update));
        let progress = warm_start::update(&mut learner, &chat, &mut conversations, settings.batch)?;
        loss = if update == 0 {
            progress.learnable
        } else {
            loss * 0.95 + progress.learnable * 0.05
        };
        if update % 25 == 0 || update + 1 == settings.updates {
            println!(
                "update {update:4}  loss {:.4}  without chance {loss:.4}  {:.0} s",
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
    let made_from = inputs::made_from(settings, dataset, &model.config)?;
    let notes = BTreeMap::from([
        (
            inputs::MADE_FROM_SHA256.to_owned(),
            inputs::digest(&made_from),
        ),
        (inputs::MADE_FROM.to_owned(), made_from.to_string()),
        (inputs::MADE_ON.to_owned(), cpu::kind().to_string()),
    ]);
    let file = model.to_one_file(&notes)?;
    println!(
        "{} bytes, {:.0} s",
        file.len(),
        began.elapsed().as_secs_f64()
    );
    Ok((model, file))
}

/// Fails unless the file is what this program makes. On another kind of processor than it was made on,
/// only the inputs are compared.
fn check(path: &Path, settings: &Settings, dataset: &Dataset) -> Result<(), AnyError> {
    let there = std::fs::read(path)?;
    let path = path.display();
    let (_, header) = SafeTensors::read_metadata(&there)?;
    let notes = header.metadata().clone().unwrap_or_default();
    let note = |key: &str| {
        notes
            .get(key)
            .ok_or(format!("`{path}` has no `{key}` in its metadata"))
    };
    let model = EmbeddedModel::from_one_file("builtin/tiny", &there)?;
    let digest = inputs::digest(&inputs::made_from(settings, dataset, &model.config)?);
    if *note(inputs::MADE_FROM_SHA256)? != digest {
        return Err(format!(
            "`{path}` was made from other inputs than this program has: {} there, {digest} here",
            note(inputs::MADE_FROM_SHA256)?
        )
        .into());
    }
    println!("inputs: {digest}, as in `{path}`");
    let here = cpu::kind().to_string();
    if *note(inputs::MADE_ON)? != here {
        println!(
            "`{path}` was made on another kind of processor, and its bits may differ: not remade\n  there: {}\n  here:  {here}",
            note(inputs::MADE_ON)?
        );
        return Ok(());
    }
    let (_, made) = make(settings, dataset)?;
    if made != there {
        return Err(format!(
            "the same inputs on the same kind of processor gave other bits than `{path}` has"
        )
        .into());
    }
    println!("weights: the same bits as in `{path}`");
    Ok(())
}

/// Reports how well the form is kept at temperature 1, and the rewards on the tuning rows.
fn examine(model: &EmbeddedModel, dataset: &Dataset, settings: &Settings) -> Result<(), AnyError> {
    let sampler = Sampler::start(
        model,
        PolicyVersion(0),
        SamplerOptions {
            max_batch: 128,
            threads: 0,
            cache_bytes: 1 << 30,
        },
    )?;
    let phrasings = Phrasing::reserved_for(Reserved::Training);
    let mut rng = random_numbers(settings.seed, Purpose::Examination);
    let questions: Vec<Question> = (0..EXAMINED)
        .map(|_| Question::draw(&phrasings, &mut rng))
        .collect();
    let episodes = play(&sampler, &model.chat, &questions, 1.0, (settings.seed, 0))?;
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
    println!(
        "right operation {:.3}  decoy {:.3}",
        share(&|episode| episode.operation == Some(episode.question.operation())),
        share(&|episode| episode.operation == Some(episode.question.phrasing.expression().decoy)),
    );
    for operation in Operation::ALL {
        println!(
            "  {:9} called {:.3}",
            operation.name(),
            share(&|episode| episode.operation == Some(operation)),
        );
    }
    for draw in 1..=5 {
        let key = (settings.seed, draw);
        let (scores, _) = Scores::measure(&sampler, &model.chat, &dataset.tuning, key)?;
        println!("  tuning rows: {scores}");
    }
    sampler.shut_down();
    Ok(())
}
