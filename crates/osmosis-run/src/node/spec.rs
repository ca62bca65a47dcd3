//! A run as its nodes know it: its config, what it is pinned to, its package, and where its controller is.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use osmosis_core::config::{EvalConfig, Experiment, ModelPath, Secrets, TrainConfig};
use osmosis_engine::Measuring;
use osmosis_gateway::{EndpointAddress, Sampling, Secret};
use osmosis_store::{RunKind, RunRecord, Store};

use super::package::{CHAT_TEMPLATE, HELD_OUT_ROWS, NodePackage};
use crate::chat_choice::ChatChoice;
use crate::execution;
use crate::policy::TokenLimits;
use crate::runs::Pinned;
use crate::user_code::PassedOn;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// The config of a run that has nodes.
#[derive(Debug, Clone)]
pub enum NodeConfig {
    Evaluation(Box<EvalConfig>),
    Training(Box<TrainConfig>),
}

/// The controller's token endpoint, as nodes reach it.
#[derive(Debug, Clone)]
pub struct ControllerAccess {
    /// `http://HOST:PORT`, looked up anew when nobody answers: the run may have been resumed elsewhere.
    pub address: EndpointAddress,
    /// The node key of the run, sent as a bearer token.
    pub key: Secret,
}

impl ControllerAccess {
    /// Access to the controller of the run that is open here.
    pub fn of(store: &Arc<dyn Store>, key: Secret) -> Self {
        let store = Arc::clone(store);
        let address = EndpointAddress::new(move || {
            let store = Arc::clone(&store);
            async move {
                let Some(shared) = store.shared() else {
                    return Ok(None);
                };
                let looked_up = shared.controller_url().await;
                looked_up.map_err(|error| error.to_string())
            }
        });
        Self { address, key }
    }
}

/// Everything that a node knows of its run.
#[derive(Debug)]
pub struct NodeSpec {
    pub record: RunRecord,
    pub config: NodeConfig,
    pub pinned: Pinned,
    pub package: NodePackage,
    /// What is attached to the package, by name; compared with its digest already.
    pub attachments: BTreeMap<String, Bytes>,
    /// Where the package's files are.
    pub workspace: Workspace,
    /// `None` where the run has no token endpoint, or the token no key.
    pub controller: Option<ControllerAccess>,
}

impl NodeConfig {
    /// Reads the config of a run.
    pub fn of(record: &RunRecord) -> Result<Self, RunError> {
        let file = "run.toml".into();
        match record.kind {
            RunKind::Evaluation => {
                let config = EvalConfig::parse(file, &record.config_toml)?;
                Ok(Self::Evaluation(Box::new(config)))
            }
            RunKind::Training => {
                let config = TrainConfig::parse(file, &record.config_toml)?;
                Ok(Self::Training(Box::new(config)))
            }
            RunKind::Serving => Err(RunError::failed(
                RunErrorKind::Usage,
                format!("run `{}` serves requests, and has no nodes", record.name),
            )
            .hint("start `osmosis serve` or `osmosis gateway` on more machines instead")),
        }
    }

    pub fn experiment(&self) -> &Experiment {
        match self {
            Self::Evaluation(config) => &config.experiment,
            Self::Training(config) => &config.experiment,
        }
    }

    pub fn judge_model(&self) -> Option<&ModelPath> {
        match self {
            Self::Evaluation(config) => config.judge_model.as_ref(),
            Self::Training(config) => config.judge_model.as_ref(),
        }
    }

    pub fn secrets(&self) -> &Secrets {
        match self {
            Self::Evaluation(config) => &config.secrets,
            Self::Training(config) => &config.secrets,
        }
    }

    /// What user code is passed.
    pub fn passed_on(&self) -> PassedOn {
        match self {
            Self::Evaluation(config) => PassedOn::from(&**config),
            Self::Training(config) => PassedOn::from(&**config),
        }
    }

    /// Most tokens of prompts and answers that the policy takes and gives.
    pub fn token_limits(&self) -> Option<TokenLimits> {
        match self {
            Self::Evaluation(_) => None,
            Self::Training(config) => Some(TokenLimits::of(&config.training)),
        }
    }

    /// What becomes of the sampling that calls ask for.
    pub fn sampling(&self) -> Sampling {
        match self {
            Self::Evaluation(config) => execution::eval_sampling(config.sampling),
            Self::Training(config) => execution::training_sampling(config.sampling),
        }
    }
}

impl NodeSpec {
    pub fn attachment(&self, name: &str) -> Result<&Bytes, RunError> {
        self.attachments.get(name).ok_or_else(|| {
            RunError::failed(
                RunErrorKind::RunDamaged,
                format!("the run's package has no `{name}`"),
            )
            .hint("resume the run with the version of osmosis that the nodes have")
        })
    }

    /// An attachment that is text.
    pub fn attached_text(&self, name: &str) -> Result<&str, RunError> {
        std::str::from_utf8(self.attachment(name)?).map_err(|error| {
            RunError::failed(
                RunErrorKind::RunDamaged,
                format!("`{name}` of the run's package: {error}"),
            )
        })
    }

    /// Which rollouts measure: none of training's but those of held-out rows.
    pub fn measuring(&self) -> Result<Measuring, RunError> {
        match self.config {
            NodeConfig::Evaluation(_) => Ok(Measuring::Everything),
            NodeConfig::Training(_) => {
                let rows = serde_json::from_slice(self.attachment(HELD_OUT_ROWS)?);
                let rows = rows.map_err(|error| {
                    RunError::failed(
                        RunErrorKind::RunDamaged,
                        format!("`{HELD_OUT_ROWS}` of the run's package: {error}"),
                    )
                })?;
                Ok(Measuring::Rows(Arc::new(rows)))
            }
        }
    }

    /// What `[experiment]` chooses about how the model is talked to.
    pub fn chat_choice(&self) -> Result<ChatChoice, RunError> {
        let experiment = self.config.experiment();
        let template = experiment.chat_template.as_ref();
        let text = template.map(|_| self.attached_text(CHAT_TEMPLATE));
        let text = text.transpose()?;
        Ok(ChatChoice::of_text(
            template.map(ToString::to_string).zip(text),
            experiment.tool_format,
        ))
    }
}
