//! What every policy has to do, whatever answers behind it: one suite, run for each of them and for each of them
//! inside a layer.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use camino::Utf8Path;
use futures_util::StreamExt;
use http::HeaderMap;
use osmosis_core::{PolicyVersion, RolloutId, SampleId};
use osmosis_dialect::sse::{SseWatch, StreamEnd};
use osmosis_gateway::{
    CallFormat, CallHistory, CallTrace, Capabilities, Dialect, Fault, Finding, Layer, ModelCall,
    ModelReply, OutputLimit, Policy, PolicyChange, PolicyDescription, RelayPolicy, ReplyBody,
    ReportedTokens, ServerLogprobs, TokenPolicy, TokenSlot, UnusableWeights, UpstreamOptions,
    UpstreamPolicy, WeightLoader,
};
use osmosis_testkit::model_server::{Behaviour, ModelServer};
use serde_json::{Value, json};

use crate::fixture::{script_policy, user};
use crate::toy::{self, Engine};

/// The rollout in whose name the suite asks.
fn rollout() -> RolloutId {
    RolloutId::of(1, 0)
}

fn call(format: CallFormat, body: &Value) -> ModelCall {
    ModelCall {
        rollout_id: rollout(),
        sample_id: SampleId::main(),
        format,
        dialect_headers: HeaderMap::new(),
        body: Bytes::from(body.to_string()),
        streamed: body["stream"] == true,
        history: Arc::new(CallHistory::default()),
        tokens: TokenSlot::default(),
        call_trace: CallTrace::default(),
    }
}

fn chat(streamed: bool) -> ModelCall {
    let mut body = user("hi");
    if streamed {
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
    }
    call(CallFormat::Dialect(Dialect::ChatCompletions), &body)
}

/// What a policy can do, to be compared.
#[derive(Debug, PartialEq, Eq)]
struct Abilities {
    dialects: Vec<Dialect>,
    token_ids: bool,
    output_limit: OutputLimit,
    weights: bool,
    servers: bool,
    pool: bool,
    updates: bool,
}

fn abilities(policy: &dyn Policy) -> Abilities {
    let Capabilities {
        dialects,
        token_ids,
        output_limit,
        weights,
        servers,
        updates,
    } = policy.capabilities();
    let spoken = Dialect::ALL.into_iter();
    Abilities {
        dialects: spoken.filter(|one| dialects.contains(*one)).collect(),
        token_ids,
        output_limit,
        weights: weights.is_some(),
        servers: servers.is_some(),
        pool: servers.is_some_and(|servers| servers.load().is_some()),
        updates: updates.is_some(),
    }
}

/// The suite. `expected` is what the policy can do, so that none is lost unnoticed.
async fn conforms(policy: &Arc<dyn Policy>, expected: &Abilities) {
    let policy = &policy.for_rollout(&rollout()).unwrap_or(Arc::clone(policy));
    assert_eq!(abilities(&**policy), *expected);
    describes_itself(&**policy);
    answers_chat(&**policy).await;
    can_be_given_up(&**policy).await;
    answers_ids_or_refuses(&**policy).await;
    is_probed(&**policy).await;
    takes_weights(&**policy).await;
    // The last: it changes the version.
    is_updated(&**policy, expected).await;
}

fn describes_itself(policy: &dyn Policy) {
    let described = policy.describe();
    assert!(!described.model.is_empty() && !described.endpoint.is_empty());
    assert!(
        !described.endpoint.contains("hunter2"),
        "a password is shown"
    );
    assert_eq!(described, policy.describe());
    assert_eq!(described, policy.describe_for(&rollout()));
}

async fn answers_chat(policy: &dyn Policy) {
    let reply = policy.answer(chat(false)).await.unwrap();
    assert_eq!(reply.status, 200);
    assert!(reply.content_type.starts_with("application/json"));
    let ReplyBody::Whole(body) = reply.body else {
        panic!("a plain call is answered in one piece")
    };
    assert!(Dialect::ChatCompletions.is_reply(&body), "{body:?}");

    let reply = policy.answer(chat(true)).await.unwrap();
    assert_eq!(reply.status, 200);
    assert!(reply.content_type.starts_with("text/event-stream"));
    let ReplyBody::Stream(mut stream) = reply.body else {
        panic!("a streamed call is answered by a stream")
    };
    let mut watch = SseWatch::new(Dialect::ChatCompletions, false);
    while let Some(piece) = stream.next().await {
        watch.push(&piece.unwrap()).unwrap();
    }
    assert_eq!(watch.finish().1, StreamEnd::Whole);
    assert!(watch.events() > 1 && watch.usage().is_some());
}

/// Nothing stays behind of a call whose caller went away.
async fn can_be_given_up(policy: &dyn Policy) {
    for streamed in [false, true] {
        let mut asking = policy.answer(chat(streamed));
        let _ = futures_util::poll!(asking.as_mut());
        drop(asking);
    }
    let reply = policy.answer(chat(true)).await.unwrap();
    drop(reply);
    answers_chat(policy).await;
}

async fn answers_ids_or_refuses(policy: &dyn Policy) {
    let asked = call(CallFormat::TokenIds, &json!({"input_ids": [1, 2]}));
    let reply = policy.answer(asked).await.unwrap();
    let ReplyBody::Whole(body) = reply.body else {
        panic!("ids come in one piece")
    };
    let body: Value = serde_json::from_slice(&body).unwrap();
    if policy.capabilities().token_ids {
        assert_eq!(reply.status, 200);
        assert!(body["output_ids"].is_array(), "{body}");
    } else {
        assert_eq!(reply.status, 501);
        assert_eq!(body["error"]["code"], "no_token_ids");
    }
}

async fn is_probed(policy: &dyn Policy) {
    let probed = policy.probe().await;
    assert_eq!(probed.is_empty(), policy.capabilities().servers.is_none());
    for probed in probed {
        assert_eq!(probed.finding, Finding::Works, "{}", probed.endpoint);
    }
}

async fn takes_weights(policy: &dyn Policy) {
    let Some(weights) = policy.capabilities().weights else {
        return;
    };
    let version = policy.describe().version;
    let next = PolicyVersion(version.0 + 1);
    weights
        .load(Utf8Path::new(GOOD_WEIGHTS), next)
        .await
        .unwrap();
    let refused = weights.load(Utf8Path::new("nowhere"), next).await;
    assert!(refused.unwrap_err().to_string().contains("nowhere"));
}

async fn is_updated(policy: &dyn Policy, expected: &Abilities) {
    let before = policy.describe();
    let next = PolicyVersion(before.version.0 + 3);
    assert_eq!(policy.set_version(next), expected.updates);
    let Some(updates) = policy.capabilities().updates else {
        assert_eq!(policy.describe(), before);
        return;
    };
    assert_eq!(policy.describe().version, next);
    let change = PolicyChange {
        endpoints: None,
        model: Some("renamed".to_owned()),
        version: PolicyVersion(next.0 + 1),
    };
    let changed = updates.changed(&change).unwrap();
    let described = changed.describe();
    assert_eq!(
        (described.model, described.version),
        ("renamed".to_owned(), change.version)
    );
    assert_eq!(abilities(&*changed), *expected, "a change loses an ability");
    assert_eq!(policy.describe().model, before.model);
    answers_chat(&*changed).await;
}

/// The layer that changes nothing.
#[derive(Debug)]
struct Passing(Arc<dyn Policy>);

#[async_trait]
impl Layer for Passing {
    fn inner(&self) -> &Arc<dyn Policy> {
        &self.0
    }

    fn around(&self, inner: Arc<dyn Policy>) -> Arc<dyn Policy> {
        Arc::new(Self(inner))
    }

    async fn answer_through(&self, call: ModelCall) -> Result<ModelReply, Fault> {
        self.0.answer(call).await
    }
}

/// Runs the suite on a policy, on the policy inside a layer, and where its token ids are asked for.
async fn conforms_in_layers(policy: impl Policy + 'static, expected: &Abilities) {
    let policy: Arc<dyn Policy> = Arc::new(policy);
    conforms(&policy, expected).await;
    let passing: Arc<dyn Policy> = Arc::new(Passing(Arc::clone(&policy)));
    conforms(&passing, expected).await;
    let reported: Arc<dyn Policy> = Arc::new(ReportedTokens::new(policy, ServerLogprobs::Raw));
    conforms(&reported, expected).await;
}

/// What a policy that only answers chat can do.
fn chat_alone() -> Abilities {
    Abilities {
        dialects: vec![Dialect::ChatCompletions],
        token_ids: false,
        output_limit: OutputLimit::MaxTokens,
        weights: false,
        servers: false,
        pool: false,
        updates: false,
    }
}

fn of_upstream() -> Abilities {
    Abilities {
        servers: true,
        pool: true,
        updates: true,
        ..chat_alone()
    }
}

async fn model_server() -> (ModelServer, UpstreamOptions) {
    let server = ModelServer::start(Behaviour::Answers).await.unwrap();
    let url = server.url().replace("http://", "http://user:hunter2@");
    let options = UpstreamOptions::new(url, "real-model");
    (server, options)
}

#[tokio::test]
async fn a_script_conforms() {
    let script = script_policy("[[reply]]\ntext = 'Hello there.'\n");
    conforms_in_layers(script, &chat_alone()).await;
}

#[tokio::test]
async fn an_upstream_conforms() {
    let (_server, options) = model_server().await;
    let policy = UpstreamPolicy::new(options).unwrap();
    conforms_in_layers(policy, &of_upstream()).await;
}

#[tokio::test]
async fn a_relay_conforms_for_each_rollout() {
    let (_server, options) = model_server().await;
    let relay = RelayPolicy::new("osmosis-rollout");
    let url = &options.endpoints[0].base_url;
    relay.assign(rollout(), url, None).unwrap();
    conforms_in_layers(relay, &of_upstream()).await;
}

const GOOD_WEIGHTS: &str = "good";

#[derive(Debug)]
struct Loader;

impl WeightLoader for Loader {
    fn load(&self, folder: &Utf8Path, _: PolicyVersion) -> Result<(), UnusableWeights> {
        if folder == GOOD_WEIGHTS {
            return Ok(());
        }
        Err(UnusableWeights {
            message: "there is nothing".to_owned(),
            hint: None,
        })
    }
}

#[tokio::test]
async fn a_token_policy_conforms_with_and_without_a_loader() {
    let expected = Abilities {
        token_ids: true,
        servers: true,
        ..chat_alone()
    };
    let says = ["Hi there"; 64];
    let (policy, _) = toy::policy(Engine::saying(&says));
    conforms_in_layers(policy, &expected).await;
    let policy = TokenPolicy::with_loader(
        Arc::new(Engine::saying(&says)),
        Arc::new(toy::chat_format()),
        toy::options(),
        Arc::new(Loader),
    );
    let expected = Abilities {
        weights: true,
        ..expected
    };
    conforms_in_layers(policy, &expected).await;
}

/// A wrapper by hand, which forgets what the policy inside can do.
#[derive(Debug)]
struct Forgetful(Arc<dyn Policy>);

#[async_trait]
impl Policy for Forgetful {
    fn describe(&self) -> PolicyDescription {
        self.0.describe()
    }

    async fn answer(&self, call: ModelCall) -> Result<ModelReply, Fault> {
        self.0.answer(call).await
    }
}

#[tokio::test]
#[should_panic(expected = "assertion `left == right` failed")]
async fn the_suite_finds_a_wrapper_that_loses_a_capability() {
    let (_server, options) = model_server().await;
    let policy = UpstreamPolicy::new(options).unwrap();
    let forgetful: Arc<dyn Policy> = Arc::new(Forgetful(Arc::new(policy)));
    conforms(&forgetful, &of_upstream()).await;
}
