//! Measures what a grammar costs: tokens per second with and without one, in turn.
//!
//! `cargo run --release -p osmosis-policy --example constrained_rate [MODEL [BATCH]]`
//!
//! MODEL is a checkpoint folder, a GGUF file or `builtin/NAME` (default `builtin/tiny`), BATCH how many sequences are
//! sampled at once (default 64).

#![expect(clippy::print_stdout, reason = "the numbers are for people")]

use std::ops::ControlFlow;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use camino::Utf8Path;
use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    Constraint, DrawKey, GenerationError, GenerationRequest, SampledToken, StopReason, TokenEngine,
    TokenSink,
};
use osmosis_policy::{EmbeddedModel, Sampler, SamplerOptions};
use osmosis_tokens::StructuredReply;
use serde_json::{Map, json};

const ANSWER: usize = 128;
const ROUNDS: usize = 5;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .unwrap_or_else(|| "builtin/tiny".to_owned());
    let batch: usize = arguments.next().map_or(Ok(64), |batch| batch.parse())?;
    let model = match path.strip_prefix("builtin/") {
        Some(name) => EmbeddedModel::builtin(name)?,
        None => EmbeddedModel::open(Utf8Path::new(&path))?,
    };
    let options = SamplerOptions {
        max_batch: batch,
        threads: 0,
        cache_bytes: 8 << 30,
    };
    let sampler = Sampler::start(&model, PolicyVersion(0), options)?;
    // Has no end within the answer, and all that schemas are made of.
    let schema = json!({"type": "array", "minItems": 200, "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "kind": {"enum": ["one", "two", "another"]},
            "size": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "kind", "size"],
        "additionalProperties": false,
    }});
    let reply = StructuredReply {
        json: Some(&schema),
        tools: &[],
        most_calls: 1,
    };
    let began = Instant::now();
    let constraint = model.chat.constraint(&reply)?;
    println!(
        "grammar compiled, tokenizer included, in {:.0?}",
        began.elapsed()
    );
    // The first round builds what is kept of the grammar's automaton, and is not counted.
    let mut rates = [vec![], vec![]];
    for round in 0..=ROUNDS {
        for (place, constraint) in [None, Some(&constraint)].into_iter().enumerate() {
            let (rate, choices) = measure(&model, &sampler, batch, round, constraint)?;
            println!(
                "round {round}, batch {batch}, {}: {rate:.0} tokens/s decoding, {choices:.1} tokens allowed (median)",
                if constraint.is_some() {
                    "by a grammar"
                } else {
                    "free"
                },
            );
            if round > 0 {
                rates[place].push(rate);
            }
        }
    }
    let [free, constrained] = rates.map(median);
    println!(
        "median of {ROUNDS}: free {free:.0} tokens/s, by a grammar {constrained:.0} tokens/s ({:+.1}%)",
        (constrained / free - 1.0) * 100.0
    );
    Ok(())
}

fn measure(
    model: &EmbeddedModel,
    sampler: &Sampler,
    batch: usize,
    round: usize,
    constraint: Option<&Constraint>,
) -> Result<(f64, f64), Failure> {
    let (sender, ended) = channel();
    for sequence in 0..batch {
        let question = format!(
            "List things, please. This is number {}.",
            sequence + 1000 * round
        );
        let question = [json!({"role": "user", "content": question})];
        let text = model.chat.render(&question, None, true, &Map::new())?;
        let mut key = [0; 32];
        key[..8].copy_from_slice(&(sequence as u64).to_le_bytes());
        let request = GenerationRequest {
            prompt: model.chat.encode(&text)?,
            max_tokens: ANSWER,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            stop_ids: Vec::new(),
            alternatives: 0,
            key: DrawKey(key),
            constraint: constraint.cloned(),
        };
        let counting = Counting {
            ended: sender.clone(),
            first: None,
            allowed: Vec::new(),
            sampled: 0,
        };
        sampler.generate(request, Box::new(counting));
    }
    drop(sender);
    let ends: Vec<Ended> = ended.iter().collect();
    let finished = Instant::now();
    let mut allowed = Vec::new();
    let mut sampled = 0;
    for end in &ends {
        end.end.clone()?;
        sampled += end.sampled;
        allowed.extend(end.allowed.iter().copied().map(f64::from));
    }
    // From when the last sequence had its first token.
    let first = ends.iter().filter_map(|end| end.first).max();
    let seconds = first.map_or(0.0, |first| (finished - first).as_secs_f64());
    Ok(((sampled - batch) as f64 / seconds, median(allowed)))
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

struct Ended {
    first: Option<Instant>,
    allowed: Vec<u32>,
    sampled: usize,
    end: Result<StopReason, GenerationError>,
}

struct Counting {
    ended: Sender<Ended>,
    first: Option<Instant>,
    allowed: Vec<u32>,
    sampled: usize,
}

impl TokenSink for Counting {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        self.first.get_or_insert_with(Instant::now);
        self.allowed.extend(token.allowed);
        self.sampled += 1;
        ControlFlow::Continue(())
    }
    fn end(self: Box<Self>, end: Result<StopReason, GenerationError>) {
        // The measurement waits for all ends.
        let _gone = self.ended.send(Ended {
            first: self.first,
            allowed: self.allowed,
            sampled: self.sampled,
            end,
        });
    }
}
