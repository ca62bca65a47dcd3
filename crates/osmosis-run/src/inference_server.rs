//! Inference servers: which kind one is, and what is needed to have token ids from it.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_gateway::{
    EngineKind, Policy, RemoteEngine, RemoteEngineOptions, ReportedTokens, ServerLogprobs,
    TokenPolicy, TokenPolicyOptions, UpstreamOptions,
};
use osmosis_tokens::{ChatFormat, read_model_text};
use serde_json::json;

use crate::chat_choice::ChatChoice;
use crate::policy::{ReadyPolicy, is_local, template_error, upstreams, variable};
use crate::source_digest::text_digest;
use crate::workspace::absolute;
use crate::{RunError, RunErrorKind};

/// Which engine answers behind an upstream: `openai`, `vllm` or `sglang`.
const ENGINE_VARIABLE: &str = "OSMOSIS_ENGINE";
/// The folder of the model's tokenizer.
const TOKENIZER_VARIABLE: &str = "OSMOSIS_TOKENIZER";
/// Which logprobs the engine was set to give: `raw`, `tempered` or `processed`.
const LOGPROBS_VARIABLE: &str = "OSMOSIS_ENGINE_LOGPROBS";

/// Files of a tokenizer folder that say how text becomes ids.
const FORMAT_FILES: [&str; 4] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
];

/// What answers behind an upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ServerKind {
    /// Any server that speaks the Chat Completions API; it reports no token ids.
    #[default]
    Openai,
    Vllm,
    Sglang,
}

impl ServerKind {
    /// By the words of configs and arguments.
    pub const NAMED: &[(&str, Self)] = &[
        ("openai", Self::Openai),
        ("vllm", Self::Vllm),
        ("sglang", Self::Sglang),
    ];
}

/// The words for what a server's logprobs are.
const LOGPROBS: &[(&str, ServerLogprobs)] = &[
    ("raw", ServerLogprobs::Raw),
    ("tempered", ServerLogprobs::Tempered),
    ("processed", ServerLogprobs::Processed),
];

/// How token ids are had from a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InferenceServer {
    pub kind: ServerKind,
    pub tokenizer: Option<Utf8PathBuf>,
    pub logprobs: Option<ServerLogprobs>,
}

impl InferenceServer {
    /// As the environment says; `usual` is what it is when that says nothing.
    pub fn from_environment(usual: ServerKind) -> Result<Self, RunError> {
        Ok(Self {
            kind: chosen(ENGINE_VARIABLE, ServerKind::NAMED)?.unwrap_or(usual),
            tokenizer: variable(TOKENIZER_VARIABLE).map(Utf8PathBuf::from),
            logprobs: chosen(LOGPROBS_VARIABLE, LOGPROBS)?,
        })
    }

    /// The policy behind these servers.
    pub fn open(
        &self,
        upstream: UpstreamOptions,
        seed: u64,
        chat: &ChatChoice,
    ) -> Result<ReadyPolicy, RunError> {
        if self.tokenizer.is_none() {
            chat.refuse_unless_default("the model server renders the prompts itself")?;
        }
        let kind = match self.kind {
            ServerKind::Openai if self.tokenizer.is_some() => {
                return Err(Self::unusable(
                    "a tokenizer folder is given, and the server is not known to take token ids",
                    format!(
                        "say which engine it is: `--engine vllm` or `--engine sglang`, in the environment {ENGINE_VARIABLE}"
                    ),
                ));
            }
            ServerKind::Openai => return upstreams(upstream),
            ServerKind::Vllm => EngineKind::Vllm,
            ServerKind::Sglang => EngineKind::Sglang,
        };
        let logprobs = self.logprobs.unwrap_or_else(|| kind.default_logprobs());
        match (&self.tokenizer, kind) {
            (Some(folder), _) => {
                let [endpoint] = upstream.endpoints.as_slice() else {
                    return Err(Self::unusable(
                        "several servers are given, and prompts in token ids go to one",
                        "give one `--upstream` with `--tokenizer`; run one gateway for each server"
                            .to_owned(),
                    ));
                };
                let key = endpoint.api_key.clone();
                let secrets = key.iter().map(|key| key.expose().to_owned()).collect();
                let options = RemoteEngineOptions {
                    logprobs,
                    api_key: key,
                    ..RemoteEngineOptions::new(kind, &endpoint.base_url, &upstream.model)
                };
                remote(options, folder, secrets, seed, chat)
            }
            (None, EngineKind::Vllm) => {
                let ready = upstreams(upstream)?;
                Ok(ready.behind(|policy| Arc::new(ReportedTokens::new(policy, logprobs))))
            }
            (None, EngineKind::Sglang) => Err(Self::unusable(
                "SGLang tells token ids only where it is asked in token ids, which needs the model's \
                 tokenizer folder",
                format!(
                    "give it with `--tokenizer DIR`, in the environment {TOKENIZER_VARIABLE}; or use `--engine openai`, and have no token ids"
                ),
            )),
        }
    }

    fn unusable(message: &str, hint: String) -> RunError {
        RunError::failed(RunErrorKind::EngineUnusable, message.to_owned()).hint(hint)
    }
}

/// A token policy over an engine elsewhere.
fn remote(
    options: RemoteEngineOptions,
    folder: &Utf8Path,
    secrets: Vec<String>,
    seed: u64,
    choice: &ChatChoice,
) -> Result<ReadyPolicy, RunError> {
    let folder = absolute(folder)?;
    let chat = ChatFormat::load_with(&folder, &choice.settings).map_err(|error| {
        if choice.blamed_for(&error).is_some() {
            return template_error(choice, &error);
        }
        RunError::failed(
            RunErrorKind::TokenizerInvalid,
            format!("tokenizer `{folder}`: {error}"),
        )
        .maybe_hint(error.hint())
    })?;
    let (kind, model) = (options.kind, options.model.clone());
    let remote = !is_local(&options.base_url);
    let engine = RemoteEngine::new(options)
        .map_err(|error| RunError::failed(RunErrorKind::ModelInvalid, error.to_string()))?;
    let endpoint = engine.endpoint().to_owned();
    let mut identity = json!({
        "base_url": endpoint,
        "engine": kind.as_str(),
        "tokenizer_sha256": format_digest(&folder),
    });
    choice.pin(&mut identity);
    let options = TokenPolicyOptions {
        model,
        endpoint,
        chat_template: choice.template_name.clone(),
        seed,
        max_prompt_tokens: None,
        max_response_tokens: None,
    };
    let policy: Arc<dyn Policy> = Arc::new(TokenPolicy::at_server(
        Arc::new(engine),
        Arc::new(chat),
        options,
    ));
    Ok(ReadyPolicy::outside(policy, identity, secrets, remote))
}

/// Of the files that are there; the folder may hold weights too.
fn format_digest(folder: &Utf8Path) -> String {
    let files = FORMAT_FILES.map(|name| read_model_text(&folder.join(name)).ok());
    text_digest(&json!(files).to_string())
}

/// The choice that a variable makes.
fn chosen<T: Copy>(name: &str, choices: &[(&str, T)]) -> Result<Option<T>, RunError> {
    let Some(text) = variable(name) else {
        return Ok(None);
    };
    let found = choices.iter().find(|(word, _)| *word == text);
    found.map(|(_, choice)| Some(*choice)).ok_or_else(|| {
        let known: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        RunError::failed(
            RunErrorKind::EngineUnusable,
            format!("the environment variable `{name}` is `{text}`"),
        )
        .hint(format!("it can be `{}`", known.join("`, `")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::one_server;

    fn outside(kind: ServerKind, tokenizer: Option<&str>) -> InferenceServer {
        InferenceServer {
            kind,
            tokenizer: tokenizer.map(Utf8PathBuf::from),
            logprobs: None,
        }
    }

    #[test]
    fn what_cannot_work_is_refused_with_what_to_do() {
        for (engine, tokenizer, part) in [
            (ServerKind::Openai, Some("."), "not known to take token ids"),
            (
                ServerKind::Sglang,
                None,
                "needs the model's tokenizer folder",
            ),
            (ServerKind::Vllm, Some("no/such/folder"), "no/such/folder"),
        ] {
            let error = outside(engine, tokenizer)
                .open(
                    one_server("http://127.0.0.1:1/v1", None, "m"),
                    0,
                    &ChatChoice::default(),
                )
                .unwrap_err();
            assert!(error.message().contains(part), "{}", error.message());
        }
    }

    #[test]
    fn without_a_tokenizer_the_address_is_what_a_resume_must_find() {
        for engine in [ServerKind::Openai, ServerKind::Vllm] {
            let ready = outside(engine, None)
                .open(
                    one_server("http://u:hunter2@h:1/v1", Some("sk-1".to_owned()), "m"),
                    0,
                    &ChatChoice::default(),
                )
                .unwrap();
            assert_eq!(ready.identity, json!({"base_url": "http://h:1/v1"}));
            assert_eq!(ready.secrets, ["sk-1"]);
            assert!(ready.remote);
        }
    }
}
