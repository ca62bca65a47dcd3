//! Reading the rollouts that are exported, in batches.

use std::sync::Arc;

use osmosis_core::{RolloutId, RunName, Sample};
use osmosis_data::Row;
use osmosis_data::export::{ExportRecord, SampleTalk, TokenRow};
use osmosis_store::{RolloutRecord, RowRecord, RunRecord, Store};

use super::ExportKind;
use super::left_out::LeftOut;
use super::token_rows::{TokenRows, held_out_rows_of};
use crate::notices::Notices;
use crate::runs::{Pinned, ReadRun};
use crate::train::HeldOutRows;
use crate::transcripts::{self, Telling};
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// One rollout, and what was said in it when that is wanted.
pub(super) struct ReadRollout {
    pub(super) record: ExportRecord,
    pub(super) talks: Vec<SampleTalk>,
    /// For a trainer, empty when nobody asks for them; or why the rollout is left out.
    pub(super) rows: Result<Vec<TokenRow>, LeftOut>,
}

/// Where rollouts are read.
pub(super) struct Source<'a> {
    store: &'a dyn Store,
    run_name: &'a RunName,
    /// `None` when records are all that is wanted.
    telling: Option<Telling>,
    /// Set when rows for a trainer are wanted.
    token_rows: Option<TokenRows>,
    held_out: HeldOutRows,
    /// The run that has the calls, when it is another.
    calls_in: Option<Arc<dyn Store>>,
}

impl<'a> Source<'a> {
    pub(super) async fn of(
        run: &'a ReadRun,
        record: &'a RunRecord,
        workspace: &Workspace,
        kind: ExportKind,
        notices: &dyn Notices,
    ) -> Result<Self, RunError> {
        let pinned = match kind {
            // Records are exported whatever the run is pinned to.
            ExportKind::Records(_) => Pinned::default(),
            ExportKind::Talks(_) | ExportKind::Tokens(_) => Pinned::read(&record.pinned)?,
        };
        let telling = kind.with_talk().map(|with_tokens| Telling {
            model: pinned.model_path().unwrap_or_default().to_owned(),
            with_tokens,
        });
        let token_rows = match kind {
            ExportKind::Tokens(_) => Some(TokenRows::of(record, &pinned)),
            ExportKind::Records(_) | ExportKind::Talks(_) => None,
        };
        let held_out = if kind.is_trained_on() {
            held_out_rows_of(record, &pinned, notices)
        } else {
            HeldOutRows::None
        };
        let calls_in = if telling.is_some() || token_rows.is_some() {
            elsewhere(&pinned, workspace, notices).await
        } else {
            None
        };
        Ok(Self {
            store: &*run.store,
            run_name: &record.name,
            telling,
            token_rows,
            held_out,
            calls_in,
        })
    }

    pub(super) fn warn_of_constrained(&self, notices: &dyn Notices) {
        if let Some(token_rows) = &self.token_rows {
            token_rows.warn_of_constrained(notices);
        }
    }

    pub(super) async fn read(
        &self,
        rollouts: &[RolloutRecord],
    ) -> Result<Vec<ReadRollout>, RunError> {
        let ids: Vec<RolloutId> = rollouts.iter().map(|rollout| rollout.id.clone()).collect();
        let mut row_indices: Vec<u64> = rollouts.iter().map(|rollout| rollout.row_index).collect();
        row_indices.dedup();
        let dataset_rows = self.store.rows(&row_indices).await?;
        let samples = self.store.samples_of(&ids).await?;
        let mut records = vec![];
        for (rollout, samples) in rollouts.iter().zip(samples) {
            let row = dataset_rows
                .iter()
                .find(|row| row.row_index == rollout.row_index);
            let row = row.ok_or_else(|| {
                let message = format!("row {} is missing", rollout.row_index);
                RunError::failed(RunErrorKind::RunDamaged, message)
            })?;
            records.push(exported(self.run_name.clone(), rollout, row, samples));
        }
        let calls = self.calls_in.as_deref().unwrap_or(self.store);
        let talks = match &self.telling {
            Some(telling) => {
                let samples = records.iter().map(|record| record.samples.as_slice());
                transcripts::of_each(calls, &ids, samples, telling).await?
            }
            None => vec![vec![]; records.len()],
        };
        let mut read = vec![];
        for ((rollout, record), talks) in rollouts.iter().zip(records).zip(talks) {
            let rows = match &self.token_rows {
                _ if self.held_out.has(rollout.row_index) => Err(LeftOut::HeldOut),
                Some(token_rows) => token_rows.read(calls, rollout, &record.samples).await?,
                None => Ok(vec![]),
            };
            read.push(ReadRollout {
                record,
                talks,
                rows,
            });
        }
        Ok(read)
    }
}

/// The run that has the calls of one that was only graded again.
async fn elsewhere(
    pinned: &Pinned,
    workspace: &Workspace,
    notices: &dyn Notices,
) -> Option<Arc<dyn Store>> {
    let from = pinned.regraded_from.as_ref()?;
    let found = from.open_calls(workspace).await;
    if found.is_none() {
        notices.warn(format_args!(
            "run `{}`, which has the model calls, is not here as it was: what was said is taken from \
             the samples' messages, without tools, usage and times",
            from.calls_in
        ));
    }
    found
}

fn exported(
    run_name: RunName,
    rollout: &RolloutRecord,
    stored: &RowRecord,
    samples: Vec<Sample>,
) -> ExportRecord {
    // Rows were checked when the run was made. What has no columns is for a workflow that takes it whole.
    let row = Row::from_body(stored.row_index, stored.line, &stored.body).ok();
    let (label, metadata) = row.map_or((None, None), |row| (row.label, row.metadata));
    let mut record = ExportRecord::new(
        run_name,
        rollout.id.clone(),
        rollout.row_index,
        rollout.run_index,
        stored.body.clone(),
    );
    if let Some(outcome) = &rollout.outcome {
        record = record.ended(outcome);
    }
    ExportRecord {
        attempts: rollout.attempts,
        label,
        metadata,
        metrics: rollout.metrics.clone(),
        samples,
        model_calls: rollout.calls.model_calls,
        prompt_tokens: rollout.calls.prompt_tokens,
        completion_tokens: rollout.calls.completion_tokens,
        durations: rollout.durations,
        started_at_ms: rollout.started_at_ms,
        finished_at_ms: rollout.finished_at_ms,
        ..record
    }
}
