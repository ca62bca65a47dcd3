//! Every other run beside the first, paired by dataset row.

mod changed_rows;
mod compared_with;
mod facts;
mod pairing;
mod run_rows;
mod summary;

use osmosis_core::statistics::definition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use changed_rows::{ChangedRow, ChangedRows, RowSide};
pub use compared_with::{ComparedWith, FoundBy, LostRollouts, PairedRows, UsageDifference};
pub use facts::Difference;
pub use run_rows::ComparedRun;
pub use summary::{failed_counts, p_text, points, signed, signed_one};

use self::compared_with::Findings;
use self::pairing::Paired;
use self::run_rows::RunRows;
use crate::runs::ReadRun;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// The `data` of `eval compare --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    pub first: ComparedRun,
    /// The others, each compared with the first.
    pub others: Vec<ComparedWith>,
    pub definitions: ComparisonDefinitions,
}

/// What the numbers of a comparison mean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComparisonDefinitions {
    pub rows: String,
    pub pass_rate: String,
    pub pass_test: String,
    pub failures: String,
    pub reward: String,
    pub reward_test: String,
    pub reward_decides: String,
    pub verdict: String,
    pub ci95: String,
    pub p_adjusted: String,
    pub usage: String,
}

impl Default for ComparisonDefinitions {
    fn default() -> Self {
        Self {
            rows: definition::COMPARED.to_owned(),
            pass_rate: definition::PASS_RATE.to_owned(),
            pass_test: definition::PASS_TEST.to_owned(),
            failures: definition::FAILURES.to_owned(),
            reward: definition::REWARD.to_owned(),
            reward_test: definition::REWARD_TEST.to_owned(),
            reward_decides: definition::REWARD_DECIDES.to_owned(),
            verdict: definition::VERDICT.to_owned(),
            ci95: definition::COMPARED_CI95.to_owned(),
            p_adjusted: definition::HOLM.to_owned(),
            usage: "means over the compared rows of the mean per rollout that ran".to_owned(),
        }
    }
}

impl Comparison {
    /// Compares every run after the first with the first. Where the datasets differ, `shared_rows` allows to
    /// compare the rows with the same content.
    pub async fn of(
        runs: Vec<ReadRun>,
        shared_rows: bool,
        workspace: &Workspace,
    ) -> Result<Self, RunError> {
        let mut opened = vec![];
        for run in runs {
            opened.push(RunRows::open(run).await?);
        }
        let Some((first, others)) = opened.split_first_mut() else {
            return Err(RunError::usage(RunErrorKind::Usage, "no runs were given"));
        };
        first.read_rows().await?;
        let mut found = vec![];
        for other in others {
            other.read_rows().await?;
            let paired = Paired::of(first, other, shared_rows).await?;
            found.push(Findings::of(first, other, &paired, workspace));
            // Only the first is needed again.
            other.drop_rows();
        }
        Ok(Self {
            first: first.report(),
            others: Findings::adjusted(found),
            definitions: ComparisonDefinitions::default(),
        })
    }
}
