//! What is left out of exports that are trained on, and the rows of tokens for trainers.

use osmosis_core::Sample;
use osmosis_core::config::Training;
use osmosis_data::export::TokenRow;
use osmosis_run::reports::{ErrorDetails, LeftOutReport};
use osmosis_run::train::{HeldOutRows, training_of};
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{RolloutRecord, RunRecord, Store};
use osmosis_train::{RolloutRows, rows_of, visit_of};

use crate::output::Output;
use crate::runs::Pinned;

/// How the rollouts of a run become rows.
pub(super) struct TokenRows {
    training: Training,
    /// Only in training a dataset row is visited more than once.
    visits: bool,
    /// Rewards of parts of samples are those of the run that was graded again.
    regraded: bool,
}

/// Why a rollout gives no rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LeftOut {
    HeldOut,
    Unscored,
    NoTokens(String),
    Nothing(String),
}

impl TokenRows {
    pub(super) fn of(run: &RunRecord) -> Result<Self, RunError> {
        let training = training_of(run);
        Ok(Self {
            visits: training.is_some(),
            training: training.unwrap_or_default(),
            regraded: Pinned::read(&run.pinned)?.regraded_from.is_some(),
        })
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
            rows.extend(unit.rows.into_iter().map(|row| TokenRow {
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
        Ok(Ok(rows))
    }
}

/// Which rows a training run held out. Others must not train on them either, or what was measured on them means
/// nothing any more.
pub(super) fn held_out_rows_of(run: &RunRecord, output: &Output) -> Result<HeldOutRows, RunError> {
    let Some(training) = training_of(run) else {
        return Ok(HeldOutRows::None);
    };
    let held_out = HeldOutRows::of(&training, &Pinned::read(&run.pinned)?);
    if held_out == HeldOutRows::Unknown {
        output.warn(format_args!(
            "run `{}` does not tell which rows it held out: they are among the exported",
            run.name
        ));
    }
    Ok(held_out)
}

/// How many rollouts gave no rows, and the first reason of those where it differs.
#[derive(Debug, Default)]
pub(super) struct LeftOutCounts {
    held_out: u64,
    unscored: u64,
    no_tokens: u64,
    nothing: u64,
    why_no_tokens: Option<String>,
    why_nothing: Option<String>,
}

impl LeftOutCounts {
    pub(super) fn add(&mut self, why: LeftOut) {
        match why {
            LeftOut::HeldOut => self.held_out += 1,
            LeftOut::Unscored => self.unscored += 1,
            LeftOut::NoTokens(why) => {
                self.no_tokens += 1;
                self.why_no_tokens.get_or_insert(why);
            }
            LeftOut::Nothing(why) => {
                self.nothing += 1;
                self.why_nothing.get_or_insert(why);
            }
        }
    }

    /// Where only held-out rows are left out.
    pub(super) fn held_out(&self) -> LeftOutReport {
        LeftOutReport {
            held_out: self.held_out,
            no_reward: None,
            no_token_ids: None,
            nothing_to_train_on: None,
        }
    }

    /// For programs.
    pub(super) fn report(&self) -> LeftOutReport {
        LeftOutReport {
            held_out: self.held_out,
            no_reward: Some(self.unscored),
            no_token_ids: Some(self.no_tokens),
            nothing_to_train_on: Some(self.nothing),
        }
    }

    /// For people: what is as it should be is a note, what may surprise a warning.
    pub(super) fn tell(&self, output: &Output) {
        for (count, what) in [
            (self.held_out, "of held-out rows"),
            (self.unscored, "without a reward"),
        ] {
            if count > 0 {
                output.note(format_args!("left out: {} {what}", rollouts(count)));
            }
        }
        for (count, what, why) in [
            (self.no_tokens, "without token ids", &self.why_no_tokens),
            (self.nothing, "with nothing to train on", &self.why_nothing),
        ] {
            if count > 0 {
                let why = why.as_deref().unwrap_or_default();
                output.warn(format_args!("left out: {} {what} ({why})", rollouts(count)));
            }
        }
    }

    /// When there is nothing else than what was left out.
    pub(super) fn error(&self, run: &str) -> RunError {
        let mut reasons = vec![];
        for (count, what, why) in [
            (self.no_tokens, "without token ids", &self.why_no_tokens),
            (self.nothing, "with nothing to train on", &self.why_nothing),
            (self.unscored, "without a reward", &None),
            (self.held_out, "of held-out rows", &None),
        ] {
            if count > 0 {
                let why = why
                    .as_ref()
                    .map_or_else(String::new, |why| format!(" ({why})"));
                reasons.push(format!("{} {what}{why}", rollouts(count)));
            }
        }
        if reasons.is_empty() {
            reasons.push("it has no rollouts with a result".to_owned());
        }
        let reasons = reasons.join(", ");
        let error = RunError::failed(
            RunErrorKind::NoTrainingRows,
            format!("run `{run}` has no rows for a trainer: {reasons}"),
        )
        .details(ErrorDetails::Export {
            left_out: self.report(),
        });
        if self.no_tokens > 0 {
            error.hint(
                "token ids are recorded of embedded models and of servers that are known to tell them, see \
                 docs/gateway-tokens.md; `--format sft` needs none",
            )
        } else {
            error
        }
    }
}

fn rollouts(count: u64) -> String {
    format!("{count} rollout{}", if count == 1 { "" } else { "s" })
}
