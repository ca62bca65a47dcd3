//! An engine whose rollouts run at a rollout server: the real server of this crate at the other end.

use std::sync::Arc;
use std::time::Duration;

use osmosis_core::{JsonText, Outcome, OutcomeKind, Redactor, RolloutId, RunName};
use osmosis_engine::{Claims, Engine, EngineOptions, Measuring, RunEnd, Stop};
use osmosis_gateway::{Gateway, GatewayOptions, Policy, ScriptedPolicy};
use osmosis_run::GatewaySessions;
use osmosis_server::{Callbacks, RemoteOptions, RemoteRollouts, RemoteServer, parse_url};
use osmosis_store::{NewRollout, NewRow, RunKind, RunRecord, RunStatus, Store};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use osmosis_testkit::model_server::Gate;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::serving::{LONG, Serving, Setting, drop_all};

/// An evaluation of rows that say what the agent is to do.
pub(crate) struct Evaluation {
    store: Arc<dyn Store>,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) rollouts: Arc<RemoteRollouts>,
    engine: Engine,
    stop: Stop,
    _tasks: JoinSet<()>,
    _keep: TempDir,
}

/// As patient as a test.
pub(crate) fn options(url: &str) -> RemoteOptions {
    RemoteOptions {
        first_look: Duration::from_millis(20),
        longest_look: Duration::from_millis(50),
        ..RemoteOptions::new(parse_url(url).unwrap(), None)
    }
}

impl Evaluation {
    pub(crate) async fn start(options: RemoteOptions, doing: &[&str]) -> Self {
        Self::with_limits(options, doing, LONG).await
    }

    pub(crate) async fn with_limits(
        options: RemoteOptions,
        doing: &[&str],
        agent_limit: Duration,
    ) -> Self {
        let keep = TempDir::new().unwrap();
        let folder = camino::Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
        let store = SqliteStore::open(&folder.join("run"), SqliteOptions::default()).unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        store.create_run(run_record()).await.unwrap();
        let rows = doing.iter().zip(0..).map(|(doing, row_index)| NewRow {
            row_index,
            line: row_index + 1,
            body: JsonText::of(&json!({
                "user_prompt": "What is 6 times 7?",
                "ground_truth": "42",
                "metadata": {"do": doing},
            }))
            .unwrap(),
        });
        let rollouts = (0..doing.len() as u64).map(|row_index| NewRollout {
            id: RolloutId::of(row_index, 0),
            row_index,
            run_index: 0,
        });
        store
            .enqueue(rows.collect(), rollouts.collect())
            .await
            .unwrap();
        let script = "[[reply]]\ntext = 'The answer is 42.'\n";
        let script = ScriptedPolicy::parse("script.toml".into(), script).unwrap();
        let policy: Arc<dyn Policy> = Arc::new(script);
        let callbacks = Callbacks::default();
        let gateway = Gateway::start_beside(
            GatewayOptions::default(),
            policy,
            Arc::clone(&store),
            callbacks.extra_routes(),
        );
        let gateway = Arc::new(gateway.await.unwrap());
        let base = gateway.url().strip_suffix("/v1").unwrap().to_owned();
        let server = RemoteServer::meet(options).await.unwrap();
        let rollouts = Arc::new(RemoteRollouts::new(server, callbacks, &base));
        let (events, heard) = mpsc::channel(64);
        let mut tasks = JoinSet::new();
        drop_all(&mut tasks, heard);
        let engine = Engine::new(
            Arc::clone(&store),
            Arc::new(GatewaySessions::local(Arc::clone(&gateway))),
            Arc::<RemoteRollouts>::clone(&rollouts),
            engine_options(agent_limit),
            events,
        );
        Self {
            store,
            gateway,
            rollouts,
            engine,
            stop: Stop::default(),
            _tasks: tasks,
            _keep: keep,
        }
    }

    pub(crate) async fn run(&self) -> RunEnd {
        let end = tokio::time::timeout(LONG, self.engine.run(&self.stop)).await;
        self.rollouts.close().await;
        end.unwrap().unwrap()
    }

    pub(crate) async fn outcome(&self, row: u64) -> Outcome {
        let record = self.store.rollout(&RolloutId::of(row, 0)).await.unwrap();
        record.unwrap().outcome.unwrap()
    }

    /// Runs everything and says how each row ended.
    pub(crate) async fn outcomes(&self) -> Vec<(OutcomeKind, Option<String>)> {
        assert_eq!(self.run().await, RunEnd::Complete);
        let mut outcomes = vec![];
        let counts = self.store.counts().await.unwrap();
        for row in 0..counts.total() {
            let outcome = self.outcome(row).await;
            if outcome.kind() != OutcomeKind::Scored {
                assert_eq!(outcome.reward(), None);
            }
            outcomes.push((outcome.kind(), outcome.explanation()));
        }
        outcomes
    }
}

fn run_record() -> RunRecord {
    RunRecord {
        name: RunName::new("far").unwrap(),
        kind: RunKind::Evaluation,
        status: RunStatus::Running,
        created_at_ms: 0,
        finished_at_ms: None,
        config_toml: String::new(),
        pinned: JsonText::parse("{}").unwrap(),
    }
}

fn engine_options(agent_limit: Duration) -> EngineOptions {
    EngineOptions {
        owner: "test".to_owned(),
        max_in_flight: 8,
        claims: Claims::Everything,
        agent_limit,
        grade_limit: LONG,
        pass_threshold: 1.0,
        reward_range: None,
        model_errors: osmosis_core::config::ModelErrors::Infrastructure,
        max_failures: 3,
        retry_wait: Duration::from_millis(1),
        lease: LONG,
        artifacts_root: None,
        measuring: Measuring::Everything,
        redactor: Redactor::default(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_outcome_of_our_own_server_comes_back_as_it_was() {
    use OutcomeKind::{AgentFailed, Rejected, Scored, Ungraded};
    let serving = Serving::start().await;
    let evaluation = Evaluation::start(
        options(&serving.url),
        &[
            "answer",
            "raise",
            "raise a validation error",
            "reject",
            "raise in the grader",
            "remove",
            "two samples",
        ],
    )
    .await;
    let outcomes = evaluation.outcomes().await;
    let kinds: Vec<OutcomeKind> = outcomes.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(
        kinds,
        [
            Scored,
            AgentFailed,
            AgentFailed,
            Rejected,
            Ungraded,
            Rejected,
            Scored
        ],
        "{outcomes:?}"
    );
    let told = |row: usize| outcomes[row].1.clone().unwrap();
    assert!(told(1).contains("the workflow gave up"), "{outcomes:?}");
    assert!(told(2).contains("that is no number"), "{outcomes:?}");
    assert_eq!(told(3), "not worth it");
    assert!(told(4).contains("the grader gave up"), "{outcomes:?}");

    assert!(evaluation.outcome(0).await.passed());
    let samples = |row| {
        let store = Arc::clone(&evaluation.store);
        async move { store.samples(&RolloutId::of(row, 0)).await.unwrap() }
    };
    let answered = samples(0).await;
    assert_eq!(answered[0].id.as_str(), "main");
    assert!(answered[0].messages.as_str().contains("The answer is 42."));
    // What was not graded is kept all the same, without a reward.
    assert_eq!(samples(4).await[0].reward, None);
    assert_eq!(samples(6).await.len(), 2);
    // The agent's calls went through our own gateway, and are the rollout's own.
    let record = evaluation.store.rollout(&RolloutId::of(0, 0)).await;
    assert_eq!(record.unwrap().unwrap().calls.model_calls, 1);
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_deadline_is_the_runs() {
    let serving = Serving::start().await;
    let limit = Duration::from_millis(200);
    let options = options(&serving.url);
    let evaluation = Evaluation::with_limits(options, &["hang"], limit).await;
    let outcomes = evaluation.outcomes().await;
    assert_eq!(outcomes[0].0, OutcomeKind::TimedOut, "{outcomes:?}");
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_cancels_what_the_server_holds_and_gives_it_back_to_the_queue() {
    let serving = Serving::start().await;
    let evaluation = Evaluation::start(options(&serving.url), &["hang"]).await;
    let stop = evaluation.stop.clone();
    let stopped = async {
        loop {
            let health = serving.get("/health").await.body;
            if health["capacity"]["running"] == 1 {
                break;
            }
        }
        stop.drain.cancel();
        stop.now.cancel();
    };
    let (end, ()) = tokio::join!(evaluation.run(), stopped);
    assert_eq!(end, RunEnd::Stopped { left: 1 });
    loop {
        let health = serving.get("/health").await.body;
        if health["lifecycle"]["active_rollouts"] == 0 {
            break;
        }
    }
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_is_waited_for() {
    let mut setting = Setting::default();
    setting.server.max_in_flight = 1;
    setting.server.max_queued = 0;
    let serving = setting.start().await;
    let evaluation = Evaluation::start(options(&serving.url), &["answer", "answer"]).await;
    let outcomes = evaluation.outcomes().await;
    for (kind, _) in &outcomes {
        assert_eq!(*kind, OutcomeKind::Scored, "{outcomes:?}");
    }
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_not_the_servers_is_told_before_anything_runs() {
    let mut setting = Setting::held(&Gate::default());
    setting.server.api_key = Some(osmosis_gateway::Secret::new("the key"));
    let serving = setting.start().await;
    let error = RemoteServer::meet(options(&serving.url)).await.unwrap_err();
    assert!(error.to_string().contains("401"), "{error}");
    let known = RemoteOptions {
        key: Some(osmosis_gateway::Secret::new("the key")),
        ..options(&serving.url)
    };
    let met = RemoteServer::meet(known).await.unwrap();
    assert_eq!(met.health()["status"], "ok");
    serving.drain().await;
}
