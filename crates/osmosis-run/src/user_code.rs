//! The user's side of a run: a rollout with everything it is started with.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::{
    Entrypoint, EvalConfig, Experiment, Secrets, TrainConfig, WorkerIsolation, Workers,
};
use osmosis_core::frame::{Load, Manifest};
use osmosis_core::{JsonText, JsonTextError, RolloutName};
use osmosis_worker::variables::DEBUG_VARIABLE;
use osmosis_worker::{PoolOptions, WorkerEvent, WorkerPool};
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use crate::notices::Notices;
use crate::prepared::Prepared;
use crate::run_code::RunCode;
use crate::secrets;
use crate::source_files::ProjectSource;
use crate::withheld::{IN_CONFIG, Withheld};
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind, io_error as io};

/// A rollout that is there, with the values of its secrets.
#[derive(Debug)]
pub struct UserCode {
    pub rollout_dir: Utf8PathBuf,
    pub experiment: Experiment,
    /// Values of `[secrets]`, by name.
    pub secrets: Vec<(String, String)>,
    pub withheld: Withheld,
    /// User code that raises opens its debugger on this terminal.
    pub debugger: bool,
    passed_on: PassedOn,
    /// Set once it is prepared.
    run_code: OnceLock<Arc<RunCode>>,
}

/// The sections of a config that are for user code.
#[derive(Debug, Clone)]
pub struct PassedOn {
    workflow: Map<String, Value>,
    grader: Map<String, Value>,
    has_judge: bool,
    env: BTreeMap<String, String>,
    secrets: Secrets,
    workers: Workers,
    has_advanced: bool,
}

impl From<&EvalConfig> for PassedOn {
    fn from(config: &EvalConfig) -> Self {
        Self {
            workflow: config.workflow.clone(),
            grader: config.grader.clone(),
            has_judge: config.judge_model.is_some(),
            env: config.env.clone(),
            secrets: config.secrets.clone(),
            workers: config.workers.clone(),
            has_advanced: !config.advanced.is_empty(),
        }
    }
}

impl From<&TrainConfig> for PassedOn {
    fn from(config: &TrainConfig) -> Self {
        Self {
            workflow: config.workflow.clone(),
            grader: config.grader.clone(),
            has_judge: config.judge_model.is_some(),
            env: config.env.clone(),
            secrets: config.secrets.clone(),
            workers: config.workers.clone(),
            has_advanced: !config.advanced.is_empty(),
        }
    }
}

impl PassedOn {
    /// The sections that say something to user code, which is not here but at a rollout server.
    fn sections_without_effect(&self) -> Vec<&'static str> {
        let sections = [
            ("[workflow]", !self.workflow.is_empty()),
            ("[grader]", !self.grader.is_empty() || self.has_judge),
            ("[env]", !self.env.is_empty()),
            ("[secrets]", self.secrets != Secrets::default()),
            ("[workers]", self.workers != Workers::default()),
        ];
        let said = sections.into_iter().filter(|(_, said)| *said);
        said.map(|(name, _)| name).collect()
    }

    /// Says what of the config has no effect when a server has user code of its own.
    pub fn tell_of_server(&self, notices: &dyn Notices) {
        let unused = self.sections_without_effect();
        if !unused.is_empty() {
            notices.warn(format_args!(
                "{} of the config: the rollout server has its own user code, which is not told",
                unused.join(", ")
            ));
        }
        self.tell_of_advanced(notices);
    }

    fn tell_of_advanced(&self, notices: &dyn Notices) {
        if self.has_advanced {
            notices.note("[advanced] is passed through; nothing of it acts here");
        }
    }
}

impl UserCode {
    /// Looks whether the rollout, its revision and its secrets are there.
    pub fn check(
        workspace: &Workspace,
        experiment: &Experiment,
        passed_on: PassedOn,
        secrets_file: Option<&Utf8Path>,
    ) -> Result<Self, RunError> {
        check_head(workspace, experiment)?;
        Self::packed(workspace, experiment, passed_on, secrets_file)
    }

    /// The same for files that came from a package, which are in no repository.
    pub fn packed(
        workspace: &Workspace,
        experiment: &Experiment,
        passed_on: PassedOn,
        secrets_file: Option<&Utf8Path>,
    ) -> Result<Self, RunError> {
        let rollout_dir = rollout_dir(workspace, &experiment.rollout, &experiment.entrypoint)?;
        let secrets = secrets::collect(&passed_on.secrets, secrets_file)?;
        let passed = secrets.iter().map(|(name, _)| &**name);
        let withheld =
            Withheld::of_environment(passed.chain(passed_on.env.keys().map(|name| &**name)));
        Ok(Self {
            rollout_dir,
            experiment: experiment.clone(),
            secrets,
            withheld,
            debugger: false,
            passed_on,
            run_code: OnceLock::new(),
        })
    }

    /// Digests of the project's files, as they are executed.
    pub fn source(&self) -> Result<ProjectSource, RunError> {
        self.run_code().map(|code| code.source().clone())
    }

    /// What the run executes, once it is prepared.
    pub fn run_code(&self) -> Result<&Arc<RunCode>, RunError> {
        self.run_code.get().ok_or_else(|| {
            RunError::failed(RunErrorKind::Internal, "the user's code was never prepared")
        })
    }

    /// Takes the snapshot that the run executes.
    pub async fn take(&self, prepared: Prepared) -> Result<Arc<RunCode>, RunError> {
        let code = Arc::new(RunCode::take(&self.rollout_dir, prepared).await?);
        Ok(Arc::clone(self.run_code.get_or_init(|| code)))
    }

    /// `[workers] isolation`.
    pub fn isolation(&self) -> WorkerIsolation {
        self.passed_on.workers.isolation
    }

    pub async fn prepare(
        &self,
        python: Option<&Utf8Path>,
        notices: &dyn Notices,
    ) -> Result<Prepared, RunError> {
        Prepared::make(
            &self.rollout_dir,
            &self.experiment.entrypoint,
            python,
            notices,
        )
        .await
    }

    pub async fn start_workers(
        &self,
        code: &RunCode,
        options: PoolOptions,
        events: mpsc::Sender<WorkerEvent>,
        notices: &dyn Notices,
    ) -> Result<WorkerPool, RunError> {
        let internal =
            |error: JsonTextError| RunError::failed(RunErrorKind::Internal, error.to_string());
        let mut variables: Vec<(String, String)> = self
            .passed_on
            .env
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        variables.extend(self.secrets.iter().cloned());
        if self.debugger {
            variables.push((DEBUG_VARIABLE.to_owned(), "1".to_owned()));
        }
        let load = Load {
            project_path: code.folder().to_string(),
            entrypoint: self.experiment.entrypoint.to_string(),
            workflow: JsonText::of(&self.passed_on.workflow).map_err(internal)?,
            grader: JsonText::of(&self.passed_on.grader).map_err(internal)?,
        };
        let launch = code
            .launch_as(&self.passed_on.workers.user, variables, notices)
            .await?;
        let pool = WorkerPool::start(launch, load, options, events)
            .await
            .map_err(|error| self.withheld.explain(error.into(), IN_CONFIG))?;
        code.imported().await?;
        Ok(pool)
    }

    /// Says what was found in the user's code; `amount` says how much of it will be run.
    pub fn tell(&self, manifest: &Manifest, amount: &str, notices: &dyn Notices) {
        for warning in &manifest.warnings {
            notices.warn(warning);
        }
        self.passed_on.tell_of_advanced(notices);
        if self.passed_on.has_judge && manifest.grader.is_none() {
            notices.warn("`judge_model` in [grader] has no effect: there is no grader");
        }
        let grader = match &manifest.grader {
            Some(grader) => format!(" and {}", grader.name),
            None if manifest.self_graded => ", which is its own grader,".to_owned(),
            None => " and no grader".to_owned(),
        };
        notices.note(format_args!(
            "{}{grader} from {} on {} ({amount})",
            manifest.workflow.name, self.experiment.rollout, self.experiment.model_path,
        ));
    }
}

/// The folder of a rollout that is there, with its entrypoint.
pub fn rollout_dir(
    workspace: &Workspace,
    rollout: &RolloutName,
    entrypoint: &Entrypoint,
) -> Result<Utf8PathBuf, RunError> {
    let name = rollout.as_str();
    let folder = workspace.rollout_dir(name);
    if !folder.is_dir() {
        let known = workspace.rollouts();
        let hint = if known.is_empty() {
            format!("make it with `osmosis rollout init {name}`")
        } else {
            format!("the workspace has: {}", known.join(", "))
        };
        return Err(RunError::failed(
            RunErrorKind::RolloutNotFound,
            format!("no rollout `{name}` at `{folder}`"),
        )
        .hint(hint));
    }
    let entrypoint = folder.join(&entrypoint.file);
    if !entrypoint.is_file() {
        return Err(RunError::failed(
            RunErrorKind::EntrypointNotFound,
            format!("the entrypoint `{entrypoint}` is not there"),
        )
        .hint("the entrypoint is relative to the rollout's folder"));
    }
    Ok(folder)
}

/// Refuses when HEAD of the workspace is not what the config names.
pub fn check_head(workspace: &Workspace, experiment: &Experiment) -> Result<(), RunError> {
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
fn git_head(workspace: &Workspace, arguments: &[&str]) -> Result<Option<String>, RunError> {
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
) -> Result<(), RunError> {
    if fits {
        return Ok(());
    }
    let found = head.unwrap_or("in no repository");
    Err(RunError::failed(
        RunErrorKind::SourceMismatch,
        format!(
            "the config asks for `{wanted}`, but HEAD of `{}` is {found}",
            workspace.root
        ),
    )
    .hint("check that revision out, or remove `branch` and `commit_sha` from [experiment]"))
}
