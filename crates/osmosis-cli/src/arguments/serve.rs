//! `osmosis serve`.

use std::net::SocketAddr;

use camino::Utf8PathBuf;
use clap::Args;
use osmosis_core::config::{WorkerIsolation, WorkerUser};
use osmosis_server::{Url, parse_url};

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis serve multiply\n  osmosis serve multiply --listen 0.0.0.0:8080 --api-key-env ROLLOUT_SERVER_KEY --name served\n\nIt prints its URL and key, and accepts: POST /rollout, GET /rollout/ID/status, POST /rollout/cancel,\nGET /health. A first SIGTERM or Ctrl-C drains, a second one stops immediately. Accepted rollouts run and are\ncalled back, also after a restart with the same --name; keys are stored encrypted with OSMOSIS_STATE_KEY, or with a key\nof this user."
)]
pub(crate) struct ServeArguments {
    /// Project to serve: a folder of the workspace's `rollouts/`
    #[arg(required_unless_present = "attach")]
    pub(crate) rollout: Option<String>,

    /// Address to listen on [default: 127.0.0.1 and the port in _OSMOSIS_ROLLOUT_PORT, else any free
    /// one]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,

    /// File with the workflow, relative to the project's folder
    #[arg(long, value_name = "FILE", default_value = "main.py")]
    pub(crate) entrypoint: String,

    /// Name of the run to record rollouts in; an existing run is continued
    /// [default: the project's name and time]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Maximum of concurrent rollouts [default: 32, or twice the workflow's own `max_concurrent`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_in_flight: Option<u32>,

    /// Maximum of queued rollouts; further requests get 429
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) max_queued: u32,

    /// Agent worker processes [default: number of cores, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: Option<u32>,

    /// `shared`: rollouts share worker processes; `process`: each rollout has a fresh process
    #[arg(long, value_name = "HOW", default_value = "shared", value_parser = isolation)]
    pub(crate) isolation: WorkerIsolation,

    /// User that the workers run as: `auto` (an unprivileged one if this process is root and that user can reach what
    /// workers need), `same`, a name or a number
    #[arg(long, value_name = "USER", default_value = "auto")]
    pub(crate) workers_user: WorkerUser,

    /// Python interpreter for the project, used as it is: nothing is made or installed [default: its
    /// .venv, VIRTUAL_ENV, PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<Utf8PathBuf>,

    /// Environment variable with the key that every request needs, except /health
    /// [default: a new key, which is printed]
    #[arg(long, value_name = "NAME")]
    pub(crate) api_key_env: Option<String>,

    /// Require no key; on a loopback address only
    #[arg(long, conflicts_with = "api_key_env")]
    pub(crate) no_key: bool,

    /// On a loopback address: also accept this `Host` besides `localhost`, for a proxy or tunnel; may be
    /// repeated
    #[arg(long, value_name = "HOST")]
    pub(crate) allow_host: Vec<String>,

    /// On any other address: also allow callback and model URLs with this prefix, although they are on this
    /// machine or its local link; may be repeated
    #[arg(long, value_name = "PREFIX", value_parser = parse_url)]
    pub(crate) allow_url: Vec<Url>,

    /// Environment variable to pass to user code besides the usual ones (PATH, HOME, …), e.g.
    /// `--pass-env SEARCH_KEY`; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) pass_env: Vec<String>,

    /// Timeout of a workflow if the request sets none
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) agent_timeout: u32,

    /// Timeout of a grader if the request sets none
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) grader_timeout: u32,

    /// How long a drain may take before active rollouts are cancelled [default: 600; 40 when attached]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) drain_limit: Option<u32>,

    /// Serve the process that started this one, as `create_rollout_server()` does
    #[arg(
        long,
        hide = true,
        conflicts_with_all = ["rollout", "workers", "python", "pass_env", "isolation", "workers_user"]
    )]
    pub(crate) attach: bool,
}

fn isolation(text: &str) -> Result<WorkerIsolation, String> {
    text.parse()
        .map_err(|error: String| format!("{error}; write `shared` or `process`"))
}
