//! Follows one rollout to its end and calls whoever wants to know: first that the workflow is done, then
//! the grade.

use std::sync::Arc;

use bytes::Bytes;
use osmosis_core::{Outcome, RolloutId};
use osmosis_store::Store;
use tokio::sync::watch;

use crate::callback::{Address, Courier};
use crate::desk::Progress;
use crate::report::{self, PhaseEnd};
use crate::request::Callbacks;

/// Everything that a rollout's callbacks are made of.
#[derive(Debug)]
pub(crate) struct Herald {
    pub(crate) id: RolloutId,
    pub(crate) row_index: u64,
    pub(crate) callbacks: Callbacks,
    pub(crate) progress: watch::Receiver<Progress>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) courier: Arc<Courier>,
}

impl Herald {
    /// Delivers both callbacks, in order, each when its time has come.
    pub(crate) async fn run(mut self) {
        let Some(end) = self.agent_end().await else {
            return;
        };
        let to = self.address("completion", &self.callbacks.completion);
        self.courier
            .deliver(to, || {
                let body = report::completion_body(&self.id, &end);
                std::future::ready(body.map(Bytes::from).map_err(|error| error.to_string()))
            })
            .await;

        let Some(outcome) = self.outcome().await else {
            return;
        };
        if let Some(url) = &self.callbacks.grader {
            let to = self.address("grader", url);
            self.courier
                .deliver(to, || self.grader_body(&outcome))
                .await;
        }
    }

    /// How the workflow ended; `None` when nobody will know.
    async fn agent_end(&mut self) -> Option<PhaseEnd> {
        let reached = self.progress.wait_for(|progress| match progress {
            Progress::AgentDone | Progress::Finished { .. } => true,
            Progress::Admitting | Progress::Refused | Progress::Accepted => false,
        });
        match &*reached.await.ok()? {
            Progress::Finished {
                outcome,
                agent_done: false,
            } => Some(report::agent_end(outcome)),
            Progress::AgentDone | Progress::Finished { .. } => Some(PhaseEnd::success()),
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
