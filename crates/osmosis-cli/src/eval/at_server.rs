//! An evaluation whose rollouts run at a rollout server: which one, its key, and how it reaches us.

use osmosis_core::config::Experiment;
use osmosis_gateway::Secret;
use osmosis_run::notices::Notices;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_server::{Reach, RemoteOptions, RemoteServer, Url, parse_url};
use serde_json::Value;

use crate::arguments::ReachArguments;
use crate::runs::Pinned;
use crate::user_code::PassedOn;

/// A rollout server that was asked for, with everything needed to use it.
#[derive(Debug)]
pub(crate) struct AtServer {
    pub(crate) url: Url,
    pub(crate) reach: Reach,
    pub(crate) key: Option<Secret>,
    asked: ReachArguments,
    experiment: Experiment,
    passed_on: PassedOn,
}

/// `--server` with what belongs to it, from the command line or from the run that is resumed.
#[derive(Debug, Clone)]
pub(crate) struct ServerWanted {
    pub(crate) url: Url,
    pub(crate) reach: ReachArguments,
}

impl ServerWanted {
    /// What a submit asks for.
    pub(crate) fn of(url: Option<Url>, reach: ReachArguments) -> Result<Option<Self>, RunError> {
        let Some(url) = url else {
            refuse_without_server(&reach)?;
            return Ok(None);
        };
        Ok(Some(Self { url, reach }))
    }

    /// What a run was begun with, except for what is said now.
    pub(crate) fn of_run(pinned: &Pinned, said: ReachArguments) -> Result<Option<Self>, RunError> {
        let Some(url) = &pinned.server else {
            refuse_without_server(&said)?;
            return Ok(None);
        };
        let damaged = |message: String| RunError::failed(RunErrorKind::RunDamaged, message);
        let public_url = match said.public_url {
            Some(url) => Some(url),
            None => pinned
                .remembered
                .public_url
                .as_deref()
                .map(parse_url)
                .transpose()
                .map_err(damaged)?,
        };
        let remembered = &pinned.remembered;
        Ok(Some(Self {
            url: parse_url(url).map_err(damaged)?,
            reach: ReachArguments {
                public_url,
                listen: said.listen.or(remembered
                    .listen
                    .as_deref()
                    .and_then(|text| text.parse().ok())),
                server_key_env: said.server_key_env.or(remembered.server_key_env.clone()),
            },
        }))
    }
}

fn refuse_without_server(reach: &ReachArguments) -> Result<(), RunError> {
    let said = [
        ("--public-url", reach.public_url.is_some()),
        ("--listen", reach.listen.is_some()),
        ("--server-key-env", reach.server_key_env.is_some()),
    ];
    match said.iter().find(|(_, said)| *said) {
        Some((name, _)) => Err(RunError::usage(
            RunErrorKind::Usage,
            format!("{name} is for a run at a rollout server"),
        )
        .hint("name the server with `--server URL`")),
        None => Ok(()),
    }
}

impl AtServer {
    pub(crate) fn check(
        wanted: ServerWanted,
        experiment: &Experiment,
        passed_on: PassedOn,
    ) -> Result<Self, RunError> {
        let ServerWanted { url, reach: asked } = wanted;
        let reach = Reach::of(&url, asked.public_url.as_ref(), asked.listen).map_err(|error| {
            RunError::usage(RunErrorKind::Usage, error.to_string()).hint(error.hint())
        })?;
        let key = match &asked.server_key_env {
            Some(name) => Some(key_of(name)?),
            None => None,
        };
        Ok(Self {
            url,
            reach,
            key,
            asked,
            experiment: experiment.clone(),
            passed_on,
        })
    }

    pub(crate) async fn meet(&self) -> Result<RemoteServer, RunError> {
        let options = RemoteOptions::new(self.url.clone(), self.key.clone());
        Ok(RemoteServer::meet(options).await?)
    }

    pub(crate) fn pin(&self, facts: &mut Pinned) {
        let (asked, remembered) = (&self.asked, &mut facts.remembered);
        remembered.public_url = asked.public_url.as_ref().map(ToString::to_string);
        remembered.listen = asked.listen.map(|listen| listen.to_string());
        remembered.server_key_env.clone_from(&asked.server_key_env);
        facts.server = Some(self.url.as_str().to_owned());
    }

    /// Says who runs the rollouts; `amount` says how many.
    pub(crate) fn tell(&self, server: &RemoteServer, amount: &str, notices: &dyn Notices) {
        let unused = self.passed_on.sections_without_effect();
        if !unused.is_empty() {
            notices.warn(format_args!(
                "{} of the config: the rollout server has its own user code, which is not told",
                unused.join(", ")
            ));
        }
        self.passed_on.tell_of_advanced(notices);
        notices.note(format_args!(
            "{} at {} ({}) on {} ({amount})",
            self.experiment.rollout,
            self.url,
            in_short(server.health()),
            self.experiment.model_path,
        ));
    }
}

/// What a server says of itself: its status, and how much it runs at once.
fn in_short(health: &Value) -> String {
    let status = health["status"].as_str().unwrap_or("no status");
    let limits = [
        &health["capacity"]["max_in_flight"],
        &health["concurrency"]["max_concurrent"],
    ];
    match limits.into_iter().find_map(Value::as_u64) {
        Some(limit) => format!("{status}, {limit} at once"),
        None => status.to_owned(),
    }
}

fn key_of(name: &str) -> Result<Secret, RunError> {
    match std::env::var(name) {
        Ok(key) if !key.trim().is_empty() => Ok(Secret::new(key)),
        _ => Err(RunError::usage(
            RunErrorKind::Usage,
            format!("--server-key-env: the variable `{name}` is not set"),
        )
        .hint(format!("set `{name}` to the key of the rollout server"))),
    }
}
