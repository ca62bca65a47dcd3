//! Follows one rollout to its end and calls whoever wants to know: first that the workflow is done, then
//! the grade.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use osmosis_core::{Outcome, RolloutId};
use osmosis_store::{RequestNote, Store};
use tokio::sync::watch;

use crate::callback::{Address, CallbackSender};
use crate::registry::Progress;
use crate::report::{self, PhaseEnd};
use crate::request::Callbacks;

/// How long to wait before a note is tried again that could not be written.
const NOTE_WAIT: Duration = Duration::from_secs(1);

/// Everything that a rollout's callbacks are made of.
#[derive(Debug)]
pub(crate) struct RolloutCallbacks {
    pub(crate) id: RolloutId,
    pub(crate) row_index: u64,
    pub(crate) callbacks: Callbacks,
    pub(crate) progress: watch::Receiver<Progress>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) sender: Arc<CallbackSender>,
    /// It is on the disk that the workflow succeeded.
    pub(crate) agent_done: bool,
    /// It is on the disk that the completion callback was delivered.
    pub(crate) completion_delivered: bool,
}

impl RolloutCallbacks {
    /// Delivers both callbacks, in order, each when its time has come. What was delivered is written down, so
    /// that a restart goes on from there.
    pub(crate) async fn run(mut self) {
        if !self.completion_delivered && !self.deliver_completion().await {
            return;
        }
        let Some(outcome) = self.outcome().await else {
            return;
        };
        let graded = match &self.callbacks.grader {
            Some(url) => {
                let to = self.address("grader", url);
                let delivering = self.sender.deliver(to, || self.grader_body(&outcome));
                delivering.await.is_final()
            }
            None => true,
        };
        if graded && self.completion_delivered {
            self.note(RequestNote::Settled).await;
        }
    }

    /// `false` when nobody will know how the workflow ended.
    async fn deliver_completion(&mut self) -> bool {
        let Some((end, agent_done)) = self.agent_end().await else {
            return false;
        };
        if agent_done && !self.agent_done {
            // Before it is said, because another attempt may end in another way.
            self.note(RequestNote::AgentDone).await;
        }
        let to = self.address("completion", &self.callbacks.completion);
        let delivery = self
            .sender
            .deliver(to, || {
                let body = report::completion_body(&self.id, &end);
                std::future::ready(body.map(Bytes::from).map_err(|error| error.to_string()))
            })
            .await;
        if delivery.is_final() {
            self.note(RequestNote::CompletionDelivered).await;
            self.completion_delivered = true;
        }
        true
    }

    /// Writes down what must not be forgotten, however long the disk takes.
    async fn note(&self, note: RequestNote) {
        while let Err(error) = self.store.note_request(&self.id, note.clone()).await {
            tracing::warn!(rollout = %self.id, %error, "the progress of callbacks can't be recorded");
            tokio::time::sleep(NOTE_WAIT).await;
        }
    }

    /// How the workflow ended, and whether it came to its grader; `None` when nobody will know.
    async fn agent_end(&mut self) -> Option<(PhaseEnd, bool)> {
        let reached = self.progress.wait_for(|progress| match progress {
            Progress::AgentDone | Progress::Finished { .. } => true,
            Progress::Admitting | Progress::Refused | Progress::Accepted => false,
        });
        match &*reached.await.ok()? {
            Progress::Finished {
                outcome,
                agent_done: false,
            } => Some((report::agent_end(outcome), false)),
            Progress::AgentDone | Progress::Finished { .. } => Some((PhaseEnd::success(), true)),
            Progress::Admitting | Progress::Refused | Progress::Accepted => None,
        }
    }

    async fn outcome(&mut self) -> Option<Outcome> {
        let finished = |progress: &Progress| matches!(progress, Progress::Finished { .. });
        match &*self.progress.wait_for(finished).await.ok()? {
            Progress::Finished { outcome, .. } => Some(outcome.clone()),
            Progress::Admitting | Progress::Refused | Progress::Accepted | Progress::AgentDone => {
                None
            }
        }
    }

    async fn grader_body(&self, outcome: &Outcome) -> Result<Bytes, String> {
        let told = |error: osmosis_store::StoreError| error.to_string();
        let samples = self.store.samples(&self.id).await.map_err(told)?;
        let row = self.store.row(self.row_index).await.map_err(told)?;
        let label = row.and_then(|row| report::label_of(&row.body));
        let end = report::grade_end(outcome, !samples.is_empty());
        let body = report::grader_body(&self.id, &end, &samples, label.as_deref());
        body.map(Bytes::from).map_err(|error| error.to_string())
    }

    fn address<'a>(&'a self, kind: &'static str, url: &'a reqwest::Url) -> Address<'a> {
        Address {
            rollout: &self.id,
            kind,
            url,
            authorization: self.callbacks.authorization.as_ref(),
        }
    }
}
