//! Engines elsewhere that take and give token ids, over HTTP.
//!
//! [`RemoteEngine`] is a [`TokenEngine`], so a [`crate::TokenPolicy`] over it renders, continues and
//! records exactly as one over an engine in this process. `vllm` and `sglang` know what the servers say,
//! `generation` asks. [`ExchangingEngine`] is one whose server and weights are exchanged while it is asked, with
//! the right version on every token; [`VllmControl`] has a server load the weights.

mod exchanging;
mod generation;
mod options;
mod sglang;
mod vllm;
mod vllm_control;
mod wanted;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderValue, header};
use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    GenerationError, GenerationRequest, LogprobsOf, TokenEngine, TokenSink,
};
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::exchanging::ExchangingEngine;
use self::generation::Generation;
use self::options::Addresses;
pub use self::options::{EngineKind, RemoteEngineOptions, ServerLogprobs};
pub use self::vllm_control::{RELOADING_CLASS, VllmControl, VllmControlError};
pub(crate) use self::wanted::{NotWanted, while_wanted};
use crate::error::GatewayError;
use crate::policy::PolicyChange;
use crate::policy::upstream::HttpClients;

/// A [`TokenEngine`] behind HTTP. Dropping it ends what it samples.
///
/// How long its context is, it learns from the server with the first generation: until then the server
/// need not run.
pub struct RemoteEngine {
    server: Arc<Server>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The other side, and what is known of it.
struct Server {
    client: reqwest::Client,
    options: RemoteEngineOptions,
    addresses: Addresses,
    headers: HeaderMap,
    context: OnceCell<usize>,
    version: AtomicU64,
}

impl Server {
    /// What was heard last.
    fn version(&self) -> PolicyVersion {
        PolicyVersion(self.version.load(Ordering::Relaxed))
    }
}

impl RemoteEngine {
    pub fn new(options: RemoteEngineOptions) -> Result<Self, GatewayError> {
        let addresses = Addresses::of(options.kind, &options.base_url)?;
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(key) = &options.api_key {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose()))
                .map_err(|_| GatewayError::UpstreamKey)?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let client = HttpClients::new(options.connect_timeout).for_url(&addresses.generate)?;
        let (context, version) = (OnceCell::new_with(options.context), options.version.0);
        Ok(Self {
            server: Arc::new(Server {
                client,
                options,
                addresses,
                headers,
                context,
                version: AtomicU64::new(version),
            }),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// Says that the server has other weights now. A server that tells the version of its weights with
    /// each answer is believed instead.
    pub(crate) fn set_version(&self, version: PolicyVersion) {
        self.server.version.store(version.0, Ordering::Relaxed);
    }

    /// The same model at another server.
    pub(crate) fn changed(&self, change: &PolicyChange) -> Result<Self, GatewayError> {
        let mut options = self.server.options.clone();
        match change.endpoints.as_deref() {
            None => {}
            Some([]) => return Err(GatewayError::NoUpstream),
            Some([endpoint]) => {
                // A key is for the server it was given for.
                let known = endpoint.base_url == options.base_url;
                let kept = options.api_key.take().filter(|_| known);
                options.api_key = endpoint.api_key.clone().or(kept);
                options.base_url.clone_from(&endpoint.base_url);
            }
            Some(several) => return Err(GatewayError::SeveralServers(several.len())),
        }
        if let Some(model) = &change.model {
            options.model.clone_from(model);
        }
        let changed = Self::new(options)?;
        changed.set_version(change.version);
        Ok(changed)
    }

    /// The model name that the server is sent.
    pub(crate) fn model(&self) -> &str {
        &self.server.options.model
    }

    /// Where it is, without credentials.
    pub fn endpoint(&self) -> &str {
        &self.server.addresses.shown
    }
}

impl TokenEngine for RemoteEngine {
    /// As long as it is not known, the engine itself refuses what is too long.
    fn context_length(&self) -> usize {
        self.server.context.get().copied().unwrap_or(usize::MAX)
    }

    fn version(&self) -> PolicyVersion {
        self.server.version()
    }

    fn generate(&self, request: GenerationRequest, sink: Box<dyn TokenSink>) {
        if request.constraint.is_some() {
            // Nobody asks for it: it says that it does not constrain.
            return sink.end(Err(GenerationError::Constraint {
                message: "grammars are not sent to inference servers".to_owned(),
            }));
        }
        let Ok(runtime) = Handle::try_current() else {
            return sink.end(Err(GenerationError::ShutDown));
        };
        let generation = Generation {
            server: Arc::clone(&self.server),
            stop: self.stop.clone(),
            request,
            sink,
            given: 0,
        };
        self.tasks.spawn_on(generation.run(), &runtime);
    }

    fn is_elsewhere(&self) -> bool {
        true
    }

    fn logprobs_of(&self, request: &GenerationRequest) -> LogprobsOf {
        self.server.options.logprobs.of_request(request)
    }
}

impl Drop for RemoteEngine {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl fmt::Debug for RemoteEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteEngine")
            .field("endpoint", &self.server.addresses.shown)
            .field("options", &self.server.options)
            .finish_non_exhaustive()
    }
}
