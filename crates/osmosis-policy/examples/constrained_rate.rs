//! Measures what a grammar costs: tokens per second with and without one, in turn.
//!
//! `cargo run --release -p osmosis-policy --example constrained_rate [MODEL [BATCH [ANSWER [ROUNDS]]]]`
//!
//! MODEL is a checkpoint folder, a GGUF file or `builtin/NAME` (default `builtin/tiny`), BATCH how many sequences are
//! sampled at once (default 64), ANSWER the tokens of each (default 128), ROUNDS how often both are measured (default 9).
//!
//! Both sides of a round have prompts of the same length and sample the same number of tokens. Tokens are counted
//! while the whole batch is decoding: from when the last sequence has its first token until the first one has its
//! last. The number to read is the median of the rounds' ratios; which side comes first changes from round to round.

#![expect(clippy::print_stdout, reason = "the numbers are for people")]

use std::fmt;
use std::ops::{ControlFlow, Range};
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

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .unwrap_or_else(|| "builtin/tiny".to_owned());
    let mut number = |default: usize| {
        arguments
            .next()
            .map_or(Ok(default), |number| number.parse())
    };
    let (batch, answer, rounds) = (number(64)?, number(128)?, number(9)?);
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
    let mut ratios = Vec::new();
    for round in 0..=rounds {
        let mut rates = [f64::NAN; 2];
        for turn in 0..2 {
            let side = (round + turn) % 2;
            let constraint = (side == 1).then_some(&constraint);
            // No prompt comes twice, so that nobody finds keys and values of another.
            let first = batch * (2 * round + turn);
            let measured = measure(&model, &sampler, first..first + batch, answer, constraint)?;
            println!(
                "round {round}, batch {batch}, {}: {measured}",
                if side == 1 { "by a grammar" } else { "free" },
            );
            rates[side] = measured.rate;
        }
        let [free, constrained] = rates;
        if round > 0 {
            ratios.push(constrained / free);
        }
    }
    ratios.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (ratios.first().copied(), ratios.last().copied()) else {
        return Err("at least one round is needed".into());
    };
    println!(
        "by a grammar / free, median of {rounds} rounds: {:.3} (from {least:.3} to {most:.3})",
        median(ratios),
    );
    Ok(())
}

struct Measured {
    /// Tokens per second.
    rate: f64,
    /// How many tokens were allowed, in the median.
    allowed: f64,
    /// The part of the tokens that had no alternative.
    forced: f64,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} tokens/s", self.rate)?;
        if self.allowed.is_nan() {
            return Ok(());
        }
        let forced = 100.0 * self.forced;
        write!(
            f,
            ", {:.0} tokens allowed (median), {forced:.0}% without an alternative",
            self.allowed
        )
    }
}

fn measure(
    model: &EmbeddedModel,
    sampler: &Sampler,
    sequences: Range<usize>,
    answer: usize,
    constraint: Option<&Constraint>,
) -> Result<Measured, Failure> {
    let (sender, ended) = channel();
    for sequence in sequences {
        let question = format!("List things, please. This is number {sequence:06}.");
        let question = [json!({"role": "user", "content": question})];
        let text = model.chat.render(&question, None, true, &Map::new())?;
        let mut key = [0; 32];
        key[..8].copy_from_slice(&(sequence as u64).to_le_bytes());
        let request = GenerationRequest {
            prompt: model.chat.encode(&text)?,
            max_tokens: answer,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            stop_ids: Vec::new(),
            alternatives: 0,
            key: DrawKey(key),
            constraint: constraint.cloned(),
        };
        let watching = Watching {
            ended: sender.clone(),
            tokens: Vec::with_capacity(answer),
        };
        sampler.generate(request, Box::new(watching));
    }
    drop(sender);
    let ends: Vec<Ended> = ended.iter().collect();
    let mut allowed = Vec::new();
    for end in &ends {
        end.end.clone()?;
        if end.tokens.len() != answer {
            return Err(format!("{} tokens were sampled, not {answer}", end.tokens.len()).into());
        }
        allowed.extend(end.tokens.iter().filter_map(|(_, allowed)| *allowed));
    }
    let times = |place: usize| ends.iter().map(move |end| end.tokens[place].0);
    let (Some(from), Some(to)) = (times(0).max(), times(answer - 1).min()) else {
        return Err("nothing was sampled".into());
    };
    let tokens = ends.iter().flat_map(|end| &end.tokens);
    let counted = tokens.filter(|(at, _)| (from..to).contains(at)).count();
    if to <= from {
        return Err("the batch was never whole: take longer answers".into());
    }
    let forced = allowed.iter().filter(|count| **count == 1).count();
    Ok(Measured {
        rate: counted as f64 / (to - from).as_secs_f64(),
        forced: forced as f64 / allowed.len() as f64,
        allowed: median(allowed.into_iter().map(f64::from).collect()),
    })
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// When each token came, and how many were allowed there.
type Tokens = Vec<(Instant, Option<u32>)>;

struct Ended {
    tokens: Tokens,
    end: Result<StopReason, GenerationError>,
}

struct Watching {
    ended: Sender<Ended>,
    tokens: Tokens,
}

impl TokenSink for Watching {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        self.tokens.push((Instant::now(), token.allowed));
        ControlFlow::Continue(())
    }
    fn end(self: Box<Self>, end: Result<StopReason, GenerationError>) {
        // The measurement waits for all ends.
        let _gone = self.ended.send(Ended {
            tokens: self.tokens,
            end,
        });
    }
}
