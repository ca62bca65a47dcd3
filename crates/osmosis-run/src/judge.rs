//! The judge that `judge_model` in `[grader]` names.

use std::sync::Arc;

use osmosis_core::config::ModelPath;
use osmosis_gateway::{Gateway, Policy};
use serde_json::Value;

use crate::RunError;
use crate::chat_choice::ChatChoice;
use crate::eval::probe::{Server, ServerRole};
use crate::policy::{self, EmbeddedPolicy, ReadyPolicy};
use crate::workspace::Workspace;

/// A judge that is ready to be asked; what runs for it ends with it.
#[derive(Debug)]
pub struct ReadyJudge {
    policy: Arc<dyn Policy>,
    /// What a resume must find unchanged.
    pub identity: Value,
    /// `None` when it is the model that plays the policy.
    own: Option<ReadyPolicy>,
    model: ModelPath,
}

impl ReadyJudge {
    /// Opens what is named, when something is. `beside` is the policy of the run: where that is the same
    /// embedded model, it is not loaded twice.
    pub async fn open(
        model: Option<&ModelPath>,
        seed: u64,
        workspace: &Workspace,
        beside: Option<(&ModelPath, &ReadyPolicy)>,
    ) -> Result<Option<Self>, RunError> {
        let Some(model) = model else {
            return Ok(None);
        };
        if let Some((of_policy, ready)) = beside
            && of_policy == model
            && ready.is_embedded()
        {
            return Ok(Some(Self::beside(model, ready)));
        }
        let opened = policy::open(model, seed, workspace, &ChatChoice::default()).await;
        let own = opened.map_err(|error| {
            let message = error.message().replace("model_path", "judge_model");
            error.with_message(message)
        })?;
        Ok(Some(Self::of(model, own)))
    }

    /// The model that plays the policy.
    pub fn beside(model: &ModelPath, ready: &ReadyPolicy) -> Self {
        Self {
            policy: Arc::clone(&ready.policy),
            identity: ready.identity.clone(),
            own: None,
            model: model.clone(),
        }
    }

    /// A model of its own, that is open.
    pub fn of(model: &ModelPath, own: ReadyPolicy) -> Self {
        Self {
            policy: Arc::clone(&own.policy),
            identity: own.identity.clone(),
            own: Some(own),
            model: model.clone(),
        }
    }

    pub fn serve_at(&self, gateway: &Gateway) {
        gateway.set_judge(Arc::clone(&self.policy));
    }

    /// Texts that must never be written down.
    pub fn secrets(&self) -> &[String] {
        self.own.as_ref().map_or(&[], |own| &own.secrets)
    }

    /// Its calls leave this machine and may cost money.
    pub fn is_remote(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.remote)
    }

    /// What can be asked whether it works; `None` for what runs in this process.
    pub fn server(&self) -> Option<Server<'_>> {
        let own = self.own.as_ref().filter(|own| !own.is_embedded())?;
        Some(Server {
            role: ServerRole::Judge,
            model: &self.model,
            policy: &*own.policy,
        })
    }

    /// The model, when it runs in this process and is not the policy's.
    pub fn embedded(&self) -> Option<&EmbeddedPolicy> {
        self.own.as_ref().and_then(ReadyPolicy::embedded)
    }

    /// Where it is, for people.
    pub fn endpoint(&self) -> String {
        self.policy.describe().endpoint
    }
}

impl Drop for ReadyJudge {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            own.shut_down();
        }
    }
}
