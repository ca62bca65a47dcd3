//! Measures raw sampling: tokens per second at several batch sizes, and memory.
//!
//! `cargo run --release -p osmosis-policy --example sampling_rate [MODEL [BATCH...]]`
//! `cargo run --release -p osmosis-policy --example sampling_rate lines MODEL BATCH`
//!
//! MODEL is a checkpoint folder, a GGUF file or `builtin/NAME`; without one, or with `random`, a random model of
//! about 370,000 parameters. The processor time is what to compare on a machine that does other things too.
//!
//! With `lines` it reads batches from its input, one JSON object per line (`prompts`: lists of token ids, `answer`: how
//! many tokens each answer has), and prints one line for each (`seconds`, `prompt_tokens`, `sampled`). That is how
//! `benches/sampling_peers.py` gives the same prompts to several programs.

#![expect(clippy::print_stdout, reason = "the numbers are for people")]

use std::collections::BTreeMap;
use std::io::BufRead;
use std::ops::ControlFlow;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use camino::Utf8Path;
use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    DrawKey, GenerationError, GenerationRequest, SampledToken, StopReason, TokenEngine, TokenSink,
};
use osmosis_policy::{
    EmbeddedModel, ModelConfig, NamedTensor, PolicyError, Sampler, SamplerOptions, Weights,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Deserialize;
use serde_json::json;

const PROMPT: usize = 128;
const ANSWER: usize = 128;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next();
    if model.as_deref() == Some("lines") {
        let model = arguments.next().ok_or("which MODEL?")?;
        let batch = arguments.next().ok_or("which BATCH?")?.parse()?;
        return answer_lines(&model, batch);
    }
    let batches: Vec<usize> = arguments
        .map(|batch| batch.parse())
        .collect::<Result<_, _>>()?;
    let batches = if batches.is_empty() {
        vec![1, 16, 64, 128]
    } else {
        batches
    };
    let (config, weights) = match model {
        Some(path) if path != "random" => {
            let began = Instant::now();
            let model = open(&path)?;
            println!("opened in {:.2} s", began.elapsed().as_secs_f64());
            (model.config, model.weights)
        }
        Some(_) | None => random_model().map(|(config, weights)| (config, weights.into()))?,
    };
    println!(
        "{} parameters, {} memory before packing",
        config.parameters(),
        memory("VmRSS")
    );
    for batch in batches {
        measure(&config, &weights, batch)?;
    }
    println!("{} memory at most", memory("VmHWM"));
    Ok(())
}

fn measure(config: &ModelConfig, weights: &Weights, batch: usize) -> Result<(), Failure> {
    let options = SamplerOptions {
        max_batch: batch,
        threads: 0,
        cache_bytes: 8 << 30,
    };
    let began = Instant::now();
    let sampler = Sampler::start_with(config, weights, PolicyVersion(0), options)?;
    let packed = began.elapsed();
    let vocabulary = u32::try_from(config.vocabulary)?;
    let answer = ANSWER.min(config.context - PROMPT);
    // Prompts alone, then with answers: once with different prompts, once with groups of eight that share theirs.
    for (what, group, answer) in [
        ("prompts alone", 1, 1),
        ("different prompts", 1, answer),
        ("groups of 8", 8, answer),
    ] {
        let (sender, ended) = channel();
        let (before, processor) = (sampler.rate(), processor_seconds());
        let began = Instant::now();
        for sequence in 0..batch {
            let mut random = ChaCha8Rng::seed_from_u64(
                (sequence / group) as u64 + 1000 * (group + answer) as u64,
            );
            let mut key = [0; 32];
            key[..8].copy_from_slice(&(sequence as u64).to_le_bytes());
            let prompt = (0..PROMPT)
                .map(|_| random.next_u32() % vocabulary)
                .collect();
            sampler.generate(request(prompt, answer, key), Box::new(discard(&sender)));
        }
        drop(sender);
        let ends: Vec<Ended> = ended.iter().collect();
        let seconds = began.elapsed().as_secs_f64();
        let sampled: usize = ends.iter().map(|end| end.sampled).sum();
        for end in &ends {
            end.end.clone()?;
        }
        // Pure decoding: from when the last sequence had its first token.
        let decoding = ends.iter().filter_map(|end| end.first).max();
        let prefill = decoding.map_or(0.0, |first| (first - began).as_secs_f64());
        let rate = sampler.rate();
        if answer == 1 {
            let prompt_tokens = rate.prompt_tokens - before.prompt_tokens;
            println!(
                "batch {batch:>3}, {what:>17}: {:>8.0} prompt tokens/s; processor {:.2} s",
                prompt_tokens as f64 / seconds,
                processor_seconds() - processor,
            );
            continue;
        }
        println!(
            "batch {batch:>3}, {what:>17}: {:>8.0} tokens/s in all, {:>8.0} tokens/s decoding; prompts ({} tokens run) {prefill:.2} s; processor {:.2} s; packed in {:.2} s; memory {}",
            sampled as f64 / seconds,
            (sampled - batch) as f64 / (seconds - prefill),
            rate.prompt_tokens - before.prompt_tokens,
            processor_seconds() - processor,
            packed.as_secs_f64(),
            memory("VmRSS"),
        );
    }
    Ok(())
}

/// A batch of `lines`.
#[derive(Deserialize)]
struct Batch {
    prompts: Vec<Vec<u32>>,
    answer: usize,
}

/// Samples the batches that the input holds. The weights as they were read are dropped first, as in a run.
fn answer_lines(model: &str, batch: usize) -> Result<(), Failure> {
    let options = SamplerOptions {
        max_batch: batch,
        threads: 0,
        cache_bytes: 8 << 30,
    };
    let model = open(model)?;
    let sampler = Sampler::start_with(&model.config, &model.weights, PolicyVersion(0), options)?;
    drop(model);
    println!("{}", json!({ "ready": true }));
    let mut calls: u64 = 0;
    for line in std::io::stdin().lock().lines() {
        let Batch { prompts, answer } = serde_json::from_str(&line?)?;
        let (sender, ended) = channel();
        let before = sampler.rate();
        let began = Instant::now();
        for prompt in prompts {
            calls += 1;
            let mut key = [0; 32];
            key[..8].copy_from_slice(&calls.to_le_bytes());
            sampler.generate(request(prompt, answer, key), Box::new(discard(&sender)));
        }
        drop(sender);
        let ends: Vec<Ended> = ended.iter().collect();
        let seconds = began.elapsed().as_secs_f64();
        let mut sampled = 0;
        for Ended {
            sampled: one, end, ..
        } in ends
        {
            end?;
            sampled += one;
        }
        let prompt_tokens = sampler.rate().prompt_tokens - before.prompt_tokens;
        println!(
            "{}",
            json!({ "seconds": seconds, "prompt_tokens": prompt_tokens, "sampled": sampled })
        );
    }
    Ok(())
}

fn open(model: &str) -> Result<EmbeddedModel, PolicyError> {
    match model.strip_prefix("builtin/") {
        Some(name) => EmbeddedModel::builtin(name),
        None => EmbeddedModel::open(Utf8Path::new(model)),
    }
}

/// Nothing ends an answer but its length.
fn request(prompt: Vec<u32>, answer: usize, key: [u8; 32]) -> GenerationRequest {
    GenerationRequest {
        prompt,
        max_tokens: answer,
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        stop_ids: Vec::new(),
        alternatives: 0,
        key: DrawKey(key),
        constraint: None,
    }
}

fn discard(ended: &Sender<Ended>) -> Discard {
    Discard {
        ended: ended.clone(),
        sampled: 0,
        first: None,
    }
}

/// What a sink tells when it is done.
struct Ended {
    sampled: usize,
    first: Option<Instant>,
    end: Result<StopReason, GenerationError>,
}

/// Counts tokens.
struct Discard {
    ended: Sender<Ended>,
    sampled: usize,
    first: Option<Instant>,
}

impl TokenSink for Discard {
    fn token(&mut self, _token: SampledToken) -> ControlFlow<()> {
        self.sampled += 1;
        self.first.get_or_insert_with(Instant::now);
        ControlFlow::Continue(())
    }
    fn end(self: Box<Self>, end: Result<StopReason, GenerationError>) {
        let Self {
            ended,
            sampled,
            first,
        } = *self;
        // The measurement waits for all ends.
        let _gone = ended.send(Ended {
            sampled,
            first,
            end,
        });
    }
}

/// The size of `builtin/tiny`, with weights that mean nothing.
fn random_model() -> Result<(ModelConfig, Weights), PolicyError> {
    let config = ModelConfig::parse(json!({
        "model_type": "llama", "vocab_size": 512, "hidden_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "intermediate_size": 256, "max_position_embeddings": 1024,
        "tie_word_embeddings": true,
    }))?;
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let tensors: BTreeMap<String, NamedTensor> = config
        .tensors()
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product();
            let values = (0..count)
                .map(|_| (random.next_u32() as f32 / u32::MAX as f32 - 0.5) * 0.2)
                .collect();
            (name, NamedTensor { shape, values })
        })
        .collect();
    let weights = Weights { tensors };
    Ok((config, weights))
}

/// Time that all threads of this process have had so far, in Linux's ticks of 10 ms.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in brackets may hold spaces; user and system time are the 12th and 13th field after it.
    let after_name = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// What Linux says about this process's memory.
fn memory(what: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(what));
    let kilobytes = line
        .and_then(|line| line.split_whitespace().nth(1))
        .and_then(|n| n.parse::<f64>().ok());
    kilobytes.map_or_else(
        || "unknown".to_owned(),
        |kb| format!("{:.0} MB", kb / 1024.0),
    )
}
