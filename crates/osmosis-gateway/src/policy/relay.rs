//! A policy for rollouts that each bring a model server of their own.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use osmosis_core::{PolicyVersion, RolloutId};
use parking_lot::RwLock;

use crate::error::GatewayError;
use crate::policy::upstream::{EndpointOptions, HttpClients, UpstreamOptions, UpstreamPolicy};
use crate::policy::{
    Capabilities, Fault, FaultKind, ModelCall, ModelReply, Policy, PolicyDescription,
};
use crate::secret::Secret;
use crate::serving::address_rules::AddressRules;

/// Sends the calls of each rollout to the server that was assigned to it, with that rollout's key. It holds
/// keys in memory alone, from [`RelayPolicy::assign`] to [`RelayPolicy::forget`].
pub struct RelayPolicy {
    clients: Arc<HttpClients>,
    options: UpstreamOptions,
    upstreams: RwLock<HashMap<RolloutId, Arc<UpstreamPolicy>>>,
}

impl RelayPolicy {
    /// Every upstream is sent `model` and treated with the patience of [`UpstreamOptions::new`].
    pub fn new(model: impl Into<String>) -> Self {
        Self::with_options(UpstreamOptions::new("", model))
    }

    /// Like `new`; of the options, address and key are each rollout's own.
    pub fn with_options(options: UpstreamOptions) -> Self {
        Self {
            clients: Arc::new(HttpClients::new(options.connect_timeout)),
            options,
            upstreams: RwLock::default(),
        }
    }

    /// The same, for servers that somebody else names.
    #[must_use]
    pub fn within(self, rules: AddressRules) -> Self {
        Self {
            clients: Arc::new(HttpClients::with_rules(self.options.connect_timeout, rules)),
            ..self
        }
    }

    /// From now on the calls of `rollout` go to `base_url`, which may end in `/chat/completions`.
    pub fn assign(
        &self,
        rollout: RolloutId,
        base_url: &str,
        api_key: Option<Secret>,
    ) -> Result<(), GatewayError> {
        let upstream = self.upstream(base_url, api_key)?;
        self.upstreams.write().insert(rollout, Arc::new(upstream));
        Ok(())
    }

    /// What `assign` would say to this address and key; nothing is assigned.
    pub fn check(&self, base_url: &str, api_key: Option<Secret>) -> Result<(), GatewayError> {
        self.upstream(base_url, api_key).map(|_| ())
    }

    /// Calls of `rollout` go nowhere any more, and its key is gone.
    pub fn forget(&self, rollout: &RolloutId) {
        self.upstreams.write().remove(rollout);
    }

    fn upstream(
        &self,
        base_url: &str,
        api_key: Option<Secret>,
    ) -> Result<UpstreamPolicy, GatewayError> {
        let options = UpstreamOptions {
            endpoints: vec![EndpointOptions {
                api_key,
                ..EndpointOptions::new(base_url)
            }],
            ..self.options.clone()
        };
        UpstreamPolicy::for_a_rollout(options, &self.clients)
    }

    fn of(&self, rollout: &RolloutId) -> Option<Arc<UpstreamPolicy>> {
        self.upstreams.read().get(rollout).cloned()
    }
}

impl fmt::Debug for RelayPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayPolicy")
            .field("model", &self.options.model)
            .field("upstreams", &self.upstreams.read().len())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Policy for RelayPolicy {
    fn describe(&self) -> PolicyDescription {
        PolicyDescription {
            model: self.options.model.clone(),
            endpoint: "each rollout's own server".to_owned(),
            version: PolicyVersion::default(),
        }
    }

    /// As far as it is the same for every rollout.
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            dialects: self.options.dialects.iter().copied().collect(),
            ..Capabilities::default()
        }
    }

    fn for_rollout(&self, rollout: &RolloutId) -> Option<Arc<dyn Policy>> {
        self.of(rollout).map(|upstream| upstream as _)
    }

    async fn answer(&self, call: ModelCall) -> Result<ModelReply, Fault> {
        match self.of(&call.rollout_id) {
            Some(upstream) => upstream.answer(call).await,
            None => Err(Fault {
                kind: FaultKind::Misconfigured,
                status: 502,
                message: format!(
                    "rollout `{}` has no model server: it has ended",
                    call.rollout_id
                ),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use osmosis_dialect::OutputLimit;

    use super::*;

    #[test]
    fn each_rollout_has_its_own_server_until_it_is_forgotten() {
        let relay = RelayPolicy::new("osmosis-rollout");
        let policy: &dyn Policy = &relay;
        let (one, other) = (RolloutId::of(0, 0), RolloutId::of(1, 0));
        relay
            .assign(one.clone(), "http://127.0.0.1:1/a/chat/completions", None)
            .unwrap();
        relay
            .assign(other.clone(), "http://127.0.0.1:1/b/", None)
            .unwrap();
        assert_eq!(policy.describe_for(&one).endpoint, "http://127.0.0.1:1/a");
        assert_eq!(policy.describe_for(&other).endpoint, "http://127.0.0.1:1/b");
        relay.forget(&one);
        assert_eq!(policy.describe_for(&one), relay.describe());
    }

    #[test]
    fn the_server_of_a_rollout_keeps_its_name_for_the_limit_of_an_answer() {
        let relay = RelayPolicy::new("osmosis-rollout");
        let (openai, other) = (RolloutId::of(0, 0), RolloutId::of(1, 0));
        for (rollout, url) in [
            (&openai, "https://api.openai.com/v1"),
            (&other, "http://127.0.0.1:1/v1"),
        ] {
            relay.assign(rollout.clone(), url, None).unwrap();
        }
        let limit = |rollout| relay.for_rollout(rollout).unwrap().output_limit();
        assert_eq!(limit(&openai), OutputLimit::MaxCompletionTokens);
        assert_eq!(limit(&other), OutputLimit::MaxTokens);
    }

    #[test]
    fn a_wrong_address_or_key_is_refused_and_no_key_is_shown() {
        let relay = RelayPolicy::new("m");
        let key = Some(Secret::new("sk-very-secret"));
        relay
            .assign(RolloutId::of(0, 0), "http://u:hunter2@h/v1", key)
            .unwrap();
        let shown = format!("{relay:?} {:?}", relay.of(&RolloutId::of(0, 0)));
        assert!(
            !shown.contains("sk-very") && !shown.contains("hunter2"),
            "{shown}"
        );
        assert!(relay.check("ftp://h/v1", None).is_err());
        assert!(
            relay
                .check("http://h/v1", Some(Secret::new("a\nb")))
                .is_err()
        );
    }
}
