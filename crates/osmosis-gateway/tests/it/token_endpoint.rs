//! An engine that is asked from another process, through a token endpoint.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    GenerationError, RemoteFault, SampledToken, StopReason, TokenEngine, TokenSink,
};
use osmosis_gateway::{
    EndpointAddress, EndpointEngine, EndpointEngineOptions, EndpointError, GatewayOptions, Secret,
    TokenEndpoint, TokenEndpointOptions, TokenPolicy,
};
use osmosis_testkit::token_engines::{Sampled, request, sample};
use osmosis_testkit::waiting::until;
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::embedded::records;
use crate::fixture::{House, client, user};
use crate::memory_store::MemoryStore;
use crate::toy::{self, Engine, IM_END, Line, Log, ids_of};

const KEY: &str = "0123456789abcdef";
const SOON: Duration = Duration::from_secs(20);

fn endpoint_options() -> TokenEndpointOptions {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    TokenEndpointOptions::new(listen, Secret::new(KEY))
}

fn client_options() -> EndpointEngineOptions {
    EndpointEngineOptions {
        first_retry_wait: Duration::from_millis(1),
        longest_retry_wait: Duration::from_millis(20),
        away_limit: SOON,
        ..EndpointEngineOptions::new(Secret::new(KEY), "policy")
    }
}

async fn open(engine: Engine) -> (TokenEndpoint, Arc<Log>) {
    let log = Arc::clone(&engine.log);
    (start(endpoint_options(), engine).await, log)
}

async fn start(options: TokenEndpointOptions, engine: Engine) -> TokenEndpoint {
    let engines: Vec<(String, Arc<dyn TokenEngine>)> =
        vec![("policy".to_owned(), Arc::new(engine))];
    TokenEndpoint::start(options, engines).await.unwrap()
}

async fn connect(endpoint: &TokenEndpoint) -> EndpointEngine {
    let address = EndpointAddress::fixed(endpoint.url());
    EndpointEngine::connect(address, client_options())
        .await
        .unwrap()
}

fn ids(sampled: &Sampled) -> Vec<u32> {
    sampled.tokens.iter().map(|token| token.id).collect()
}

#[tokio::test]
async fn what_was_asked_arrives_and_what_was_sampled_comes_back_bit_for_bit() {
    let direct = Engine::saying(&["Hi ✓"]);
    let mut asked = request(&ids_of("hello"), 9, 3);
    asked.temperature = 0.1 + 0.2;
    asked.top_p = 0.9;
    asked.top_k = 40;
    asked.stop_ids = vec![IM_END];
    // Their logprobs are infinite.
    asked.alternatives = 2;
    let expected = sample(&direct, asked.clone()).await;

    let (endpoint, log) = open(Engine::saying(&["Hi ✓"])).await;
    let engine = connect(&endpoint).await;
    assert_eq!(engine.context_length(), 2000);
    assert_eq!(engine.version(), PolicyVersion(7));
    assert!(engine.is_elsewhere());
    let sampled = sample(&engine, asked.clone()).await;
    assert_eq!(sampled.bits(), expected.bits());
    assert_eq!(sampled.end, Ok(StopReason::Stop));
    assert_eq!(*log.requests.lock(), [asked]);
}

/// Reports what it gets, and wants nothing more once it is told so.
struct Watching {
    heard: Arc<Mutex<Vec<u32>>>,
    unwanted: std::pin::Pin<Box<WaitForCancellationFutureOwned>>,
    end: Arc<Mutex<Option<Result<StopReason, GenerationError>>>>,
}

impl TokenSink for Watching {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        self.heard.lock().push(token.id);
        ControlFlow::Continue(())
    }

    fn end(self: Box<Self>, end: Result<StopReason, GenerationError>) {
        *self.end.lock() = Some(end);
    }

    fn poll_unwanted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.unwanted.as_mut().poll(context)
    }
}

#[tokio::test]
async fn tokens_come_as_they_are_sampled_and_a_caller_that_hangs_up_ends_the_sampling() {
    let (say, said) = mpsc::channel();
    let (endpoint, log) = open(Engine::new([Line::Sent(said)])).await;
    let engine = connect(&endpoint).await;
    let hang_up = CancellationToken::new();
    let (heard, end) = (Arc::default(), Arc::default());
    let sink = Watching {
        heard: Arc::clone(&heard),
        unwanted: Box::pin(hang_up.clone().cancelled_owned()),
        end: Arc::clone(&end),
    };
    engine.generate(request(&ids_of("hello"), 1000, 0), Box::new(sink));
    for so_far in 1..=3 {
        say.send(97).unwrap();
        until("a token came", SOON, || heard.lock().len() == so_far).await;
    }
    hang_up.cancel();
    until("the caller's end", SOON, || end.lock().is_some()).await;
    assert_eq!(*end.lock(), Some(Ok(StopReason::Cancelled)));
    until("the engine's end", SOON, || {
        let _ = say.send(97);
        !log.ended.lock().is_empty()
    })
    .await;
    let (_, reason) = log.ended.lock()[0];
    assert_eq!(reason, StopReason::Cancelled);
    assert_eq!(heard.lock().len(), 3);
}

#[tokio::test]
async fn an_engine_that_takes_long_is_waited_for() {
    let (say, said) = mpsc::channel();
    let engine = Engine::new([Line::Sent(said)]);
    let alive_every = Duration::from_millis(20);
    let options = TokenEndpointOptions {
        alive_every,
        ..endpoint_options()
    };
    let endpoint = start(options, engine).await;
    let options = EndpointEngineOptions {
        idle_limit: Duration::from_millis(500),
        ..client_options()
    };
    let address = EndpointAddress::fixed(endpoint.url());
    let engine = EndpointEngine::connect(address, options).await.unwrap();
    let saying = async {
        // Three times what a silent endpoint is given.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        say.send(97).unwrap();
        drop(say);
    };
    let (sampled, ()) = tokio::join!(sample(&engine, request(&[1], 5, 0)), saying);
    assert_eq!(
        (ids(&sampled), sampled.end),
        (vec![97], Ok(StopReason::Length))
    );
}

#[tokio::test]
async fn errors_of_the_engine_are_the_callers_errors() {
    let too_long = GenerationError::PromptTooLong {
        prompt: 9,
        context: 8,
    };
    let remote = GenerationError::Remote {
        kind: RemoteFault::Overloaded,
        message: "busy".to_owned(),
    };
    let errors = [
        too_long,
        GenerationError::PromptEmpty,
        GenerationError::UnknownToken {
            id: 5,
            vocabulary: 4,
        },
        GenerationError::NotFinite,
        remote,
    ];
    let lines = errors.iter().flat_map(|error| {
        [
            Line::Fails(vec![], error.clone()),
            Line::Fails(vec![1, 2], error.clone()),
        ]
    });
    let (endpoint, _) = open(Engine::new(lines)).await;
    let engine = connect(&endpoint).await;
    for error in errors {
        for tokens in [0, 2] {
            let sampled = sample(&engine, request(&[1], 5, 0)).await;
            assert_eq!(sampled.tokens.len(), tokens);
            assert_eq!(sampled.end, Err(error.clone()));
        }
    }
}

#[tokio::test]
async fn without_the_key_nobody_gets_in() {
    let (endpoint, log) = open(Engine::saying(&[])).await;
    let client = client();
    let describe = format!("{}/tokens/v1/policy", endpoint.url());
    let generate = format!("{}/tokens/v1/policy/generate", endpoint.url());
    let status = async |request: reqwest::RequestBuilder| request.send().await.unwrap().status();
    for wrong in [
        "",
        "0123456789abcdeF",
        "0123456789abcde",
        "0123456789abcdef0",
    ] {
        assert_eq!(status(client.get(&describe).bearer_auth(wrong)).await, 401);
        let asked = client.post(&generate).bearer_auth(wrong).body("{}");
        assert_eq!(status(asked).await, 401);
    }
    assert_eq!(status(client.get(&describe)).await, 401);
    let page = client.get(&describe).bearer_auth(KEY);
    assert_eq!(status(page.header("origin", "http://evil.test")).await, 403);
    let with_key = |path: &str| client.get(path).bearer_auth(KEY);
    assert_eq!(status(with_key(&describe)).await, 200);
    assert_eq!(status(with_key(&generate)).await, 405);
    for nowhere in [
        "v1/chat/completions",
        "tokens/v1/judge",
        "tokens/v1/policy/x",
    ] {
        let nowhere = format!("{}/{nowhere}", endpoint.url());
        assert_eq!(status(with_key(&nowhere)).await, 404);
    }

    let options = EndpointEngineOptions {
        key: Secret::new("another"),
        ..client_options()
    };
    let address = EndpointAddress::fixed(endpoint.url());
    let began = Instant::now();
    let error = EndpointEngine::connect(address, options).await.unwrap_err();
    assert!(began.elapsed() < SOON, "a wrong key is not waited for");
    let EndpointError::Away(GenerationError::Remote { kind, message }) = error else {
        panic!("{error}")
    };
    assert_eq!(kind, RemoteFault::Misconfigured);
    assert!(
        message.contains("401") && message.contains("not the node key"),
        "{message}"
    );
    assert!(!message.contains("another"), "{message}");
    assert!(log.requests.lock().is_empty());
}

#[tokio::test]
async fn requests_that_are_no_good_are_refused() {
    let engine = Engine::saying(&[]);
    let options = TokenEndpointOptions {
        max_body_bytes: 1000,
        ..endpoint_options()
    };
    let endpoint = start(options, engine).await;
    let url = format!("{}/tokens/v1/policy/generate", endpoint.url());
    let client = client();
    let good = json!({"prompt": [1], "max_tokens": 1, "temperature_bits": 0, "top_p_bits": 1_065_353_216,
        "top_k": 0, "stop_ids": [], "alternatives": 0, "key": "00".repeat(32)});
    let mut long = good.clone();
    long["prompt"] = json!(vec![1; 2000]);
    let mut hot = good.clone();
    hot["temperature_bits"] = json!(f32::NAN.to_bits());
    let mut surplus = good;
    surplus["min_p"] = json!(0);
    for (body, status, says) in [
        ("{".to_owned(), 400, "not a valid request"),
        (hot.to_string(), 400, "temperature_bits"),
        (surplus.to_string(), 400, "min_p"),
        (long.to_string(), 413, "1000 bytes"),
    ] {
        let sent = client.post(&url).bearer_auth(KEY).body(body).send();
        let answer = sent.await.unwrap();
        assert_eq!(answer.status(), status);
        let text = answer.text().await.unwrap();
        assert!(text.contains(says), "{text}");
    }
}

#[tokio::test]
async fn more_generations_than_there_may_be_wait_for_their_turn() {
    let (say, said) = mpsc::channel();
    let engine = Engine::new([Line::Sent(said), Line::Ids(vec![98])]);
    let log = Arc::clone(&engine.log);
    let options = TokenEndpointOptions {
        max_generations: 1,
        ..endpoint_options()
    };
    let endpoint = start(options, engine).await;
    let engine = connect(&endpoint).await;
    let first = sample(&engine, request(&[1], 5, 0));
    let second = async {
        until("the first began", SOON, || log.requests.lock().len() == 1).await;
        let ending = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(log.requests.lock().len(), 1, "the second waits");
            drop(say);
        };
        tokio::join!(sample(&engine, request(&[2], 5, 0)), ending).0
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.end, Ok(StopReason::Length));
    assert_eq!(ids(&second), [98]);
}

#[tokio::test]
async fn a_closed_endpoint_is_waited_for_until_it_opens() {
    let (endpoint, log) = open(Engine::saying(&["a"])).await;
    endpoint.set_open(false);
    let engine = connect(&endpoint).await;
    let sampling = sample(&engine, request(&[1], 5, 0));
    let opening = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(log.requests.lock().is_empty(), "the engine is not asked");
        endpoint.set_open(true);
    };
    let (sampled, ()) = tokio::join!(sampling, opening);
    assert_eq!(ids(&sampled)[0], 97);
}

#[tokio::test]
async fn what_is_interrupted_is_asked_for_again_and_what_comes_later_is_not_touched() {
    let (say, said) = mpsc::channel();
    let (endpoint, log) = open(Engine::new([Line::Sent(said), Line::Ids(vec![98])])).await;
    let engine = connect(&endpoint).await;
    let sampling = sample(&engine, request(&[1], 5, 0));
    let interrupting = async {
        until("it began", SOON, || log.requests.lock().len() == 1).await;
        // With the weights that it was begun with it goes no further.
        endpoint.interrupt();
    };
    let (sampled, ()) = tokio::join!(sampling, interrupting);
    assert_eq!(ids(&sampled), [98]);
    assert_eq!(log.requests.lock().len(), 2);
    drop(say);
}

/// An address that a test changes.
#[derive(Clone, Default)]
struct Moving(Arc<Mutex<Option<String>>>);

impl Moving {
    fn address(&self) -> EndpointAddress {
        let at = self.clone();
        EndpointAddress::new(move || {
            let now = at.0.lock().clone();
            async move { Ok(now) }
        })
    }

    fn is_at(&self, endpoint: &TokenEndpoint) {
        *self.0.lock() = Some(endpoint.url());
    }
}

#[tokio::test]
async fn a_controller_that_is_resumed_elsewhere_is_found() {
    let at = Moving::default();
    let connecting = EndpointEngine::connect(at.address(), client_options());
    let starting = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (endpoint, log) = open(Engine::saying(&["a"])).await;
        at.is_at(&endpoint);
        (endpoint, log)
    };
    let (engine, (first, _)) = tokio::join!(connecting, starting);
    let engine = engine.unwrap();
    assert_eq!(ids(&sample(&engine, request(&[1], 5, 0)).await)[0], 97);
    assert!(first.shut_down(SOON).await);
    drop(first);

    // Nobody is there, then somebody is, at another port.
    let sampling = sample(&engine, request(&[1], 5, 0));
    let starting = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (endpoint, log) = open(Engine::saying(&["b"])).await;
        at.is_at(&endpoint);
        (endpoint, log)
    };
    let (sampled, (_second, log)) = tokio::join!(sampling, starting);
    assert_eq!(ids(&sampled)[0], 98);
    assert_eq!(log.requests.lock().len(), 1);
}

#[tokio::test]
async fn a_controller_that_stays_away_is_given_up() {
    let options = EndpointEngineOptions {
        away_limit: Duration::from_millis(200),
        ..client_options()
    };
    let (endpoint, _) = open(Engine::saying(&["a"])).await;
    let address = EndpointAddress::fixed(endpoint.url());
    let engine = EndpointEngine::connect(address, options.clone())
        .await
        .unwrap();
    endpoint.shut_down(SOON).await;
    drop(endpoint);
    let sampled = sample(&engine, request(&[1], 5, 0)).await;
    let Err(GenerationError::Remote { kind, message }) = sampled.end else {
        panic!("{:?}", sampled.end)
    };
    assert_eq!(kind, RemoteFault::Unreachable);
    assert!(
        message.contains("cannot be reached") && message.contains("tried"),
        "{message}"
    );

    let nowhere = Moving::default();
    let error = EndpointEngine::connect(nowhere.address(), options).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the run has no controller"), "{error}");
}

#[tokio::test]
async fn a_generation_is_asked_for_again_only_before_its_first_token() {
    let (say, said) = mpsc::channel();
    let lines = [Line::Vanishes, Line::Ids(vec![97]), Line::Sent(said)];
    let (endpoint, log) = open(Engine::new(lines)).await;
    let engine = connect(&endpoint).await;
    let sampled = sample(&engine, request(&[1], 5, 0)).await;
    assert_eq!(ids(&sampled), [97]);
    assert_eq!(log.requests.lock().len(), 2);

    say.send(98).unwrap();
    let ending = async {
        until("the third began", SOON, || log.requests.lock().len() == 3).await;
        endpoint.shut_down(Duration::from_millis(100)).await;
    };
    let (sampled, ()) = tokio::join!(sample(&engine, request(&[1], 5, 0)), ending);
    assert_eq!(ids(&sampled), [98]);
    assert_eq!(sampled.end, Err(GenerationError::ShutDown));
}

#[tokio::test]
async fn a_policy_over_an_endpoint_records_what_one_over_the_engine_records() {
    let says = ["Hi there", "bye"];
    let (direct, _) = toy::policy(Engine::saying(&says));
    let direct = House::with(direct, GatewayOptions::default(), MemoryStore::default()).await;
    let (endpoint, _) = open(Engine::saying(&says)).await;
    let engine = Arc::new(connect(&endpoint).await);
    let policy = TokenPolicy::new(engine, Arc::new(toy::chat_format()), toy::options());
    let asked = House::with(policy, GatewayOptions::default(), MemoryStore::default()).await;
    for text in ["hello", "and now?"] {
        let replies = (
            direct.send(&user(text)).await,
            asked.send(&user(text)).await,
        );
        let (mut one, mut other) = (replies.0.json(), replies.1.json());
        one["created"] = json!(0);
        other["created"] = json!(0);
        assert_eq!(one, other);
    }
    let (one, other) = (direct.store.calls(), asked.store.calls());
    for (one, other) in one.iter().zip(&other) {
        assert_eq!(records(one), records(other));
        assert_eq!(one.policy_version, other.policy_version);
        assert_eq!(one.upstream, other.upstream);
    }
    assert_eq!((one.len(), other.len()), (2, 2));
}
