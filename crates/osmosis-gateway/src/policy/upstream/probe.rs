//! The probe of one endpoint, past the pool: nothing is retried, and no breaker learns from it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use osmosis_dialect::{Dialect, OutputLimit};

use super::UpstreamPolicy;
use super::endpoint::Endpoint;
use crate::policy::probe::{Target, names_in, tiny_call};
use crate::policy::probe_finding::{Finding, ProbeError, Probed};

/// For the list of models, which only adorns a hint.
const LIST_LIMIT: Duration = Duration::from_secs(5);

impl UpstreamPolicy {
    pub(super) async fn probe_at(&self, endpoint: &Arc<Endpoint>) -> Probed {
        let target = Target {
            endpoint: &endpoint.name,
            model: &self.options.model,
            has_key: endpoint.api_key.is_some(),
        };
        let ask = |body| {
            let call = tiny_call(body);
            async move {
                endpoint
                    .try_once(&call, Dialect::ChatCompletions)
                    .await
                    .map_err(|tried| tried.fault)
            }
        };
        let asked = target.ask(self.output_limit(), ask).await;
        if asked.limit == Some(OutputLimit::MaxCompletionTokens) && asked.finding == Finding::Works
        {
            self.newer_limit.store(true, Ordering::Relaxed);
        }
        let mut finding = asked.finding;
        if let Finding::Broken(ProbeError::Model { served, .. }) = &mut finding {
            *served = endpoint.models().await;
        }
        Probed {
            endpoint: endpoint.name.as_ref().to_owned(),
            finding,
        }
    }
}

impl Endpoint {
    /// The models that the server lists; none when it does not say.
    async fn models(&self) -> Vec<String> {
        let listed = async {
            let response = self.list_models().send().await.ok()?;
            response.bytes().await.ok()
        };
        match tokio::time::timeout(LIST_LIMIT, listed).await {
            Ok(Some(body)) => names_in(&body),
            Ok(None) | Err(_) => Vec::new(),
        }
    }
}
