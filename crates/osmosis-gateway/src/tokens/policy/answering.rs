//! The policy as the gateway asks it, and what else it can do.

use std::sync::Arc;

use async_trait::async_trait;
use camino::Utf8Path;
use osmosis_core::PolicyVersion;
use osmosis_core::generation::TokenEngine;
use osmosis_dialect::OutputLimit;

use super::{Inner, Refused, TokenPolicy, TokenPolicyOptions};
use crate::error::GatewayError;
use crate::policy::probe::{Target, tiny_call};
use crate::policy::probe_finding::Probed;
use crate::policy::weights::UnusableWeights;
use crate::policy::{
    CallFormat, Capabilities, Fault, ModelCall, ModelReply, Policy, PolicyChange,
    PolicyDescription, Servers, Updates, Weights,
};

#[async_trait]
impl Policy for TokenPolicy {
    fn describe(&self) -> PolicyDescription {
        PolicyDescription {
            model: self.0.options.model.clone(),
            endpoint: self.0.options.endpoint.clone(),
            version: self.0.engine.version(),
        }
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            token_ids: true,
            weights: self.0.loader.as_ref().map(|_| self as &dyn Weights),
            servers: Some(self),
            updates: self.0.server.as_ref().map(|_| self as &dyn Updates),
            ..Capabilities::default()
        }
    }

    async fn answer(&self, call: ModelCall) -> Result<ModelReply, Fault> {
        if self.0.engine.is_elsewhere() {
            call.call_trace.leaves_for(&self.0.options.endpoint);
        }
        let answered = match call.format {
            CallFormat::Dialect(_) => self.0.answer(call).await,
            CallFormat::TokenIds => self.0.generate(&call).await,
        };
        match answered {
            Ok(reply) => Ok(reply),
            Err(Refused::Refusal(refusal)) => Ok(refusal.reply()),
            Err(Refused::Fault(fault)) => Err(fault),
        }
    }
}

#[async_trait]
impl Servers for TokenPolicy {
    async fn probe(&self) -> Vec<Probed> {
        let PolicyDescription {
            model, endpoint, ..
        } = self.describe();
        let target = Target {
            endpoint: &endpoint,
            model: &model,
            has_key: true,
        };
        let ask = async |body| self.answer(tiny_call(body)).await;
        let finding = target.ask(OutputLimit::MaxTokens, ask).await.finding;
        vec![Probed { endpoint, finding }]
    }
}

#[async_trait]
impl Weights for TokenPolicy {
    async fn load(&self, folder: &Utf8Path, version: PolicyVersion) -> Result<(), GatewayError> {
        let Some(loader) = self.0.loader.clone() else {
            let endpoint = self.describe().endpoint;
            return Err(GatewayError::WeightsElsewhere { endpoint });
        };
        let path = folder.to_owned();
        let loaded = tokio::task::spawn_blocking(move || loader.load(&path, version)).await;
        let loaded = loaded.unwrap_or_else(|_| {
            Err(UnusableWeights {
                message: "loading them failed within; the log says more".to_owned(),
                hint: None,
            })
        });
        loaded.map_err(|source| GatewayError::Weights {
            folder: folder.to_owned(),
            source,
        })
    }
}

impl Updates for TokenPolicy {
    fn set_version(&self, version: PolicyVersion) {
        if let Some(server) = &self.0.server {
            server.set_version(version);
        }
    }

    fn changed(&self, change: &PolicyChange) -> Result<Arc<dyn Policy>, GatewayError> {
        let Some(server) = &self.0.server else {
            let endpoint = self.describe().endpoint;
            return Err(GatewayError::Unchangeable { endpoint });
        };
        let engine = Arc::new(server.changed(change)?);
        let options = TokenPolicyOptions {
            model: engine.model().to_owned(),
            endpoint: engine.endpoint().to_owned(),
            ..self.0.options.clone()
        };
        Ok(Arc::new(Self(Arc::new(Inner {
            engine: Arc::clone(&engine) as Arc<dyn TokenEngine>,
            reading: Arc::clone(&self.0.reading),
            options,
            loader: None,
            server: Some(engine),
        }))))
    }
}
