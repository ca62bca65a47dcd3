use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use osmosis_core::{Attempt, RolloutId};
use osmosis_gateway::{
    Gateway, GatewayOptions, Policy, RolloutSession, Sampling, ScriptedPolicy, Secret,
    UpstreamOptions, UpstreamPolicy,
};
use osmosis_testkit::model_server::{Behaviour, ModelServer};
use serde_json::{Value, json};

use crate::memory_store::MemoryStore;

pub(crate) const API_KEY: &str = "sk-upstream-secret";

/// A gateway with one open session and a client.
pub(crate) struct House {
    pub(crate) gateway: Gateway,
    pub(crate) session: RolloutSession,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) client: reqwest::Client,
}

impl House {
    pub(crate) async fn with(
        policy: impl Policy + 'static,
        options: GatewayOptions,
        store: MemoryStore,
    ) -> Self {
        let store = Arc::new(store);
        let gateway = Gateway::start(options, Arc::new(policy), store.clone())
            .await
            .unwrap();
        let session = gateway.open(RolloutId::of(1, 0), Attempt(3));
        Self {
            gateway,
            session,
            store,
            client: client(),
        }
    }

    pub(crate) async fn scripted(script: &str) -> Self {
        Self::with(
            script_policy(script),
            GatewayOptions::default(),
            MemoryStore::default(),
        )
        .await
    }

    /// A gateway in front of a model server that behaves like this.
    pub(crate) async fn upstream(behaviour: Behaviour) -> (Self, ModelServer) {
        Self::upstream_with(behaviour, |_| {}).await
    }

    pub(crate) async fn upstream_with(
        behaviour: Behaviour,
        change: impl FnOnce(&mut UpstreamOptions),
    ) -> (Self, ModelServer) {
        let server = ModelServer::start(behaviour).await.unwrap();
        let mut options = UpstreamOptions::new(server.url(), "real-model");
        options.endpoints[0].api_key = Some(Secret::new(API_KEY));
        options.first_retry_wait = Duration::from_millis(1);
        options.retries = 2;
        change(&mut options);
        let policy = UpstreamPolicy::new(options).unwrap();
        let options = GatewayOptions {
            sampling: Sampling {
                temperature: Some(1.0),
                top_p: Some(1.0),
                overrides: false,
            },
            ..GatewayOptions::default()
        };
        (
            Self::with(policy, options, MemoryStore::default()).await,
            server,
        )
    }

    pub(crate) fn chat_url(&self) -> String {
        format!("{}/chat/completions", self.gateway.url())
    }

    /// A chat call with the session's key.
    pub(crate) fn post(&self, body: impl Into<reqwest::Body>) -> reqwest::RequestBuilder {
        self.client
            .post(self.chat_url())
            .bearer_auth(self.session.key())
            .header("content-type", "application/json")
            .body(body)
    }

    pub(crate) async fn send(&self, body: &Value) -> Answer {
        Answer::of(self.post(body.to_string()).send().await.unwrap()).await
    }
}

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
    /// The body broke off.
    pub(crate) aborted: bool,
}

impl Answer {
    pub(crate) async fn of(mut response: reqwest::Response) -> Self {
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let mut bytes = Vec::new();
        let mut aborted = false;
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(_) => {
                    aborted = true;
                    break;
                }
            }
        }
        Self {
            status,
            headers,
            text: String::from_utf8(bytes).unwrap(),
            aborted,
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    /// The message of an error in OpenAI's shape.
    pub(crate) fn error_message(&self) -> String {
        let error = self.json()["error"].clone();
        for key in ["message", "type", "param", "code"] {
            assert!(error.get(key).is_some(), "{key} is missing in {error}");
        }
        error["message"].as_str().unwrap().to_owned()
    }

    /// The data of each event.
    pub(crate) fn events(&self) -> Vec<String> {
        self.text
            .split_terminator("\n\n")
            .map(|event| event.strip_prefix("data: ").unwrap().to_owned())
            .collect()
    }

    /// The text a stream spells.
    pub(crate) fn spelt(&self) -> String {
        self.events()
            .iter()
            .filter_map(|event| serde_json::from_str::<Value>(event).ok())
            .filter_map(|chunk| {
                chunk["choices"][0]["delta"]["content"]
                    .as_str()
                    .map(str::to_owned)
            })
            .collect()
    }
}

pub(crate) fn client() -> reqwest::Client {
    // The client's TLS needs a provider, though nothing here uses TLS.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .build()
        .unwrap()
}

pub(crate) fn script_policy(script: &str) -> ScriptedPolicy {
    ScriptedPolicy::parse(Utf8Path::new("test.toml"), script).unwrap()
}

pub(crate) fn user(text: &str) -> Value {
    json!({"model": "openai/osmosis-rollout", "messages": [{"role": "user", "content": text}]})
}

pub(crate) fn streamed(text: &str) -> Value {
    let mut body = user(text);
    body["stream"] = json!(true);
    body
}
