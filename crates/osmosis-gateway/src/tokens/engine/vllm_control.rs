//! What a vLLM server is told about its weights, beside being asked for tokens.

use std::time::Duration;

use reqwest::{Method, Url};
use serde_json::{Value, json};

use crate::error::GatewayError;
use crate::policy::upstream::{HttpClients, error_chain, said};

/// A server that is there answers these at once.
const SHORT: Duration = Duration::from_secs(30);
/// Loading weights, or waiting for requests under way, takes as long as it takes, within reason.
const LONG: Duration = Duration::from_mins(30);

/// The class of ours that a server whose weights are all exchanged is started with (`--worker-extension-cls`).
pub const RELOADING_CLASS: &str = "osmosis_ai.vllm_worker.WeightReloading";

/// The routes of one vLLM server by which weights are exchanged. It needs `VLLM_SERVER_DEV_MODE=1`, and
/// `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1` for adapters.
#[derive(Debug, Clone)]
pub struct VllmControl {
    client: reqwest::Client,
    /// Without `/v1`.
    base: Url,
}

/// Why a server did not do what it was told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VllmControlError {
    /// Nobody answered; it may be gone.
    #[error("{route}: {message}")]
    Unreachable { route: String, message: String },
    #[error("{route}: answered with status {status}: {message}")]
    Refused {
        route: String,
        status: u16,
        message: String,
    },
}

impl VllmControl {
    /// `base` is the address of the server, like `http://127.0.0.1:8000`.
    pub fn new(base: &str) -> Result<Self, GatewayError> {
        let base = Url::parse(base).map_err(|error| GatewayError::UpstreamUrl {
            url: base.to_owned(),
            message: error.to_string(),
        })?;
        let client = HttpClients::new(Duration::from_secs(5)).for_url(&base)?;
        Ok(Self { client, base })
    }

    /// Whether the server is ready for requests.
    pub async fn is_healthy(&self) -> bool {
        self.ask(Method::GET, "/health", None, Duration::from_secs(5))
            .await
            .is_ok()
    }

    /// How many tokens prompt and answer may have together.
    pub async fn context(&self) -> Result<Option<usize>, VllmControlError> {
        let models = self.ask(Method::GET, "/v1/models", None, SHORT).await?;
        let models: Value = serde_json::from_str(&models).unwrap_or_default();
        // The first one is the model itself; adapters come after it.
        let context = models["data"][0]["max_model_len"].as_u64();
        Ok(context.and_then(|context| usize::try_from(context).ok()))
    }

    /// Loads an adapter from a folder in PEFT's layout, under a name that was never used before: the server keeps the
    /// prefix cache of a name.
    pub async fn load_adapter(&self, name: &str, folder: &str) -> Result<(), VllmControlError> {
        let body = json!({"lora_name": name, "lora_path": folder});
        self.post("/v1/load_lora_adapter", Some(body), LONG).await
    }

    pub async fn unload_adapter(&self, name: &str) -> Result<(), VllmControlError> {
        let body = json!({ "lora_name": name });
        self.post("/v1/unload_lora_adapter", Some(body), SHORT)
            .await
    }

    /// Waits for the requests under way, and answers no others; forgets what it has computed of prompts.
    pub async fn pause(&self) -> Result<(), VllmControlError> {
        self.post("/pause?mode=wait&clear_cache=true", None, LONG)
            .await
    }

    /// Reads all weights anew from a folder in Hugging Face layout. The server needs [`RELOADING_CLASS`].
    pub async fn reload_weights(&self, folder: &str) -> Result<(), VllmControlError> {
        let body = json!({"method": "osmosis_reload_weights", "kwargs": {"weights_path": folder}});
        self.post("/collective_rpc", Some(body), LONG).await?;
        // What was computed with the weights before must not be gone on from.
        self.post("/reset_prefix_cache", None, SHORT).await
    }

    pub async fn resume(&self) -> Result<(), VllmControlError> {
        self.post("/resume", None, SHORT).await
    }

    async fn post(
        &self,
        route: &str,
        body: Option<Value>,
        limit: Duration,
    ) -> Result<(), VllmControlError> {
        self.ask(Method::POST, route, body, limit).await.map(drop)
    }

    async fn ask(
        &self,
        method: Method,
        route: &str,
        body: Option<Value>,
        limit: Duration,
    ) -> Result<String, VllmControlError> {
        let unreachable = |message: String| VllmControlError::Unreachable {
            route: route.to_owned(),
            message,
        };
        let url = self
            .base
            .join(route)
            .map_err(|e| unreachable(e.to_string()))?;
        let mut request = self.client.request(method, url).timeout(limit);
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        let response = request.send().await;
        let response = response.map_err(|e| unreachable(error_chain(&e.without_url())))?;
        let status = response.status();
        let text = response.bytes().await;
        let text = text.map_err(|e| unreachable(error_chain(&e.without_url())))?;
        if status.is_success() {
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
        Err(VllmControlError::Refused {
            route: route.to_owned(),
            status: status.as_u16(),
            message: said(&text),
        })
    }
}
