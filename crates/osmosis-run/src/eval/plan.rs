//! Everything about an evaluation that can be checked before any process is started.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::RolloutId;
use osmosis_core::config::{ConfigSource, EvalConfig, Language};
use osmosis_core::row_selection::{RowFilter, RowSelection, RowVerdict};
use osmosis_store::{NewRollout, Store};
use serde_json::json;

use super::rollout_server::RolloutServer;
use crate::chat_choice::ChatChoice;
use crate::checked_dataset::CheckedDataset;
use crate::judge::ReadyJudge;
use crate::notices::Notices;
use crate::policy::{self, ReadyPolicy};
use crate::runs::Pinned;
use crate::user_code::{self, PassedOn, UserCode};
use crate::workspace::{Workspace, WorkspaceChoice};
use crate::{RunError, RunErrorKind};

/// Rows that go to the store in one write.
const ENQUEUE_BATCH: usize = 500;

/// What the user asked for, on the command line or in an earlier submit.
#[derive(Debug, Clone)]
pub struct EvalRequest {
    pub config: ConfigSource,
    pub rows: Option<String>,
    pub limit: Option<u64>,
    pub secrets_file: Option<Utf8PathBuf>,
    /// `--seed`: where an embedded policy's random numbers start.
    pub seed: u64,
    /// Where user code is, when it is not here.
    pub server: Option<Arc<dyn RolloutServer>>,
}

impl EvalRequest {
    /// All rows of a config, with everything as the config says.
    pub fn of_config(config_path: Utf8PathBuf, config_text: String) -> Self {
        Self {
            config: ConfigSource::of_file(config_path, config_text),
            rows: None,
            limit: None,
            secrets_file: None,
            seed: 0,
            server: None,
        }
    }
}

/// Where user code is.
#[derive(Debug)]
pub enum UserSide {
    Here(Box<UserCode>),
    AtServer(Arc<dyn RolloutServer>),
}

/// A checked evaluation.
#[derive(Debug)]
pub struct EvalPlan {
    pub workspace: Workspace,
    pub request: EvalRequest,
    pub config: EvalConfig,
    /// The config with what is set beside it.
    pub config_text: String,
    pub side: UserSide,
    pub dataset: CheckedDataset,
    pub selection: Option<RowSelection>,
    pub limit: Option<u64>,
    /// Rows that will be run.
    pub rows: u64,
    pub ready: ReadyPolicy,
    /// What the grader may ask; none when it is elsewhere.
    pub judge: Option<ReadyJudge>,
}

impl UserSide {
    /// Whether rows become prompt, label and metadata, whatever is found in the user's code.
    fn takes_columns(&self) -> bool {
        match self {
            Self::Here(code) => code.experiment.entrypoint.language == Language::Rust,
            Self::AtServer(_) => true,
        }
    }

    fn check(
        request: &EvalRequest,
        config: &EvalConfig,
        workspace: &Workspace,
    ) -> Result<Self, RunError> {
        if let Some(server) = &request.server {
            user_code::check_head(workspace, &config.experiment)?;
            return Ok(Self::AtServer(Arc::clone(server)));
        }
        UserCode::check(
            workspace,
            &config.experiment,
            PassedOn::from(config),
            request.secrets_file.as_deref(),
        )
        .map(|code| Self::Here(Box::new(code)))
    }
}

impl EvalPlan {
    /// Checks everything that can be without starting anything; what takes time is told as it begins.
    pub async fn check(
        request: EvalRequest,
        workspace: &WorkspaceChoice,
        notices: &dyn Notices,
    ) -> Result<Self, RunError> {
        let config = EvalConfig::of(&request.config)?;
        let config_text = request.config.effective_text()?;
        let selection = match &request.rows {
            Some(text) => Some(text.parse::<RowSelection>().map_err(|error| {
                RunError::usage(RunErrorKind::Usage, format!("--rows: {error}")).hint(error.hint())
            })?),
            None => None,
        };
        let limit = request.limit.or(config.evaluation.limit);
        let beside = request.config.file.as_deref().and_then(Utf8Path::parent);
        let workspace = workspace.find(beside)?;
        let side = UserSide::check(&request, &config, &workspace)?;
        notices.step(format_args!(
            "Reading the dataset {}",
            config.experiment.dataset
        ));
        let dataset = CheckedDataset::open(
            &config.experiment.dataset,
            &config.dataset.columns,
            &workspace,
        )?;
        if side.takes_columns() {
            dataset.check_columns()?;
        }
        if let Some(beyond) = selection
            .as_ref()
            .and_then(|rows| rows.beyond(dataset.rows))
        {
            let message = format!(
                "--rows: there is no row {beyond}: `{}` has {} rows",
                dataset.path(),
                dataset.rows
            );
            return Err(RunError::usage(RunErrorKind::Usage, message).hint(format!(
                "rows count from 0; the last is {}",
                dataset.rows - 1
            )));
        }
        let mut filter = RowFilter::new(selection.clone(), limit);
        let chosen = (0..dataset.rows).filter(|index| filter.judge(*index) == RowVerdict::Take);
        let rows = chosen.count() as u64;
        let model_path = &config.experiment.model_path;
        let chat = ChatChoice::of_experiment(&config.experiment, &workspace)?;
        if model_path.runs_here() {
            notices.step(format_args!("Loading the model {model_path}"));
        }
        let ready = policy::open(model_path, request.seed, &workspace, &chat).await?;
        let judge = match side {
            UserSide::Here(_) => {
                let (model, beside) = (config.judge_model.as_ref(), Some((model_path, &ready)));
                ReadyJudge::open(model, request.seed, &workspace, beside).await?
            }
            UserSide::AtServer(_) => None,
        };
        Ok(Self {
            workspace,
            request,
            config,
            config_text,
            side,
            dataset,
            selection,
            limit,
            rows,
            ready,
            judge,
        })
    }

    /// What a run without a name is named after.
    pub fn stem(&self) -> &str {
        let file = self.request.config.file.as_deref();
        let stem = file.and_then(Utf8Path::file_stem);
        stem.unwrap_or(self.config.experiment.rollout.as_str())
    }

    /// Whether calls leave this machine and may cost money.
    pub fn goes_out(&self) -> bool {
        self.ready.remote || self.judge.as_ref().is_some_and(ReadyJudge::is_remote)
    }

    pub fn rollouts(&self) -> u64 {
        self.rows * u64::from(self.config.evaluation.n)
    }

    /// What a resume must find as it is now.
    pub fn pinned(&self, environment_digest: Option<&str>) -> Result<Pinned, RunError> {
        let mut facts = Pinned::of_config(&self.config)?;
        // How fast a run goes is not what it is.
        facts.settings.remove("evaluation.batch_size");
        facts
            .settings
            .insert("evaluation.limit".to_owned(), json!(self.limit));
        facts.model = Some(self.ready.identity.clone());
        facts.judge = self.judge.as_ref().map(|judge| judge.identity.clone());
        // For `eval regrade`, which grades by the config as it is then.
        let within = |file: &Utf8Path| {
            let within = file.strip_prefix(&self.workspace.root).unwrap_or(file);
            within.to_string()
        };
        facts.remembered.config = self.request.config.file.as_deref().map(within);
        facts.remembered.overrides = self.request.config.settings();
        facts.dataset_sha256 = Some(self.dataset.sha256.clone());
        facts.rows = self.selection.as_ref().map(ToString::to_string);
        match &self.side {
            UserSide::Here(code) => {
                facts.pin_source(code.source()?);
                facts.environment_sha256 = environment_digest.map(str::to_owned);
            }
            UserSide::AtServer(server) => server.pin(&mut facts),
        }
        Ok(facts)
    }

    /// Puts the chosen rows and their rollouts into the store's queue.
    pub async fn enqueue(&self, store: &Arc<dyn Store>) -> Result<(), RunError> {
        let n = self.config.evaluation.n;
        let mut rows = vec![];
        let mut rollouts = vec![];
        let mut filter = RowFilter::new(self.selection.clone(), self.limit);
        for row in self.dataset.read() {
            let row = row?;
            match filter.judge(row.row_index) {
                RowVerdict::Take => {}
                RowVerdict::Skip => continue,
                RowVerdict::Stop => break,
            }
            for run_index in 0..n {
                rollouts.push(NewRollout {
                    id: RolloutId::of(row.row_index, run_index),
                    row_index: row.row_index,
                    run_index,
                });
            }
            rows.push(row);
            if rows.len() >= ENQUEUE_BATCH {
                store
                    .enqueue(std::mem::take(&mut rows), std::mem::take(&mut rollouts))
                    .await?;
            }
        }
        store.enqueue(rows, rollouts).await?;
        // The rows are the run's own from here on. Between the check and now they were not.
        self.dataset.check_unchanged()
    }
}
