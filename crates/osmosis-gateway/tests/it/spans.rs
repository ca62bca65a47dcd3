//! What the log says of calls, and what it never says.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use osmosis_core::PolicyVersion;
use osmosis_gateway::{
    Fault, GatewayOptions, ModelCall, ModelReply, Policy, PolicyDescription, ReplyBody,
};
use osmosis_testkit::model_server::Behaviour;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Layer, Registry};

use crate::fixture::{API_KEY, Answer, House, user};
use crate::memory_store::MemoryStore;

type Fields = BTreeMap<&'static str, String>;

/// Everything that is traced, at every level, by every crate.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Traced>>);

#[derive(Default)]
struct Traced {
    /// Those of the gateway, by id.
    calls: BTreeMap<u64, Fields>,
    everything: String,
}

struct Reader<'a> {
    fields: Fields,
    everything: &'a mut String,
}

impl Visit for Reader<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.everything.push_str(value);
        self.fields.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

impl Kept {
    fn read(&self, visit: impl FnOnce(&mut Reader<'_>)) -> Fields {
        let mut kept = self.0.lock();
        let mut reader = Reader {
            fields: Fields::new(),
            everything: &mut kept.everything,
        };
        visit(&mut reader);
        reader.fields
    }

    /// From now on, on this thread, which is the one that the test's tasks run on.
    fn keep(&self) -> DefaultGuard {
        tracing::subscriber::set_default(Registry::default().with(self.clone()))
    }

    fn calls(&self) -> Vec<Fields> {
        self.0.lock().calls.values().cloned().collect()
    }
}

impl<S: Subscriber> Layer<S> for Kept {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let fields = self.read(|reader| attributes.record(reader));
        if attributes.metadata().name() == "model_call" {
            self.0.lock().calls.insert(id.into_u64(), fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let fields = self.read(|reader| values.record(reader));
        if let Some(call) = self.0.lock().calls.get_mut(&id.into_u64()) {
            call.extend(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.read(|reader| event.record(reader));
    }
}

fn said<'a>(call: &'a Fields, names: &[&str]) -> Vec<&'a str> {
    names.iter().map(|name| call[*name].as_str()).collect()
}

const NAMES: [&str; 5] = ["rollout", "sample", "dialect", "upstream", "outcome"];

#[tokio::test]
async fn every_call_is_a_span_that_says_whose_it_was_and_how_it_ended() {
    let kept = Kept::default();
    let _guard = kept.keep();
    let (house, server) = House::upstream(Behaviour::Answers).await;
    house.send(&user("hi")).await;
    let messages = house
        .client
        .post(format!(
            "{}/rollouts/r1-0/samples/judge/messages",
            house.gateway.url()
        ))
        .header("x-api-key", house.session.key())
        .body(r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}"#);
    assert_eq!(Answer::of(messages.send().await.unwrap()).await.status, 200);
    assert_eq!(
        house.send(&serde_json::json!({"messages": 5})).await.status,
        400
    );
    let calls = kept.calls();
    let calls: Vec<Vec<&str>> = calls.iter().map(|call| said(call, &NAMES)).collect();
    assert_eq!(
        calls,
        [
            ["r1-0", "main", "chat_completions", server.url(), "ok"],
            ["r1-0", "judge", "messages", server.url(), "ok"],
            [
                "r1-0",
                "main",
                "chat_completions",
                server.url(),
                "invalid_request"
            ],
        ]
    );
}

#[tokio::test]
async fn no_key_is_ever_traced_and_no_prompt_by_the_gateway() {
    let kept = Kept::default();
    let _guard = kept.keep();
    let (house, _server) = House::upstream(Behaviour::Answers).await;
    let (failing, _down) = House::upstream(Behaviour::Refuses { status: 500 }).await;
    for body in [
        user("a-prompt-not-to-be-seen"),
        serde_json::json!({"stream": true, "messages": [{"role": "user", "content": "a-prompt-not-to-be-seen"}]}),
    ] {
        assert_eq!(house.send(&body).await.status, 200);
        failing.send(&body).await;
    }
    let stranger = house
        .client
        .post(house.chat_url())
        .bearer_auth("osm-key-of-a-stranger");
    assert_eq!(stranger.send().await.unwrap().status(), 401);
    let other = house.post("{}").header("x-rollout-id", "r9-9");
    assert_eq!(other.send().await.unwrap().status(), 403);
    assert_eq!(kept.calls().len(), 4);
    let everything = kept.0.lock().everything.clone();
    assert!(everything.contains("r1-0"), "nothing was traced");
    for secret in [
        house.session.key(),
        failing.session.key(),
        API_KEY,
        "osm-key-of-a-stranger",
        "not-to-be-seen",
    ] {
        assert!(!everything.contains(secret), "`{secret}` was traced");
    }
}

/// A policy that notes in which spans it is asked.
#[derive(Debug, Default, Clone)]
struct Noting(Arc<Mutex<Vec<&'static str>>>);

#[async_trait::async_trait]
impl Policy for Noting {
    fn describe(&self) -> PolicyDescription {
        PolicyDescription {
            model: "m".to_owned(),
            endpoint: "test:noting".to_owned(),
            version: PolicyVersion::default(),
        }
    }

    async fn answer(&self, _: ModelCall) -> Result<ModelReply, Fault> {
        let span = tracing::Span::current();
        self.0
            .lock()
            .extend(span.metadata().map(tracing::Metadata::name));
        Ok(ModelReply {
            status: 200,
            content_type: "application/json".to_owned(),
            body: ReplyBody::Whole("{}".into()),
        })
    }
}

#[tokio::test]
async fn what_a_policy_logs_belongs_to_its_call_in_every_format() {
    let kept = Kept::default();
    let _guard = kept.keep();
    let noting = Noting::default();
    let options = GatewayOptions::default();
    let house = House::with(noting.clone(), options, MemoryStore::default()).await;
    house.send(&user("hi")).await;
    let ids = house
        .client
        .post(format!("{}/generate", house.gateway.url()))
        .bearer_auth(house.session.key())
        .body(r#"{"input_ids": [1]}"#);
    ids.send().await.unwrap();
    assert_eq!(*noting.0.lock(), ["model_call", "model_call"]);
}
