//! `osmosis node`, and what commands take that nodes work for.

use std::net::SocketAddr;
use std::sync::Arc;

use camino::Utf8PathBuf;
use clap::Args;
use osmosis_gateway::Secret;
use osmosis_run::node::control::NodeOptions;
use osmosis_run::node::metrics::MetricsOptions;
use osmosis_run::policy::variable;
use osmosis_run::ray::{RayAddress, RayNodes, RayOptions};
use osmosis_server::{Url, parse_url};
use osmosis_store::StoreUrl;

use super::run::{SecretArguments, ThroughputArguments};
use crate::gateway::CONTROL_KEY_VARIABLE;

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis node --store postgres://db.example.org/evaluations --run multiply --join osn1_TOKEN\n  OSMOSIS_STORE=postgres://db.example.org/evaluations OSMOSIS_JOIN=osn1_TOKEN osmosis node\n\n`eval submit --store postgres://…` prints the whole command. This machine needs no workspace: the project comes with\nthe run, and its environment is prepared in the user's cache. Keys of model servers and `[secrets]` are taken from the\nenvironment or from --secrets-file. A first SIGTERM or Ctrl-C drains, a second one stops immediately.\n\nExit codes: 0 the run is over or this node drained, 1 failed, 2 usage, 130 stopped before it began"
)]
pub(crate) struct NodeArguments {
    /// Run to work on: NAME, `eval/NAME` or `train/NAME` [default: the token's]
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,

    /// Token of the run, which its controller prints; without one, the role of the URL must see the run
    /// [env: OSMOSIS_JOIN]
    #[arg(long, value_name = "TOKEN")]
    pub(crate) join: Option<String>,

    #[command(flatten)]
    pub(crate) secrets: SecretArguments,

    #[command(flatten)]
    pub(crate) throughput: ThroughputArguments,

    /// Serve Prometheus metrics of this node at this address, path /metrics [default: not served]
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics_listen: Option<SocketAddr>,

    /// Where the run is: what `--store` says.
    #[arg(skip)]
    pub(crate) store: Option<StoreUrl>,
}

/// How more machines work on a run.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SharingArguments {
    /// With --store: run no rollouts here, only on nodes (`osmosis node`)
    #[arg(long)]
    pub(crate) nodes_only: bool,

    /// With --store and an embedded model: address to listen on for nodes, which ask the model here
    /// [default: 127.0.0.1 and any free port, for nodes on this machine]
    #[arg(long, value_name = "ADDR")]
    pub(crate) node_listen: Option<SocketAddr>,

    /// With --node-listen: URL at which nodes reach that address [default: the address itself]
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub(crate) node_url: Option<Url>,

    /// Serve Prometheus metrics of the run, its queue and its nodes at this address, path /metrics
    /// [default: not served]
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics_listen: Option<SocketAddr>,

    /// With --store: run the rollouts on nodes that a Ray cluster starts: `ray` for the cluster that this machine
    /// belongs to, or `ray://HEAD`. Implies --nodes-only
    #[arg(long, value_name = "CLUSTER")]
    pub(crate) cluster: Option<RayAddress>,

    /// With --cluster: Python interpreter that has Ray [default: the first of those beside this program, in
    /// VIRTUAL_ENV and PATH]
    #[arg(long, value_name = "PATH", requires = "cluster")]
    pub(crate) ray_python: Option<Utf8PathBuf>,

    /// With --cluster: environment variable to pass to nodes, for keys of model servers; may be repeated
    #[arg(long, value_name = "NAME", requires = "cluster")]
    pub(crate) ray_env: Vec<String>,
}

impl From<SharingArguments> for NodeOptions {
    fn from(arguments: SharingArguments) -> Self {
        let cluster = arguments.cluster.map(|address| RayOptions {
            address,
            python: arguments.ray_python,
            pass_env: arguments.ray_env,
        });
        Self {
            nodes_only: arguments.nodes_only || cluster.is_some(),
            cluster: cluster.map(|options| Arc::new(RayNodes::new(options))),
            listen: arguments.node_listen,
            url: arguments.node_url.map(|url| url.to_string()),
            metrics: arguments.metrics_listen.map(metrics_options),
        }
    }
}

/// The page of metrics is opened by the same key as a gateway's.
pub(crate) fn metrics_options(listen: SocketAddr) -> MetricsOptions {
    let key = variable(CONTROL_KEY_VARIABLE).map(Secret::new);
    MetricsOptions { listen, key }
}

/// So that help and completions know of it.
pub(crate) const JOIN_VARIABLE: &str = "OSMOSIS_JOIN";

impl NodeArguments {
    pub(crate) fn secrets_file(&self) -> Option<Utf8PathBuf> {
        self.secrets.secrets_file.clone()
    }
}
