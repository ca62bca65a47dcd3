//! What every request needs: a rollout is admitted, asked after, cancelled.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use osmosis_core::{JsonText, Outcome, Phase, Reward, RolloutId};
use osmosis_engine::{Cancellation, Engine, EngineError};
use osmosis_gateway::RelayPolicy;
use osmosis_store::{NewRollout, NewRow, RequestNote, RolloutRecord, Store, StoreError};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::ServerOptions;
use crate::callback::CallbackSender;
use crate::guard::Guard;
use crate::refusal::Refusal;
use crate::registry::{Progress, Reservation, RolloutRegistry};
use crate::report::{self, Status};
use crate::request::{Callbacks, RolloutRequest};
use crate::rollout_callbacks::RolloutCallbacks;
use crate::sealed::{Access, StateKey};

/// What every request and every task needs.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) registry: RolloutRegistry,
    pub(crate) engine: Engine,
    pub(crate) relay: Arc<RelayPolicy>,
    pub(crate) options: ServerOptions,
    pub(crate) guard: Guard,
    /// Seals what requests need after a restart.
    pub(crate) state_key: StateKey,
    /// Accepted at an earlier time, and their keys can't be opened: they wait for the same request again.
    pub(crate) without_keys: Mutex<BTreeSet<RolloutId>>,
    /// Names this process; a controller sees that a server was started anew.
    pub(crate) process_id: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) sender: Arc<CallbackSender>,
    pub(crate) wake: Arc<Notify>,
    pub(crate) admissions: TaskTracker,
    pub(crate) heralds: TaskTracker,
    pub(crate) connections: TaskTracker,
    /// Ends every task.
    pub(crate) over: CancellationToken,
}

/// Where a rollout stands, for whoever asks.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) status: Status,
    pub(crate) reward: Option<f64>,
    pub(crate) err_message: Option<String>,
}

impl Standing {
    pub(crate) const UNKNOWN: Self = Self::plain(Status::Unknown);

    const fn plain(status: Status) -> Self {
        Self {
            status,
            reward: None,
            err_message: None,
        }
    }
}

/// What became of a new rollout.
#[derive(Debug)]
pub(crate) enum Written {
    New,
    /// The store had it from before, it stands here, and now it goes on.
    GoesOn(Status),
    /// The store had it from before, and that is where it stands.
    Known(Status),
}

/// What is on the disk about a request's callbacks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallbackProgress {
    pub(crate) agent_done: bool,
    pub(crate) completion_delivered: bool,
}

impl Shared {
    /// Takes a rollout in; returns when it is durable, with where it stands.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        request: RolloutRequest,
    ) -> Result<Status, Refusal> {
        loop {
            match self.registry.reserve(&request.id, &request.digest)? {
                Reservation::Repeated(mut progress) => {
                    if written_down(&mut progress).await {
                        let standing = self.standing(&request.id).await?;
                        return Ok(standing.map_or(Status::Queued, |standing| standing.status));
                    }
                }
                Reservation::New {
                    row_index,
                    progress,
                } => {
                    // A task of its own, so that a client that hangs up leaves nothing half done.
                    let shared = Arc::clone(self);
                    let writing = self.admissions.spawn(async move {
                        let id = request.id.clone();
                        let written = shared.write_down(request, row_index, &progress).await;
                        match written {
                            Ok(Written::New) => Ok(Status::Queued),
                            Ok(Written::GoesOn(status)) => Ok(status),
                            Ok(Written::Known(status)) => {
                                shared.registry.refused(&id);
                                Ok(status)
                            }
                            Err(refusal) => {
                                shared.registry.refused(&id);
                                Err(refusal)
                            }
                        }
                    });
                    return writing
                        .await
                        .unwrap_or_else(|error| Err(Refusal::Failed(error.to_string())));
                }
            }
        }
    }

    /// Makes a rollout durable and wakes the engine.
    async fn write_down(
        self: &Arc<Self>,
        request: RolloutRequest,
        row_index: u64,
        progress: &watch::Sender<Progress>,
    ) -> Result<Written, Refusal> {
        let id = request.id.clone();
        if let Some(record) = self.store.rollout(&id).await? {
            return self.known(&request, record, progress).await;
        }
        let access = Access::of(&request);
        let sealed = self.seal(&id, &access)?;
        self.relay
            .assign(id.clone(), &access.chat_completions_url, access.llm_key)
            .map_err(|error| Refusal::Failed(error.to_string()))?;
        if let Err(error) = self.enqueue(&id, row_index, request.row, sealed).await {
            self.relay.forget(&id);
            return Err(error.into());
        }
        self.registry.accepted(&id);
        self.send_herald(
            id,
            row_index,
            access.callbacks,
            progress.subscribe(),
            CallbackProgress::default(),
        );
        self.wake.notify_one();
        Ok(Written::New)
    }

    pub(crate) fn seal(&self, id: &RolloutId, access: &Access) -> Result<Bytes, Refusal> {
        access
            .seal(&self.state_key, id)
            .ok_or_else(|| Refusal::Failed("the request could not be encrypted".to_owned()))
    }

    /// Follows a rollout and calls back.
    pub(crate) fn send_herald(
        self: &Arc<Self>,
        id: RolloutId,
        row_index: u64,
        callbacks: Callbacks,
        progress: watch::Receiver<Progress>,
        told: CallbackProgress,
    ) {
        let rollout_callbacks = RolloutCallbacks {
            id: id.clone(),
            row_index,
            callbacks,
            progress,
            store: Arc::clone(&self.store),
            sender: Arc::clone(&self.sender),
            agent_done: told.agent_done,
            completion_delivered: told.completion_delivered,
        };
        let shared = Arc::clone(self);
        self.heralds.spawn(async move {
            if shared
                .over
                .run_until_cancelled(rollout_callbacks.run())
                .await
                .is_some()
            {
                shared.registry.forget(&id);
            }
        });
    }

    async fn enqueue(
        &self,
        id: &RolloutId,
        row_index: u64,
        body: JsonText,
        sealed: Bytes,
    ) -> Result<(), StoreError> {
        let row = NewRow {
            row_index,
            line: row_index + 1,
            body,
        };
        let rollout = NewRollout {
            id: id.clone(),
            row_index,
            run_index: 0,
        };
        self.store.enqueue_request(row, rollout, sealed).await
    }

    /// `None` for a rollout that was never accepted.
    pub(crate) async fn standing(&self, id: &RolloutId) -> Result<Option<Standing>, Refusal> {
        match self.store.rollout(id).await? {
            Some(record) => Ok(Some(self.standing_of(id, &record).await?)),
            None => Ok(None),
        }
    }

    pub(crate) async fn standing_of(
        &self,
        id: &RolloutId,
        record: &RolloutRecord,
    ) -> Result<Standing, Refusal> {
        let Some(outcome) = &record.outcome else {
            let status = match self.engine.phase(id) {
                None => Status::Queued,
                Some(Phase::Agent) => Status::Running,
                Some(Phase::Grade) => Status::Grading,
            };
            return Ok(Standing::plain(status));
        };
        let has_samples = match outcome {
            Outcome::Rejected { .. } => !self.store.samples(id).await?.is_empty(),
            _ => false,
        };
        let end = report::rollout_end(outcome, has_samples);
        Ok(Standing {
            status: end.status,
            reward: outcome.reward().map(Reward::get),
            err_message: end.err_message,
        })
    }

    pub(crate) async fn cancel(&self, id: &RolloutId) -> Result<Cancellation, Refusal> {
        for (_, mut progress) in self.registry.open_ones(|open| open == id) {
            written_down(&mut progress).await;
        }
        let cancelled = self.cancel_for_good(id).await?;
        self.wake.notify_one();
        Ok(cancelled)
    }

    /// Cancels the rollouts without a result whose id the test accepts.
    pub(crate) async fn cancel_open(
        &self,
        wanted: impl Fn(&RolloutId) -> bool,
    ) -> Result<Vec<(RolloutId, Cancellation)>, Refusal> {
        let mut cancelled = vec![];
        let waiting: Vec<RolloutId> = {
            let waiting = self.without_keys.lock();
            waiting.iter().filter(|id| wanted(id)).cloned().collect()
        };
        for id in waiting {
            let cancellation = self.cancel_for_good(&id).await?;
            cancelled.push((id, cancellation));
        }
        for (id, mut progress) in self.registry.open_ones(wanted) {
            written_down(&mut progress).await;
            let cancellation = self.cancel_for_good(&id).await?;
            cancelled.push((id, cancellation));
        }
        self.wake.notify_one();
        cancelled.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(cancelled)
    }

    /// It is written down before it is said: a restart must not run what somebody was told is cancelled.
    async fn cancel_for_good(&self, id: &RolloutId) -> Result<Cancellation, Refusal> {
        match self.store.rollout(id).await? {
            Some(record) if record.outcome.is_none() => {}
            Some(_) | None => return Ok(Cancellation::NotFound),
        }
        let asked = RequestNote::CancelAsked;
        self.store.note_request(id, asked).await?;
        if self.without_keys.lock().remove(id) {
            self.store.let_go(id).await?;
        }
        Ok(self.engine.cancel(id).await?)
    }

    /// How many rollouts wait for their request to come again.
    pub(crate) fn waiting_for_keys(&self) -> usize {
        self.without_keys.lock().len()
    }
}

/// Waits until it is known whether a rollout is let in.
async fn written_down(progress: &mut watch::Receiver<Progress>) -> bool {
    let known = progress.wait_for(|progress| *progress != Progress::Admitting);
    // The sender goes only when the rollout is forgotten, and that one was let in.
    known
        .await
        .map_or(true, |progress| *progress != Progress::Refused)
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        tracing::warn!(%error, "a request could not be answered");
        Self::Failed(format!("the server's store does not answer: {error}"))
    }
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Self {
        tracing::warn!(%error, "a request could not be answered");
        Self::Failed(error.to_string())
    }
}
