//! An evaluation whose rollouts run at a rollout server: which one, its key, and how it reaches us.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use osmosis_gateway::{ExtraRoutes, Gateway, Secret};
use osmosis_run::eval::rollout_server::{ReachedServer, RemoteExecutor, RolloutServer};
use osmosis_run::life::Part;
use osmosis_run::runs::Pinned;
use osmosis_run::{RunError, RunErrorKind};
use reqwest::Url;
use serde_json::Value;

use super::{Callbacks, Reach, RemoteOptions, RemoteRollouts, RemoteServer, parse_url};

/// How we and a rollout server find each other. A resume goes on with what the run began with.
#[derive(Debug, Clone, Default)]
pub struct Rendezvous {
    /// Where the server reaches this machine.
    pub public_url: Option<Url>,
    /// The address to listen on, when a proxy or router leads there.
    pub listen: Option<SocketAddr>,
    /// The environment variable that holds the server's key.
    pub server_key_env: Option<String>,
}

/// A rollout server that was asked for, with everything needed to use it.
#[derive(Debug)]
pub struct ChosenServer {
    url: Url,
    reach: Reach,
    key: Option<Secret>,
    asked: Rendezvous,
}

impl ChosenServer {
    /// What a new evaluation asks for.
    pub fn of(url: Option<Url>, asked: Rendezvous) -> Result<Option<Self>, RunError> {
        let Some(url) = url else {
            refuse_without_server(&asked)?;
            return Ok(None);
        };
        Self::check(url, asked).map(Some)
    }

    /// What a run was begun with, except for what is said now.
    pub fn of_run(pinned: &Pinned, said: Rendezvous) -> Result<Option<Self>, RunError> {
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
        let listen = remembered.listen.as_deref();
        let asked = Rendezvous {
            public_url,
            listen: said.listen.or(listen.and_then(|text| text.parse().ok())),
            server_key_env: said.server_key_env.or(remembered.server_key_env.clone()),
        };
        Self::check(parse_url(url).map_err(damaged)?, asked).map(Some)
    }

    fn check(url: Url, asked: Rendezvous) -> Result<Self, RunError> {
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
        })
    }
}

#[async_trait]
impl RolloutServer for ChosenServer {
    fn url(&self) -> &str {
        self.url.as_str()
    }

    fn secrets(&self) -> Vec<String> {
        let key = self.key.iter();
        key.map(|key| key.expose().to_owned()).collect()
    }

    fn pin(&self, facts: &mut Pinned) {
        let (asked, remembered) = (&self.asked, &mut facts.remembered);
        remembered.public_url = asked.public_url.as_ref().map(ToString::to_string);
        remembered.listen = asked.listen.map(|listen| listen.to_string());
        remembered.server_key_env.clone_from(&asked.server_key_env);
        facts.server = Some(self.url.as_str().to_owned());
    }

    async fn reach(&self) -> Result<Box<dyn ReachedServer>, RunError> {
        let options = RemoteOptions::new(self.url.clone(), self.key.clone());
        Ok(Box::new(MetServer {
            server: RemoteServer::meet(options).await?,
            callbacks: Callbacks::default(),
            reach: self.reach.clone(),
        }))
    }
}

/// A rollout server that answered, with what it needs to answer again.
#[derive(Debug)]
struct MetServer {
    server: RemoteServer,
    callbacks: Callbacks,
    reach: Reach,
}

impl ReachedServer for MetServer {
    fn health(&self) -> &Value {
        self.server.health()
    }

    fn callbacks(&self) -> ExtraRoutes {
        self.callbacks.extra_routes()
    }

    fn listen(&self) -> SocketAddr {
        self.reach.listen
    }

    fn executor(self: Box<Self>, gateway: &Gateway) -> Arc<dyn RemoteExecutor> {
        let base = match &self.reach.base {
            Some(base) => base,
            None => gateway.url().trim_end_matches("/v1"),
        };
        Arc::new(RemoteRollouts::new(self.server, self.callbacks, base))
    }
}

impl RemoteExecutor for RemoteRollouts {}

#[async_trait]
impl Part for RemoteRollouts {
    async fn shut_down(&self) {
        self.close().await;
    }
}

fn refuse_without_server(asked: &Rendezvous) -> Result<(), RunError> {
    let said = [
        ("--public-url", asked.public_url.is_some()),
        ("--listen", asked.listen.is_some()),
        ("--server-key-env", asked.server_key_env.is_some()),
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
