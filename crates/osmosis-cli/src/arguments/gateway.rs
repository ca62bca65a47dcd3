//! `osmosis gateway`.

use std::net::SocketAddr;
use std::str::FromStr;

use camino::Utf8PathBuf;
use clap::{ArgGroup, Args, ValueEnum};
use osmosis_core::config::ToolFormat;
use osmosis_gateway::{Dialect, Durability, ServerLogprobs};
use osmosis_run::inference_server::ServerKind;

/// `NAME=URL[,MODEL]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedUpstream {
    pub(crate) name: String,
    pub(crate) url: String,
    /// What the server calls it; the name itself unless it is said.
    pub(crate) model: String,
}

impl FromStr for NamedUpstream {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, rest) = text
            .split_once('=')
            .ok_or("write it as NAME=URL or NAME=URL,MODEL")?;
        let (url, model) = match rest.split_once(',') {
            Some((url, model)) => (url, model.trim()),
            None => (rest, name.trim()),
        };
        let name = name.trim();
        if name.is_empty() || url.trim().is_empty() || model.is_empty() {
            return Err("NAME, URL and MODEL can't be empty".to_owned());
        }
        Ok(Self {
            name: name.to_owned(),
            url: url.trim().to_owned(),
            model: model.to_owned(),
        })
    }
}

/// A dialect that a server may speak besides chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Spoken {
    Responses,
    Messages,
    Completions,
}

impl From<Spoken> for Dialect {
    fn from(spoken: Spoken) -> Self {
        match spoken {
            Spoken::Responses => Self::Responses,
            Spoken::Messages => Self::Messages,
            Spoken::Completions => Self::Completions,
        }
    }
}

/// When a call is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Durable {
    /// Calls are committed together, up to 60 ms after their answers
    #[default]
    Group,
    /// Each call is committed before its answer is complete
    Answer,
}

impl From<Durable> for Durability {
    fn from(durable: Durable) -> Self {
        match durable {
            Durable::Group => Self::Group,
            Durable::Answer => Self::Answer,
        }
    }
}

/// What answers behind an upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// Any server that speaks the Chat Completions API; it tells no token ids
    #[default]
    Openai,
    /// vLLM
    Vllm,
    /// `SGLang`
    Sglang,
}

impl From<Engine> for ServerKind {
    fn from(engine: Engine) -> Self {
        match engine {
            Engine::Openai => Self::Openai,
            Engine::Vllm => Self::Vllm,
            Engine::Sglang => Self::Sglang,
        }
    }
}

/// How tools are written into prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ToolPrompt {
    /// As JSON in the system message; calls are read from `<tool_call>` tags
    Hermes,
}

impl From<ToolPrompt> for ToolFormat {
    fn from(prompt: ToolPrompt) -> Self {
        match prompt {
            ToolPrompt::Hermes => Self::Hermes,
        }
    }
}

/// What an engine's logprobs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineLogprobs {
    /// Of the logits as they are (vLLM's default)
    Raw,
    /// Of the logits divided by the temperature (SGLang's default)
    Tempered,
    /// Of what is sampled from in the end (vLLM's `--logprobs-mode processed_logprobs`)
    Processed,
}

impl From<EngineLogprobs> for ServerLogprobs {
    fn from(logprobs: EngineLogprobs) -> Self {
        match logprobs {
            EngineLogprobs::Raw => Self::Raw,
            EngineLogprobs::Tempered => Self::Tempered,
            EngineLogprobs::Processed => Self::Processed,
        }
    }
}

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("answering").required(true).args(["upstream", "model"]),
    after_help = "Example:\n  osmosis gateway --model builtin/tiny\n  osmosis gateway --model run:calculator-20260101-120000@best --listen 127.0.0.1:8000\n  osmosis gateway --upstream http://a:8000/v1 --upstream http://b:8000/v1 --policy judge=http://c:8000/v1\n\nIt prints OPENAI_BASE_URL and OPENAI_API_KEY for clients and OSMOSIS_CONTROL_KEY for `/v1/policy` and\n`/metrics` (taken from that variable when it is set), and serves until Ctrl-C or SIGTERM."
)]
pub(crate) struct GatewayArguments {
    /// URL of an OpenAI-compatible server, like `http://127.0.0.1:8000/v1`; its key is taken from
    /// OPENAI_API_KEY. If repeated, calls are spread over the servers
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Vec<String>,

    /// Model name to send to the upstream
    #[arg(
        long,
        value_name = "NAME",
        default_value = "osmosis-rollout",
        requires = "upstream"
    )]
    pub(crate) upstream_model: String,

    /// APIs of the upstreams besides chat, comma-separated: such calls are forwarded unchanged, others are
    /// translated to chat
    #[arg(
        long,
        value_name = "DIALECTS",
        value_delimiter = ',',
        requires = "upstream"
    )]
    pub(crate) upstream_speaks: Vec<Spoken>,

    /// Inference server behind the upstream. vLLM and `SGLang` return token ids, which are recorded
    #[arg(
        long,
        value_enum,
        value_name = "ENGINE",
        default_value_t,
        requires = "upstream",
        conflicts_with = "model"
    )]
    pub(crate) engine: Engine,

    /// Folder with the tokenizer and chat template of the upstream's model: the gateway renders prompts
    /// and sends token ids
    #[arg(
        long,
        value_name = "DIR",
        requires = "upstream",
        conflicts_with = "model"
    )]
    pub(crate) tokenizer: Option<Utf8PathBuf>,

    /// Chat template to use instead of the model's own (embedded models, or with --tokenizer)
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<Utf8PathBuf>,

    /// Write tools into prompts this way, for chat templates that ignore `tools` (embedded models, or with
    /// --tokenizer)
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) tool_format: Option<ToolPrompt>,

    /// Logprobs mode of the inference server [default: raw for vLLM, tempered for `SGLang`]
    #[arg(
        long,
        value_enum,
        value_name = "KIND",
        requires = "upstream",
        conflicts_with = "model"
    )]
    pub(crate) engine_logprobs: Option<EngineLogprobs>,

    /// Model to serve, as in `model_path` of a config: `builtin/NAME`, `run:NAME@STEP`, a
    /// checkpoint folder or GGUF file, `script:PATH`, `provider/model`
    #[arg(long, value_name = "MODEL_PATH")]
    pub(crate) model: Option<String>,

    /// Another policy, for calls to the model NAME: NAME=URL, or NAME=URL,MODEL if the model has another
    /// name on its server. Its key is taken from NAME_API_KEY (in capitals, `_` for any other
    /// character). The same NAME again adds a server
    #[arg(long, value_name = "NAME=URL[,MODEL]")]
    pub(crate) policy: Vec<NamedUpstream>,

    /// Maximum of open calls per upstream; reduced automatically when an upstream returns 429 or 503
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_in_flight: Option<u32>,

    /// Maximum of queued calls; further calls get 429
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    pub(crate) max_queue: usize,

    /// Longest time in the queue
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) queue_timeout: u64,

    /// Serve `/metrics` without a key
    #[arg(long)]
    pub(crate) open_metrics: bool,

    /// Address to listen on [default: 127.0.0.1 and any free port]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,

    /// A folder that was given with `--store PATH`
    #[arg(skip)]
    pub(crate) folder: Option<Utf8PathBuf>,

    /// When a call is written to disk. `group`: calls are committed together, up to 60 ms after their
    /// answers; a crash loses the calls answered in that time. `answer`: a call is committed before its
    /// answer (of a stream, its end) is sent; no answered call is ever lost
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) durable: Durable,

    /// Name of the run to record calls in; an existing run is continued
    /// [default: `gateway` and time]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Random seed (embedded models only)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_upstream_is_a_name_a_url_and_maybe_a_model() {
        let read = |text: &str| {
            let read: Result<NamedUpstream, _> = text.parse();
            read.map(|named| [named.name, named.url, named.model])
        };
        let of = |parts: [&str; 3]| Ok(parts.map(str::to_owned));
        assert_eq!(
            read("judge=http://h/v1"),
            of(["judge", "http://h/v1", "judge"])
        );
        assert_eq!(
            read("judge=http://h/v1?a=b,org/m,x"),
            of(["judge", "http://h/v1?a=b", "org/m,x"])
        );
        for wrong in ["", "judge", "=http://h", "judge=", "judge=http://h,"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
