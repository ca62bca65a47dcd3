//! Models that run in the controller's process, as nodes use them: the engine samples there, and each node renders
//! prompts and reads answers with a copy of the model's chat format.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use osmosis_core::generation::TokenEngine;
use osmosis_gateway::{Secret, TokenEndpoint, TokenEndpointOptions};
use osmosis_store::Store;
use osmosis_tokens::{ChatFormat, ChatFormatParts};

use super::control::NodeOptions;
use super::package::PackageBuilder;
use super::spec::NodeSpec;
use super::token::JoinToken;
use crate::judge::ReadyJudge;
use crate::life::{RunningParts, Stage};
use crate::policy::EmbeddedPolicy;
use crate::{RunError, RunErrorKind};

/// Where the models are opened unless asked otherwise: to nodes on this machine.
const ANY_LOOPBACK_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What a model plays; its engine and the files of its chat format are kept under this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelRole {
    Policy,
    Judge,
}

impl ModelRole {
    /// The name of its engine at the token endpoint.
    pub fn engine(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Judge => "judge",
        }
    }

    fn file(self, name: &str) -> String {
        format!("{}_chat/{name}", self.engine())
    }
}

/// The models of a run that its nodes ask the controller for.
#[derive(Debug)]
pub struct OfferedModels {
    models: Vec<OfferedModel>,
    /// Nodes may ask at once.
    open: bool,
}

#[derive(Debug)]
struct OfferedModel {
    role: ModelRole,
    engine: Arc<dyn TokenEngine>,
    chat: Arc<ChatFormat>,
}

impl OfferedModels {
    /// Those of these that run in this process.
    pub fn of(policy: Option<&EmbeddedPolicy>, judge: Option<&ReadyJudge>) -> Self {
        let judge = judge.and_then(ReadyJudge::embedded);
        let both = [(ModelRole::Policy, policy), (ModelRole::Judge, judge)];
        let offered = both.into_iter().filter_map(|(role, embedded)| {
            let embedded = embedded?;
            Some(OfferedModel {
                role,
                engine: Arc::clone(&embedded.sampler) as Arc<dyn TokenEngine>,
                chat: Arc::clone(&embedded.chat),
            })
        });
        Self {
            models: offered.collect(),
            open: true,
        }
    }

    /// The same, but nodes wait until [`TokenEndpoint::set_open`] lets them ask.
    #[must_use]
    pub fn closed_at_first(self) -> Self {
        Self {
            open: false,
            ..self
        }
    }

    /// Adds to the package what nodes need of the models.
    pub fn attach(&self, package: &mut PackageBuilder) -> Result<(), RunError> {
        for offered in &self.models {
            attach_chat(package, offered.role, &offered.chat)?;
        }
        Ok(())
    }

    /// Opens the models to the nodes of a run that has this token, until the run ends, and says where. `None` where
    /// nothing is to be opened.
    pub async fn open_to_nodes(
        &self,
        store: &dyn Store,
        token: Option<&JoinToken>,
        options: &NodeOptions,
        parts: &RunningParts,
    ) -> Result<Option<Arc<TokenEndpoint>>, RunError> {
        let Some(shared) = store.shared().filter(|_| !self.models.is_empty()) else {
            return Ok(None);
        };
        let Some(token) = token else {
            if options.nodes_only {
                return Err(RunError::failed(
                    RunErrorKind::ModelUnconfigured,
                    "--nodes-only: nodes can't ask the model, which runs here: there is no token that opens it",
                )
                .hint("use a database role that may create roles (docs/postgres.md)"));
            }
            return Ok(None);
        };
        let listen = options.listen_address().unwrap_or(ANY_LOOPBACK_PORT);
        if listen.ip().is_unspecified() && options.url.is_none() {
            return Err(RunError::usage(
                RunErrorKind::Usage,
                format!("--node-listen {listen} is no address that nodes can be told"),
            )
            .hint("also give `--node-url URL`, as nodes see this machine"));
        }
        let endpoint = self.serve(listen, Secret::new(token.key()), parts).await?;
        let url = options.url.clone().unwrap_or_else(|| endpoint.url());
        let key_sha256 = token.key_sha256();
        shared.set_controller(Some(&url), Some(&key_sha256)).await?;
        Ok(Some(endpoint))
    }

    async fn serve(
        &self,
        listen: SocketAddr,
        key: Secret,
        parts: &RunningParts,
    ) -> Result<Arc<TokenEndpoint>, RunError> {
        let engines = self.models.iter().map(|offered| {
            let name = offered.role.engine().to_owned();
            (name, Arc::clone(&offered.engine))
        });
        let options = TokenEndpointOptions::new(listen, key);
        let endpoint = TokenEndpoint::start(options, engines.collect())
            .await
            .map_err(|error| {
                RunError::failed(RunErrorKind::Gateway, format!("--node-listen: {error}"))
                    .maybe_hint(error.hint())
            })?;
        endpoint.set_open(self.open);
        Ok(parts.add(Stage::Gateway, endpoint))
    }
}

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";
const GENERATION_CONFIG: &str = "generation_config.json";

/// Adds the files of a chat format, with what was chosen instead of the model's own.
pub fn attach_chat(
    package: &mut PackageBuilder,
    role: ModelRole,
    chat: &ChatFormat,
) -> Result<(), RunError> {
    let parts = chat
        .saved_parts()
        .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))?;
    let ChatFormatParts {
        tokenizer,
        tokenizer_config,
        chat_template,
        generation_config,
    } = parts;
    let files = [
        (TOKENIZER, Some(tokenizer)),
        (TOKENIZER_CONFIG, Some(tokenizer_config)),
        (CHAT_TEMPLATE, chat_template),
        (GENERATION_CONFIG, generation_config),
    ];
    for (name, text) in files {
        if let Some(text) = text {
            package.attach(&role.file(name), Bytes::from(text));
        }
    }
    Ok(())
}

/// The chat format that [`attach_chat`] added.
pub fn attached_chat(spec: &NodeSpec, role: ModelRole) -> Result<ChatFormat, RunError> {
    let text = |name: &str| spec.attached_text(&role.file(name)).map(str::to_owned);
    let text_if_there = |name: &str| {
        let file = role.file(name);
        let there = spec.attachments.contains_key(&file);
        there.then(|| text(name)).transpose()
    };
    let parts = ChatFormatParts {
        tokenizer: text(TOKENIZER)?,
        tokenizer_config: text(TOKENIZER_CONFIG)?,
        chat_template: text_if_there(CHAT_TEMPLATE)?,
        generation_config: text_if_there(GENERATION_CONFIG)?,
    };
    ChatFormat::from_parts(parts).map_err(|error| {
        RunError::failed(
            RunErrorKind::ModelInvalid,
            format!("the chat format of the run's {}: {error}", role.engine()),
        )
        .maybe_hint(error.hint())
    })
}
