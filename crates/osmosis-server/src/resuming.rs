//! Going on with what was accepted before: after a restart, and when a request comes again whose keys are gone.

use std::collections::HashSet;
use std::sync::Arc;

use osmosis_core::RolloutId;
use osmosis_store::{RequestNote, RequestRecord, RolloutQuery, RolloutRecord, Store, StoreError};
use tokio::sync::watch;

use crate::ServerError;
use crate::refusal::Refusal;
use crate::registry::{Progress, conflict};
use crate::request::{RequestDigest, RolloutRequest};
use crate::sealed::Access;
use crate::shared::{CallbackProgress, Shared, Written};

/// What is in a store when a server starts.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The first row that is not there.
    pub(crate) next_row: u64,
    /// The rollouts that have no result.
    pub(crate) unfinished: Vec<RolloutId>,
}

impl Found {
    pub(crate) async fn in_store(store: &dyn Store) -> Result<Self, StoreError> {
        let mut found = Self::default();
        let mut query = RolloutQuery::default();
        loop {
            let page = store.rollouts(query.clone()).await?;
            if let Some(last) = page.items.last() {
                found.next_row = last.row_index + 1;
            }
            let unfinished = page.items.into_iter();
            let unfinished = unfinished.filter(|record| record.outcome.is_none());
            found.unfinished.extend(unfinished.map(|record| record.id));
            query.after = page.next;
            if query.after.is_none() {
                return Ok(found);
            }
        }
    }
}

impl Shared {
    /// Takes up everything that an earlier process accepted and did not settle. To be called before the first
    /// rollout is claimed.
    pub(crate) async fn resume(
        self: &Arc<Self>,
        unfinished: Vec<RolloutId>,
    ) -> Result<(), ServerError> {
        let mut unfinished: HashSet<RolloutId> = unfinished.into_iter().collect();
        let (mut going_on, mut unreadable) = (0_usize, 0_usize);
        for request in self.store.unsettled_requests().await? {
            let Some(record) = self.store.rollout(&request.rollout_id).await? else {
                continue;
            };
            if request.cancel_asked && record.outcome.is_none() {
                // It gets its result when the engine serves, and needs no keys for that.
                unfinished.remove(&record.id);
                self.engine.cancel(&record.id).await?;
            }
            let Some(access) = self.open(&request) else {
                unreadable += 1;
                continue;
            };
            if record.outcome.is_none() && !request.cancel_asked {
                let (url, key) = (&access.chat_completions_url, access.llm_key);
                if let Err(error) = self.relay.assign(record.id.clone(), url, key) {
                    tracing::warn!(rollout = %record.id, %error, "an accepted rollout can't go on");
                    continue;
                }
            }
            unfinished.remove(&record.id);
            going_on += 1;
            let row = self.store.row(record.row_index).await?;
            let digest = row.and_then(|row| RequestDigest::of_row(&row.body));
            let progress = self.registry.resume(
                record.id.clone(),
                digest.unwrap_or_default(),
                standing(&record, request.agent_done),
            );
            let callbacks = access.callbacks;
            self.send_herald(
                record.id,
                record.row_index,
                callbacks,
                progress,
                told(&request),
            );
        }
        let without_keys: Vec<RolloutId> = unfinished.into_iter().collect();
        self.store.hold_back(&without_keys).await?;
        if going_on > 0 {
            tracing::info!(
                rollouts = going_on,
                "going on with what was accepted before"
            );
        }
        if unreadable > 0 || !without_keys.is_empty() {
            tracing::warn!(
                rollouts = unreadable.max(without_keys.len()),
                "accepted rollouts wait: their keys can't be read with this state key; send the same requests \
                 again to have them run and called back"
            );
        }
        self.without_keys.lock().extend(without_keys);
        Ok(())
    }

    fn open(&self, request: &RequestRecord) -> Option<Access> {
        let sealed = request.sealed.as_ref()?;
        Access::open(&self.state_key, &request.rollout_id, sealed)
    }

    /// A rollout that the store knows from before: the same request, or a conflict. If something is left to do
    /// for it and nobody does it, this request brings the keys.
    pub(crate) async fn known(
        self: &Arc<Self>,
        request: &RolloutRequest,
        record: RolloutRecord,
        progress: &watch::Sender<Progress>,
    ) -> Result<Written, Refusal> {
        let row = self.store.row(record.row_index).await?;
        let digest = row.and_then(|row| RequestDigest::of_row(&row.body));
        if digest.as_ref() != Some(&request.digest) {
            return Err(conflict(&record.id));
        }
        let kept = self.store.request(&record.id).await?;
        let nothing_left = match &kept {
            Some(kept) => kept.settled,
            // Of a time when callbacks were not kept.
            None => record.outcome.is_some(),
        };
        if nothing_left {
            let standing = self.standing_of(&record.id, &record).await?;
            return Ok(Written::Known(standing.status));
        }
        let access = Access::of(request);
        let sealed = RequestNote::Sealed(self.seal(&record.id, &access)?);
        self.store.note_request(&record.id, sealed).await?;
        if record.outcome.is_none() {
            self.relay
                .assign(
                    record.id.clone(),
                    &access.chat_completions_url,
                    access.llm_key,
                )
                .map_err(|error| Refusal::Failed(error.to_string()))?;
        }
        let told = kept.as_ref().map(told).unwrap_or_default();
        let at = standing(&record, told.agent_done);
        self.registry.stands_at(&record.id, at);
        self.send_herald(
            record.id.clone(),
            record.row_index,
            access.callbacks,
            progress.subscribe(),
            told,
        );
        self.without_keys.lock().remove(&record.id);
        self.store.let_go(&record.id).await?;
        self.wake.notify_one();
        // It may have been cancelled since it was looked at, when nobody followed it.
        let now = self.store.rollout(&record.id).await?.unwrap_or(record);
        if let Some(outcome) = &now.outcome {
            self.relay.forget(&now.id);
            self.registry.finished(&now.id, outcome.clone());
        }
        let standing = self.standing_of(&now.id, &now).await?;
        Ok(Written::GoesOn(standing.status))
    }
}

fn standing(record: &RolloutRecord, agent_done: bool) -> Progress {
    match &record.outcome {
        Some(outcome) => Progress::Finished {
            outcome: outcome.clone(),
            agent_done,
        },
        None if agent_done => Progress::AgentDone,
        None => Progress::Accepted,
    }
}

fn told(request: &RequestRecord) -> CallbackProgress {
    CallbackProgress {
        agent_done: request.agent_done,
        completion_delivered: request.completion_delivered,
    }
}
