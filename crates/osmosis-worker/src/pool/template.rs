//! The process that has imported the entrypoint once, and forks workers from there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use osmosis_core::execution::ExitStatus;
use osmosis_core::frame::{FromWorker, ToWorker};
use parking_lot::Mutex;
use rustix::process::Pid;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::connected_process::ConnectedProcess;
use super::connection::frame_bytes;
use super::lifeline::Lifeline;
use super::listener::Expectation;
use super::process::ProcessHandle;
use crate::exit::{Departure, Exit, ExitNews};
use crate::launcher::GuardHandle;
use crate::process_group::checked_pid;

/// What a process says in its hello when it can serve as a template.
pub(super) const FORK_FEATURE: &str = "fork";

#[derive(Debug)]
pub(super) struct Template {
    process: ProcessHandle,
    pid: u32,
    outgoing: mpsc::Sender<Bytes>,
    forks: Mutex<Forks>,
    ended: CancellationToken,
    end_counted: AtomicBool,
    kill_switch: CancellationToken,
    _expectation: Expectation,
}

type ForkReply = Result<(Pid, Exit), String>;

#[derive(Debug, Default)]
struct Forks {
    /// Asked for, by token.
    awaited: HashMap<String, oneshot::Sender<ForkReply>>,
    /// Alive, by pid: whom to tell when they end.
    children: HashMap<u32, watch::Sender<Option<ExitNews>>>,
}

impl Template {
    /// Makes a loaded connected the template, attended by a task of the pool.
    pub(super) fn install(inner: &Inner, connected: ConnectedProcess) -> Arc<Self> {
        let ConnectedProcess {
            process,
            pid,
            lifeline,
            outgoing,
            expectation,
            ..
        } = connected;
        let template = Arc::new(Self {
            process,
            pid,
            outgoing,
            forks: Mutex::default(),
            ended: CancellationToken::new(),
            end_counted: AtomicBool::new(false),
            kill_switch: CancellationToken::new(),
            _expectation: expectation,
        });
        inner.tasks.spawn({
            let template = Arc::clone(&template);
            async move { template.attend(lifeline).await }
        });
        template
    }

    /// The parent of all that it forks.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// The guard above it and above all that it forks.
    pub(super) fn guard(&self) -> Option<Arc<GuardHandle>> {
        self.process.guard().map(Arc::clone)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Whether its end is counted now; it is one death, however often a next template fails to start.
    pub(super) fn count_end(&self) -> bool {
        !self.end_counted.swap(true, Ordering::Relaxed)
    }

    /// A new process, which dials in with `token`.
    pub(super) async fn fork(&self, token: String) -> ForkReply {
        let (reply, forked) = oneshot::channel();
        self.forks.lock().awaited.insert(token.clone(), reply);
        let frame = frame_bytes(&ToWorker::Fork { token }).map_err(|error| error.to_string())?;
        let gone = "the template process ended";
        tokio::select! {
            biased;
            () = self.ended.cancelled() => Err(gone.to_owned()),
            forked = async {
                drop(self.outgoing.send(frame).await);
                forked.await
            } => forked.unwrap_or_else(|_| Err(gone.to_owned())),
        }
    }

    /// Asks it to leave, and ends it when it has not after `grace`.
    pub(super) async fn retire(&self, grace: Duration) {
        let leaving = async {
            if let Ok(frame) = frame_bytes(&ToWorker::Shutdown {}) {
                drop(self.outgoing.send(frame).await);
            }
            self.ended.cancelled().await;
        };
        if tokio::time::timeout(grace, leaving).await.is_err() {
            self.kill_switch.cancel();
            self.ended.cancelled().await;
        }
    }

    async fn attend(&self, mut lifeline: Lifeline) {
        let departure = loop {
            let said = tokio::select! {
                said = lifeline.next() => said,
                () = self.kill_switch.cancelled() => break Departure::Killed { reason: None },
            };
            match said {
                Ok(frame) => {
                    if let Err(what) = self.hear(frame) {
                        break Departure::BrokeProtocol(what);
                    }
                }
                Err(ending) => break ending.departure(),
            }
        };
        tracing::debug!(
            pid = self.process.pid(),
            %departure,
            "the template process ended"
        );
        self.process.finish();
        // First, so that nobody takes a fork that is not answered for one that failed.
        self.ended.cancel();
        let forks = std::mem::take(&mut *self.forks.lock());
        for news in forks.children.into_values() {
            news.send_replace(Some(ExitNews::ParentEnded(departure.clone())));
        }
    }

    fn hear(&self, frame: FromWorker) -> Result<(), String> {
        match frame {
            FromWorker::Forked { token, pid } => {
                let Some(checked) = checked_pid(pid) else {
                    return Err(format!("said that it forked process {pid}"));
                };
                let (exit_news, exit) = Exit::channel();
                let awaited = {
                    let mut forks = self.forks.lock();
                    forks.children.insert(pid, exit_news);
                    forks.awaited.remove(&token)
                };
                // Nobody waits for it any more when this fails; its token is void, so it leaves.
                if let Some(awaited) = awaited {
                    drop(awaited.send(Ok((checked, exit))));
                }
                Ok(())
            }
            FromWorker::ForkFailed { token, message } => {
                if let Some(awaited) = self.forks.lock().awaited.remove(&token) {
                    drop(awaited.send(Err(format!("could not be forked: {message}"))));
                }
                Ok(())
            }
            FromWorker::ChildExited { pid, code, signal } => {
                // A pid that is unknown here belongs to something that user code started.
                if let Some(exit_news) = self.forks.lock().children.remove(&pid) {
                    exit_news.send_replace(Some(ExitNews::Ended(Departure::Exited(
                        ExitStatus::of(code, signal),
                    ))));
                }
                Ok(())
            }
            FromWorker::LoopBlocked { .. } | FromWorker::LoopUnblocked {} => Ok(()),
            FromWorker::Hello(_) => Err("said `hello` twice".to_owned()),
            FromWorker::Loaded { .. }
            | FromWorker::LoadFailed { .. }
            | FromWorker::Started { .. }
            | FromWorker::RunDone { .. }
            | FromWorker::GradeDone { .. }
            | FromWorker::Rejected { .. }
            | FromWorker::TaskFailed { .. }
            | FromWorker::TaskCancelled { .. } => {
                Err("said something that nobody asked for".to_owned())
            }
        }
    }
}
