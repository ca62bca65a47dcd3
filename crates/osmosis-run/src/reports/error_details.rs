//! `error.details` of commands that fail with `--json`, by the error's code. Codes that are not here have no details but the
//! hint.

use camino::Utf8PathBuf;
use osmosis_core::frame::Problem;
use osmosis_data::RowError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LeftOutReport;
use crate::runs::PinnedDifferences;

/// What programs may want to know of an error beside its code and message. `hint` is added where there is one.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ErrorDetails {
    /// `config_invalid`.
    Config { problems: Vec<ConfigProblem> },
    /// `entrypoint_invalid`.
    Entrypoint { problems: Vec<Problem> },
    /// `secret_missing`: names of variables.
    Secrets { missing: Vec<String> },
    /// `dataset_invalid`.
    Dataset {
        bad_rows: u64,
        /// The first of them.
        rows: Vec<BadRow>,
    },
    /// `held_out_overlap`.
    Overlap {
        /// Held-out rows that are also rows to train on.
        overlap: u64,
        held_out: u64,
        /// The first of them.
        rows: Vec<OverlappingRow>,
    },
    /// `model_unreachable`, `model_key_refused` and `model_not_found` of the policy.
    Model {
        endpoint: String,
        model_path: String,
    },
    /// The same of the judge.
    Judge {
        endpoint: String,
        judge_model: String,
    },
    /// `datasets_differ`.
    Datasets { shared_rows: usize },
    /// `no_training_rows`.
    Export { left_out: LeftOutReport },
    /// `run_pinned`.
    Pinned(PinnedDifferences),
}

/// A row of a dataset that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BadRow {
    /// From 0.
    pub row_index: u64,
    /// From 1.
    pub line: u64,
    pub column: Option<u64>,
    /// The file, in a dataset of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub file: Option<Utf8PathBuf>,
    pub code: String,
    pub message: String,
    pub hint: Option<String>,
}

impl BadRow {
    pub(crate) fn of(error: &RowError) -> Self {
        Self {
            row_index: error.index,
            line: error.line,
            column: error.column,
            file: error.file.clone(),
            code: error.problem.code().to_owned(),
            message: error.problem.to_string(),
            hint: error.hint(),
        }
    }
}

/// A mistake in a config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigProblem {
    pub message: String,
    pub hint: Option<String>,
}

/// A row that is held out and trained on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OverlappingRow {
    #[schemars(with = "String")]
    pub dataset: Utf8PathBuf,
    pub line: u64,
    #[schemars(with = "String")]
    pub eval_dataset: Utf8PathBuf,
    pub eval_line: u64,
}
