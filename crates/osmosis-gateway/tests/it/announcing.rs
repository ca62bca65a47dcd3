//! What a trainer outside does at the control API: other weights, other servers, other services.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::response::Response;
use camino::{Utf8Path, Utf8PathBuf};
use http::StatusCode;
use http::request::Parts;
use osmosis_core::PolicyVersion;
use osmosis_core::generation::{GenerationRequest, TokenEngine, TokenSink};
use osmosis_gateway::{
    ControlRefusal, ControlService, EngineKind, GatewayOptions, RemoteEngine, RemoteEngineOptions,
    Secret, TokenPolicy, UnusableWeights, WeightLoader,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

use crate::embedded::records;
use crate::engine_server::{EngineServer, Says};
use crate::fixture::{API_KEY, Answer, House, user};
use crate::memory_store::MemoryStore;
use crate::toy::{self, Engine};

/// A toy engine whose version is that of the weights that were loaded last.
#[derive(Debug)]
struct Reweighable {
    engine: Engine,
    version: AtomicU64,
    loaded: Mutex<Vec<Utf8PathBuf>>,
    /// Loading waits for it, when it is there.
    hold: Option<Mutex<std::sync::mpsc::Receiver<()>>>,
}

impl TokenEngine for Reweighable {
    fn context_length(&self) -> usize {
        self.engine.context_length()
    }

    fn version(&self) -> PolicyVersion {
        PolicyVersion(self.version.load(Ordering::SeqCst))
    }

    fn generate(&self, request: GenerationRequest, sink: Box<dyn TokenSink>) {
        self.engine.generate(request, sink);
    }
}

#[derive(Debug)]
struct Loader(Arc<Reweighable>);

impl WeightLoader for Loader {
    fn load(&self, folder: &Utf8Path, version: PolicyVersion) -> Result<(), UnusableWeights> {
        if let Some(hold) = &self.0.hold {
            let _ = hold.lock().recv();
        }
        if folder.as_str().contains("damaged") {
            return Err(UnusableWeights {
                message: "the file is damaged".to_owned(),
                hint: Some("save it again".to_owned()),
            });
        }
        self.0.loaded.lock().push(folder.to_owned());
        self.0.version.store(version.0, Ordering::SeqCst);
        Ok(())
    }
}

async fn embedded(hold: Option<std::sync::mpsc::Receiver<()>>) -> (House, Arc<Reweighable>) {
    let engine = Arc::new(Reweighable {
        engine: Engine::saying(&["hi"]),
        version: AtomicU64::new(0),
        loaded: Mutex::default(),
        hold: hold.map(Mutex::new),
    });
    let policy = TokenPolicy::with_loader(
        Arc::clone(&engine) as Arc<dyn TokenEngine>,
        Arc::new(toy::chat_format()),
        toy::options(),
        Arc::new(Loader(Arc::clone(&engine))),
    );
    let house = House::with(policy, GatewayOptions::default(), MemoryStore::default()).await;
    (house, engine)
}

/// A request with a key of one's choice.
fn request(house: &House, path: &str, key: &str) -> reqwest::RequestBuilder {
    let root = house.gateway.url().trim_end_matches("/v1");
    house.client.post(format!("{root}{path}")).bearer_auth(key)
}

async fn announce(house: &House, change: &serde_json::Value) -> Answer {
    let key = house.gateway.control_key().expose();
    let sent = request(house, "/v1/policy", key).body(change.to_string());
    Answer::of(sent.send().await.unwrap()).await
}

#[tokio::test]
async fn announced_weights_are_loaded_and_whoever_listens_hears_of_the_version() {
    let (house, engine) = embedded(None).await;
    let mut versions = house.gateway.announced_versions();
    assert_eq!(*versions.borrow_and_update(), PolicyVersion(0));

    let next = announce(&house, &json!({"weights": "/w/1"})).await;
    assert_eq!((next.status, &next.json()["version"]), (200, &json!(1)));
    assert_eq!(*versions.borrow_and_update(), PolicyVersion(1));
    let named = announce(&house, &json!({"weights": "/w/5", "version": 5})).await;
    assert_eq!(named.json()["version"], 5);
    // The answer got lost, and it is asked once more.
    let again = announce(&house, &json!({"weights": "/w/5", "version": 5})).await;
    assert_eq!((again.status, &again.json()["version"]), (200, &json!(5)));
    assert_eq!(*versions.borrow_and_update(), PolicyVersion(5));
    assert_eq!(*engine.loaded.lock(), ["/w/1", "/w/5", "/w/5"]);
}

#[tokio::test]
async fn weights_that_cannot_be_used_change_nothing() {
    let (house, engine) = embedded(None).await;
    announce(&house, &json!({"weights": "/w/4", "version": 4})).await;
    #[rustfmt::skip]
    let cases = [
        (json!({"weights": "/w/damaged"}), 400, "`/w/damaged`: the file is damaged; save it again"),
        (json!({"weights": "w/1"}), 400, "write the whole path"),
        (json!({"weights": "/w/3", "version": 3}), 409, "version 3 is lower than version 4"),
        (json!({"weights": "/w/5", "model": "m"}), 400, "one or the other"),
        (json!({"weights": "/w/5", "endpoints": ["http://h/v1"]}), 400, "one or the other"),
        (json!({"weights": 5}), 400, "invalid type"),
    ];
    for (change, status, words) in cases {
        let answer = announce(&house, &change).await;
        assert_eq!(answer.status, status, "{change} {}", answer.text);
        assert!(answer.error_message().contains(words), "{}", answer.text);
    }
    assert_eq!(engine.loaded.lock().len(), 1);
    assert_eq!(
        house.gateway.policy(None).unwrap().version,
        PolicyVersion(4)
    );
}

#[tokio::test]
async fn while_weights_are_loaded_nothing_else_changes() {
    let (let_go, hold) = std::sync::mpsc::channel();
    let (house, _engine) = embedded(Some(hold)).await;
    let change = json!({"weights": "/w/1"});
    let first = announce(&house, &change);
    let second = async {
        loop {
            let answer = announce(&house, &json!({"version": 9})).await;
            if answer.error_message().contains("are being loaded") {
                assert_eq!(answer.status, 409);
                let_go.send(()).unwrap();
                return;
            }
            // The first one has not arrived yet.
            tokio::task::yield_now().await;
        }
    };
    let (first, ()) = tokio::join!(first, second);
    assert_eq!(first.json()["version"], 1);
}

#[tokio::test]
async fn a_policy_behind_servers_takes_no_weights_and_says_what_to_do() {
    let house = House::scripted("[[reply]]\ntext = 'hi'\n").await;
    let answer = announce(&house, &json!({"weights": "/w/1"})).await;
    assert_eq!(answer.status, 409);
    let message = answer.error_message();
    assert!(
        message.contains("takes no weights from a folder"),
        "{message}"
    );
    assert!(message.contains("announce `version`"), "{message}");
}

#[tokio::test]
async fn an_engine_elsewhere_is_exchanged_and_its_tokens_carry_the_announced_version() {
    let first = EngineServer::start([Says::Text("one"), Says::Text("two")]).await;
    let second = EngineServer::start([Says::Text("three")]).await;
    let mut options = RemoteEngineOptions::new(EngineKind::Vllm, first.v1(), "real-model");
    options.api_key = Some(Secret::new(API_KEY));
    let engine = Arc::new(RemoteEngine::new(options).unwrap());
    let policy = TokenPolicy::at_server(engine, Arc::new(toy::chat_format()), toy::options());
    let house = House::with(policy, GatewayOptions::default(), MemoryStore::default()).await;
    let mut versions = house.gateway.announced_versions();

    house.send(&user("a")).await;
    assert_eq!(announce(&house, &json!({"version": 3})).await.status, 200);
    assert_eq!(*versions.borrow_and_update(), PolicyVersion(3));
    house.send(&user("b")).await;
    let several = json!({"endpoints": ["http://h:1/v1", "http://h:2/v1"]});
    let refused = announce(&house, &several).await;
    assert_eq!(refused.status, 400);
    assert!(
        refused
            .error_message()
            .contains("go to one server, and 2 are given")
    );
    let endpoint = json!({"url": second.v1(), "api_key": API_KEY});
    let moved = announce(&house, &json!({"endpoints": [endpoint]})).await;
    assert_eq!(moved.json()["version"], 4);
    let answer = house.send(&user("c")).await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "three");

    let calls = house.store.calls();
    let sampled_with: Vec<_> = calls
        .iter()
        .flat_map(records)
        .map(|record| record.versions.first().copied())
        .collect();
    assert_eq!(sampled_with, [0, 3, 4].map(|v| Some(PolicyVersion(v))));
}

/// Says what it was asked, or waits for good.
#[derive(Debug, Default)]
struct Echo {
    waiting: Notify,
}

#[async_trait]
impl ControlService for Echo {
    async fn serve(&self, parts: Parts, _body: Body) -> Result<Response, ControlRefusal> {
        match parts.uri.path() {
            "/v1/echo/wait" => {
                self.waiting.notify_one();
                std::future::pending().await
            }
            "/v1/echo/no" => Err(ControlRefusal::new(
                StatusCode::NOT_FOUND,
                "no_echo",
                "no echo",
            )),
            path => Ok(Response::new(Body::from(path.to_owned()))),
        }
    }
}

async fn with_echo(echo: Arc<Echo>) -> House {
    let policy = crate::fixture::script_policy("[[reply]]\ntext = 'hi'\n");
    let options = GatewayOptions {
        services: vec![("/v1/echo".to_owned(), echo)],
        ..GatewayOptions::default()
    };
    House::with(policy, options, MemoryStore::default()).await
}

#[tokio::test]
async fn a_service_of_the_control_api_is_asked_with_the_control_key_alone() {
    let house = with_echo(Arc::default()).await;
    let control = house.gateway.control_key().expose();
    for (path, key, status) in [
        ("/v1/echo", control, 200),
        ("/v1/echo/deep/er", control, 200),
        ("/v1/echo", house.session.key(), 403),
        ("/v1/echo", "osm-control-guess", 401),
        ("/v1/echoes", control, 404),
    ] {
        let sent = request(&house, path, key).send().await.unwrap();
        let answer = Answer::of(sent).await;
        assert_eq!(answer.status, status, "{path} {}", answer.text);
        if status == 200 {
            assert_eq!(answer.text, path);
        }
    }
    let refused = request(&house, "/v1/echo/no", control)
        .send()
        .await
        .unwrap();
    let refused = Answer::of(refused).await;
    assert_eq!(
        (refused.status, refused.json()),
        (
            404,
            json!({"error": {
                "message": "no echo", "type": "invalid_request_error", "param": null, "code": "no_echo",
            }})
        )
    );
}

#[tokio::test]
async fn a_service_that_is_waited_for_does_not_hold_up_the_end() {
    let echo: Arc<Echo> = Arc::default();
    let house = with_echo(Arc::clone(&echo)).await;
    let key = house.gateway.control_key().expose();
    let asked = async {
        let sent = request(&house, "/v1/echo/wait", key).send().await.unwrap();
        Answer::of(sent).await
    };
    let stopping = async {
        echo.waiting.notified().await;
        house.gateway.shut_down(Duration::from_mins(1)).await
    };
    let (answer, drained) = tokio::join!(asked, stopping);
    assert!(drained);
    assert_eq!(answer.status, 503);
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(answer.json()["error"]["code"], "stopping");
}
