//! The TOML of a run, from text to checked types.
//!
//! Nothing is read from disk here: the caller brings the file's name and text and gets either a
//! config in which every value is known to be usable, or every problem at once with its place.
//!
//! ```
//! use osmosis_core::config::{EvalConfig, ModelPath};
//!
//! let text = r#"
//! [experiment]
//! rollout = "multiply"
//! entrypoint = "main.py"
//! model_path = "script:scripts/multiply.toml"
//! dataset = "multiply"
//! "#;
//! let config = EvalConfig::parse("configs/eval/multiply.toml".into(), text)?;
//! assert_eq!(config.evaluation.n, 1);
//! assert_eq!(config.experiment.model_path, ModelPath::Script("scripts/multiply.toml".into()));
//!
//! let errors = EvalConfig::parse("a.toml".into(), "[evaluation]\nbatchsize = 1").unwrap_err();
//! assert!(errors.render().contains("a.toml:2:1: unknown key `batchsize` in `[evaluation]`"));
//! # Ok::<(), osmosis_core::config::ConfigErrors>(())
//! ```

mod dataset_columns;
mod dataset_ref;
mod entrypoint;
mod error;
mod evaluation;
mod experiment;
mod logs;
mod lora;
mod model_path;
mod objective;
mod overrides;
mod passed_on;
mod range;
mod reader;
mod recipe;
mod schema;
mod section;
mod source;
mod suggestion;
mod supervised;
#[cfg(test)]
mod tests;
mod trainer;
mod training;
mod workers;

pub use dataset_columns::{COLUMNS, ColumnUse, ColumnsError, DatasetColumns, DatasetSection};
pub use dataset_ref::{DATASET_EXTENSIONS, DatasetRef, DatasetRefError};
pub use entrypoint::{Entrypoint, EntrypointError, Language};
pub use error::{ConfigError, ConfigErrors, ConfigKind, ConfigProblem};
pub use evaluation::{Evaluation, ModelErrors, Sampling};
pub use experiment::{Experiment, ToolFormat};
pub use logs::LogLimits;
pub use lora::{Lora, LoraBase, LoraModule};
pub use model_path::{CheckpointStep, ModelPath, ModelPathError, PROVIDERS, Provider};
pub use objective::{LossNormalization, Objective, Overlong, RowChoice, RowStrategy};
pub use overrides::{Override, OverrideError};
pub use passed_on::Secrets;
pub use recipe::{Recipe, RecipeReport, SetBeside};
pub use schema::section_of_key;
pub use source::ConfigSource;
pub use supervised::{Supervised, SupervisedConfig, SupervisedExperiment};
pub use trainer::{TorchDtype, TorchSettings, TrainerKind, TrainerSection};
pub use training::{
    Algorithm, Checkpoints, ExportStyle, FlatGroups, HeldOut, IncompleteGroups, StragglerFactor,
    Training,
};
pub use workers::{WorkerIsolation, WorkerUser, Workers};

use std::collections::BTreeMap;

use camino::Utf8Path;
use serde::Serialize;
use serde_json::{Map, Value};

use reader::Reader;

/// `configs/eval/*.toml`, checked.
///
/// Serialises with every default filled in, so that a resumed run can be compared key by key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvalConfig {
    pub experiment: Experiment,
    /// `[dataset]`: left out of what a run is pinned to when it changes nothing: runs from before there was this
    /// resume.
    #[serde(skip_serializing_if = "DatasetSection::is_default")]
    pub dataset: DatasetSection,
    pub evaluation: Evaluation,
    pub sampling: Sampling,
    /// `[workflow]`: fields of the workflow's config.
    pub workflow: Map<String, Value>,
    /// `[grader]`: fields of the grader's config.
    pub grader: Map<String, Value>,
    /// `judge_model` in `[grader]`: what `GraderContext.judge` asks.
    pub judge_model: Option<ModelPath>,
    /// `[env]`: variables of the worker processes.
    pub env: BTreeMap<String, String>,
    pub secrets: Secrets,
    /// `[logs]`: no part of what a run is, so a resume may change it.
    #[serde(skip)]
    pub logs: LogLimits,
    /// Left out of what a run is pinned to when it changes nothing: runs from before there was this resume.
    #[serde(skip_serializing_if = "Workers::has_default_isolation")]
    pub workers: Workers,
    /// `[advanced]`: for somebody else; we only say that we saw it.
    pub advanced: Map<String, Value>,
}

/// `configs/training/*.toml`, checked.
///
/// Serialises with every default filled in, so that a resumed run can be compared key by key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrainConfig {
    pub experiment: Experiment,
    /// `[dataset]`: left out of what a run is pinned to when it changes nothing: runs from before there was this
    /// resume.
    #[serde(skip_serializing_if = "DatasetSection::is_default")]
    pub dataset: DatasetSection,
    pub training: Training,
    pub sampling: Sampling,
    pub checkpoints: Checkpoints,
    /// Left out of what a run is pinned to when it changes nothing: runs from before there was this resume.
    #[serde(skip_serializing_if = "TrainerSection::is_default")]
    pub trainer: TrainerSection,
    /// `[workflow]`: fields of the workflow's config.
    pub workflow: Map<String, Value>,
    /// `[grader]`: fields of the grader's config.
    pub grader: Map<String, Value>,
    /// `judge_model` in `[grader]`: what `GraderContext.judge` asks.
    pub judge_model: Option<ModelPath>,
    /// `[env]`: variables of the worker processes.
    pub env: BTreeMap<String, String>,
    pub secrets: Secrets,
    /// `[logs]`: no part of what a run is, so a resume may change it.
    #[serde(skip)]
    pub logs: LogLimits,
    /// Left out of what a run is pinned to when it changes nothing: runs from before there was this resume.
    #[serde(skip_serializing_if = "Workers::has_default_isolation")]
    pub workers: Workers,
    /// `[advanced]`: for somebody else; we only say that we saw it.
    pub advanced: Map<String, Value>,
}

impl EvalConfig {
    /// Checks a config with the keys that are set beside its file.
    pub fn of(source: &ConfigSource) -> Result<Self, ConfigErrors> {
        source.check(ConfigKind::Evaluation, Self::parse)
    }

    /// Checks the text of a config. `file` is only named in messages.
    pub fn parse(file: &Utf8Path, text: &str) -> Result<Self, ConfigErrors> {
        let document = reader::parse(file, text)?;
        let mut reader = Reader::new(file, text, &document, ConfigKind::Evaluation)?;
        let experiment = experiment::read(&mut reader);
        let dataset = dataset_columns::read(&mut reader);
        let evaluation = evaluation::read(&mut reader);
        let sampling = evaluation::read_sampling(&mut reader);
        let passed_on = passed_on::read(&mut reader);
        let logs = logs::read(&mut reader);
        let workers = workers::read(&mut reader);
        reader.finish(experiment, |experiment| Self {
            experiment,
            dataset,
            evaluation,
            sampling,
            workflow: passed_on.workflow,
            grader: passed_on.grader,
            judge_model: passed_on.judge_model,
            env: passed_on.env,
            secrets: passed_on.secrets,
            logs,
            workers,
            advanced: passed_on.advanced,
        })
    }
}

impl TrainConfig {
    /// Checks a config with the keys that are set beside its file.
    pub fn of(source: &ConfigSource) -> Result<Self, ConfigErrors> {
        source.check(ConfigKind::Training, Self::parse)
    }

    /// Checks the text of a config. `file` is only named in messages.
    pub fn parse(file: &Utf8Path, text: &str) -> Result<Self, ConfigErrors> {
        let document = reader::parse(file, text)?;
        let mut reader = Reader::new(file, text, &document, ConfigKind::Training)?;
        let experiment = experiment::read(&mut reader);
        let dataset = dataset_columns::read(&mut reader);
        let training = training::read(&mut reader);
        let sampling = evaluation::read_sampling(&mut reader);
        let checkpoints = training::read_checkpoints(&mut reader);
        let trainer = trainer::read(&mut reader);
        let passed_on = passed_on::read(&mut reader);
        let logs = logs::read(&mut reader);
        let workers = workers::read(&mut reader);
        reader.finish(experiment, |experiment| Self {
            experiment,
            dataset,
            training,
            sampling,
            checkpoints,
            trainer,
            workflow: passed_on.workflow,
            grader: passed_on.grader,
            judge_model: passed_on.judge_model,
            env: passed_on.env,
            secrets: passed_on.secrets,
            logs,
            workers,
            advanced: passed_on.advanced,
        })
    }
}
