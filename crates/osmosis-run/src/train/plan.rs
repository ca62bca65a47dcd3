//! Everything about a training run that can be checked before any process is started.

use std::collections::HashSet;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::{Checkpoints, ConfigSource, HeldOut, Language, ModelPath, TrainConfig};
use osmosis_core::frame::Manifest;
use osmosis_data::Taking;
use osmosis_policy::Processor;
use osmosis_store::NewRow;
use osmosis_tokens::ChatFormat;
use osmosis_train::TrainPlan;
use osmosis_train::schedule::Schedule;

use super::held_out::{held_out_rows, moved_rows, split_by_content};
use super::overlap::{HeldOutContents, Overlap};
use super::trained_model::TrainedModel;
use crate::builtin_language;
use crate::checked_dataset::CheckedDataset;
use crate::judge::ReadyJudge;
use crate::notices::Notices;
use crate::policy::MAX_BATCH;
use crate::runs::{Pinned, Remembered};
use crate::user_code::{PassedOn, UserCode};
use crate::workspace::{Workspace, WorkspaceChoice};
use crate::{RunError, RunErrorKind};

/// Most rollouts that are under way at once unless asked otherwise.
const MOST_DEFAULT_IN_FLIGHT: u32 = 256;

/// What the user asked for, on the command line or in an earlier submit.
#[derive(Debug, Clone)]
pub struct Request {
    pub config: ConfigSource,
    pub secrets_file: Option<Utf8PathBuf>,
    /// The run goes on that a version began which did not compare rows.
    pub rows_not_compared: bool,
}

/// A checked training run.
#[derive(Debug)]
pub struct Plan<M = TrainedModel> {
    pub workspace: Workspace,
    pub request: Request,
    pub config: TrainConfig,
    /// The config with what is set beside it.
    pub config_text: String,
    pub code: UserCode,
    pub model: M,
    /// What the grader may ask.
    pub judge: Option<ReadyJudge>,
    dataset: CheckedDataset,
    eval_dataset: Option<CheckedDataset>,
    /// The rows of the dataset that `eval_fraction` holds out.
    chosen: Vec<u64>,
}

/// What a run is about: a model that is trained here, or one that is trained elsewhere.
pub trait PlannedModel: Sized {
    fn open(
        config: &TrainConfig,
        workspace: &Workspace,
    ) -> impl Future<Output = Result<Self, RunError>> + Send;
    /// What of it a resume must find unchanged.
    fn pin(&self, facts: &mut Pinned) -> Result<(), RunError>;
    /// Texts that must never be written down.
    fn secrets(&self) -> &[String];
}

impl<M: PlannedModel> Plan<M> {
    /// Checks everything that can be without starting anything; what takes time is told as it begins.
    pub async fn check(
        request: Request,
        workspace: &WorkspaceChoice,
        notices: &dyn Notices,
    ) -> Result<Self, RunError> {
        let config = TrainConfig::of(&request.config)?;
        let config_text = request.config.effective_text()?;
        let beside = request.config.file.as_deref().and_then(Utf8Path::parent);
        let workspace = workspace.find(beside)?;
        let code = UserCode::check(
            &workspace,
            &config.experiment,
            PassedOn::from(&config),
            request.secrets_file.as_deref(),
        )?;
        notices.step(format_args!(
            "Reading the dataset {}",
            config.experiment.dataset
        ));
        let columns = &config.dataset.columns;
        let dataset = CheckedDataset::open(&config.experiment.dataset, columns, &workspace)?;
        let eval_dataset = match &config.training.held_out {
            Some(HeldOut::Dataset(reference)) => {
                Some(CheckedDataset::open(reference, columns, &workspace)?)
            }
            Some(HeldOut::Fraction(_)) | None => None,
        };
        if config.experiment.model_path.runs_here() {
            notices.step(format_args!(
                "Loading the model {}",
                config.experiment.model_path
            ));
        }
        let model = M::open(&config, &workspace).await?;
        let seed = config.training.seed.unwrap_or(0);
        let judge = ReadyJudge::open(config.judge_model.as_ref(), seed, &workspace, None).await?;
        let mut plan = Self {
            workspace,
            request,
            config,
            config_text,
            code,
            model,
            judge,
            dataset,
            eval_dataset,
            chosen: vec![],
        };
        if plan.config.experiment.entrypoint.language == Language::Rust {
            plan.datasets()
                .try_for_each(CheckedDataset::check_columns)?;
        }
        plan.chosen = plan.choose_rows()?;
        plan.check_held_out()?;
        Ok(plan)
    }

    /// Steps that the run has, and how many checkpoints it has kept at its end.
    pub fn steps(&self) -> Result<(u64, u64), RunError> {
        let rows: Vec<u64> = (0..self.row_counts().0).collect();
        let steps = Schedule::new(&rows, &self.config.training, self.seed())?.steps();
        let Checkpoints {
            checkpoint_save_freq,
            keep_last,
            keep_best,
            ..
        } = self.config.checkpoints;
        let saved = steps.div_ceil(checkpoint_save_freq.max(1));
        let kept = match (keep_last, keep_best) {
            (None, None) => saved,
            (last, best) => saved.min(last.unwrap_or(1).saturating_add(best.unwrap_or(1))),
        };
        Ok((steps, kept))
    }

    /// What a run without a name is named after.
    pub fn stem(&self) -> &str {
        let file = self.request.config.file.as_deref();
        let stem = file.and_then(Utf8Path::file_stem);
        stem.unwrap_or(self.config.experiment.rollout.as_str())
    }

    /// The rows to train on.
    pub fn dataset(&self) -> &CheckedDataset {
        &self.dataset
    }

    /// Whether only the user's code can say if the rows will do.
    fn depends_on_workflow(&self) -> bool {
        self.datasets().any(CheckedDataset::depends_on_workflow)
    }

    /// Refuses rows that this workflow can't be given.
    pub fn check_for(&self, workflow: &Manifest) -> Result<(), RunError> {
        self.datasets()
            .try_for_each(|dataset| dataset.check_for(workflow))
    }

    /// What the built-in model will not understand of the rows.
    pub fn language_note(&self, model: &ModelPath, chat: &ChatFormat) -> Option<String> {
        builtin_language::note(model, chat, &self.dataset)
    }

    fn datasets(&self) -> impl Iterator<Item = &CheckedDataset> {
        std::iter::once(&self.dataset).chain(&self.eval_dataset)
    }

    /// Where all random choices start. Without one in the config it is 0: a run repeats by default.
    pub fn seed(&self) -> u64 {
        self.config.training.seed.unwrap_or(0)
    }

    pub fn default_in_flight(&self) -> u32 {
        let training = &self.config.training;
        // Those of the steps ahead may be under way, too.
        let batches = training.max_staleness.saturating_add(1);
        training
            .rollout_batch_size
            .saturating_mul(training.n_samples_per_prompt)
            .saturating_mul(batches)
            .min(MOST_DEFAULT_IN_FLIGHT)
    }

    /// Answers that are sampled together.
    pub fn sequences_at_once(&self) -> usize {
        let in_flight = usize::try_from(self.default_in_flight());
        in_flight.unwrap_or(MAX_BATCH).min(MAX_BATCH)
    }

    /// `12 rows, 3 held out`.
    pub fn amount(&self) -> String {
        let (train, held_out) = self.row_counts();
        match held_out {
            0 => format!("{train} rows, none held out"),
            _ => format!("{train} rows, {held_out} held out"),
        }
    }

    /// Rows to train on, and held-out ones.
    pub fn row_counts(&self) -> (u64, u64) {
        let chosen = self.chosen.len() as u64;
        let apart = self.eval_dataset.as_ref().map_or(0, |dataset| dataset.rows);
        (self.dataset.rows - chosen, chosen + apart)
    }

    /// The indices of the held-out rows: those of `eval_dataset` come after the dataset's.
    pub fn held_out_rows(&self) -> impl Iterator<Item = u64> {
        let apart = self.eval_dataset.as_ref().map_or(0, |dataset| dataset.rows);
        let after = self.dataset.rows..self.dataset.rows + apart;
        self.chosen.iter().copied().chain(after)
    }

    /// What a resume must find as it is now.
    pub fn pinned(&self, environment_digest: &str) -> Result<Pinned, RunError> {
        let mut facts = Pinned::of_config(&self.config)?;
        facts
            .settings
            .insert("training.seed".to_owned(), self.seed().into());
        self.model.pin(&mut facts)?;
        facts.judge = self.judge.as_ref().map(|judge| judge.identity.clone());
        facts.dataset_sha256 = Some(self.dataset.sha256.clone());
        let eval_dataset = self.eval_dataset.as_ref();
        facts.eval_dataset_sha256 = eval_dataset.map(|dataset| dataset.sha256.clone());
        facts.pin_source(self.code.source()?);
        facts.environment_sha256 = Some(environment_digest.to_owned());
        facts.held_out_rows_moved = self.moved_rows();
        let source = &self.request.config;
        let within = |file: &Utf8PathBuf| {
            file.strip_prefix(&self.workspace.root)
                .unwrap_or(file)
                .to_string()
        };
        facts.remembered = Remembered {
            config: source.file.as_ref().map(within),
            overrides: source.settings(),
            rows_compared: Some("by content".to_owned()),
            // Tells later which rows were held out, also when the dataset is gone.
            dataset_rows: Some(self.dataset.rows),
            // Another kind of processor may finish the run, with other bits.
            processor: Some(Processor::here().to_string()),
            ..Remembered::default()
        };
        Ok(facts)
    }

    /// The rows as the trainer takes them. Those of `eval_dataset` are numbered after the dataset's.
    pub fn train_plan(&self) -> Result<TrainPlan, RunError> {
        let chosen: HashSet<u64> = self.chosen.iter().copied().collect();
        let (mut rows, mut held_out) = (vec![], vec![]);
        for row in self.dataset.read() {
            let row = row?;
            if chosen.contains(&row.row_index) {
                held_out.push(row);
            } else {
                rows.push(row);
            }
        }
        self.dataset.check_unchanged()?;
        if let Some(dataset) = &self.eval_dataset {
            for row in dataset.read() {
                let row = row?;
                held_out.push(NewRow {
                    row_index: self.dataset.rows + row.row_index,
                    ..row
                });
            }
            dataset.check_unchanged()?;
        }
        Ok(TrainPlan {
            rows,
            held_out,
            training: self.config.training.clone(),
            checkpoints: self.config.checkpoints,
            seed: self.seed(),
        })
    }

    /// The rows of the dataset that `eval_fraction` holds out: equal ones all or none.
    fn choose_rows(&self) -> Result<Vec<u64>, RunError> {
        let Some(HeldOut::Fraction(fraction)) = self.config.training.held_out else {
            return Ok(vec![]);
        };
        let chosen = if self.compares_rows() {
            let contents = self.dataset.contents(self.taking());
            let contents = contents.map(|row| row.map(|row| row.content.all));
            let contents: Vec<_> = contents.collect::<Result<_, _>>()?;
            split_by_content(&contents, fraction, self.seed())
        } else {
            held_out_rows(self.dataset.rows, fraction, self.seed())
        };
        chosen.ok_or_else(|| {
            let (path, rows) = (self.dataset.path(), self.dataset.rows);
            let why = if rows < 2 {
                format!("`{path}` has {rows} rows: too few to hold some out")
            } else {
                format!("all {rows} rows of `{path}` are equal: none can be held out")
            };
            RunError::failed(RunErrorKind::DatasetInvalid, why)
                .hint("add rows, or remove `eval_fraction` from [training]")
        })
    }

    /// Refuses rows that are trained on and held out at once.
    fn check_held_out(&self) -> Result<(), RunError> {
        if self.config.training.held_out.is_none() || !self.compares_rows() {
            return Ok(());
        }
        let taking = self.taking();
        let mut held_out = HeldOutContents::default();
        let eval_rows = self.eval_dataset.iter().flat_map(|it| it.contents(taking));
        for row in eval_rows {
            let row = row?;
            held_out.add(row.line, &row.content);
        }
        let chosen: HashSet<u64> = self.chosen.iter().copied().collect();
        let mut overlap = Overlap::default();
        for (row, index) in self.dataset.contents(taking).zip(0..) {
            let row = row?;
            if chosen.contains(&index) {
                continue;
            }
            if row.is_unseen_phrasing {
                return Err(self.phrasing_is_trained_on(row.line));
            }
            held_out.compare(row.line, &row.content, &mut overlap);
        }
        let Some(eval_dataset) = &self.eval_dataset else {
            return Ok(());
        };
        let (dataset, path) = (self.dataset.path(), eval_dataset.path());
        if let Some((line, eval_line)) = overlap.first_alike {
            tracing::warn!(
                "{} held-out rows have prompt and label of a row to train on, and other metadata: \
                 {dataset}:{line} and {path}:{eval_line}, say",
                overlap.alike
            );
        }
        overlap.check(eval_dataset.rows, dataset, path)
    }

    fn phrasing_is_trained_on(&self, line: u64) -> RunError {
        let path = self.dataset.path();
        RunError::failed(
            RunErrorKind::HeldOutOverlap,
            format!(
                "{path}:{line} has `\"unseen_phrasing\": true` in its metadata and is trained on"
            ),
        )
        .hint("move such rows to an `eval_dataset`, or remove the mark")
    }

    fn compares_rows(&self) -> bool {
        !self.config.training.allow_overlap && !self.request.rows_not_compared
    }

    /// What the workflow takes of rows, as far as can be said before it is loaded.
    fn taking(&self) -> Taking {
        if self.depends_on_workflow() {
            Taking::WholeRows
        } else {
            Taking::Columns
        }
    }

    /// The rows that are on another side than a choice without regard to equal rows would have put them, so
    /// that others can repeat it without the dataset.
    fn moved_rows(&self) -> Option<String> {
        let Some(HeldOut::Fraction(fraction)) = self.config.training.held_out else {
            return None;
        };
        let plain = held_out_rows(self.dataset.rows, fraction, self.seed())?;
        moved_rows(&plain, &self.chosen)
    }
}
