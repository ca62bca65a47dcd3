//! Everything about an evaluation that can be checked before any process is started.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::RolloutId;
use osmosis_core::config::{EvalConfig, Experiment};
use osmosis_core::row_selection::{RowFilter, RowSelection, RowVerdict};
use osmosis_data::Dataset;
use osmosis_store::{NewRollout, NewRow, Store};
use serde_json::{Map, Value, json};

use super::pinned::Pinned;
use crate::dataset::{check as check_dataset, data_error};
use crate::error::{CliError, io};
use crate::policy::{self, ReadyPolicy};
use crate::secrets;
use crate::source_digest::source_digest;
use crate::workspace::Workspace;

/// Rows that go to the store in one write.
const ENQUEUE_BATCH: usize = 500;

/// What the user asked for, on the command line or in an earlier submit.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) config_path: Utf8PathBuf,
    pub(crate) config_text: String,
    pub(crate) rows: Option<String>,
    pub(crate) limit: Option<u64>,
    pub(crate) secrets_file: Option<Utf8PathBuf>,
}

/// A checked evaluation.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) workspace: Workspace,
    pub(crate) request: Request,
    pub(crate) config: EvalConfig,
    pub(crate) rollout_dir: Utf8PathBuf,
    pub(crate) dataset: Dataset,
    pub(crate) dataset_sha256: String,
    pub(crate) selection: Option<RowSelection>,
    pub(crate) limit: Option<u64>,
    /// Rows that will be run.
    pub(crate) rows: u64,
    pub(crate) ready: ReadyPolicy,
    /// Values of `[secrets]`, by name.
    pub(crate) secrets: Vec<(String, String)>,
}

impl Plan {
    pub(crate) fn check(request: Request, workspace: Option<&Utf8Path>) -> Result<Self, CliError> {
        let config = EvalConfig::parse(&request.config_path, &request.config_text)?;
        let selection = match &request.rows {
            Some(text) => Some(text.parse::<RowSelection>().map_err(|error| {
                CliError::usage("usage", format!("--rows: {error}")).hint(error.hint())
            })?),
            None => None,
        };
        let limit = request.limit.or(config.evaluation.limit);
        let workspace = Workspace::find(workspace, request.config_path.parent())?;
        check_head(&workspace, &config.experiment)?;
        let rollout_dir = rollout_dir(&workspace, &config)?;
        let ready = policy::open(&config.experiment.model_path, &workspace)?;
        let secrets = secrets::collect(&config.secrets.required, request.secrets_file.as_deref())?;
        let path = osmosis_data::resolve(&config.experiment.dataset, &workspace.root)
            .map_err(|error| data_error(&error))?;
        let dataset = Dataset::open(&path).map_err(|error| data_error(&error))?;
        let report = dataset.validate().map_err(|error| data_error(&error))?;
        check_dataset(&report)?;
        if let Some(beyond) = selection.as_ref().and_then(|rows| rows.beyond(report.rows)) {
            let message = format!(
                "--rows: there is no row {beyond}: `{path}` has {} rows",
                report.rows
            );
            return Err(CliError::usage("usage", message).hint(format!(
                "rows count from 0; the last is {}",
                report.rows - 1
            )));
        }
        let mut filter = RowFilter::new(selection.clone(), limit);
        let chosen = (0..report.rows).filter(|index| filter.judge(*index) == RowVerdict::Take);
        let rows = chosen.count() as u64;
        Ok(Self {
            workspace,
            request,
            config,
            rollout_dir,
            dataset,
            dataset_sha256: report.sha256,
            selection,
            limit,
            rows,
            ready,
            secrets,
        })
    }

    pub(crate) fn rollouts(&self) -> u64 {
        self.rows * u64::from(self.config.evaluation.n)
    }

    /// What a resume must find as it is now.
    pub(crate) fn pinned(&self, environment_digest: &str) -> Result<Pinned, CliError> {
        let mut facts = Map::new();
        let config = serde_json::to_value(&self.config)
            .map_err(|error| CliError::failed("internal", error.to_string()))?;
        if let Value::Object(sections) = config {
            for (section, value) in sections {
                match value {
                    Value::Object(keys) => {
                        for (key, value) in keys {
                            facts.insert(format!("{section}.{key}"), value);
                        }
                    }
                    other => {
                        facts.insert(section, other);
                    }
                }
            }
        }
        // How fast a run goes is not what it is.
        facts.remove("evaluation.batch_size");
        facts.insert("model".to_owned(), self.ready.identity.clone());
        facts.insert("dataset_sha256".to_owned(), json!(self.dataset_sha256));
        facts.insert("rows".to_owned(), json!(self.selection));
        facts.insert("evaluation.limit".to_owned(), json!(self.limit));
        facts.insert(
            "source_sha256".to_owned(),
            json!(source_digest(&self.rollout_dir)?),
        );
        facts.insert("environment_sha256".to_owned(), json!(environment_digest));
        Ok(Pinned(facts))
    }

    /// Puts the chosen rows and their rollouts into the store's queue.
    pub(crate) async fn enqueue(&self, store: &Arc<dyn Store>) -> Result<(), CliError> {
        let n = self.config.evaluation.n;
        let mut rows = vec![];
        let mut rollouts = vec![];
        let mut filter = RowFilter::new(self.selection.clone(), self.limit);
        for row in self.dataset.rows() {
            let row = row.map_err(|error| {
                CliError::failed(
                    "dataset_changed",
                    format!("`{}`: {error}", self.dataset.path()),
                )
                .hint("the dataset changed while it was read; submit again")
            })?;
            match filter.judge(row.index) {
                RowVerdict::Take => {}
                RowVerdict::Skip => continue,
                RowVerdict::Stop => break,
            }
            for run_index in 0..n {
                rollouts.push(NewRollout {
                    id: RolloutId::of(row.index, run_index),
                    row_index: row.index,
                    run_index,
                });
            }
            rows.push(NewRow {
                row_index: row.index,
                line: row.line,
                body: row.body,
            });
            if rows.len() >= ENQUEUE_BATCH {
                store
                    .enqueue(std::mem::take(&mut rows), std::mem::take(&mut rollouts))
                    .await?;
            }
        }
        store.enqueue(rows, rollouts).await?;
        // The rows are the run's own from here on. Between the check and now they were not.
        let report = self
            .dataset
            .validate()
            .map_err(|error| data_error(&error))?;
        if report.sha256 == self.dataset_sha256 {
            return Ok(());
        }
        Err(CliError::failed(
            "dataset_changed",
            format!("`{}` changed while it was read", self.dataset.path()),
        )
        .hint("submit again with `--fresh`, so that the run holds one version of it"))
    }
}

fn rollout_dir(workspace: &Workspace, config: &EvalConfig) -> Result<Utf8PathBuf, CliError> {
    let name = config.experiment.rollout.as_str();
    let folder = workspace.rollout_dir(name);
    if !folder.is_dir() {
        let known = workspace.rollouts();
        let hint = if known.is_empty() {
            format!("make it with `osmosis rollout init {name}`")
        } else {
            format!("the workspace has: {}", known.join(", "))
        };
        return Err(CliError::failed(
            "rollout_not_found",
            format!("no rollout `{name}` at `{folder}`"),
        )
        .hint(hint));
    }
    let entrypoint = folder.join(&config.experiment.entrypoint.file);
    if !entrypoint.is_file() {
        return Err(CliError::failed(
            "entrypoint_not_found",
            format!("the entrypoint `{entrypoint}` is not there"),
        )
        .hint("`entrypoint` in [experiment] is relative to the rollout's folder"));
    }
    Ok(folder)
}

/// Refuses when HEAD of the workspace is not what the config names.
fn check_head(workspace: &Workspace, experiment: &Experiment) -> Result<(), CliError> {
    if let Some(wanted) = &experiment.branch {
        let head = git_head(workspace, &["rev-parse", "--abbrev-ref", "HEAD"])?;
        refuse_unless(
            head.as_deref() == Some(wanted),
            wanted,
            head.as_deref(),
            workspace,
        )?;
    }
    if let Some(wanted) = &experiment.commit_sha {
        let head = git_head(workspace, &["rev-parse", "HEAD"])?;
        let fits = head
            .as_ref()
            .is_some_and(|head| head.starts_with(wanted.as_str()));
        refuse_unless(fits, wanted, head.as_deref(), workspace)?;
    }
    Ok(())
}

/// What git says; `None` where there is no repository.
fn git_head(workspace: &Workspace, arguments: &[&str]) -> Result<Option<String>, CliError> {
    let output = std::process::Command::new("git")
        .current_dir(&workspace.root)
        .args(arguments)
        .output()
        .map_err(|error| io(Utf8Path::new("git"), &error))?;
    let head = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(output.status.success().then_some(head))
}

fn refuse_unless(
    fits: bool,
    wanted: &str,
    head: Option<&str>,
    workspace: &Workspace,
) -> Result<(), CliError> {
    if fits {
        return Ok(());
    }
    let found = head.unwrap_or("in no repository");
    Err(CliError::failed(
        "source_mismatch",
        format!(
            "the config asks for `{wanted}`, but HEAD of `{}` is {found}",
            workspace.root
        ),
    )
    .hint("check that revision out, or remove `branch` and `commit_sha` from [experiment]"))
}
