//! `osmosis serve`.

use std::net::SocketAddr;

use camino::Utf8PathBuf;
use clap::Args;
use osmosis_core::config::WorkerIsolation;
use osmosis_server::{Url, parse_url};

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis serve multiply\n  osmosis serve multiply --listen 0.0.0.0:8080 --api-key-env ROLLOUT_SERVER_KEY --name served\n\nIt prints its URL and its key, and takes rollouts there: POST /rollout, GET /rollout/ID/status, POST /rollout/cancel,\nGET /health. A first SIGTERM or Ctrl-C drains, a second one stops now. What was accepted is run and called back,\nover restarts under the same --name; keys are kept encrypted with OSMOSIS_STATE_KEY, or a key of this user's own."
)]
pub(crate) struct ServeArguments {
    /// Rollout to serve: a folder of the workspace's `rollouts/`
    #[arg(required_unless_present = "attach")]
    pub(crate) rollout: Option<String>,

    /// Address to listen on [default: 127.0.0.1 and the port in _OSMOSIS_ROLLOUT_PORT, else any free
    /// one]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,

    /// File that holds the workflow, from the rollout's folder
    #[arg(long, value_name = "FILE", default_value = "main.py")]
    pub(crate) entrypoint: String,

    /// Name of the run that rollouts are recorded in; an existing name goes on with it
    /// [default: the rollout's name and time]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Rollouts under way at once [default: 32, or twice the workflow's own `max_concurrent`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_in_flight: Option<u32>,

    /// Rollouts that may wait; beyond that requests get 429
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) max_queued: u32,

    /// Agent worker processes [default: number of cores, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: Option<u32>,

    /// What rollouts share: `shared`, a worker process; `process`, nothing, each has a fresh one
    #[arg(long, value_name = "HOW", default_value = "shared", value_parser = isolation)]
    pub(crate) isolation: WorkerIsolation,

    /// Python interpreter for the rollout [default: its .venv, VIRTUAL_ENV, PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<Utf8PathBuf>,

    /// Environment variable that holds the key every request must bring, except for /health
    /// [default: a new key, which is printed]
    #[arg(long, value_name = "NAME")]
    pub(crate) api_key_env: Option<String>,

    /// Ask for no key; on a loopback address only
    #[arg(long, conflicts_with = "api_key_env")]
    pub(crate) no_key: bool,

    /// On a loopback address: a name that the server is called by, besides `localhost` (a proxy or a tunnel
    /// sends it as `Host`); can be repeated
    #[arg(long, value_name = "HOST")]
    pub(crate) allow_host: Vec<String>,

    /// On any other address: callbacks and models may be at URLs that begin like this, although they are on
    /// this machine or its link; can be repeated
    #[arg(long, value_name = "PREFIX", value_parser = parse_url)]
    pub(crate) allow_url: Vec<Url>,

    /// Environment variable that the rollout's code gets besides the usual ones (PATH, HOME, …), e.g.
    /// `--pass-env SEARCH_KEY`; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) pass_env: Vec<String>,

    /// Deadline of a workflow whose request sets none
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) agent_timeout: u32,

    /// Deadline of a grader whose request sets none
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) grader_timeout: u32,

    /// How long a drain may take before what still runs is cancelled [default: 600; 40 when attached]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) drain_limit: Option<u32>,

    /// Serve the process that started this one, as `create_rollout_server()` does
    #[arg(
        long,
        hide = true,
        conflicts_with_all = ["rollout", "workers", "python", "pass_env", "isolation"]
    )]
    pub(crate) attach: bool,
}

fn isolation(text: &str) -> Result<WorkerIsolation, String> {
    text.parse()
        .map_err(|error: String| format!("{error}; write `shared` or `process`"))
}
