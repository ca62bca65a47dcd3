//! The queue and the nodes of a run in numbers, for Prometheus.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use osmosis_gateway::{Gateway, MoreMetrics, Secret};
use osmosis_store::{Member, MemberKind, QueueCounts, Store};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::notices::Notices;
use crate::{RunError, RunErrorKind};

/// Counting a million rollouts takes the database a while.
const COUNT_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct Numbers {
    queue: QueueCounts,
    members: Vec<Member>,
}

/// Where Prometheus finds the numbers, and with what.
#[derive(Debug, Clone)]
pub struct MetricsOptions {
    pub listen: SocketAddr,
    /// Without one, a new one is made and shown.
    pub key: Option<Secret>,
}

/// Keeps the numbers fresh while somebody may read them.
#[derive(Debug)]
pub struct QueueMetrics {
    /// Ends with this.
    _task: JoinSet<()>,
}

impl QueueMetrics {
    /// Shows the gateway's numbers, those of the queue and those of the nodes at an address, if there is one.
    pub async fn serve(
        gateway: &Gateway,
        options: Option<&MetricsOptions>,
        store: &Arc<dyn Store>,
        notices: &dyn Notices,
    ) -> Result<Option<Self>, RunError> {
        let Some(MetricsOptions { listen, key }) = options else {
            return Ok(None);
        };
        let numbers = Arc::new(Mutex::new(Numbers::default()));
        let read = Arc::clone(&numbers);
        gateway.add_metrics(MoreMetrics::new(move || page(&read.lock())));
        let (address, made) = gateway
            .serve_metrics(*listen, key.clone())
            .await
            .map_err(|error| RunError::failed(RunErrorKind::Gateway, error.to_string()))?;
        let made = match key {
            Some(_) => String::new(),
            None => format!(", with the key {}", made.expose()),
        };
        notices.note(format_args!("Metrics at http://{address}/metrics{made}"));
        let mut task = JoinSet::new();
        task.spawn(count(Arc::clone(store), numbers));
        Ok(Some(Self { _task: task }))
    }
}

async fn count(store: Arc<dyn Store>, numbers: Arc<Mutex<Numbers>>) {
    loop {
        if let Ok(queue) = store.counts().await {
            numbers.lock().queue = queue;
        }
        if let Some(shared) = store.shared()
            && let Ok(members) = shared.members().await
        {
            numbers.lock().members = members;
        }
        tokio::time::sleep(COUNT_EVERY).await;
    }
}

fn page(numbers: &Numbers) -> String {
    let mut page = String::new();
    let mut family = |name: &str, help: &str, lines: Vec<(String, f64)>| {
        // Writing into a `String` cannot fail.
        let _ = writeln!(
            page,
            "# HELP osmosis_{name} {help}.\n# TYPE osmosis_{name} gauge"
        );
        for (labels, value) in lines {
            let _ = writeln!(page, "osmosis_{name}{labels} {value}");
        }
    };
    let QueueCounts {
        queued,
        leased,
        done,
    } = numbers.queue;
    let states = [("queued", queued), ("leased", leased), ("done", done)];
    family(
        "queue_rollouts",
        "Rollouts of the run by state",
        states
            .map(|(state, count)| (format!("{{state=\"{state}\"}}"), count as f64))
            .into(),
    );
    let nodes = || {
        let members = numbers.members.iter();
        members.filter(|member| member.kind == MemberKind::Node)
    };
    let counted = |wanted: fn(&&Member) -> bool| nodes().filter(wanted).count() as f64;
    family(
        "nodes",
        "Nodes that work on the run by state; a silent one has not been heard of for half a lease",
        vec![
            (
                "{state=\"working\"}".to_owned(),
                counted(|node| node.alive && !node.draining),
            ),
            (
                "{state=\"draining\"}".to_owned(),
                counted(|node| node.alive && node.draining),
            ),
            ("{state=\"silent\"}".to_owned(), counted(|node| !node.alive)),
        ],
    );
    let each = |value: fn(&Member) -> f64| -> Vec<(String, f64)> {
        nodes().map(|node| (labels_of(node), value(node))).collect()
    };
    family(
        "node_seen_seconds",
        "Seconds since a node was heard of",
        each(|node| node.seen_ago.as_secs_f64()),
    );
    family(
        "node_leases",
        "Rollouts that a node holds",
        each(|node| node.leases as f64),
    );
    family(
        "node_finished",
        "Rollouts that a node has finished",
        each(|node| node.done as f64),
    );
    page
}

fn labels_of(node: &Member) -> String {
    let (host, pid) = match &node.holder {
        Some(holder) => (holder.host.as_str(), holder.pid),
        None => ("unknown", 0),
    };
    let host = host.replace(['\\', '"', '\n'], "_");
    format!("{{node=\"{}\",host=\"{host}\",pid=\"{pid}\"}}", node.id)
}

#[cfg(test)]
mod tests {
    use osmosis_store::Holder;

    use super::*;

    fn node(id: i64, alive: bool, draining: bool) -> Member {
        Member {
            id,
            kind: MemberKind::Node,
            is_self: false,
            holder: Some(Holder {
                pid: 7,
                host: "h\"1".to_owned(),
                since_ms: 0,
                command: String::new(),
            }),
            seen_ago: Duration::from_millis(1500),
            alive,
            leases: 3,
            done: 40,
            draining,
        }
    }

    #[test]
    fn the_page_has_the_queue_and_the_nodes() {
        let controller = Member {
            kind: MemberKind::Controller,
            ..node(1, true, false)
        };
        let numbers = Numbers {
            queue: QueueCounts {
                queued: 5,
                leased: 3,
                done: 2,
            },
            members: vec![controller, node(2, true, false), node(3, false, true)],
        };
        insta::assert_snapshot!(page(&numbers));
    }
}
