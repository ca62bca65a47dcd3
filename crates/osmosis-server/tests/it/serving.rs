//! A rollout server in this process, and everything it needs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::frame::Load;
use osmosis_core::{JsonText, RunName};
use osmosis_engine::{Claims, Engine, EngineOptions, Measuring, Stop};
use osmosis_gateway::{Gateway, GatewayOptions, HttpClients, Policy, RelayPolicy, UpstreamOptions};
use osmosis_run::GatewaySessions;
use osmosis_server::{
    CallbackOptions, Listening, RolloutService, Served, ServerError, ServerOptions, StateKey,
};
use osmosis_store::{RunKind, RunRecord, RunStatus, Store};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use osmosis_testkit::model_server::{Behaviour, ModelServer};
use osmosis_worker::{Launch, Limits, PoolOptions, WorkerPool};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::receiver::Receiver;

/// Longer than anything here takes; only a test that fails waits this long.
pub(crate) const LONG: Duration = Duration::from_mins(2);
pub(crate) const CONTROLLER_KEY: &str = "controller-key-1234567890";
pub(crate) const LLM_KEY: &str = "llm-key-0987654321";

/// How the server under test is made.
pub(crate) struct Setting {
    pub(crate) server: ServerOptions,
    pub(crate) agent_limit: Duration,
    pub(crate) cancel_grace: Duration,
    pub(crate) behaviour: Behaviour,
    pub(crate) state_key: StateKey,
    pub(crate) listen: SocketAddr,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            server: ServerOptions {
                max_in_flight: 8,
                callbacks: CallbackOptions {
                    first_wait: Duration::from_millis(1),
                    longest_wait: Duration::from_millis(20),
                    ..CallbackOptions::default()
                },
                drain_limit: LONG,
                ..ServerOptions::default()
            },
            agent_limit: LONG,
            cancel_grace: LONG,
            behaviour: Behaviour::Answers,
            state_key: StateKey::from_text("the state key of these tests, always the same"),
            listen: ([127, 0, 0, 1], 0).into(),
        }
    }
}

impl Setting {
    pub(crate) fn held(gate: &osmosis_testkit::model_server::Gate) -> Self {
        Self {
            behaviour: Behaviour::Held(gate.clone()),
            ..Self::default()
        }
    }

    pub(crate) async fn start(self) -> Serving {
        let keep = TempDir::new().unwrap();
        self.start_in(keep).await
    }

    /// In the folder of an earlier server, whose model and receiver are still there.
    pub(crate) async fn start_again(self, left: Left) -> Serving {
        let mut serving = self.start_in(left.folder).await;
        serving.model = left.model;
        serving.receiver = left.receiver;
        serving
    }

    pub(crate) async fn start_in(self, keep: TempDir) -> Serving {
        let folder = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
        let (worker_events, worker_log) = mpsc::channel(1024);
        let options = pool_options(self.cancel_grace);
        let pool = WorkerPool::start(launch(&folder), load(&folder), options, worker_events);
        let pool = Arc::new(pool.await.unwrap());
        let mut tasks = JoinSet::new();
        drop_all(&mut tasks, worker_log);
        self.start_with(pool, keep, tasks).await
    }

    /// With workers that are there already.
    pub(crate) async fn start_with(
        self,
        pool: Arc<WorkerPool>,
        keep: TempDir,
        mut tasks: JoinSet<()>,
    ) -> Serving {
        let folder = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(&folder.join("run"), SqliteOptions::default()).unwrap());
        if store.run().await.unwrap().is_none() {
            store.create_run(run_record()).await.unwrap();
        }
        store
            .recover(osmosis_store::Recovery::AfterTakeover)
            .await
            .unwrap();
        let relay = RelayPolicy::with_options(UpstreamOptions {
            retries: 0,
            ..UpstreamOptions::new("", "osmosis-rollout")
        });
        let relay = Arc::new(relay.within(self.server.address_rules.clone()));
        let policy: Arc<dyn Policy> = Arc::<RelayPolicy>::clone(&relay);
        let gateway = Gateway::start(GatewayOptions::default(), policy, Arc::clone(&store));
        let (events, heard) = mpsc::channel(64);
        let engine = Engine::for_requests(
            Arc::clone(&store),
            Arc::new(GatewaySessions::local(Arc::new(gateway.await.unwrap()))),
            Arc::<WorkerPool>::clone(&pool),
            engine_options(self.server.max_in_flight, self.agent_limit),
            events,
        );
        let listening = Listening::on(self.listen).await.unwrap();
        let url = listening.url().to_owned();
        let service = RolloutService {
            engine,
            relay: Arc::clone(&relay),
            store: Arc::clone(&store),
            state_key: self.state_key,
            options: self.server,
        };
        let stop = Stop::default();
        let mut served = JoinSet::new();
        let asked = stop.clone();
        served.spawn(async move { service.run(listening, heard, None, &asked).await });
        // Keeps what was started alive as long as the server.
        tasks.spawn(std::future::pending());
        Serving {
            stop,
            store,
            relay,
            pool,
            client: client(&url),
            url,
            model: ModelServer::start(self.behaviour).await.unwrap(),
            receiver: Receiver::start().await,
            served,
            _tasks: tasks,
            keep,
        }
    }
}

pub(crate) struct Serving {
    pub(crate) url: String,
    pub(crate) stop: Stop,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) relay: Arc<RelayPolicy>,
    pub(crate) client: Client,
    pub(crate) model: ModelServer,
    pub(crate) receiver: Receiver,
    served: JoinSet<Result<Served, ServerError>>,
    pool: Arc<WorkerPool>,
    _tasks: JoinSet<()>,
    keep: TempDir,
}

/// What a server leaves.
pub(crate) struct Left {
    pub(crate) served: Served,
    pub(crate) folder: TempDir,
    pub(crate) model: ModelServer,
    pub(crate) receiver: Receiver,
}

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) retry_after: Option<String>,
    pub(crate) body: Value,
}

impl Serving {
    pub(crate) async fn start() -> Self {
        Setting::default().start().await
    }

    /// A request that can be run; its callbacks go to paths of its own.
    pub(crate) fn request(&self, id: &str, doing: &str) -> Value {
        json!({
            "rollout_id": id,
            "initial_messages": [{"role": "user", "content": "What is 6 times 7?"}],
            "label": "42",
            "metadata": {"do": doing},
            "chat_completions_url": self.model.url(),
            "controller_api_key": CONTROLLER_KEY,
            "llm_api_key": LLM_KEY,
            "completion_callback_url": self.receiver.url(&format!("/{id}/completion")),
            "grader_callback_url": self.receiver.url(&format!("/{id}/grader")),
        })
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<String>) -> Answer {
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.body(body);
            request = request.header("content-type", "application/json");
        }
        let response = request.send().await.unwrap();
        let retry_after = response.headers().get("retry-after");
        let retry_after = retry_after.map(|value| value.to_str().unwrap().to_owned());
        let status = response.status();
        let text = response.text().await.unwrap();
        Answer {
            status,
            retry_after,
            body: serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text}")),
        }
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, Some(body.to_string())).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, None).await
    }

    /// Has a rollout accepted.
    pub(crate) async fn accept(&self, id: &str, doing: &str) {
        let answer = self.post("/rollout", &self.request(id, doing)).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        assert_eq!(answer.body["rollout_id"], id);
    }

    pub(crate) async fn status(&self, id: &str) -> String {
        let answer = self.get(&format!("/rollout/{id}/status")).await;
        assert_eq!(answer.status, 200);
        answer.body["status"].as_str().unwrap().to_owned()
    }

    /// Returns when the rollout has that status; it must come without anybody's help.
    pub(crate) async fn wait_for_status(&self, id: &str, status: &str) {
        let looking = async {
            while self.status(id).await != status {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, looking).await.unwrap();
    }

    /// The bodies of both callbacks of a rollout.
    pub(crate) async fn told(&self, id: &str) -> (Value, Value) {
        let both = async {
            (
                self.receiver
                    .taken(&format!("/{id}/completion"))
                    .await
                    .json(),
                self.receiver.taken(&format!("/{id}/grader")).await.json(),
            )
        };
        tokio::time::timeout(LONG, both).await.unwrap()
    }

    /// Waits until the server has ended, and gives the folder back.
    pub(crate) async fn ended(mut self) -> (Served, TempDir) {
        let served = tokio::time::timeout(LONG, self.served.join_next()).await;
        let served = served.unwrap().unwrap().unwrap().unwrap();
        self.pool.shut_down(LONG).await;
        self.store.close().await.unwrap();
        (served, self.keep)
    }

    /// Ends it in the middle of everything, and keeps what it had to do with.
    pub(crate) async fn interrupted(mut self) -> Left {
        self.stop.now.cancel();
        let served = tokio::time::timeout(LONG, self.served.join_next()).await;
        let served = served.unwrap().unwrap().unwrap().unwrap();
        self.pool.shut_down(LONG).await;
        self.store.close().await.unwrap();
        Left {
            served,
            folder: self.keep,
            model: self.model,
            receiver: self.receiver,
        }
    }

    pub(crate) async fn drain(self) -> (Served, TempDir) {
        self.stop.drain.cancel();
        self.ended().await
    }
}

/// Every file below a folder, as bytes.
pub(crate) fn everything_below(folder: &std::path::Path) -> Vec<u8> {
    let mut bytes = vec![];
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            bytes.extend(everything_below(&entry.path()));
        } else if kind.is_file() {
            bytes.extend(std::fs::read(entry.path()).unwrap());
        }
    }
    bytes
}

pub(crate) fn drop_all<T: Send + 'static>(tasks: &mut JoinSet<()>, mut from: mpsc::Receiver<T>) {
    tasks.spawn(async move { while from.recv().await.is_some() {} });
}

pub(crate) fn client(url: &str) -> Client {
    HttpClients::new(LONG)
        .for_url(&url.parse().unwrap())
        .unwrap()
}

fn run_record() -> RunRecord {
    RunRecord {
        name: RunName::new("served").unwrap(),
        kind: RunKind::Serving,
        status: RunStatus::Running,
        created_at_ms: 0,
        finished_at_ms: None,
        config_toml: String::new(),
        pinned: JsonText::parse("{}").unwrap(),
    }
}

fn launch(folder: &Utf8Path) -> Launch {
    let program = std::env::current_exe().unwrap();
    Launch {
        program: Utf8PathBuf::from_path_buf(program).unwrap(),
        arguments: [
            "guest::worker_process",
            "--exact",
            "--ignored",
            "--nocapture",
        ]
        .map(str::to_owned)
        .to_vec(),
        working_directory: folder.to_owned(),
        environment: vec![],
        guard: None,
        seal: None,
        needed: vec![],
        user: None,
    }
}

fn load(folder: &Utf8Path) -> Load {
    Load {
        project_path: folder.to_string(),
        entrypoint: "main".to_owned(),
        workflow: JsonText::parse("{}").unwrap(),
        grader: JsonText::parse("{}").unwrap(),
    }
}

pub(crate) fn pool_options(cancel_grace: Duration) -> PoolOptions {
    PoolOptions {
        agent_workers: 1,
        grader_workers: 1,
        in_flight_per_worker: 64,
        start_limit: LONG,
        cancel_grace,
        limits: Limits::default(),
        isolation: osmosis_core::config::WorkerIsolation::Shared,
    }
}

fn engine_options(max_in_flight: usize, agent_limit: Duration) -> EngineOptions {
    EngineOptions {
        owner: "test".to_owned(),
        max_in_flight,
        claims: Claims::Everything,
        agent_limit,
        grade_limit: LONG,
        pass_threshold: 1.0,
        reward_range: None,
        model_errors: osmosis_core::config::ModelErrors::Infrastructure,
        max_failures: 1,
        retry_wait: Duration::from_millis(1),
        lease: LONG,
        artifacts_root: None,
        measuring: Measuring::Everything,
        redactor: osmosis_core::Redactor::default(),
    }
}
