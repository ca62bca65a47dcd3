//! The life of a node: join, materialise, prepare, claim, leave. Whatever way it ends, everything it started ends, and
//! the run is left in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use osmosis_core::Redactor;
use osmosis_engine::{Engine, EngineOptions, NodeEnd, NodeEnds, RunEvent};
use osmosis_gateway::Secret;
use osmosis_store::{RunKey, SharedRun, Store};

use super::joining::{NodeRequest, check_status, check_takes_nodes, join};
use super::materialised::{materialise, nodes_folder};
use super::metrics::QueueMetrics;
use super::package::NodePackage;
use super::patience::wait_out;
use super::policy::{open_judge, open_policy};
use super::spec::{ControllerAccess, NodeConfig, NodeSpec};
use super::token::JoinToken;
use crate::eval::evaluation::DEFAULT_MAX_IN_FLIGHT;
use crate::events::{EventSink, Observer};
use crate::execution::{self, DriveSettings};
use crate::judge::ReadyJudge;
use crate::life::{RunningParts, Surroundings};
use crate::notices::{Notice, Notices};
use crate::policy::ReadyPolicy;
use crate::ready_code::{CodeStart, WorkerRoles};
use crate::reports::NodeReport;
use crate::run_folder::RunFolder;
use crate::run_log::RunLog;
use crate::runs::Pinned;
use crate::stop_signals::StopSignals;
use crate::user_code::UserCode;
use crate::{GatewaySessions, RunError, RunErrorKind};

/// How often a node looks for the package of a run that is still being prepared.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What whoever starts a node brings along.
pub struct NodeFrontEnd<'a> {
    pub stop: &'a StopSignals,
    pub notices: Arc<dyn Notices>,
    pub observer: Box<dyn Observer<RunEvent>>,
}

impl std::fmt::Debug for NodeFrontEnd<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeFrontEnd")
            .field("stop", self.stop)
            .finish_non_exhaustive()
    }
}

/// Works on a run until it is over, or until it is asked to leave.
pub async fn live_as_node(
    request: &NodeRequest,
    front: NodeFrontEnd<'_>,
) -> Result<NodeReport, RunError> {
    osmosis_worker::end_leftovers().await;
    let joining = join(request, &front.notices);
    let (run, store) = front.stop.unless_stopped(joining).await?;
    let lived = work(request, &run, &store, front).await;
    let closed = store.close().await;
    let report = lived?;
    closed?;
    Ok(report)
}

fn shared(store: &Arc<dyn Store>) -> Result<&dyn SharedRun, RunError> {
    store.shared().ok_or_else(|| {
        RunError::failed(RunErrorKind::Internal, "the store has no runs to be shared")
    })
}

/// What a node knows of its run, once the controller has left it in the store.
async fn load(
    request: &NodeRequest,
    run: &RunKey,
    store: &Arc<dyn Store>,
    nodes: &Utf8Path,
    notices: &Arc<dyn Notices>,
) -> Result<NodeSpec, RunError> {
    let shared = shared(store)?;
    let mut told = false;
    let (record, pinned, manifest) = loop {
        let record = store.run().await?;
        if let Some(record) = record {
            check_status(&record)?;
            let pinned = Pinned::read(&record.pinned)?;
            check_takes_nodes(&record, &pinned)?;
            if let Some(manifest) = shared.package().await? {
                break (record, pinned, manifest);
            }
        }
        if !std::mem::replace(&mut told, true) {
            let name = &run.name;
            notices.step(format_args!(
                "Waiting for `{name}` to be prepared by its controller"
            ));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let package = NodePackage::read(&manifest)?;
    let config = NodeConfig::of(&record)?;
    notices.step(format_args!("Fetching the files of `{}`", run.name));
    let workspace = materialise(shared, &package, &pinned, nodes).await?;
    let mut attachments = BTreeMap::new();
    for (name, sha256) in &package.attachments {
        let content = NodePackage::content(shared, sha256).await?;
        attachments.insert(name.clone(), content);
    }
    let key = request.token.as_ref().map(|token| token.key().to_owned());
    let controller = key.map(|key| ControllerAccess::of(store, Secret::new(key)));
    Ok(NodeSpec {
        record,
        config,
        pinned,
        package,
        attachments,
        workspace,
        controller,
    })
}

/// Everything between joining and leaving.
async fn work(
    request: &NodeRequest,
    run: &RunKey,
    store: &Arc<dyn Store>,
    front: NodeFrontEnd<'_>,
) -> Result<NodeReport, RunError> {
    let NodeFrontEnd {
        stop,
        notices,
        mut observer,
    } = front;
    let parts = RunningParts::default();
    let mut events = EventSink::start();
    let around = Surroundings {
        stop,
        notices: &notices,
        events: &events,
        parts: &parts,
        resumes: false,
    };
    let prepared = async {
        let nodes = nodes_folder()?;
        let loading = load(request, run, store, &nodes, &notices);
        let spec = stop.unless_stopped(loading).await?;
        let ready = stop
            .unless_stopped(Ready::make(request, spec, &around))
            .await?;
        let folder = folder_of_node(&nodes, run)?;
        observer.opened(store).await?;
        let limits = match &ready.spec.config {
            NodeConfig::Evaluation(config) => config.logs,
            NodeConfig::Training(config) => config.logs,
        };
        let log = RunLog::open(&folder.logs(), ready.redactor(request), limits)?;
        events.open(log, observer);
        Ok::<_, RunError>((ready, folder))
    };
    let prepared = prepared.await;
    notices.notice(Notice::StepsDone);
    let worked = match prepared {
        Ok((ready, folder)) => ready.drive(request, store, &folder, &around).await,
        Err(error) => Err(error),
    };
    let worked = parts.shut_down().await.and(worked);
    events.finish().await;
    let end = worked?;
    let done = shared(store)?.members().await?;
    let done = done.iter().find(|member| member.is_self);
    Ok(NodeReport::new(
        run,
        end,
        done.map_or(0, |member| member.done),
    ))
}

/// Where the log and the artifacts of this process are: those of two nodes on one machine don't mix.
fn folder_of_node(nodes: &Utf8Path, run: &RunKey) -> Result<RunFolder, RunError> {
    let name = format!("{}-{}", run.name, std::process::id());
    let path = nodes.join("runs").join(name);
    std::fs::create_dir_all(&path).map_err(|error| crate::io_error(&path, &error))?;
    Ok(RunFolder::unlisted(path))
}

/// A node that can begin.
struct Ready {
    spec: NodeSpec,
    code: UserCode,
    policy: ReadyPolicy,
    judge: Option<ReadyJudge>,
    workers: Arc<osmosis_worker::WorkerPool>,
    max_in_flight: u32,
}

impl Ready {
    /// Makes the project's environment and starts its workers.
    async fn make(
        request: &NodeRequest,
        spec: NodeSpec,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<Self, RunError> {
        let policy = open_policy(&spec).await?;
        policy.end_with(around.parts);
        let judge = open_judge(&spec, &policy).await?;
        let code = UserCode::packed(
            &spec.workspace,
            spec.config.experiment(),
            spec.config.passed_on(),
            request.secrets_file.as_deref(),
        )?;
        let max_in_flight = max_in_flight(request, &spec.config);
        let start = CodeStart {
            code: &code,
            throughput: &request.throughput,
            max_in_flight,
            roles: WorkerRoles::AgentsAndGraders,
        };
        let mut ready = start.prepare(around).await?;
        tell_of_environment(&spec, ready.digest(), &**around.notices);
        let workers = start.start(&mut ready, around).await?;
        Ok(Self {
            spec,
            code,
            policy,
            judge,
            workers,
            max_in_flight,
        })
    }

    /// Texts that must never be written down.
    fn redactor(&self, request: &NodeRequest) -> Redactor {
        let of_code = self.code.secrets.iter().map(|(_, value)| value.clone());
        let of_judge = self.judge.iter().flat_map(ReadyJudge::secrets).cloned();
        let of_token = request.token.iter().flat_map(JoinToken::secrets);
        let of_policy = self.policy.secrets.iter().cloned();
        Redactor::new(of_code.chain(of_policy).chain(of_judge).chain(of_token))
    }

    async fn drive(
        self,
        request: &NodeRequest,
        store: &Arc<dyn Store>,
        folder: &RunFolder,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<NodeEnd, RunError> {
        let sampling = self.spec.config.sampling();
        let gateway = execution::start_gateway(None, sampling, &self.policy.policy, store).await?;
        let gateway = around.parts.add_gateway(gateway);
        if let Some(judge) = &self.judge {
            judge.serve_at(&gateway);
        }
        let metrics = request.metrics.as_ref();
        let _metrics = QueueMetrics::serve(&gateway, metrics, store, &**around.notices).await?;
        let options = self.engine_options(request, folder)?;
        let owner = options.owner.clone();
        let amount = format!("{} at once", self.max_in_flight);
        self.code
            .tell(self.workers.manifest(), &amount, &**around.notices);
        let engine = Engine::new(
            Arc::clone(store),
            Arc::new(GatewaySessions::local(gateway)),
            Arc::clone(&self.workers) as _,
            options,
            around.events.run_events(),
        );
        let ends = match self.spec.config {
            NodeConfig::Evaluation(_) => NodeEnds::WhenNothingIsLeft,
            NodeConfig::Training(_) => NodeEnds::WithTheRun,
        };
        let stop = &around.stop.stop;
        loop {
            match engine.run_as_node(stop, ends).await {
                Ok(end) => return Ok(end),
                Err(error) => {
                    let notices = &**around.notices;
                    wait_out(error, store, &owner, around.stop, notices).await?;
                }
            }
        }
    }

    fn engine_options(
        &self,
        request: &NodeRequest,
        folder: &RunFolder,
    ) -> Result<EngineOptions, RunError> {
        let redactor = self.redactor(request);
        let settings = match &self.spec.config {
            NodeConfig::Evaluation(config) => {
                DriveSettings::of_evaluation(&config.evaluation, self.max_in_flight, redactor)
            }
            NodeConfig::Training(config) => {
                DriveSettings::of_training(&config.training, self.max_in_flight, redactor)
            }
        };
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().into_owned();
        Ok(EngineOptions {
            owner: format!("{host} pid {}", std::process::id()),
            measuring: self.spec.measuring()?,
            ..execution::engine_options(settings, folder)
        })
    }
}

fn max_in_flight(request: &NodeRequest, config: &NodeConfig) -> u32 {
    let of_config = match config {
        NodeConfig::Evaluation(config) => config.evaluation.batch_size,
        NodeConfig::Training(_) => None,
    };
    let given = request.throughput.max_in_flight.or(of_config);
    given.unwrap_or(DEFAULT_MAX_IN_FLIGHT)
}

/// Another interpreter or other packages may give other results; a node goes on all the same, since a cluster is seldom
/// of one piece.
fn tell_of_environment(spec: &NodeSpec, digest: &str, notices: &dyn Notices) {
    let pinned = spec.pinned.environment_sha256.as_deref();
    if pinned.is_some_and(|pinned| pinned != digest) {
        notices.note(
            "The environment of the project is not the controller's: another interpreter, or other packages",
        );
    }
}
