//! The rows of tokens that a rollout gives a trainer.

use std::sync::atomic::{AtomicU64, Ordering};

use osmosis_core::Sample;
use osmosis_core::config::Training;
use osmosis_data::export::TokenRow;
use osmosis_store::{RolloutRecord, RunRecord, Store};
use osmosis_train::{RolloutRows, rows_of, visit_of};

use super::left_out::LeftOut;
use crate::RunError;
use crate::notices::Notices;
use crate::runs::Pinned;
use crate::train::{HeldOutRows, training_of};

/// How the rollouts of a run become rows.
pub(super) struct TokenRows {
    training: Training,
    /// Only in training a dataset row is visited more than once.
    visits: bool,
    /// Rewards of parts of samples are those of the run that was graded again.
    regraded: bool,
    /// Tokens that other trainers can't train on, because they were sampled under a grammar.
    constrained: AtomicU64,
}

impl TokenRows {
    pub(super) fn of(run: &RunRecord, pinned: &Pinned) -> Self {
        let training = training_of(run);
        Self {
            visits: training.is_some(),
            training: training.unwrap_or_default(),
            regraded: pinned.regraded_from.is_some(),
            constrained: AtomicU64::new(0),
        }
    }

    /// Says how many tokens were taken out of the loss, when some were.
    pub(super) fn warn_of_constrained(&self, notices: &dyn Notices) {
        let count = self.constrained.load(Ordering::Relaxed);
        if count > 0 {
            notices.warn(format_args!(
                "{count} tokens were sampled under a grammar (`response_format`, forced tools): their logprobs are \
                 among the allowed tokens only, so they are left out of `loss_mask`"
            ));
        }
    }

    /// The rows of one rollout; `calls` is where its calls are.
    pub(super) async fn read(
        &self,
        calls: &dyn Store,
        rollout: &RolloutRecord,
        samples: &[Sample],
    ) -> Result<Result<Vec<TokenRow>, LeftOut>, RunError> {
        let samples = if self.regraded { &[] } else { samples };
        let taught = match rows_of(calls, rollout, samples, &self.training).await? {
            RolloutRows::Rows(taught) => taught,
            RolloutRows::Unscored => return Ok(Err(LeftOut::Unscored)),
            RolloutRows::NoTokens { why } => return Ok(Err(LeftOut::NoTokens(why))),
            RolloutRows::Nothing { why } => return Ok(Err(LeftOut::Nothing(why))),
        };
        let visit = if self.visits {
            visit_of(&self.training, rollout.run_index)
        } else {
            0
        };
        let mut rows = vec![];
        for unit in taught {
            let mut of_unit = unit.rows;
            for row in &mut of_unit {
                let left_out = row.leave_out_constrained();
                self.constrained.fetch_add(left_out, Ordering::Relaxed);
            }
            of_unit.retain(|row| row.loss_mask.contains(&true));
            rows.extend(of_unit.into_iter().map(|row| TokenRow {
                sample: unit.sample.clone(),
                visit,
                turn: unit.turn,
                reward: unit.reward,
                calls: row.calls.len() as u64,
                ids: row.ids,
                loss_mask: row.loss_mask,
                logprobs: row.logprobs,
                versions: row.versions,
                temperatures: row.temperatures,
            }));
        }
        if rows.is_empty() {
            let why = "every token to train on was sampled under a grammar";
            return Ok(Err(LeftOut::Nothing(why.to_owned())));
        }
        Ok(Ok(rows))
    }
}

/// Which rows a training run held out. Others must not train on them either, or what was measured on them means
/// nothing any more.
pub(super) fn held_out_rows_of(
    run: &RunRecord,
    pinned: &Pinned,
    notices: &dyn Notices,
) -> HeldOutRows {
    let Some(training) = training_of(run) else {
        return HeldOutRows::None;
    };
    let held_out = HeldOutRows::of(&training, pinned);
    if held_out == HeldOutRows::Unknown {
        notices.warn(format_args!(
            "run `{}` does not tell which rows it held out: they are among the exported",
            run.name
        ));
    }
    held_out
}
