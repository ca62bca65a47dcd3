//! A policy around another one.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use osmosis_core::{PolicyVersion, RolloutId};

use super::{
    Capabilities, Fault, ModelCall, ModelReply, Policy, PolicyChange, PolicyDescription, Updates,
};
use crate::error::GatewayError;

/// Changes how calls of another policy are answered, and nothing else: everything that the other policy can do
/// is forwarded, so no layer can lose a capability by forgetting it.
#[async_trait]
pub trait Layer: Send + Sync + fmt::Debug + 'static {
    /// The policy that this layer is around.
    fn inner(&self) -> &Arc<dyn Policy>;

    /// The same layer around another policy.
    fn around(&self, inner: Arc<dyn Policy>) -> Arc<dyn Policy>;

    /// Answers one call, with the help of the policy inside.
    async fn answer_through(&self, call: ModelCall) -> Result<ModelReply, Fault>;
}

impl<L: Layer> Policy for L {
    fn describe(&self) -> PolicyDescription {
        self.inner().describe()
    }

    fn for_rollout(&self, rollout: &RolloutId) -> Option<Arc<dyn Policy>> {
        let inner = self.inner().for_rollout(rollout)?;
        Some(self.around(inner))
    }

    fn capabilities(&self) -> Capabilities<'_> {
        let inner = self.inner().capabilities();
        Capabilities {
            // A changed policy has to keep this layer.
            updates: inner.updates.map(|_| self as &dyn Updates),
            ..inner
        }
    }

    // Written out, so that a layer costs one box for each call and not two.
    fn answer<'life, 'answer>(
        &'life self,
        call: ModelCall,
    ) -> BoxFuture<'answer, Result<ModelReply, Fault>>
    where
        'life: 'answer,
        Self: 'answer,
    {
        self.answer_through(call)
    }
}

impl<L: Layer> Updates for L {
    fn set_version(&self, version: PolicyVersion) {
        if let Some(updates) = self.inner().capabilities().updates {
            updates.set_version(version);
        }
    }

    fn changed(&self, change: &PolicyChange) -> Result<Arc<dyn Policy>, GatewayError> {
        let Some(updates) = self.inner().capabilities().updates else {
            let endpoint = self.inner().describe().endpoint;
            return Err(GatewayError::Unchangeable { endpoint });
        };
        Ok(self.around(updates.changed(change)?))
    }
}
