//! `osmosis gateway`.

use std::net::SocketAddr;

use camino::Utf8PathBuf;
use clap::{ArgGroup, Args};

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("policy").required(true).args(["upstream", "model"]),
    after_help = "Example:\n  osmosis gateway --model builtin/tiny\n  osmosis gateway --model run:calculator-20260101-120000@best --listen 127.0.0.1:8000\n\nIt prints OPENAI_BASE_URL and OPENAI_API_KEY for clients, and serves until Ctrl-C or SIGTERM."
)]
pub(crate) struct GatewayArguments {
    /// URL of an OpenAI-compatible server that answers, like `http://127.0.0.1:8000/v1`; its key is
    /// taken from OPENAI_API_KEY
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Vec<String>,

    /// Model name that the upstream is sent
    #[arg(
        long,
        value_name = "NAME",
        default_value = "osmosis-rollout",
        requires = "upstream"
    )]
    pub(crate) upstream_model: String,

    /// Model that answers, written as `model_path` in a config: `builtin/NAME`, `run:NAME@STEP`, a
    /// checkpoint folder or GGUF file, `script:PATH`, `provider/model`
    #[arg(long, value_name = "MODEL_PATH")]
    pub(crate) model: Option<String>,

    /// Address to listen on [default: 127.0.0.1 and any free port]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,

    /// Folder that calls are recorded in [default: the workspace's `.osmosis/serve/NAME`]
    #[arg(long, value_name = "PATH")]
    pub(crate) store: Option<Utf8PathBuf>,

    /// Name of the run that calls are recorded in; an existing name goes on with it
    /// [default: `gateway` and time]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Where the random numbers of an embedded policy start
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}
