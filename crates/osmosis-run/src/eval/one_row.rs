//! `osmosis rollout run`: agent and grader on one row, in the foreground, told as it goes.
//!
//! It is an evaluation of one rollout like any other, in a folder that is removed afterwards unless the run is to
//! be kept.

mod config;
mod following;

use std::sync::Arc;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::Language;
use osmosis_core::{Phase, Redactor, RolloutId, RunName};
use osmosis_engine::RunEvent;
use osmosis_store::{CallRecord, Store};
use osmosis_worker::WorkerEvent;
use tempfile::TempDir;
use tokio::task::JoinSet;

use self::following::Follower;
use super::evaluation::Evaluation;
use super::plan::{EvalPlan, EvalRequest, UserSide};
use crate::events::Observer;
use crate::life::{FrontEnd, Work as _, live};
use crate::notices::Notices;
use crate::reports::{Entry, RolloutDetails, RowRunReport, Wanted};
use crate::run_folder::RunFolder;
use crate::run_log::RunLog;
use crate::runs::ReadRun;
use crate::settings::Throughput;
use crate::stop_signals::StopSignals;
use crate::workspace::{Workspace, WorkspaceChoice};
use crate::{RunError, RunErrorKind, io_error as io};

/// What the user asked for.
#[derive(Debug, Clone, Default)]
pub struct RowRequest {
    /// Name of the project.
    pub project: String,
    pub row: u64,
    /// The evaluation config; the project's own when there is one.
    pub config: Option<Utf8PathBuf>,
    /// In place of what the config says.
    pub dataset: Option<String>,
    pub model: Option<String>,
    pub entrypoint: Option<String>,
    pub secrets_file: Option<Utf8PathBuf>,
    pub python: Option<Utf8PathBuf>,
    /// Random seed (embedded models only).
    pub seed: u64,
    /// User code that raises opens its debugger on this terminal.
    pub debugger: bool,
    /// The name of the run to keep; without one nothing is.
    pub record: Option<RunName>,
}

/// Something that happened to the row.
#[derive(Debug, Clone)]
pub enum RowEvent {
    /// The row, as the dataset has it (JSON).
    Row(String),
    /// The agent or the grader begins.
    Phase(Phase),
    /// A model call has ended; its number among those of the rollout, from 0.
    Call {
        number: usize,
        call: Box<CallRecord>,
    },
    /// Something was said in a sample, to a model or by it.
    Said { sample: String, entry: Entry },
    /// What follows continues an earlier point of the conversation.
    Branched { sample: String },
    /// A line that user code printed.
    Printed(String),
    /// A worker ended that nobody asked to, or an attempt came to nothing.
    Trouble(String),
}

/// Takes events as they come.
pub type TellRow = Box<dyn FnMut(RowEvent) + Send>;

/// One row, checked and ready to be run.
#[derive(Debug)]
pub struct RowRun {
    evaluation: Evaluation,
    rollout: RolloutId,
    /// Removed with what was recorded, when nothing is to be kept.
    temporary: Option<TempDir>,
}

impl RowRun {
    pub async fn check(
        request: RowRequest,
        workspace: &WorkspaceChoice,
        notices: &dyn Notices,
    ) -> Result<Self, RunError> {
        let start = request.config.as_deref().and_then(Utf8Path::parent);
        let workspace = workspace.find(start)?;
        let (config_path, config_text) = config::read(&request, &workspace)?;
        let mut plan = EvalPlan::check(
            EvalRequest {
                rows: Some(request.row.to_string()),
                secrets_file: request.secrets_file,
                seed: request.seed,
                ..EvalRequest::of_config(config_path, config_text)
            },
            &workspace.chosen(),
            notices,
        )
        .await?;
        if request.debugger {
            enable_debugger(&mut plan.side)?;
        }
        let (name, temporary) = match request.record {
            Some(name) => (name, None),
            None => (unnamed()?, Some(temporary_folder()?)),
        };
        let mut evaluation = Evaluation {
            throughput: Throughput {
                max_in_flight: Some(1),
                python: request.python,
                ..Throughput::default()
            },
            debugged: request.debugger,
            ..Evaluation::new(plan, Some(name))?
        };
        if let Some(folder) = &temporary {
            let path = Utf8PathBuf::from_path_buf(folder.path().join(".osmosis/evals/row"));
            let path = path.map_err(|path| {
                let message = format!("`{}` is not UTF-8", path.display());
                RunError::failed(RunErrorKind::Io, message)
            })?;
            evaluation.folder = RunFolder::unlisted(path);
        } else if evaluation.folder.holds_run().await? {
            let message = format!("run `{}` is there already", evaluation.name);
            return Err(RunError::failed(RunErrorKind::FileExists, message)
                .hint("choose another name for `--record`"));
        }
        Ok(Self {
            evaluation,
            rollout: RolloutId::of(request.row, 0),
            temporary,
        })
    }

    /// Runs agent and grader. A request to stop ends it at once.
    pub async fn run(
        &self,
        stop: &StopSignals,
        notices: Arc<dyn Notices>,
        tell: TellRow,
    ) -> Result<RowRunReport, RunError> {
        let plan = &self.evaluation.plan;
        let model_path = &plan.config.experiment.model_path;
        let follower = Arc::new(Follower::new(
            self.rollout.clone(),
            crate::policy::tokenizer(model_path, &plan.workspace).await,
            tell,
        ));
        let observer = RowObserver {
            follower: Arc::clone(&follower),
            redactor: self.evaluation.redactor(),
            following: JoinSet::new(),
        };
        let front = FrontEnd {
            stop,
            notices,
            observer: Box::new(observer),
            resume: None,
            fresh: false,
        };
        let stop_at_once = async {
            stop.stop.drain.cancelled().await;
            stop.stop.now.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            lived = live(&self.evaluation, front) => { lived?; }
            () = stop_at_once => {}
        }
        let folder = &self.evaluation.folder;
        let store = ReadRun::open(folder.clone()).await?.store;
        follower.catch_up(&*store).await?;
        follower.tell_pending();
        let wanted = Wanted {
            ground_truth: true,
            logs: true,
            ..Wanted::default()
        };
        let kept = self.temporary.is_none();
        Ok(RowRunReport {
            project: plan.config.experiment.rollout.to_string(),
            model: model_path.to_string(),
            run_name: kept.then(|| self.evaluation.name.clone()),
            output_path: kept.then(|| folder.path.clone()),
            rollout: RolloutDetails::of(&*store, folder, &self.rollout, wanted).await?,
        })
    }

    /// The workspace that the project is in.
    pub fn workspace(&self) -> &Workspace {
        &self.evaluation.plan.workspace
    }
}

fn enable_debugger(side: &mut UserSide) -> Result<(), RunError> {
    if let UserSide::Here(code) = side {
        match code.experiment.entrypoint.language {
            Language::Python => code.debugger = true,
            Language::Rust => {
                let message = "`--pdb` is for projects in Python";
                return Err(RunError::usage(RunErrorKind::Usage, message));
            }
        }
    }
    Ok(())
}

fn unnamed() -> Result<RunName, RunError> {
    RunName::new("row").map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))
}

fn temporary_folder() -> Result<TempDir, RunError> {
    let place = Utf8PathBuf::from_path_buf(std::env::temp_dir()).unwrap_or_default();
    tempfile::Builder::new()
        .prefix("osmosis-row-")
        .tempdir()
        .map_err(|error| io(&place, &error))
}

/// Tells what happens, and follows what is recorded.
struct RowObserver {
    follower: Arc<Follower>,
    redactor: Redactor,
    following: JoinSet<()>,
}

impl RowObserver {
    fn tell(&self, event: RowEvent) {
        self.follower.tell_soon(event);
    }
}

#[async_trait]
impl Observer<RunEvent> for RowObserver {
    async fn opened(&mut self, store: &Arc<dyn Store>) -> Result<(), RunError> {
        self.follower.tell_row(&**store).await?;
        let (store, follower) = (Arc::clone(store), Arc::clone(&self.follower));
        self.following
            .spawn(async move { follower.follow(&*store).await });
        Ok(())
    }

    fn event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::PhaseBegan { phase, calls, .. } => {
                let calls = usize::try_from(*calls).unwrap_or(usize::MAX);
                self.follower.tell_after(RowEvent::Phase(*phase), calls);
            }
            RunEvent::Retrying { reason, wait, .. } => self.tell(RowEvent::Trouble(format!(
                "{reason}; tried again in {:.1} s",
                wait.as_secs_f64()
            ))),
            RunEvent::GradingAgain { reason, .. } => {
                self.tell(RowEvent::Trouble(format!("{reason}; graded again")));
            }
            RunEvent::Began { .. }
            | RunEvent::Claimed { .. }
            | RunEvent::Finished { .. }
            | RunEvent::Draining { .. } => {}
        }
    }

    fn worker_event(&mut self, event: &WorkerEvent) {
        match event {
            WorkerEvent::Output { line, .. } => {
                self.tell(RowEvent::Printed(self.redactor.clean(line)));
            }
            WorkerEvent::Died { detail, .. } => self.tell(RowEvent::Trouble(detail.clone())),
            WorkerEvent::Killed { reason, .. } => {
                self.tell(RowEvent::Trouble(format!("the worker was ended: {reason}")));
            }
            // Somebody at the debugger blocks the loop all the time.
            WorkerEvent::LoopBlocked { .. } | WorkerEvent::Started { .. } => {}
        }
    }

    fn log(&self, event: &RunEvent, log: &mut RunLog) {
        log.run_event(event);
    }

    fn tick(&mut self) {}

    fn finish(&mut self) {}
}
