//! What every engine that samples tokens has to do, and how to compare two of them bit for bit.

use std::ops::ControlFlow;
use std::task::{Context, Poll};
use std::time::Duration;

use osmosis_core::generation::{
    DrawKey, GenerationError, GenerationRequest, SampledToken, StopReason, TokenEngine, TokenSink,
};
use tokio::sync::oneshot;

/// No generation of a test takes longer.
const LIMIT: Duration = Duration::from_mins(1);

/// What came of a generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    pub tokens: Vec<SampledToken>,
    pub end: Result<StopReason, GenerationError>,
}

/// A token with every number as its bits, to be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBits {
    id: u32,
    logprob: u32,
    version: u64,
    alternatives: Vec<(u32, u32)>,
}

impl Sampled {
    pub fn bits(&self) -> Vec<TokenBits> {
        let bits = |token: &SampledToken| {
            let alternatives = token.alternatives.iter();
            let alternatives = alternatives.map(|(id, logprob)| (*id, logprob.to_bits()));
            TokenBits {
                id: token.id,
                logprob: token.logprob.to_bits(),
                version: token.version.0,
                alternatives: alternatives.collect(),
            }
        };
        self.tokens.iter().map(bits).collect()
    }
}

/// Collects tokens, and wants no more after so many.
struct Collector {
    tokens: Vec<SampledToken>,
    most: usize,
    done: Option<oneshot::Sender<Sampled>>,
}

impl TokenSink for Collector {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        self.tokens.push(token);
        if self.tokens.len() >= self.most {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn end(mut self: Box<Self>, end: Result<StopReason, GenerationError>) {
        let tokens = std::mem::take(&mut self.tokens);
        if let Some(done) = self.done.take() {
            let _ = done.send(Sampled { tokens, end });
        }
    }

    fn poll_unwanted(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if self.tokens.len() >= self.most {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// Everything that an engine samples for a request.
pub async fn sample(engine: &dyn TokenEngine, request: GenerationRequest) -> Sampled {
    sample_up_to(engine, request, usize::MAX).await
}

/// The same for a caller that wants no more after `most` tokens.
#[expect(clippy::expect_used, reason = "a suite fails by panicking")]
pub async fn sample_up_to(
    engine: &dyn TokenEngine,
    request: GenerationRequest,
    most: usize,
) -> Sampled {
    let (done, sampled) = oneshot::channel();
    let sink = Collector {
        tokens: Vec::new(),
        most,
        done: Some(done),
    };
    engine.generate(request, Box::new(sink));
    tokio::time::timeout(LIMIT, sampled)
        .await
        .expect("the engine never ended the generation")
        .expect("the engine dropped the sink without a word")
}

/// A request without stop ids, with draws of its own.
pub fn request(prompt: &[u32], max_tokens: usize, draws: u8) -> GenerationRequest {
    GenerationRequest {
        prompt: prompt.to_vec(),
        max_tokens,
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        stop_ids: vec![],
        alternatives: 0,
        key: DrawKey([draws; 32]),
        constraint: None,
    }
}

/// The suite. `prompt` is one that the model can go on from for 8 tokens; `vocabulary` is how many ids it has.
pub async fn conforms(engine: &dyn TokenEngine, prompt: &[u32], vocabulary: usize) {
    let plain = request(prompt, 8, 1);
    let first = sample(engine, plain.clone()).await;
    assert_eq!(first.end, Ok(StopReason::Length));
    assert_eq!(first.tokens.len(), 8, "as many as asked for");
    for token in &first.tokens {
        assert!((token.id as usize) < vocabulary);
        assert!(token.logprob <= 0.0 && token.logprob.is_finite());
        assert_eq!(token.version, engine.version());
        assert!(token.alternatives.is_empty());
    }
    let again = sample(engine, plain.clone()).await;
    assert_eq!(again.bits(), first.bits(), "the same key, the same draws");

    let wanted = GenerationRequest {
        alternatives: 3,
        ..plain.clone()
    };
    let told = sample(engine, wanted).await;
    for token in &told.tokens {
        assert_eq!(token.alternatives.len(), 3);
        let in_order = token.alternatives.is_sorted_by(|a, b| a.1 >= b.1);
        assert!(in_order, "likeliest first: {:?}", token.alternatives);
    }
    let ids = |sampled: &Sampled| -> Vec<u32> { sampled.tokens.iter().map(|t| t.id).collect() };
    assert_eq!(ids(&told), ids(&first), "alternatives change no draw");

    let last = first.tokens[3].id;
    let until = ids(&first).iter().position(|id| *id == last);
    let stopped = GenerationRequest {
        stop_ids: vec![last],
        ..plain.clone()
    };
    let stopped = sample(engine, stopped).await;
    assert_eq!(stopped.end, Ok(StopReason::Stop));
    assert_eq!(
        Some(stopped.tokens.len() - 1),
        until,
        "the stop is the last"
    );

    let given_up = sample_up_to(engine, plain.clone(), 2).await;
    assert_eq!(given_up.end, Ok(StopReason::Cancelled));
    assert_eq!(given_up.bits(), first.bits()[..2], "no token after a break");

    refuses(engine, &plain, vocabulary).await;
}

async fn refuses(engine: &dyn TokenEngine, plain: &GenerationRequest, vocabulary: usize) {
    let refused = async |prompt: Vec<u32>| {
        let request = GenerationRequest {
            prompt,
            ..plain.clone()
        };
        let sampled = sample(engine, request).await;
        assert!(sampled.tokens.is_empty());
        sampled.end
    };
    assert_eq!(refused(vec![]).await, Err(GenerationError::PromptEmpty));
    let context = engine.context_length();
    let long = vec![plain.prompt[0]; context];
    assert_eq!(
        refused(long).await,
        Err(GenerationError::PromptTooLong {
            prompt: context,
            context,
        })
    );
    let id = u32::try_from(vocabulary).unwrap_or(u32::MAX);
    assert_eq!(
        refused(vec![id]).await,
        Err(GenerationError::UnknownToken { id, vocabulary })
    );
}
