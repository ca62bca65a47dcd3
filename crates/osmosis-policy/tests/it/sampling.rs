//! The sampler: what it gives never depends on what else it does.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    DrawKey, GenerationError, GenerationRequest, SampledToken, StopReason, TokenEngine, TokenSink,
};
use osmosis_policy::{
    Decoder, EmbeddedModel, NamedTensor, PolicyErrorKind, Sampler, SamplerOptions, Weights,
};

use crate::logits::folder;

const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) type End = Result<StopReason, GenerationError>;

/// Collects what is sampled.
struct Collect {
    number: usize,
    tokens: Vec<SampledToken>,
    most: usize,
    done: Sender<(usize, Vec<SampledToken>, End)>,
}

impl TokenSink for Collect {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        self.tokens.push(token);
        if self.tokens.len() < self.most {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }
    fn end(self: Box<Self>, end: End) {
        let Self {
            number,
            tokens,
            done,
            ..
        } = *self;
        done.send((number, tokens, end)).unwrap();
    }
}

pub(crate) fn model(name: &str) -> EmbeddedModel {
    EmbeddedModel::open(&folder(name)).unwrap()
}

pub(crate) fn options(max_batch: usize, threads: usize) -> SamplerOptions {
    SamplerOptions {
        max_batch,
        threads,
        cache_bytes: 1 << 28,
    }
}

pub(crate) fn sampler(model: &EmbeddedModel, options: SamplerOptions) -> Sampler {
    Sampler::start(model, PolicyVersion(0), options).unwrap()
}

pub(crate) fn request(prompt: Vec<u32>, max_tokens: usize, seed: u8) -> GenerationRequest {
    GenerationRequest {
        prompt,
        max_tokens,
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        stop_ids: Vec::new(),
        alternatives: 0,
        key: DrawKey([seed; 32]),
        constraint: None,
    }
}

pub(crate) fn prompt(length: usize, seed: u32) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % 96
    };
    (0..length).map(|_| next()).collect()
}

/// Sends all requests at once; the ends by number.
pub(crate) fn sample(
    sampler: &Sampler,
    requests: &[GenerationRequest],
) -> Vec<(Vec<SampledToken>, End)> {
    let (done, ends) = channel();
    for (number, request) in requests.iter().enumerate() {
        send(sampler, request.clone(), number, usize::MAX, &done);
    }
    collect(&ends, requests.len())
}

fn send(
    sampler: &Sampler,
    request: GenerationRequest,
    number: usize,
    most: usize,
    done: &Sender<(usize, Vec<SampledToken>, End)>,
) {
    let sink = Collect {
        number,
        tokens: Vec::new(),
        most,
        done: done.clone(),
    };
    sampler.generate(request, Box::new(sink));
}

fn collect(
    ends: &Receiver<(usize, Vec<SampledToken>, End)>,
    count: usize,
) -> Vec<(Vec<SampledToken>, End)> {
    let mut all: Vec<_> = (0..count)
        .map(|_| ends.recv_timeout(PATIENCE).unwrap())
        .collect();
    all.sort_by_key(|(number, _, _)| *number);
    all.into_iter()
        .map(|(_, tokens, end)| (tokens, end))
        .collect()
}

pub(crate) fn sample_one(
    sampler: &Sampler,
    request: GenerationRequest,
) -> (Vec<SampledToken>, End) {
    sample(sampler, &[request]).remove(0)
}

fn mixed_requests() -> Vec<GenerationRequest> {
    let mut requests: Vec<GenerationRequest> = (0..40_u8)
        .map(|number| {
            let mut request = request(
                prompt(1 + usize::from(number) * 5, number.into()),
                30,
                number,
            );
            request.temperature = [1.0, 0.7, 1.3, 0.0][usize::from(number % 4)];
            request.top_p = [1.0, 0.9][usize::from(number % 2)];
            request.top_k = [0, 20, 0][usize::from(number % 3)];
            request.alternatives = usize::from(number % 3);
            request
        })
        .collect();
    // Some begin alike, some are the same but for their draws.
    for number in 0..8 {
        let mut same = requests[30].clone();
        same.key = DrawKey([100 + number; 32]);
        requests.push(same);
        let mut longer = requests[20 + usize::from(number)].clone();
        longer.prompt.extend(prompt(11, 77));
        requests.push(longer);
    }
    requests
}

#[test]
fn every_token_is_the_same_alone_in_a_batch_and_on_any_number_of_threads() {
    for name in ["llama", "qwen2", "qwen3"] {
        let model = model(name);
        let requests = mixed_requests();
        let alone: Vec<_> = requests
            .iter()
            .map(|request| sample_one(&sampler(&model, options(1, 1)), request.clone()))
            .collect();
        assert!(
            alone
                .iter()
                .all(|(tokens, end)| tokens.len() == 30 && *end == Ok(StopReason::Length))
        );
        for (max_batch, threads) in [(1, 1), (5, 2), (128, 1), (128, 2)] {
            let together = sample(&sampler(&model, options(max_batch, threads)), &requests);
            assert!(
                together == alone,
                "{name}: batch {max_batch}, {threads} threads"
            );
        }
    }
}

#[test]
fn little_memory_makes_sequences_wait_and_changes_nothing_else() {
    let model = model("llama");
    let requests = mixed_requests();
    let plenty = sample(&sampler(&model, options(128, 2)), &requests);
    let tight = SamplerOptions {
        cache_bytes: 300_000,
        ..options(128, 2)
    };
    assert!(sample(&sampler(&model, tight), &requests) == plenty);
    let nothing = SamplerOptions {
        cache_bytes: 0,
        ..options(128, 2)
    };
    assert!(sample(&sampler(&model, nothing), &requests) == plenty);
}

#[test]
fn logprobs_are_those_of_the_whole_sequence_run_at_once() {
    let model = model("qwen3");
    let mut request = request(prompt(40, 3), 60, 9);
    request.temperature = 0.8;
    let (tokens, _) = sample_one(&sampler(&model, options(4, 2)), request.clone());
    let mut ids = request.prompt.clone();
    ids.extend(tokens.iter().map(|token| token.id));
    let logits = Decoder::new(&model.config, &model.weights, 1)
        .unwrap()
        .logits(&ids)
        .unwrap();
    for (index, token) in tokens.iter().enumerate() {
        let row: Vec<f64> = logits[39 + index]
            .iter()
            .map(|x| f64::from(*x) / f64::from(0.8_f32))
            .collect();
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        let expected = row[token.id as usize] - sum.ln();
        assert!((f64::from(token.logprob) - expected).abs() < 1e-6);
    }
}

#[test]
fn samples_of_one_prompt_compute_it_once() {
    let model = model("llama");
    let sampler = sampler(&model, options(16, 2));
    let requests: Vec<_> = (0..8)
        .map(|seed| request(prompt(100, 5), 20, seed))
        .collect();
    let first = sample(&sampler, &requests);
    assert_eq!(sampler.rate().prompt_tokens, 100 + 7);
    assert_eq!(sampler.rate().sampled_tokens, 8 * 20);

    // The next turn: all but the last token of the answer is there.
    let mut next = requests[3].clone();
    next.prompt.extend(first[3].0.iter().map(|token| token.id));
    next.prompt.extend(prompt(10, 6));
    let continued = sample_one(&sampler, next.clone());
    assert_eq!(sampler.rate().prompt_tokens, 107 + 11);
    assert!(continued == sample_one(&self::sampler(&model, options(1, 1)), next.clone()));

    // Other weights have other keys and values.
    sampler
        .swap(&model.config, &model.weights, PolicyVersion(1))
        .unwrap();
    sample_one(&sampler, next).1.unwrap();
    assert_eq!(sampler.rate().prompt_tokens, 118 + 130);
}

#[test]
fn a_stop_id_ends_the_answer_and_is_its_last_token() {
    let model = model("llama");
    let sampler = sampler(&model, options(4, 1));
    let plain = sample_one(&sampler, request(prompt(10, 1), 30, 1)).0;
    let stop = plain[7].id;
    let first = plain.iter().position(|token| token.id == stop).unwrap();
    let mut request = request(prompt(10, 1), 30, 1);
    request.stop_ids = vec![stop];
    let (tokens, end) = sample_one(&sampler, request);
    assert_eq!(end, Ok(StopReason::Stop));
    assert_eq!(tokens, plain[..=first]);
}

#[test]
fn the_context_ends_an_answer_like_max_tokens_does() {
    let sampler = sampler(&model("llama"), options(4, 1));
    let (tokens, end) = sample_one(&sampler, request(prompt(250, 1), 100, 1));
    assert_eq!((tokens.len(), end), (6, Ok(StopReason::Length)));
    let (tokens, end) = sample_one(&sampler, request(prompt(10, 1), 0, 1));
    assert_eq!((tokens.len(), end), (0, Ok(StopReason::Length)));
}

#[test]
fn prompts_that_cannot_be_sampled_from_say_why() {
    let sampler = sampler(&model("llama"), options(4, 1));
    let error = |prompt| sample_one(&sampler, request(prompt, 5, 1)).1.unwrap_err();
    assert_eq!(error(Vec::new()), GenerationError::PromptEmpty);
    assert_eq!(
        error(vec![1, 96]),
        GenerationError::UnknownToken {
            id: 96,
            vocabulary: 96
        }
    );
    for length in [256, 300] {
        assert_eq!(
            error(prompt(length, 1)),
            GenerationError::PromptTooLong {
                prompt: length,
                context: 256
            }
        );
    }
    // It goes on working.
    assert_eq!(
        sample_one(&sampler, request(prompt(3, 1), 5, 1)).1,
        Ok(StopReason::Length)
    );
}

#[test]
fn a_sink_that_wants_no_more_ends_its_own_sequence_only() {
    let sampler = sampler(&model("llama"), options(4, 1));
    let (done, ends) = channel();
    send(&sampler, request(prompt(10, 1), 40, 1), 0, 5, &done);
    send(
        &sampler,
        request(prompt(10, 2), 40, 2),
        1,
        usize::MAX,
        &done,
    );
    let ends = collect(&ends, 2);
    assert_eq!(
        (ends[0].0.len(), &ends[0].1),
        (5, &Ok(StopReason::Cancelled))
    );
    assert_eq!((ends[1].0.len(), &ends[1].1), (40, &Ok(StopReason::Length)));
}

/// Waits a little at each token until new weights are in place.
struct UntilSwapped {
    swapped: Receiver<()>,
    versions: Vec<u64>,
    done: Sender<Vec<u64>>,
}

impl TokenSink for UntilSwapped {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        self.versions.push(token.version.0);
        if token.version.0 == 7 {
            return ControlFlow::Break(());
        }
        // The swap comes at the next step, or it is still being prepared.
        let _not_yet = self.swapped.recv_timeout(Duration::from_millis(50));
        ControlFlow::Continue(())
    }
    fn end(self: Box<Self>, _end: End) {
        self.done.send(self.versions).unwrap();
    }
}

#[test]
fn new_weights_take_over_between_two_tokens() {
    let model = model("llama");
    let sampler = Arc::new(sampler(&model, options(4, 1)));
    assert_eq!(sampler.version(), PolicyVersion(0));
    let ((swapping, swapped), (done, versions)) = (channel(), channel());
    let sink = UntilSwapped {
        swapped,
        versions: Vec::new(),
        done,
    };
    sampler.generate(request(prompt(10, 1), 240, 1), Box::new(sink));
    let swap = thread::spawn({
        let (sampler, model) = (Arc::clone(&sampler), model.clone());
        move || sampler.swap(&model.config, &model.weights, PolicyVersion(7))
    });
    swap.join().unwrap().unwrap();
    swapping.send(()).ok();
    assert_eq!(sampler.version(), PolicyVersion(7));
    let versions = versions.recv_timeout(PATIENCE).unwrap();
    assert_eq!(versions.last(), Some(&7));
    assert!(versions.is_sorted());
}

#[test]
fn weights_of_another_shape_are_refused() {
    let (llama, qwen) = (model("llama"), model("qwen2"));
    let sampler = sampler(&llama, options(4, 1));
    let error = sampler
        .swap(&qwen.config, &qwen.weights, PolicyVersion(1))
        .unwrap_err();
    assert_eq!(error.kind(), PolicyErrorKind::Invalid);
    let error = sampler
        .swap(&llama.config, &Weights::default(), PolicyVersion(1))
        .unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    assert_eq!(sampler.version(), PolicyVersion(0));
}

#[test]
fn weights_that_are_not_numbers_end_the_answer_with_an_error() {
    let mut model = model("llama");
    let mut weights = Weights::clone(&model.weights);
    let norm = &weights.tensors["model.norm.weight"];
    let damaged = NamedTensor {
        shape: norm.shape.clone(),
        values: vec![f32::NAN; norm.values.len()].into(),
    };
    weights
        .tensors
        .insert("model.norm.weight".to_owned(), damaged);
    model.weights = Arc::new(weights);
    let sampler = sampler(&model, options(4, 1));
    assert_eq!(
        sample_one(&sampler, request(prompt(3, 1), 5, 1)),
        (Vec::new(), Err(GenerationError::NotFinite))
    );
}

#[test]
fn shutting_down_tells_everyone_and_takes_no_more() {
    let model = model("llama");
    let sampler = sampler(&model, options(1, 1));
    let (done, ends) = channel();
    for number in 0..60 {
        send(
            &sampler,
            request(prompt(100, 1), 150, 1),
            number,
            usize::MAX,
            &done,
        );
    }
    sampler.shut_down();
    let ends = collect(&ends, 60);
    assert_eq!(ends[59].1, Err(GenerationError::ShutDown));
    let late = sample_one(&sampler, request(prompt(3, 1), 5, 1));
    assert_eq!(late, (Vec::new(), Err(GenerationError::ShutDown)));
    let error = sampler
        .swap(&model.config, &model.weights, PolicyVersion(1))
        .unwrap_err();
    assert_eq!(error.kind(), PolicyErrorKind::Ended);
    sampler.shut_down();
}

struct Panics;

impl TokenSink for Panics {
    fn token(&mut self, _token: SampledToken) -> ControlFlow<()> {
        panic!("a sink that panics, on purpose");
    }
    fn end(self: Box<Self>, _end: End) {
        panic!("and again");
    }
}

#[test]
fn a_panic_in_the_thread_leaves_nobody_waiting() {
    let model = model("llama");
    let sampler = sampler(&model, options(2, 1));
    let (done, ends) = channel();
    sampler.generate(request(prompt(3, 2), 200, 1), Box::new(Panics));
    for number in 0..3 {
        send(
            &sampler,
            request(prompt(200, 1), 50, 1),
            number,
            usize::MAX,
            &done,
        );
    }
    let ends = collect(&ends, 3);
    assert!(
        ends.iter()
            .all(|(_, end)| *end == Err(GenerationError::ShutDown))
    );
    assert!(
        sampler
            .swap(&model.config, &model.weights, PolicyVersion(1))
            .is_err()
    );
}
