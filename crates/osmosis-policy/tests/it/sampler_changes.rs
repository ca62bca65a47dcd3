//! What comes while tokens are sampled: new weights, and callers who leave.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{GenerationError, SampledToken, StopReason, TokenEngine, TokenSink};
use osmosis_policy::{EmbeddedModel, NamedTensor, Weights};

use crate::sampling::{model, options, prompt, request, sample_one, sampler};

const PATIENCE: Duration = Duration::from_mins(1);

type End = Result<StopReason, GenerationError>;

/// A sink, and where it tells what it got.
type Observed = (Box<dyn TokenSink>, Receiver<(Vec<SampledToken>, End)>);

/// Collects, and lets a test look on at every token, on the sampler's own thread.
struct Watched<F> {
    tokens: Vec<SampledToken>,
    at_token: F,
    unwanted: Arc<AtomicBool>,
    done: Sender<(Vec<SampledToken>, End)>,
}

impl<F: FnMut(&SampledToken) + Send> TokenSink for Watched<F> {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        (self.at_token)(&token);
        self.tokens.push(token);
        ControlFlow::Continue(())
    }
    fn end(self: Box<Self>, end: End) {
        self.done.send((self.tokens, end)).unwrap();
    }
    fn poll_unwanted(&mut self, _context: &mut Context<'_>) -> Poll<()> {
        if self.unwanted.load(Ordering::SeqCst) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

fn watched<F: FnMut(&SampledToken) + Send + 'static>(
    unwanted: &Arc<AtomicBool>,
    at_token: F,
) -> Observed {
    let (done, ends) = channel();
    let sink = Watched {
        tokens: Vec::new(),
        at_token,
        unwanted: Arc::clone(unwanted),
        done,
    };
    (Box::new(sink), ends)
}

/// The same shape, another model.
fn changed(model: &EmbeddedModel) -> Weights {
    changed_at(model, "model.norm.weight")
}

fn changed_at(model: &EmbeddedModel, name: &str) -> Weights {
    let mut weights = Weights::clone(&model.weights);
    let norm = &weights.tensors[name];
    let louder = NamedTensor {
        shape: norm.shape.clone(),
        values: norm.values.iter().map(|value| value * 1.5).collect(),
    };
    weights.tensors.insert(name.to_owned(), louder);
    weights
}

#[test]
fn running_answers_go_on_with_new_weights_and_each_token_says_which_sampled_it() {
    let model = model("llama");
    let plain = sample_one(
        &sampler(&model, options(4, 1)),
        request(prompt(10, 1), 200, 1),
    )
    .0;
    let sampler = sampler(&model, options(4, 1));
    let (swapping, swapped) = channel::<()>();
    let swapped = Mutex::new(swapped);
    let never = Arc::default();
    let slow = watched(&never, move |_| {
        // Leaves the swap, which takes the time it takes, room between tokens until it has come.
        let _ = swapped
            .lock()
            .unwrap()
            .recv_timeout(Duration::from_millis(50));
    });
    let other = watched(&never, |_| {});
    sampler.generate(request(prompt(10, 1), 200, 1), slow.0);
    sampler.generate(request(prompt(30, 2), 200, 2), other.0);
    sampler
        .swap(&model.config, &changed(&model), PolicyVersion(7))
        .unwrap();
    drop(swapping);
    let (tokens, end) = slow.1.recv_timeout(PATIENCE).unwrap();
    let (others, other_end) = other.1.recv_timeout(PATIENCE).unwrap();
    assert_eq!((tokens.len(), end), (200, Ok(StopReason::Length)));
    assert_eq!((others.len(), other_end), (200, Ok(StopReason::Length)));

    let old = tokens.partition_point(|token| token.version == PolicyVersion(0));
    assert!(tokens[old..].iter().all(|token| token.version.0 == 7));
    assert!(old < 200, "the swap waited for the answer");
    assert_eq!(
        tokens[..old],
        plain[..old],
        "what was sampled is what it was"
    );
    let moved = (tokens[old].logprob - plain[old].logprob).abs();
    assert!(moved > 0.0, "the next token is one of the new weights");
    let versions = others.iter().map(|token| token.version.0);
    assert!(versions.is_sorted());
}

#[test]
fn a_prompt_that_new_weights_find_half_run_is_run_again_with_them() {
    let model = model("llama");
    // Keys and values of every token depend on it.
    let weights = changed_at(&model, "model.layers.0.input_layernorm.weight");
    let new = EmbeddedModel {
        weights: Arc::new(weights.clone()),
        ..model.clone()
    };
    let sampler = sampler(&model, options(4, 1));
    let (step, steps) = channel();
    let (go_on, goes_on) = channel::<()>();
    let goes_on = Mutex::new(goes_on);
    let never = Arc::default();
    // Holds the sampler at the end of each step.
    let pace = watched(&never, move |_| {
        if step.send(()).is_ok() {
            let _ = goes_on.lock().unwrap().recv_timeout(PATIENCE);
        }
    });
    sampler.generate(request(prompt(4, 1), 200, 1), pace.0);
    steps.recv_timeout(PATIENCE).unwrap();
    // More prompt than one step runs: the last of them is half run after it.
    let others: Vec<Observed> = (2..5).map(|_| watched(&never, |_| {})).collect();
    let mut ends = Vec::new();
    for (seed, (sink, end)) in (2_u8..).zip(others) {
        sampler.generate(request(prompt(240, u32::from(seed)), 8, seed), sink);
        ends.push((seed, end));
    }
    go_on.send(()).unwrap();
    steps.recv_timeout(PATIENCE).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| sampler.swap(&model.config, &weights, PolicyVersion(7)));
        // The swap is prepared and sent meanwhile; where it comes later there is nothing to see.
        let _ = ends[0].1.recv_timeout(Duration::from_millis(500));
        drop(go_on);
        drop(steps);
    });
    let (seed, end) = ends.pop().unwrap();
    let (tokens, _) = end.recv_timeout(PATIENCE).unwrap();
    if tokens[0].version == PolicyVersion(7) {
        let fresh = crate::sampling::sampler(&new, options(4, 1));
        let expected = sample_one(&fresh, request(prompt(240, u32::from(seed)), 8, seed)).0;
        let bits = |tokens: &[SampledToken]| -> Vec<(u32, u32)> {
            tokens.iter().map(|t| (t.id, t.logprob.to_bits())).collect()
        };
        assert_eq!(bits(&tokens), bits(&expected));
    }
}

#[test]
fn a_caller_who_leaves_ends_the_sequence_before_its_next_token() {
    let sampler = sampler(&model("llama"), options(4, 1));
    let (left, tokens_after) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (both_sent, wait) = channel::<()>();
    let leaving = watched(&left, {
        let (left, tokens_after) = (Arc::clone(&left), Arc::clone(&tokens_after));
        let wait = Mutex::new(wait);
        move |_| {
            let _ = wait.lock().unwrap().recv();
            if left.load(Ordering::SeqCst) {
                tokens_after.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let staying = watched(&Arc::default(), {
        let (left, mut count) = (Arc::clone(&left), 0);
        move |_| {
            count += 1;
            left.store(count >= 5, Ordering::SeqCst);
        }
    });
    sampler.generate(request(prompt(10, 1), 200, 1), leaving.0);
    sampler.generate(request(prompt(10, 2), 200, 2), staying.0);
    drop(both_sent);
    let (tokens, end) = leaving.1.recv_timeout(PATIENCE).unwrap();
    assert_eq!(end, Ok(StopReason::Cancelled));
    assert!(!tokens.is_empty() && tokens.len() < 200);
    assert_eq!(tokens_after.load(Ordering::SeqCst), 0);
    let (tokens, end) = staying.1.recv_timeout(PATIENCE).unwrap();
    assert_eq!((tokens.len(), end), (200, Ok(StopReason::Length)));
}

#[test]
fn a_caller_who_leaves_while_waiting_is_never_computed() {
    let sampler = sampler(&model("llama"), options(1, 1));
    let (sent, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let running = watched(&Arc::default(), move |_| {
        let _ = wait.lock().unwrap().recv();
    });
    let left = Arc::new(AtomicBool::new(false));
    let waiting = watched(&left, |_| {});
    sampler.generate(request(prompt(10, 1), 20, 1), running.0);
    sampler.generate(request(prompt(100, 2), 20, 2), waiting.0);
    left.store(true, Ordering::SeqCst);
    drop(sent);
    let ended = waiting.1.recv_timeout(PATIENCE).unwrap();
    assert_eq!(ended, (Vec::new(), Ok(StopReason::Cancelled)));
    assert_eq!(running.1.recv_timeout(PATIENCE).unwrap().0.len(), 20);
    assert_eq!(sampler.rate().prompt_tokens, 10);
    assert_eq!(sampler.rate().sampled_tokens, 20);
}
