//! The process that speaks with Ray: started, started again, told what to do, listened to.

use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_worker::variables;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::event::{Cluster, Event, OfNode};
use super::log::NodesLog;
use super::{NodePlan, Order, unusable};
use crate::RunError;
use crate::notices::Notices;

/// Nodes that the run asked to stop drain within this; then they are asked to leave at once.
const DRAIN_LIMIT: Duration = Duration::from_secs(20);
/// More than the supervisor gives nodes that are asked to leave at once.
const LEAVE_LIMIT: Duration = Duration::from_secs(25);
/// Between two starts of a supervisor that ended; doubles up to the last.
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// Nodes that join within this are told of together.
const TOGETHER: Duration = Duration::from_millis(500);
/// Of what it prints on standard error: the last lines are kept for an error.
const KEPT_LINES: usize = 5;

/// Keeps a supervisor running.
#[derive(Debug)]
pub(super) struct Supervision {
    pub(super) address: String,
    pub(super) python: Utf8PathBuf,
    pub(super) notices: Arc<dyn Notices>,
}

impl Supervision {
    /// Until it is asked to stop. `told` gets to know whether the first start worked; without that, there is no other.
    pub(super) async fn keep(
        self,
        mut orders: mpsc::Receiver<Order>,
        told: oneshot::Sender<Result<Cluster, RunError>>,
    ) {
        let mut process = match self.connect().await {
            Ok((process, cluster)) => {
                if told.send(Ok(cluster)).is_err() {
                    return;
                }
                process
            }
            Err(error) => {
                // Nobody waits any more when the run was asked to stop.
                let _ = told.send(Err(error));
                return;
            }
        };
        let mut nodes = Nodes::default();
        let mut plan: Option<Box<NodePlan>> = None;
        let mut wait = FIRST_WAIT;
        loop {
            let ended = tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::Start(wanted, log)) => {
                        nodes.log = Some(log);
                        process.order(&json!({"start": &wanted})).await;
                        plan = Some(wanted);
                        false
                    }
                    Some(Order::Stop) | None => return process.stop(&mut nodes, &*self.notices).await,
                },
                () = nodes.joined_together() => {
                    nodes.tell_joined(&*self.notices);
                    false
                }
                event = process.event() => match event {
                    Some(event) => {
                        nodes.take(event, &*self.notices);
                        false
                    }
                    None => true,
                },
            };
            if !ended {
                continue;
            }
            // Nodes that run go on without it.
            self.notices.warn(format_args!(
                "The supervisor of the Ray cluster ended: {}. Starting it again in {} s; nodes that run go on",
                process.last_words(),
                wait.as_secs()
            ));
            loop {
                tokio::select! {
                    () = sleep(wait) => {}
                    order = orders.recv() => match order {
                        Some(Order::Start(wanted, log)) => {
                            nodes.log = Some(log);
                            plan = Some(wanted);
                        }
                        Some(Order::Stop) | None => return,
                    },
                }
                wait = (wait * 2).min(LONGEST_WAIT);
                match self.connect().await {
                    Ok((again, _)) => {
                        process = again;
                        break;
                    }
                    Err(error) => self.notices.warn(format_args!("Ray: {error}")),
                }
            }
            wait = FIRST_WAIT;
            if let Some(plan) = &plan {
                process.order(&json!({"start": plan})).await;
            }
        }
    }

    async fn connect(&self) -> Result<(Process, Cluster), RunError> {
        let mut process = Process::start(self)?;
        match process.event().await {
            Some(Event::Connected(cluster)) => Ok((process, cluster)),
            Some(Event::Unusable { message, hint }) => Err(unusable(message).hint(hint)),
            Some(other) => Err(unusable(format!(
                "the supervisor of the Ray cluster began with {other:?}"
            ))),
            None => Err(unusable(format!(
                "the supervisor of the Ray cluster ended: {}",
                process.last_words()
            ))),
        }
    }
}

struct Process {
    /// Killed when this is dropped.
    child: Child,
    stdin: Option<ChildStdin>,
    events: Lines<BufReader<ChildStdout>>,
    errors: Lines<BufReader<ChildStderr>>,
    errors_open: bool,
    last_errors: VecDeque<String>,
}

impl Process {
    fn start(supervision: &Supervision) -> Result<Self, RunError> {
        let python = &supervision.python;
        let failed = |error: String| unusable(format!("`{python} -m osmosis_ai.ray`: {error}"));
        let package =
            osmosis_worker::environment::sdk_path().map_err(|error| failed(error.to_string()))?;
        let mut command = Command::new(python);
        let mut child = command
            // It gets none of our keys, except through its input.
            .env_clear()
            .envs(variables::for_programs(&["RAY_"]))
            .args(["-m", "osmosis_ai.ray", "--control", "--address"])
            .arg(&supervision.address)
            // The package of this very program, whatever is installed.
            .env("PYTHONPATH", package)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for the run, which asks nodes to drain.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed("it has no input or output".to_owned()));
        };
        Ok(Self {
            child,
            stdin: Some(stdin),
            events: BufReader::new(stdout).lines(),
            errors: BufReader::new(stderr).lines(),
            errors_open: true,
            last_errors: VecDeque::new(),
        })
    }

    /// The next thing that it reports; `None` when it has ended. Nothing is lost when this is given up.
    async fn event(&mut self) -> Option<Event> {
        loop {
            tokio::select! {
                line = self.events.next_line() => {
                    let line = line.ok().flatten()?;
                    match serde_json::from_str(&line) {
                        Ok(event) => return Some(event),
                        Err(error) => tracing::debug!(%error, line, "no event of the Ray supervisor"),
                    }
                }
                line = self.errors.next_line(), if self.errors_open => match line {
                    Ok(Some(line)) => {
                        tracing::debug!(target: "osmosis_run::ray", "{line}");
                        if self.last_errors.len() == KEPT_LINES {
                            self.last_errors.pop_front();
                        }
                        self.last_errors.push_back(line);
                    }
                    Ok(None) | Err(_) => self.errors_open = false,
                },
            }
        }
    }

    async fn order(&mut self, order: &Value) {
        if let Some(stdin) = &mut self.stdin {
            // One that has ended is noticed by its output.
            let _ = stdin.write_all(format!("{order}\n").as_bytes()).await;
            let _ = stdin.flush().await;
        }
    }

    /// Has it end all nodes, at first by draining.
    async fn stop(mut self, nodes: &mut Nodes, notices: &dyn Notices) {
        nodes.stopping = true;
        for (how, limit) in [("drain", DRAIN_LIMIT), ("now", LEAVE_LIMIT)] {
            self.order(&json!({ "stop": how })).await;
            let until = Instant::now() + limit;
            while let Ok(event) = timeout_at(until, self.event()).await {
                match event {
                    Some(Event::Ended) | None => {
                        // It takes its leave of Ray.
                        let _ = timeout(Duration::from_secs(5), self.child.wait()).await;
                        return;
                    }
                    Some(event) => nodes.take(event, notices),
                }
            }
        }
        notices.warn("Some nodes on the Ray cluster did not leave in time; they end when they see that the run is over");
        // Its end of input would leave the nodes alone, which is what is left to do.
        self.stdin = None;
        let _ = timeout(Duration::from_secs(5), self.child.wait()).await;
    }

    fn last_words(&self) -> String {
        match self.last_errors.back() {
            Some(line) => line.trim().to_owned(),
            None => "it printed nothing".to_owned(),
        }
    }
}

/// What is known of the nodes, for people.
#[derive(Debug, Default)]
struct Nodes {
    running: BTreeSet<String>,
    new: Vec<String>,
    tell_at: Option<Instant>,
    log: Option<NodesLog>,
    /// Nodes that leave now do so because the run is over.
    stopping: bool,
}

impl Nodes {
    fn take(&mut self, event: Event, notices: &dyn Notices) {
        let warn = |what: &str, node: &OfNode| {
            notices.warn(format_args!(
                "Ray node {} {what}: {}",
                node.name(),
                node.why
            ));
        };
        match event {
            Event::Joined(node) => {
                self.running.insert(node.node.clone());
                self.new.push(node.name());
                self.tell_at.get_or_insert(Instant::now() + TOGETHER);
            }
            Event::Left(node) => {
                self.running.remove(&node.node);
                if !self.stopping {
                    let (name, why, left) = (node.name(), &node.why, self.running.len());
                    notices.note(format_args!("Ray node {name} left: {why}; {left} remain"));
                }
            }
            Event::Restarted(node) => warn("was started again", &node),
            Event::Failed(node) => warn("failed", &node),
            Event::Silent(node) => warn("does not answer", &node),
            Event::Log(node) => {
                if let Some(log) = &mut self.log {
                    log.add(&node);
                }
            }
            Event::Unusable { message, hint } => {
                notices.warn(format_args!("Ray: {message} (hint: {hint})"));
            }
            Event::Connected(_) | Event::Ended | Event::Unknown => {}
        }
    }

    async fn joined_together(&self) {
        match self.tell_at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    fn tell_joined(&mut self, notices: &dyn Notices) {
        self.tell_at = None;
        let new = std::mem::take(&mut self.new);
        let names = match new.len() {
            0..=4 => new.join(", "),
            more => format!("{} and {} more", new[..3].join(", "), more - 3),
        };
        let running = self.running.len();
        notices.note(format_args!("Ray: {names} joined; {running} nodes run"));
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::notices::Notice;

    #[derive(Debug, Default)]
    struct Told(Mutex<Vec<String>>);

    impl Notices for Told {
        fn notice(&self, notice: Notice) {
            if let Notice::Note(text) | Notice::Warning(text) = notice {
                self.0.lock().push(text);
            }
        }
    }

    fn node(number: usize) -> OfNode {
        OfNode {
            node: format!("n{number}"),
            address: format!("10.0.0.{number}"),
            why: "gone".to_owned(),
            line: String::new(),
        }
    }

    #[test]
    fn nodes_that_join_together_are_told_of_together() {
        let told = Told::default();
        let mut nodes = Nodes::default();
        for number in 1..=6 {
            nodes.take(Event::Joined(node(number)), &told);
        }
        assert!(nodes.tell_at.is_some());
        nodes.tell_joined(&told);
        nodes.take(Event::Left(node(2)), &told);
        nodes.stopping = true;
        nodes.take(Event::Left(node(3)), &told);
        assert_eq!(
            *told.0.lock(),
            [
                "Ray: 10.0.0.1 (n1), 10.0.0.2 (n2), 10.0.0.3 (n3) and 3 more joined; 6 nodes run",
                "Ray node 10.0.0.2 (n2) left: gone; 5 remain",
            ]
        );
    }
}
