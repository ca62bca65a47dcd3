//! One supervised training: no workers, no gateway, no queue. The learner and the life of a run are those of other
//! trainings, and so are checkpoints.

use std::sync::Arc;

use async_trait::async_trait;
use osmosis_core::learner::TrainableModel;
use osmosis_core::{Redactor, RunName};
use osmosis_store::{RunKind, RunStatus};
use osmosis_train::{SupervisedEvent, SupervisedParts, SupervisedTrainer, TrainEnd};

use super::learning_run::{self, Planned};
use super::supervised_plan::CheckedSupervised;
use super::trained_model::freeze;
use crate::RunError;
use crate::life::{OpenRun, RunIdentity, Surroundings, Work};
use crate::reports::SupervisedTrainingReport;
use crate::run_folder::RunFolder;
use crate::runs::{Pinned, named_folder};
use crate::settings::Trackers;

/// One supervised training.
#[derive(Debug)]
pub struct SupervisedTraining {
    pub plan: CheckedSupervised,
    pub name: RunName,
    pub folder: RunFolder,
    pub tensorboard: bool,
    pub trackers: Trackers,
}

impl SupervisedTraining {
    /// A run of this plan, under a new name unless one is given.
    pub fn new(plan: CheckedSupervised, name: Option<RunName>) -> Result<Self, RunError> {
        let (name, folder) = named_folder(name, plan.stem(), &plan.workspace, RunKind::Training)?;
        Ok(Self {
            plan,
            name,
            folder,
            tensorboard: false,
            trackers: Trackers::default(),
        })
    }

    fn planned(&self) -> Result<Planned, RunError> {
        Ok(Planned {
            steps: self.plan.train_plan().steps()?,
            has_held_out_rows: self.plan.row_counts().1 > 0,
        })
    }
}

#[async_trait]
impl Work for SupervisedTraining {
    type Event = SupervisedEvent;
    type Ready = ();
    type End = TrainEnd;
    type Report = SupervisedTrainingReport;

    fn identity(&self) -> RunIdentity<'_> {
        RunIdentity {
            kind: RunKind::Training,
            name: &self.name,
            folder: &self.folder,
            workspace: &self.plan.workspace,
            project: "sft",
            config_text: &self.plan.config_text,
            log_limits: self.plan.config.logs,
            run_again: vec![],
            dataset: None,
        }
    }

    fn redactor(&self) -> Redactor {
        Redactor::default()
    }

    fn trackers(&self) -> Trackers {
        self.trackers.beside_trainer()
    }

    async fn prepare(&self, _around: &Surroundings<'_, SupervisedEvent>) -> Result<(), RunError> {
        Ok(())
    }

    fn pin(&self, (): &()) -> Result<Pinned, RunError> {
        self.plan.pinned()
    }

    async fn preflight(
        &self,
        (): &mut (),
        _around: &Surroundings<'_, SupervisedEvent>,
    ) -> Result<(), RunError> {
        Ok(())
    }

    async fn ended_before(&self, run: &OpenRun) -> Result<Option<TrainEnd>, RunError> {
        learning_run::ended_before(run, &self.folder, self.planned()?).await
    }

    async fn opened(
        &self,
        (): &(),
        run: &OpenRun,
        around: &Surroundings<'_, SupervisedEvent>,
    ) -> Result<(), RunError> {
        learning_run::compare_processors(run, &**around.notices);
        Ok(())
    }

    async fn drive(
        &self,
        (): (),
        run: &OpenRun,
        around: &Surroundings<'_, SupervisedEvent>,
    ) -> Result<TrainEnd, RunError> {
        let model = &self.plan.model;
        freeze(model, self.plan.seed(), &self.folder).await?;
        let parts = SupervisedParts {
            store: Arc::clone(&run.store),
            model: Arc::clone(model) as Arc<dyn TrainableModel>,
            folder: self.folder.path.clone(),
            tensorboard: self.tensorboard || self.trackers.has_tensorboard(),
        };
        let mut trainer = SupervisedTrainer::open(self.plan.train_plan(), parts).await?;
        let events = around.events.run_events();
        Ok(trainer.run(&around.stop.stop, events).await?)
    }

    fn status(&self, end: &TrainEnd) -> RunStatus {
        learning_run::status(end)
    }

    async fn record_failure(&self, run: &OpenRun, error: &RunError) -> Result<(), RunError> {
        learning_run::record_failure(run, error, self.planned()?, &self.redactor()).await
    }

    async fn report(&self, run: &OpenRun) -> Result<SupervisedTrainingReport, RunError> {
        let report = SupervisedTrainingReport::of(&*run.store, &self.name, &self.folder).await?;
        Ok(report.ran_here(run))
    }
}
