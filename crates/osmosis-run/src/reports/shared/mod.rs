//! A run as a report to share: one typed document, rendered as a page or as Markdown.
//!
//! Whatever agents, graders and datasets wrote is shown as text: the page has no scripts, and Markdown shows it in
//! fences that it can't leave.

mod excerpt;
mod figures;
mod histogram;
mod html;
mod lowest;
mod markdown;
mod safe_text;

use camino::Utf8PathBuf;
use osmosis_core::{Outcome, Redactor, RunName};
use osmosis_store::{RolloutPages, RunRecord, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use excerpt::ReportedRollout;
pub use histogram::HistogramBar;

use self::lowest::Lowest;
use super::{Comparison, Gate, RunReport, RunState};
use crate::RunError;
use crate::figures::time_text;
use crate::run_folder::RunFolder;
use crate::runs::Pinned;

/// The `resource` of `eval report --out FILE --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WrittenReport {
    pub run_name: RunName,
    #[schemars(with = "String")]
    pub path: Utf8PathBuf,
    /// `html` or `markdown`.
    pub format: String,
}

/// The `data` of `eval report --json`, and what its page and its Markdown are made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharedReport {
    pub run: RunReport,
    pub status: RunState,
    /// In UTC: `2026-01-31 12:00:00Z`.
    pub created_at: String,
    pub project: Option<String>,
    pub model: Option<String>,
    pub dataset: Option<String>,
    /// The rewards of scored rollouts.
    pub reward_histogram: Vec<HistogramBar>,
    /// Rollouts that ran and did not pass: some without a reward, then those with the lowest.
    pub lowest: Vec<ReportedRollout>,
    /// How many did not pass.
    pub not_passed: u64,
    /// With the run that this one is compared with as the first.
    pub comparison: Option<Comparison>,
}

impl SharedReport {
    /// Reads every rollout with a result, and what was said in the worst. `redactor` takes secrets out of all texts.
    pub async fn of(
        store: &dyn Store,
        record: &RunRecord,
        folder: &RunFolder,
        held: bool,
        comparison: Option<Comparison>,
        redactor: &Redactor,
    ) -> Result<Self, RunError> {
        let pinned = Pinned::read(&record.pinned)?;
        let mut run = RunReport::of(store, &record.name, folder).await?;
        for failure in &mut run.failures {
            failure.message = redactor.clean(&failure.message);
            failure.error = redactor.clean(&failure.error);
        }
        let mut rewards = Vec::new();
        let mut lowest = Lowest::default();
        let mut pages = RolloutPages::finished(store);
        while let Some(page) = pages.next().await? {
            for rollout in page {
                if let Some(reward) = rollout.outcome.as_ref().and_then(Outcome::reward) {
                    // No `-0`.
                    rewards.push(reward.get() + 0.0);
                }
                lowest.add(rollout);
            }
        }
        let not_passed = lowest.not_passed;
        let mut shown = Vec::new();
        for rollout in lowest.into_rollouts() {
            shown.push(ReportedRollout::read(store, folder, &rollout, redactor).await?);
        }
        let text = |value: Option<&str>| value.map(str::to_owned);
        Ok(Self {
            run,
            status: RunState::of(record.status, held),
            created_at: time_text(record.created_at_ms),
            project: text(pinned.project()),
            model: text(pinned.model_path()),
            dataset: text(pinned.dataset()),
            reward_histogram: histogram::of(&rewards),
            lowest: shown,
            not_passed,
            comparison,
        })
    }

    /// The same with what became of these gates. Numbers of a run that is not complete may still move: then no gate
    /// is shown.
    #[must_use]
    pub fn judged_by(self, gates: &[Gate]) -> Self {
        Self {
            run: self.run.judged_by(gates),
            ..self
        }
    }

    /// One static page: no scripts, nothing from elsewhere.
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// For a pull request's comment.
    pub fn markdown(&self) -> String {
        markdown::text(self)
    }
}

#[cfg(test)]
mod tests;
