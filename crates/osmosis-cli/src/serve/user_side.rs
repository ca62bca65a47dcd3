//! Whose workflow is served: a rollout of the workspace, or the process that started us.

use std::collections::BTreeMap;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::Entrypoint;
use osmosis_core::frame::Load;
use osmosis_core::{JsonText, JsonTextError, RolloutName};
use osmosis_run::settings::Throughput;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_worker::{Attachment, PoolOptions, WorkerEvent, WorkerPool};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::DEFAULT_MAX_IN_FLIGHT;
use crate::arguments::ServeArguments;
use crate::execution::pool_options;
use crate::output::Output;
use crate::prepared::Prepared;
use crate::run_folder::RunFolder;
use crate::user_code::rollout_dir;
use crate::withheld::{BY_ARGUMENT, Withheld, passed_variables};
use crate::workspace::Workspace;

/// What the one worker from outside shows that it is who it says.
const TOKEN_VARIABLE: &str = "OSMOSIS_SERVE_TOKEN";
/// Shorter ones could be guessed.
const SHORTEST_TOKEN: usize = 16;
/// How long that worker may take to come. Whoever starts us gives up after as long.
const ATTACH_LIMIT: Duration = Duration::from_secs(30);
/// An outside process runs as many as the engine gives it.
const ATTACHED_IN_FLIGHT: usize = 1024;

#[derive(Debug)]
pub(super) enum UserSide {
    Rollout(Box<Rollout>),
    Attached { token: String },
}

#[derive(Debug)]
pub(super) struct Rollout {
    name: RolloutName,
    entrypoint: Entrypoint,
    dir: Utf8PathBuf,
    /// Variables for its workers.
    passed: BTreeMap<String, String>,
    /// Set by `prepare`.
    prepared: Option<Prepared>,
}

impl UserSide {
    pub(super) fn check(
        arguments: &ServeArguments,
        workspace: &Workspace,
    ) -> Result<Self, RunError> {
        let Some(name) = &arguments.rollout else {
            return Ok(Self::Attached { token: token()? });
        };
        let name = RolloutName::new(&**name)
            .map_err(|error| RunError::usage(RunErrorKind::Usage, error.to_string()))?;
        let entrypoint: Entrypoint = arguments.entrypoint.parse().map_err(
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
            passed: passed_variables(&arguments.pass_env)?,
            prepared: None,
        })))
    }

    /// What the process that is served shows with everything it sends.
    pub(super) fn token(&self) -> Option<&str> {
        match self {
            Self::Attached { token } => Some(token),
            Self::Rollout(_) => None,
        }
    }

    /// The values that workers get and nobody else may read.
    pub(super) fn passed_values(&self) -> impl Iterator<Item = &str> {
        let passed = match self {
            Self::Rollout(rollout) => Some(rollout.passed.values()),
            Self::Attached { .. } => None,
        };
        passed.into_iter().flatten().map(String::as_str)
    }

    /// What a run without a name is named after.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Rollout(rollout) => rollout.name.as_str(),
            Self::Attached { .. } => "attached",
        }
    }

    /// Where the run is recorded. A program that is served may have been started anywhere, also where
    /// nothing can be written.
    pub(super) fn folder(&self, wanted: RunFolder) -> RunFolder {
        match (self, std::fs::create_dir_all(&wanted.path)) {
            (Self::Attached { .. }, Err(error)) => {
                let name = wanted.path.file_name().unwrap_or("attached");
                let temporary = Utf8PathBuf::from_path_buf(std::env::temp_dir())
                    .unwrap_or_else(|_| "/tmp".into())
                    .join(format!("osmosis-serve-{}-{name}", std::process::id()));
                tracing::warn!(folder = %wanted.path, %error, %temporary, "rollouts are recorded elsewhere");
                RunFolder { path: temporary }
            }
            // What is wrong with it is told when the store is opened.
            (Self::Rollout(_) | Self::Attached { .. }, _) => wanted,
        }
    }

    /// Makes the rollout's environment.
    pub(super) async fn prepare(
        mut self,
        arguments: &ServeArguments,
        output: Output,
    ) -> Result<Self, RunError> {
        if let Self::Rollout(rollout) = &mut self {
            let python = arguments.python.as_deref();
            let prepared = Prepared::make(
                &rollout.dir,
                &rollout.entrypoint,
                python,
                &*output.notices(),
            )
            .await?;
            rollout.prepared = Some(prepared);
            if let Some(text) = rollout.withheld().text(BY_ARGUMENT) {
                output.note(text);
            }
        }
        Ok(self)
    }

    /// What a run that goes on must have in common with its beginning.
    pub(super) fn pinned(&self) -> Value {
        match self {
            Self::Rollout(rollout) => json!({ "serve": {
                "rollout": rollout.name,
                "entrypoint": rollout.entrypoint.to_string(),
            }}),
            Self::Attached { .. } => json!({ "serve": { "attached": true } }),
        }
    }

    /// Starts workers, or waits for the one that comes. `tell` is called when requests can be sent, with
    /// the address for that worker.
    pub(super) async fn start_workers(
        self,
        arguments: &ServeArguments,
        events: mpsc::Sender<WorkerEvent>,
        tell: impl Fn(Option<&str>),
    ) -> Result<WorkerPool, RunError> {
        let throughput = Throughput {
            workers: arguments.workers,
            ..Throughput::default()
        };
        let in_flight = arguments.max_in_flight.unwrap_or(DEFAULT_MAX_IN_FLIGHT);
        let options = pool_options(&throughput, in_flight, arguments.isolation);
        match self {
            Self::Attached { token } => {
                let options = PoolOptions {
                    in_flight_per_worker: ATTACHED_IN_FLIGHT,
                    start_limit: ATTACH_LIMIT,
                    ..options
                };
                let attachment = Attachment::open(token, options, events).await?;
                tell(Some(attachment.address()));
                Ok(attachment.admit().await?)
            }
            Self::Rollout(rollout) => {
                let pool = rollout.start_workers(options, events).await?;
                tell(None);
                Ok(pool)
            }
        }
    }
}

impl Rollout {
    async fn start_workers(
        &self,
        options: PoolOptions,
        events: mpsc::Sender<WorkerEvent>,
    ) -> Result<WorkerPool, RunError> {
        let internal =
            |error: JsonTextError| RunError::failed(RunErrorKind::Internal, error.to_string());
        let Some(prepared) = &self.prepared else {
            return Err(RunError::failed(
                RunErrorKind::Internal,
                "the rollout is not prepared",
            ));
        };
        let load = Load {
            project_path: self.dir.to_string(),
            entrypoint: self.entrypoint.to_string(),
            workflow: JsonText::parse("{}").map_err(internal)?,
            grader: JsonText::parse("{}").map_err(internal)?,
        };
        let dir: &Utf8Path = &self.dir;
        let launch = prepared.launch(dir, self.passed.clone().into_iter().collect());
        WorkerPool::start(launch, load, options, events)
            .await
            .map_err(|error| self.withheld().explain(error.into(), BY_ARGUMENT))
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
