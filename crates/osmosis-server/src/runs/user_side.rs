//! Whose workflow is served: a rollout of the workspace, or the process that started us.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::config::{Entrypoint, WorkerUser, Workers};
use osmosis_core::frame::Load;
use osmosis_core::{JsonText, JsonTextError, RolloutName};
use osmosis_run::execution::pool_options;
use osmosis_run::notices::Notices;
use osmosis_run::prepared::Prepared;
use osmosis_run::run_code::RunCode;
use osmosis_run::run_folder::RunFolder;
use osmosis_run::settings::Throughput;
use osmosis_run::user_code::rollout_dir;
use osmosis_run::withheld::{BY_ARGUMENT, Withheld, passed_variables};
use osmosis_run::workspace::Workspace;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_worker::{Attachment, PoolOptions, WorkerEvent, WorkerPool};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// What the one worker from outside shows that it is who it says.
const TOKEN_VARIABLE: &str = "OSMOSIS_SERVE_TOKEN";
/// Shorter ones could be guessed.
const SHORTEST_TOKEN: usize = 16;
/// How long that worker may take to come. Whoever starts us gives up after as long.
const ATTACH_LIMIT: Duration = Duration::from_secs(30);
/// An outside process runs as many as the engine gives it.
const ATTACHED_IN_FLIGHT: usize = 1024;

/// Which user code is to be served, and how its workers are started.
#[derive(Debug)]
pub struct UserSideRequest {
    /// A rollout of the workspace; `None` for the process that started us.
    pub rollout: Option<String>,
    pub entrypoint: String,
    /// Names of variables that its workers get.
    pub pass_env: Vec<String>,
    pub python: Option<Utf8PathBuf>,
    pub workers: Option<u32>,
    pub process_settings: Workers,
}

#[derive(Debug)]
pub struct UserSide {
    code: ServedCode,
    throughput: Throughput,
    process_settings: Workers,
}

#[derive(Debug)]
enum ServedCode {
    Rollout(Box<Rollout>),
    Attached { token: String },
}

#[derive(Debug)]
struct Rollout {
    name: RolloutName,
    entrypoint: Entrypoint,
    dir: Utf8PathBuf,
    /// Variables for its workers.
    passed: BTreeMap<String, String>,
}

impl UserSide {
    pub fn check(request: UserSideRequest, workspace: &Workspace) -> Result<Self, RunError> {
        let code = match &request.rollout {
            Some(name) => ServedCode::check(name, &request, workspace)?,
            None => ServedCode::Attached { token: token()? },
        };
        Ok(Self {
            code,
            throughput: Throughput {
                workers: request.workers,
                python: request.python,
                ..Throughput::default()
            },
            process_settings: request.process_settings,
        })
    }
}

impl ServedCode {
    fn check(
        name: &str,
        request: &UserSideRequest,
        workspace: &Workspace,
    ) -> Result<Self, RunError> {
        let name = RolloutName::new(name)
            .map_err(|error| RunError::usage(RunErrorKind::Usage, error.to_string()))?;
        let entrypoint: Entrypoint = request.entrypoint.parse().map_err(
            |error: osmosis_core::config::EntrypointError| {
                RunError::usage(RunErrorKind::Usage, format!("--entrypoint: {error}"))
                    .hint(error.hint())
            },
        )?;
        let dir = rollout_dir(workspace, &name, &entrypoint)?;
        Ok(Self::Rollout(Box::new(Rollout {
            name,
            entrypoint,
            dir,
            passed: passed_variables(&request.pass_env)?,
        })))
    }
}

impl UserSide {
    /// What the process that is served shows with everything it sends.
    pub fn token(&self) -> Option<&str> {
        match &self.code {
            ServedCode::Attached { token } => Some(token),
            ServedCode::Rollout(_) => None,
        }
    }

    /// The values that workers get and nobody else may read.
    pub fn passed_values(&self) -> impl Iterator<Item = &str> {
        let passed = match &self.code {
            ServedCode::Rollout(rollout) => Some(rollout.passed.values()),
            ServedCode::Attached { .. } => None,
        };
        passed.into_iter().flatten().map(String::as_str)
    }

    /// What a run without a name is named after.
    pub fn name(&self) -> &str {
        match &self.code {
            ServedCode::Rollout(rollout) => rollout.name.as_str(),
            ServedCode::Attached { .. } => "attached",
        }
    }

    /// Where the run is recorded. A program that is served may have been started anywhere, also where
    /// nothing can be written.
    pub fn folder(&self, wanted: RunFolder) -> RunFolder {
        // The folder of a rollout's run is not made before its code was imported.
        let ServedCode::Attached { .. } = &self.code else {
            return wanted;
        };
        match std::fs::create_dir_all(&wanted.path) {
            Err(error) => {
                let name = wanted.path.file_name().unwrap_or("attached");
                let temporary = Utf8PathBuf::from_path_buf(std::env::temp_dir())
                    .unwrap_or_else(|_| "/tmp".into())
                    .join(format!("osmosis-serve-{}-{name}", std::process::id()));
                tracing::warn!(folder = %wanted.path, %error, %temporary, "rollouts are recorded elsewhere");
                RunFolder::unlisted(temporary)
            }
            Ok(()) => wanted,
        }
    }

    /// Makes the rollout's environment and takes its snapshot; there is none to make for the process that started us.
    pub async fn prepare(&self, notices: &dyn Notices) -> Result<Option<Arc<RunCode>>, RunError> {
        let ServedCode::Rollout(rollout) = &self.code else {
            return Ok(None);
        };
        let python = self.throughput.python.as_deref();
        let prepared = Prepared::make(&rollout.dir, &rollout.entrypoint, python, notices).await?;
        if let Some(text) = rollout.withheld().text(BY_ARGUMENT) {
            notices.note(text);
        }
        let code = RunCode::take(&rollout.dir, prepared).await?;
        Ok(Some(Arc::new(code)))
    }

    /// What a run that goes on must have in common with its beginning.
    pub fn pinned(&self) -> Value {
        match &self.code {
            ServedCode::Rollout(rollout) => json!({ "serve": {
                "rollout": rollout.name,
                "entrypoint": rollout.entrypoint.to_string(),
            }}),
            ServedCode::Attached { .. } => json!({ "serve": { "attached": true } }),
        }
    }

    /// Starts workers of a rollout, which import its code.
    pub async fn start_workers(
        &self,
        code: &RunCode,
        max_in_flight: u32,
        events: mpsc::Sender<WorkerEvent>,
        notices: &dyn Notices,
    ) -> Result<WorkerPool, RunError> {
        let ServedCode::Rollout(rollout) = &self.code else {
            return Err(RunError::failed(
                RunErrorKind::Internal,
                "the process that started us is its own worker",
            ));
        };
        notices.step(format_args!(
            "Importing rollouts/{}/{}",
            rollout.name, rollout.entrypoint.file
        ));
        let isolation = self.process_settings.isolation;
        let options = pool_options(&self.throughput, max_in_flight, isolation);
        let user = &self.process_settings.user;
        rollout
            .start_workers(code, options, events, user, notices)
            .await
    }

    /// Waits for the one worker that comes by itself. `tell` is called when requests can be sent, with the
    /// address for that worker.
    pub async fn admit_worker(
        &self,
        max_in_flight: u32,
        events: mpsc::Sender<WorkerEvent>,
        tell: impl Fn(Option<&str>),
    ) -> Result<WorkerPool, RunError> {
        let ServedCode::Attached { token } = &self.code else {
            return Err(RunError::failed(
                RunErrorKind::Internal,
                "the workers of the rollout were never started",
            ));
        };
        let options = PoolOptions {
            in_flight_per_worker: ATTACHED_IN_FLIGHT,
            start_limit: ATTACH_LIMIT,
            ..pool_options(
                &self.throughput,
                max_in_flight,
                self.process_settings.isolation,
            )
        };
        let attachment = Attachment::open(token.clone(), options, events).await?;
        tell(Some(attachment.address()));
        Ok(attachment.admit().await?)
    }
}

impl Rollout {
    async fn start_workers(
        &self,
        code: &RunCode,
        options: PoolOptions,
        events: mpsc::Sender<WorkerEvent>,
        user: &WorkerUser,
        notices: &dyn Notices,
    ) -> Result<WorkerPool, RunError> {
        let internal =
            |error: JsonTextError| RunError::failed(RunErrorKind::Internal, error.to_string());
        let load = Load {
            project_path: code.folder().to_string(),
            entrypoint: self.entrypoint.to_string(),
            workflow: JsonText::parse("{}").map_err(internal)?,
            grader: JsonText::parse("{}").map_err(internal)?,
        };
        let variables = self.passed.clone().into_iter().collect();
        let launch = code.launch_as(user, variables, notices).await?;
        let pool = WorkerPool::start(launch, load, options, events)
            .await
            .map_err(|error| self.withheld().explain(error.into(), BY_ARGUMENT))?;
        code.imported().await?;
        Ok(pool)
    }

    fn withheld(&self) -> Withheld {
        Withheld::of_environment(self.passed.keys().map(|name| &**name))
    }
}

fn token() -> Result<String, RunError> {
    std::env::var(TOKEN_VARIABLE)
        .ok()
        .filter(|token| token.len() >= SHORTEST_TOKEN)
        .ok_or_else(|| {
            let message = format!("--attach: {TOKEN_VARIABLE} is not set, or too short");
            RunError::usage(RunErrorKind::Usage, message)
                .hint("name a rollout instead; `--attach` is for `create_rollout_server()`")
        })
}
