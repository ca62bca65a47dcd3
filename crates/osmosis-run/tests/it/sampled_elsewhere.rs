//! The embedded sampler, asked in its own process and through a token endpoint: the same bits.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::Arc;

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    DrawKey, GenerationError, GenerationRequest, SampledToken, StopReason, TokenEngine, TokenSink,
};
use osmosis_gateway::{
    EndpointAddress, EndpointEngine, EndpointEngineOptions, Secret, TokenEndpoint,
    TokenEndpointOptions,
};
use osmosis_policy::{EmbeddedModel, Sampler, SamplerOptions, Weights};
use osmosis_testkit::token_engines::{self, Sampled, request, sample};
use tokio::sync::{mpsc, oneshot};

const KEY: &str = "key of the nodes";

struct House {
    model: EmbeddedModel,
    sampler: Arc<Sampler>,
    _endpoint: TokenEndpoint,
    engine: EndpointEngine,
}

async fn house() -> House {
    let model = EmbeddedModel::builtin("tiny").unwrap();
    let options = SamplerOptions {
        max_batch: 64,
        threads: 1,
        cache_bytes: 256 << 20,
    };
    let sampler = Arc::new(Sampler::start(&model, PolicyVersion(3), options).unwrap());
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let engine = Arc::clone(&sampler) as Arc<dyn TokenEngine>;
    let endpoint = TokenEndpoint::start(
        TokenEndpointOptions::new(listen, Secret::new(KEY)),
        vec![("policy".to_owned(), engine)],
    )
    .await
    .unwrap();
    let engine = EndpointEngine::connect(
        EndpointAddress::fixed(endpoint.url()),
        EndpointEngineOptions::new(Secret::new(KEY), "policy"),
    )
    .await
    .unwrap();
    House {
        model,
        sampler,
        _endpoint: endpoint,
        engine,
    }
}

fn prompt(model: &EmbeddedModel) -> Vec<u32> {
    model.chat.encode("What is 6 times 7?").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sampler_passes_the_suite_of_engines_directly_and_through_an_endpoint() {
    let house = house().await;
    let vocabulary = house.model.config.vocabulary;
    let prompt = prompt(&house.model);
    token_engines::conforms(&*house.sampler, &prompt, vocabulary).await;
    token_engines::conforms(&house.engine, &prompt, vocabulary).await;
    assert_eq!(
        house.engine.context_length(),
        house.sampler.context_length()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sampled_is_the_same_bit_for_bit() {
    let house = house().await;
    let prompt = prompt(&house.model);
    let mut requests = Vec::new();
    for (temperature, top_p, top_k, alternatives) in [
        (1.0, 1.0, 0, 0),
        (0.0, 1.0, 0, 5),
        (0.7, 0.9, 0, 20),
        (1.3, 1.0, 5, 1),
        (0.1 + 0.2, 0.3, 17, 3),
    ] {
        for draws in 0..4 {
            let mut key = [0; 32];
            key[draws] = 200;
            requests.push(GenerationRequest {
                temperature,
                top_p,
                top_k,
                alternatives,
                stop_ids: house.model.chat.end_of_turn().to_vec(),
                key: DrawKey(key),
                ..request(&prompt, 40, 0)
            });
        }
    }
    // All at once there, one by one here: what else is sampled changes nothing.
    let asked = requests.iter().cloned();
    let through = futures_util::future::join_all(asked.map(|request| sample(&house.engine, request)));
    let through: Vec<Sampled> = through.await;
    let mut tokens = 0;
    for (request, through) in requests.into_iter().zip(through) {
        let direct = sample(&*house.sampler, request).await;
        assert_eq!(through.end, direct.end);
        assert_eq!(through.bits(), direct.bits());
        tokens += direct.tokens.len();
    }
    assert!(tokens > 100, "only {tokens} tokens were compared");
}

/// Passes tokens on, as many as are let through.
struct Passing {
    tokens: mpsc::Sender<SampledToken>,
    end: Option<oneshot::Sender<Result<StopReason, GenerationError>>>,
}

impl TokenSink for Passing {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        match self.tokens.try_send(token) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn end(mut self: Box<Self>, end: Result<StopReason, GenerationError>) {
        if let Some(told) = self.end.take() {
            let _ = told.send(end);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_that_are_swapped_in_the_middle_of_an_answer_give_it_two_versions() {
    let house = house().await;
    let prompt = prompt(&house.model);
    let most = house.sampler.context_length() - prompt.len();
    let (tokens, mut heard) = mpsc::channel(most);
    let (ended, end) = oneshot::channel();
    let sink = Passing {
        tokens,
        end: Some(ended),
    };
    house
        .engine
        .generate(request(&prompt, most, 1), Box::new(sink));
    let first = heard.recv().await.unwrap();
    assert_eq!(first.version, PolicyVersion(3));
    let sampler = Arc::clone(&house.sampler);
    let (config, weights) = (house.model.config.clone(), Arc::clone(&house.model.weights));
    tokio::task::spawn_blocking(move || {
        let weights: &Weights = &weights;
        sampler.swap(&config, weights, PolicyVersion(4)).unwrap();
    })
    .await
    .unwrap();
    assert_eq!(end.await.unwrap(), Ok(StopReason::Length));
    let mut versions = vec![first.version.0];
    while let Some(token) = heard.recv().await {
        versions.push(token.version.0);
    }
    assert_eq!(versions.len(), most);
    assert!(versions.is_sorted(), "{versions:?}");
    versions.dedup();
    assert_eq!(versions, [3, 4]);
    assert_eq!(house.engine.version(), PolicyVersion(4));
}
