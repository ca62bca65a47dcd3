//! One rollout: its record, transcript, tokens, calls and files.

use std::fmt;

use camino::Utf8PathBuf;
use osmosis_core::Attempt;
use osmosis_core::config::ModelPath;
use osmosis_run::reports::{RolloutPage, RolloutTokens, RolloutTranscript, raw_call};
use osmosis_run::rollout_query::rollout_at;
use osmosis_run::runs::Pinned;
use osmosis_run::{RunError, RunErrorKind, policy};
use osmosis_store::{CallBody, CallQuery, RolloutRecord};

use super::{Documents, OpenRun};
use crate::api::ApiError;
use crate::response;

/// A call of a rollout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallPlace {
    /// An earlier attempt; `None` is the one whose result counts, or the latest.
    pub(crate) attempt: Option<Attempt>,
    /// From 0: what `--raw` takes.
    pub(crate) number: u32,
}

impl fmt::Display for CallPlace {
    /// As it is in addresses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(attempt) = self.attempt {
            write!(f, "attempts/{}/", attempt.0)?;
        }
        write!(f, "calls/{}", self.number)
    }
}

impl Documents {
    pub(crate) async fn rollout(&self, name: &str, rollout: &str) -> Result<Vec<u8>, ApiError> {
        let run = self.open(name).await?;
        let found = run.rollout(rollout).await?;
        let (store, folder) = (&*run.read.store, &run.read.folder);
        let page = RolloutPage::of(store, folder, &run.record, &found, &self.workspace).await?;
        response::data(&page)
    }

    pub(crate) async fn transcript(&self, name: &str, rollout: &str) -> Result<Vec<u8>, ApiError> {
        let run = self.open(name).await?;
        let found = run.rollout(rollout).await?;
        let tokenizer = async { policy::tokenizer(&run.model()?, &self.workspace).await };
        let (store, calls) = (&*run.read.store, &*run.calls);
        let transcript = RolloutTranscript::of(store, calls, &found, tokenizer).await?;
        response::data(&transcript)
    }

    pub(crate) async fn tokens(&self, name: &str, rollout: &str) -> Result<Vec<u8>, ApiError> {
        let run = self.open(name).await?;
        let found = run.rollout(rollout).await?;
        let tokenizer = async { policy::tokenizer(&run.model()?, &self.workspace).await };
        let (store, calls) = (&*run.read.store, &*run.calls);
        let tokens = RolloutTokens::of(store, calls, &run.record, &found, tokenizer).await?;
        response::data(&tokens)
    }

    /// The exact bytes of a call of this rollout, by its number: of the attempt whose result counts, or of an earlier one.
    pub(crate) async fn call_body(
        &self,
        name: &str,
        rollout: &str,
        call: CallPlace,
    ) -> Result<CallBody, ApiError> {
        let run = self.open(name).await?;
        let found = run.rollout(rollout).await?;
        let CallPlace { attempt, number } = call;
        for store in [&run.read.store, &run.calls] {
            if let Some(body) = raw_call(&**store, &found.id, attempt, number).await? {
                return Ok(body);
            }
        }
        Err(RunError::failed(
            RunErrorKind::RolloutNotFound,
            format!("rollout `{rollout}` has no call {number}"),
        )
        .hint("calls of an attempt are numbered from 0, as `eval show --calls` shows them")
        .into())
    }

    /// Where the calls of a rollout are, those of earlier attempts included.
    pub(crate) async fn call_places(
        &self,
        name: &str,
        rollout: &str,
    ) -> Result<Vec<CallPlace>, ApiError> {
        let run = self.open(name).await?;
        let found = run.rollout(rollout).await?;
        let mut places = vec![];
        for attempt in attempts(&found) {
            let query = CallQuery {
                rollout_id: found.id.clone(),
                attempt,
            };
            let calls = run.read.store.calls(query).await?;
            let numbers = (0..).zip(&calls).map(|(number, _)| number);
            places.extend(numbers.map(|number| CallPlace { attempt, number }));
        }
        Ok(places)
    }

    pub(crate) async fn artifact_folder(
        &self,
        name: &str,
        rollout: &str,
    ) -> Result<Utf8PathBuf, ApiError> {
        let run = self.open(name).await?;
        let found = run.rollout(rollout).await?;
        Ok(run.read.folder.artifacts().join(found.id.as_str()))
    }
}

impl OpenRun {
    /// The rollout `ROW.RUN_INDEX`, or that of an id.
    async fn rollout(&self, text: &str) -> Result<RolloutRecord, ApiError> {
        let store = &*self.read.store;
        let place = text
            .split_once('.')
            .and_then(|(row, run)| Some((row.parse().ok()?, run.parse().ok()?)));
        let found = match (place, osmosis_core::RolloutId::new(text)) {
            (Some((row, run)), _) => rollout_at(store, row, run).await?,
            (None, Ok(id)) => store.rollout(&id).await?,
            (None, Err(_)) => None,
        };
        found.ok_or_else(|| {
            RunError::failed(
                RunErrorKind::RolloutNotFound,
                format!("run `{}` has no rollout `{text}`", self.name),
            )
            .hint("rollouts are named ROW.RUN_INDEX, both from 0")
            .into()
        })
    }

    fn model(&self) -> Option<ModelPath> {
        let pinned = Pinned::read(&self.record.pinned).ok()?;
        pinned.model_path()?.parse().ok()
    }
}

/// The attempt whose result counts, or the latest, then those before it.
fn attempts(rollout: &RolloutRecord) -> impl Iterator<Item = Option<Attempt>> {
    let earlier = (1..rollout.attempts).map(|attempt| Some(Attempt(attempt)));
    std::iter::once(None).chain(earlier)
}
