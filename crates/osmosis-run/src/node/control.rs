//! The controller's side of a run that nodes work on: what it leaves in the store for them, and requests to stop that
//! come from it and to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use osmosis_core::RunName;
use osmosis_engine::Stop;
use osmosis_store::{RunKey, RunKind, StopRequest, Store, StoreUrl};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::metrics::MetricsOptions;
use super::package::PackageBuilder;
use super::token::JoinToken;
use crate::life::RunningParts;
use crate::notices::{Notice, Notices};
use crate::ray::RayNodes;
use crate::reports::NodesWelcome;
use crate::run_folder::RunFolder;
use crate::runs::{kind_word, stores};
use crate::settings::Throughput;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// How often the store is asked whether the run is to stop, when it does not say so itself.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How a run is shared.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    /// Nothing is run by the controller itself.
    pub nodes_only: bool,
    /// Where the token endpoint listens, for runs with embedded models.
    pub listen: Option<SocketAddr>,
    /// How nodes reach it, where that is another address.
    pub url: Option<String>,
    /// Where Prometheus finds the numbers of the run; not only for runs with nodes.
    pub metrics: Option<MetricsOptions>,
    /// The Ray cluster that runs nodes.
    pub cluster: Option<Arc<RayNodes>>,
}

impl NodeOptions {
    /// Where the token endpoint listens: as given, or where machines of the cluster reach this one.
    pub fn listen_address(&self) -> Option<SocketAddr> {
        let of_cluster = || self.cluster.as_ref()?.listen_address();
        self.listen.or_else(of_cluster)
    }

    /// Connects to the cluster, if there is one.
    pub async fn connect(
        &self,
        parts: &RunningParts,
        notices: &Arc<dyn Notices>,
    ) -> Result<(), RunError> {
        match &self.cluster {
            Some(cluster) => cluster.connect(parts, notices).await,
            None => Ok(()),
        }
    }

    /// Has the cluster start nodes for a run that was opened to them.
    pub async fn start_nodes(
        &self,
        run: &RunKey,
        folder: &RunFolder,
        token: Option<&JoinToken>,
        throughput: &Throughput,
    ) -> Result<(), RunError> {
        let (Some(cluster), Some(url)) = (&self.cluster, folder.workspace().store) else {
            return Ok(());
        };
        let store = match token {
            Some(_) => url.without_credentials()?.to_string(),
            None => url.as_str().to_owned(),
        };
        let token = token.map(JoinToken::reveal);
        cluster
            .start(run, &store, token.as_deref(), throughput, &folder.path)
            .await
    }

    /// The first option that is given and is for nodes alone.
    pub fn given(&self) -> Option<&'static str> {
        let options = [
            ("--cluster", self.cluster.is_some()),
            ("--nodes-only", self.nodes_only),
            ("--node-listen", self.listen.is_some()),
            ("--node-url", self.url.is_some()),
        ];
        let given = options.into_iter().find(|(_, given)| *given);
        given.map(|(option, _)| option)
    }

    /// Refuses options that would do nothing: nodes work on runs in a database.
    pub fn check_for(&self, workspace: &Workspace) -> Result<(), RunError> {
        match self.given() {
            Some(option) if workspace.store.is_none() => Err(RunError::usage(
                RunErrorKind::Usage,
                format!(
                    "{option}: nodes work on runs in a database; give `--store postgres://HOST/DATABASE`"
                ),
            )),
            Some(_) | None => Ok(()),
        }
    }
}

/// How more machines work on a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInvitation {
    pub run: RunName,
    pub kind: RunKind,
    /// Without user and password.
    pub store: StoreUrl,
    /// `None` where the database does not let us make a role for the run: nodes then need credentials of their own.
    pub token: Option<JoinToken>,
}

impl NodeInvitation {
    /// What is typed on another machine. This, and nothing else, shows the token.
    pub fn command(&self) -> String {
        let (store, kind, run) = (self.store.as_str(), kind_word(self.kind), &self.run);
        // A URL may hold characters that shells know.
        let store = if store.contains(['&', '?', '#', '$', ' ', '\'']) {
            format!("'{}'", store.replace('\'', "'\\''"))
        } else {
            store.to_owned()
        };
        let command = format!("osmosis node --store {store} --run {kind}/{run}");
        match &self.token {
            Some(token) => format!("{command} --join {}", token.reveal()),
            None => command,
        }
    }
}

impl From<&NodeInvitation> for NodesWelcome {
    fn from(invitation: &NodeInvitation) -> Self {
        Self {
            run_name: invitation.run.to_string(),
            kind: invitation.kind.into(),
            store: invitation.store.to_string(),
            join: invitation.token.as_ref().map(JoinToken::reveal),
            command: invitation.command(),
        }
    }
}

/// Leaves in the store what nodes need, and says how they are started. The run's queue must be filled: a node that finds
/// a package finds all that is to be run.
///
/// Returns the run's token, when there is one.
pub async fn invite(
    store: &dyn Store,
    folder: &RunFolder,
    run: &RunKey,
    package: PackageBuilder,
    notices: &Arc<dyn Notices>,
) -> Result<Option<JoinToken>, RunError> {
    let Some(shared) = store.shared() else {
        return Ok(None);
    };
    let Some(url) = folder.workspace().store else {
        return Ok(None);
    };
    let known = shared.node_key_sha256().await?;
    let left = JoinToken::left_in(&folder.path)
        .filter(|token| token.kind == run.kind && Some(token.key_sha256()) == known)
        .map(|token| token.named(run.name.clone()));
    let token = match left {
        Some(token) => Some(token),
        None => match stores::catalogue(&folder.workspace())?
            .create_credentials(run)
            .await
        {
            Ok(credentials) => Some(JoinToken::new(run, credentials)),
            Err(error) => {
                notices.note(format_args!(
                    "No role was made for nodes, which therefore need a role of their own: {error}"
                ));
                None
            }
        },
    };
    if let Some(token) = &token {
        token.leave_in(&folder.path)?;
    }
    let key_sha256 = token.as_ref().map(JoinToken::key_sha256);
    // Where the controller was before, nobody is.
    shared.set_controller(None, key_sha256.as_deref()).await?;
    package.publish(shared).await?;
    let shown = if token.is_some() {
        url.without_credentials()?
    } else {
        StoreUrl::parse(url.as_str())?
    };
    notices.notice(Notice::NodesWelcome(Box::new(NodeInvitation {
        run: run.name.clone(),
        kind: run.kind,
        store: shown,
        token: token.clone(),
    })));
    Ok(token)
}

/// Passes requests to stop on, both ways: what this process is asked reaches the nodes, and what the store is asked by
/// another machine reaches this process.
#[derive(Debug)]
pub struct StopRelay {
    end: CancellationToken,
    tasks: JoinSet<()>,
}

impl StopRelay {
    pub fn start(store: &Arc<dyn Store>, stop: &Stop) -> Self {
        let end = CancellationToken::new();
        let mut tasks = JoinSet::new();
        if store.shared().is_some() {
            tasks.spawn(pass_out(Arc::clone(store), stop.clone(), end.clone()));
            tasks.spawn(pass_in(Arc::clone(store), stop.clone(), end.clone()));
        }
        Self { end, tasks }
    }

    /// The run has ended, or will at once.
    pub async fn finish(mut self) {
        self.end.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// A signal to this process becomes a request in the store.
async fn pass_out(store: Arc<dyn Store>, stop: Stop, end: CancellationToken) {
    let Some(shared) = store.shared() else { return };
    for (token, request) in [
        (&stop.drain, StopRequest::Drain),
        (&stop.now, StopRequest::Now),
    ] {
        tokio::select! {
            () = token.cancelled() => {}
            () = end.cancelled() => return,
        }
        // The run ends here in any case; nodes see its status then.
        if let Err(error) = shared.ask_to_stop(Some(request)).await {
            tracing::warn!(%error, "nodes were not asked to stop");
        }
    }
}

/// A request in the store becomes a signal to this process.
async fn pass_in(store: Arc<dyn Store>, stop: Stop, end: CancellationToken) {
    let Some(shared) = store.shared() else { return };
    let mut changes = store.changes();
    loop {
        match shared.standing().await.map(|standing| standing.stop_asked) {
            Ok(Some(StopRequest::Now)) => {
                stop.drain.cancel();
                stop.now.cancel();
                return;
            }
            Ok(Some(StopRequest::Drain)) => stop.drain.cancel(),
            // Whoever drives the run finds out what is wrong with the store.
            Ok(None) | Err(_) => {}
        }
        // Not at every change: there are hundreds in a second.
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY / 4) => {}
            () = end.cancelled() => return,
        }
        tokio::select! {
            _ = changes.wait() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = end.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use osmosis_store::RunCredentials;

    use super::*;

    #[test]
    fn the_command_has_the_token_and_no_password() {
        let run = RunKey {
            kind: RunKind::Evaluation,
            name: RunName::new("m").unwrap(),
        };
        let credentials = RunCredentials {
            role: "r".to_owned(),
            password: "hunter2".to_owned(),
        };
        let store = StoreUrl::parse("postgres://ada:s3cret@db/e?sslmode=require").unwrap();
        let token = JoinToken::new(&run, credentials);
        let invitation = NodeInvitation {
            run: run.name,
            kind: run.kind,
            store: store.without_credentials().unwrap(),
            token: Some(token.clone()),
        };
        let command = invitation.command();
        assert_eq!(
            command,
            format!(
                "osmosis node --store 'postgres://db/e?sslmode=require' --run eval/m --join {}",
                token.reveal()
            )
        );
        assert!(!format!("{invitation:?}").contains(&token.reveal()));
    }
}
