//! A sampler behind a gateway, while weights change and callers leave.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use camino::Utf8Path;
use osmosis_core::generation::{
    GenerationError, GenerationRequest, SampledToken, StopReason, TokenEngine, TokenSink,
};
use osmosis_core::{Attempt, PolicyVersion, RolloutId, SampleId};
use osmosis_gateway::{Gateway, GatewayOptions, RolloutSession, TokenPolicy, TokenPolicyOptions};
use osmosis_policy::{Sampler, SamplerOptions};
use osmosis_store::{CallQuery, CallRecord};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use osmosis_testkit::waiting;
use osmosis_tokens::{CallTree, TokenRecord};
use osmosis_train::batch;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc as tokio_mpsc;

use crate::model;

/// Only a test that fails waits this long.
const LONG: Duration = Duration::from_mins(1);
const TOKENS: usize = 40;

/// What happens to a sequence after its third token, on the sampler's own thread.
#[derive(Debug, Clone, Copy)]
enum After3 {
    /// Other weights come; no token is sampled for some time, until they have.
    NewWeights,
    /// Nothing is sampled until nobody wants more.
    CallerLeaves,
}

/// A sampler that is looked at while it works.
#[derive(Debug)]
struct Observed {
    sampler: Arc<Sampler>,
    after3: After3,
    sampled3: tokio_mpsc::Sender<()>,
    ends: mpsc::Sender<(usize, Result<StopReason, GenerationError>)>,
}

impl TokenEngine for Observed {
    fn context_length(&self) -> usize {
        self.sampler.context_length()
    }
    fn version(&self) -> PolicyVersion {
        self.sampler.version()
    }
    fn generate(&self, request: GenerationRequest, sink: Box<dyn TokenSink>) {
        let observing = Observing {
            sink,
            count: 0,
            after3: self.after3,
            sampled3: self.sampled3.clone(),
            ends: self.ends.clone(),
        };
        self.sampler.generate(request, Box::new(observing));
    }
}

struct Observing {
    sink: Box<dyn TokenSink>,
    count: usize,
    after3: After3,
    sampled3: tokio_mpsc::Sender<()>,
    ends: mpsc::Sender<(usize, Result<StopReason, GenerationError>)>,
}

impl TokenSink for Observing {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        let version = token.version;
        let flow = self.sink.token(token);
        self.count += 1;
        if self.count == 3 {
            self.sampled3.try_send(()).unwrap();
        }
        match self.after3 {
            After3::NewWeights if self.count >= 3 && version == PolicyVersion(0) => {
                // The swap comes before the next token, or it is still being prepared.
                waiting::pass(Duration::from_millis(200));
            }
            After3::CallerLeaves if self.count == 3 => {
                let deadline = Instant::now() + LONG;
                let mut context = Context::from_waker(Waker::noop());
                while self.sink.poll_unwanted(&mut context).is_pending() {
                    assert!(Instant::now() < deadline, "the sampler is not told");
                    waiting::pass(Duration::from_millis(1));
                }
            }
            After3::NewWeights | After3::CallerLeaves => {}
        }
        flow
    }
    fn end(self: Box<Self>, end: Result<StopReason, GenerationError>) {
        let Self {
            sink, count, ends, ..
        } = *self;
        sink.end(end.clone());
        ends.send((count, end)).unwrap();
    }
    fn poll_unwanted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.sink.poll_unwanted(context)
    }
}

struct House {
    sampler: Arc<Sampler>,
    store: Arc<SqliteStore>,
    gateway: Gateway,
    /// Until it is closed.
    session: Option<RolloutSession>,
    sampled3: tokio_mpsc::Receiver<()>,
    ends: mpsc::Receiver<(usize, Result<StopReason, GenerationError>)>,
    _folder: TempDir,
}

impl House {
    async fn new(after3: After3) -> Self {
        let folder = TempDir::new().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap();
        let store = Arc::new(SqliteStore::open(path, SqliteOptions::default()).unwrap());
        let model = model::tiny();
        let options = SamplerOptions {
            max_batch: 4,
            threads: 1,
            cache_bytes: 1 << 24,
        };
        let sampler = Arc::new(Sampler::start(&model, PolicyVersion(0), options).unwrap());
        let (sampled3, heard3) = tokio_mpsc::channel(1);
        let (ends, ended) = mpsc::channel();
        let engine = Observed {
            sampler: Arc::clone(&sampler),
            after3,
            sampled3,
            ends,
        };
        let options = TokenPolicyOptions {
            model: "letters".to_owned(),
            endpoint: "embedded".to_owned(),
            seed: 1,
            max_prompt_tokens: None,
            max_response_tokens: None,
        };
        let policy = TokenPolicy::new(Arc::new(engine), model.chat.clone(), options);
        let options = GatewayOptions::default();
        let gateway = Gateway::start(options, Arc::new(policy), store.clone());
        let gateway = gateway.await.unwrap();
        let session = gateway.open(RolloutId::of(0, 0), Attempt(1));
        Self {
            sampler,
            store,
            gateway,
            session: Some(session),
            sampled3: heard3,
            ends: ended,
            _folder: folder,
        }
    }

    /// Asks, and waits until three tokens are there.
    async fn ask(&mut self, stream: bool) -> TcpStream {
        let url = self.gateway.url();
        let url = url.strip_prefix("http://").unwrap();
        let (address, path) = url.split_once('/').unwrap();
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "ab"}],
            "max_tokens": TOKENS, "ignore_eos": true, "stream": stream})
        .to_string();
        let request = format!(
            "POST /{path}/chat/completions HTTP/1.0\r\nhost: {address}\r\n\
             authorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.session.as_ref().unwrap().key(),
            body.len(),
        );
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(request.as_bytes()).await.unwrap();
        self.sampled3.recv().await.unwrap();
        connection
    }

    /// How many tokens the sampler gave, and why it ended. Blocks, so nothing else may have to go on.
    async fn sampler_end(self) -> (usize, Result<StopReason, GenerationError>) {
        let Self { ends, .. } = self;
        let ended = tokio::task::spawn_blocking(move || ends.recv_timeout(LONG));
        ended.await.unwrap().unwrap()
    }

    async fn recorded(&self) -> (CallRecord, TokenRecord) {
        let query = CallQuery {
            rollout_id: RolloutId::of(0, 0),
            attempt: None,
        };
        // Calls are queued; a write that is acknowledged comes after them.
        self.store
            .recover(osmosis_store::Recovery::AfterTakeover)
            .await
            .unwrap();
        let call = self.store.calls(query).await.unwrap().remove(0);
        let records = self.store.token_records(&RolloutId::of(0, 0)).await;
        let (_, record) = records.unwrap().remove(0);
        (call, TokenRecord::decode(&record).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_that_come_while_a_call_is_answered_do_not_fail_it_and_stand_in_its_row() {
    for stream in [false, true] {
        let mut house = House::new(After3::NewWeights).await;
        let mut connection = house.ask(stream).await;
        let sampler = Arc::clone(&house.sampler);
        let swap = tokio::task::spawn_blocking(move || {
            let model = model::tiny();
            sampler.swap(&model.config, &model.weights, PolicyVersion(5))
        });
        swap.await.unwrap().unwrap();
        let mut reply = String::new();
        connection.read_to_string(&mut reply).await.unwrap();
        assert!(reply.contains(" 200 "), "{reply}");
        assert!(reply.contains("\"finish_reason\":\"length\""), "{reply}");

        let (call, record) = house.recorded().await;
        assert_eq!((call.status, &call.error), (200, &None));
        assert_eq!(call.policy_version, PolicyVersion(0), "when it was let in");
        assert!(record.complete);
        assert_eq!(record.versions.len(), TOKENS);
        let old = record.versions.partition_point(|version| version.0 == 0);
        assert!((3..TOKENS).contains(&old), "{:?}", record.versions);
        assert!(record.versions[old..].iter().all(|version| version.0 == 5));

        let rows = CallTree::rows(&SampleId::main(), std::slice::from_ref(&record)).unwrap();
        let in_row: Vec<_> = rows[0].versions.iter().copied().flatten().collect();
        assert_eq!(in_row, record.versions);
        assert!(!batch::fresh(&rows, PolicyVersion(5), 4));
        assert!(batch::fresh(&rows, PolicyVersion(5), 5));
        let end = house.sampler_end().await;
        assert_eq!(end, (TOKENS, Ok(StopReason::Length)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_who_hangs_up_ends_the_sequence_in_the_sampler() {
    for stream in [false, true] {
        let mut house = House::new(After3::CallerLeaves).await;
        let connection = house.ask(stream).await;
        drop(connection);
        let end = house.sampler_end().await;
        assert_eq!(end, (3, Ok(StopReason::Cancelled)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_door_that_closes_ends_the_sequence_in_the_sampler() {
    for stream in [false, true] {
        let mut house = House::new(After3::CallerLeaves).await;
        let _connection = house.ask(stream).await;
        house.session.take().unwrap().close().await;
        let (call, record) = house.recorded().await;
        assert!(call.error.is_some(), "{call:?}");
        assert_eq!((record.sampled.len(), record.complete), (3, false));
        let end = house.sampler_end().await;
        assert_eq!(end, (3, Ok(StopReason::Cancelled)));
    }
}
