//! Nodes of a run on a Ray cluster: `--cluster ray[://HEAD]`.
//!
//! Ray is Python's, so a Python process (`osmosis_ai.ray`, carried by this program) connects to the cluster and keeps one
//! `osmosis node` on each of its machines. Here it is started, started again when it fails, and ended with the run. If this
//! process dies, it leaves, and the nodes go on: a resume finds them.

mod event;
mod interpreter;
mod log;
mod supervisor;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_store::RunKey;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use self::log::NodesLog;
use self::supervisor::Supervision;
use crate::life::{Part, RunningParts, Stage};
use crate::notices::Notices;
use crate::runs::kind_word;
use crate::settings::Throughput;
use crate::{RunError, RunErrorKind};

/// A cluster answers in seconds, or its address is wrong. Ray's own client tries for half a minute.
const CONNECT_LIMIT: Duration = Duration::from_mins(2);

/// The variables that a node takes its store and its token from.
const STORE_VARIABLE: &str = "OSMOSIS_STORE";
const JOIN_VARIABLE: &str = "OSMOSIS_JOIN";
/// Where credentials of the store may be, when there is no token.
const PASSWORD_VARIABLE: &str = "PGPASSWORD";

/// Where a Ray cluster is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RayAddress {
    /// This machine belongs to it.
    Here,
    /// Its head, reached by Ray's client: `ray://HEAD[:PORT]`.
    Head(String),
}

impl FromStr for RayAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("ray") {
            Some("") => Ok(Self::Here),
            Some(rest) => match rest.strip_prefix("://") {
                Some("" | "auto") => Ok(Self::Here),
                Some(head) if !head.contains(['/', ' ', '@']) => Ok(Self::Head(text.to_owned())),
                Some(_) | None => Err(unknown(text)),
            },
            None => Err(unknown(text)),
        }
    }
}

fn unknown(text: &str) -> String {
    format!("`{text}` is neither `ray` (this machine belongs to the cluster) nor `ray://HEAD`")
}

impl fmt::Display for RayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Here => "auto",
            Self::Head(url) => url,
        })
    }
}

/// A cluster that runs the nodes of a run.
#[derive(Debug, Clone)]
pub struct RayOptions {
    pub address: RayAddress,
    /// The interpreter that has Ray; the first that is found when there is none.
    pub python: Option<Utf8PathBuf>,
    /// Variables of this process that nodes get too, for keys of model servers.
    pub pass_env: Vec<String>,
}

/// What every node is started with. It holds secrets: they go through a pipe, and never onto a command line.
#[derive(Clone, Serialize)]
struct NodePlan {
    run: String,
    arguments: Vec<String>,
    variables: BTreeMap<String, String>,
}

impl fmt::Debug for NodePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePlan")
            .field("run", &self.run)
            .field("arguments", &self.arguments)
            .finish_non_exhaustive()
    }
}

/// What the supervision is asked.
enum Order {
    Start(Box<NodePlan>, NodesLog),
    Stop,
}

/// The nodes of one run on a Ray cluster.
#[derive(Debug)]
pub struct RayNodes {
    options: RayOptions,
    /// Where machines of the cluster reach this one; known once it is connected.
    own_address: OnceLock<IpAddr>,
    orders: OnceLock<mpsc::Sender<Order>>,
    supervision: Mutex<JoinSet<()>>,
}

impl RayNodes {
    pub fn new(options: RayOptions) -> Self {
        Self {
            options,
            own_address: OnceLock::new(),
            orders: OnceLock::new(),
            supervision: Mutex::default(),
        }
    }

    /// Connects to the cluster, so that a wrong address is noticed before anything of the run is written.
    pub async fn connect(
        self: &Arc<Self>,
        parts: &RunningParts,
        notices: &Arc<dyn Notices>,
    ) -> Result<(), RunError> {
        for name in &self.options.pass_env {
            if std::env::var_os(name).is_none() {
                return Err(RunError::usage(
                    RunErrorKind::Usage,
                    format!("`--ray-env {name}`: the variable is not set"),
                ));
            }
        }
        notices.step("Looking for a Python with Ray");
        let python = interpreter::find(self.options.python.as_deref()).await?;
        notices.step(match &self.options.address {
            RayAddress::Here => "Connecting to the Ray cluster of this machine".to_owned(),
            RayAddress::Head(url) => format!("Connecting to the Ray cluster at {url}"),
        });
        let (orders, ordered) = mpsc::channel(4);
        let (told, connected) = oneshot::channel();
        let supervision = Supervision {
            address: self.options.address.to_string(),
            python,
            notices: Arc::clone(notices),
        };
        self.supervision
            .lock()
            .spawn(supervision.keep(ordered, told));
        parts.share(Stage::Execution, Arc::<Self>::clone(self));
        let connected = tokio::time::timeout(CONNECT_LIMIT, connected).await;
        let connected = connected.map_err(|_| {
            unusable(format!(
                "the Ray cluster at `{}` did not answer within {} s",
                self.options.address,
                CONNECT_LIMIT.as_secs()
            ))
        })?;
        let cluster = connected.map_err(|_| unusable("Ray's supervisor ended".to_owned()))??;
        let _ = self.own_address.set(cluster.address);
        let _ = self.orders.set(orders);
        notices.note(format_args!(
            "Ray {} with {} machines for nodes",
            cluster.ray, cluster.nodes
        ));
        Ok(())
    }

    /// Where machines of the cluster reach this one, on a port that is free.
    pub fn listen_address(&self) -> Option<SocketAddr> {
        self.own_address
            .get()
            .map(|address| SocketAddr::new(*address, 0))
    }

    /// Has nodes started, now that the run can be joined. Their output goes into the run's folder.
    pub async fn start(
        &self,
        run: &RunKey,
        store: &str,
        token: Option<&str>,
        throughput: &Throughput,
        folder: &Utf8Path,
    ) -> Result<(), RunError> {
        let mut variables = BTreeMap::from([(STORE_VARIABLE.to_owned(), store.to_owned())]);
        let mut names: Vec<&str> = self.options.pass_env.iter().map(String::as_str).collect();
        match token {
            Some(token) => {
                variables.insert(JOIN_VARIABLE.to_owned(), token.to_owned());
            }
            None => names.push(PASSWORD_VARIABLE),
        }
        for name in names {
            if let Ok(value) = std::env::var(name) {
                variables.insert(name.to_owned(), value);
            }
        }
        let plan = NodePlan {
            run: format!("{}/{}", kind_word(run.kind), run.name),
            arguments: arguments(throughput),
            variables,
        };
        let order = Order::Start(Box::new(plan), NodesLog::open(folder)?);
        let sent = match self.orders.get() {
            Some(orders) => orders.send(order).await.is_ok(),
            None => false,
        };
        if sent {
            Ok(())
        } else {
            Err(unusable("Ray's supervisor has ended".to_owned()))
        }
    }
}

#[async_trait]
impl Part for RayNodes {
    /// Nodes drain and leave, then the supervisor does. When it takes too long, it is ended: what it leaves behind ends with
    /// the run, which nodes look at.
    async fn shut_down(&self) {
        if let Some(orders) = self.orders.get() {
            let _ = orders.send(Order::Stop).await;
        }
        let mut supervision = std::mem::take(&mut *self.supervision.lock());
        if self.orders.get().is_none() {
            supervision.abort_all();
        }
        while supervision.join_next().await.is_some() {}
    }
}

/// What a node is to do as this process would. Paths are those of this machine, and stay here.
fn arguments(throughput: &Throughput) -> Vec<String> {
    let Throughput {
        max_in_flight,
        workers,
        worker_memory,
        worker_processes,
        python: _,
    } = throughput;
    let given = [
        ("--max-in-flight", max_in_flight.map(u64::from)),
        ("--workers", workers.map(u64::from)),
        ("--worker-memory", *worker_memory),
        ("--worker-processes", *worker_processes),
    ];
    given
        .into_iter()
        .filter_map(|(name, value)| Some([name.to_owned(), value?.to_string()]))
        .flatten()
        .collect()
}

fn unusable(message: String) -> RunError {
    RunError::failed(RunErrorKind::ClusterUnusable, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_this_machines_or_that_of_a_head() {
        for (text, address) in [
            ("ray", Some("auto")),
            ("ray://auto", Some("auto")),
            ("ray://head", Some("ray://head")),
            ("ray://10.0.0.1:10002", Some("ray://10.0.0.1:10002")),
            ("ray:/head", None),
            ("ray://head/x", None),
            ("slurm", None),
            ("", None),
        ] {
            let parsed = text.parse::<RayAddress>().ok();
            assert_eq!(parsed.map(|a| a.to_string()).as_deref(), address, "{text}");
        }
    }

    #[test]
    fn nodes_get_limits_and_no_paths() {
        let throughput = Throughput {
            max_in_flight: Some(8),
            workers: Some(2),
            python: Some("/opt/python".into()),
            ..Throughput::default()
        };
        assert_eq!(
            arguments(&throughput),
            ["--max-in-flight", "8", "--workers", "2"]
        );
    }

    #[test]
    fn a_plan_shows_no_secret() {
        let plan = NodePlan {
            run: "eval/m".to_owned(),
            arguments: vec![],
            variables: BTreeMap::from([(JOIN_VARIABLE.to_owned(), "osn1_secret".to_owned())]),
        };
        assert!(!format!("{plan:?}").contains("secret"));
    }
}
