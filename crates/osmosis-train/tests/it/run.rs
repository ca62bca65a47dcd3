//! A training run in a folder, and the processes that work on it one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::{Checkpoints, Lora, LoraBase, Training};
use osmosis_core::frame::Load;
use osmosis_core::generation::TokenEngine;
use osmosis_core::learner::{TrainableModel, WeightSink};
use osmosis_core::{JsonText, PolicyVersion, RunName};
use osmosis_engine::{Claims, EngineOptions, Measuring, Stop};
use osmosis_gateway::{Gateway, GatewayOptions, Sampling, TokenPolicy, TokenPolicyOptions};
use osmosis_policy::{EmbeddedModel, LoraModel, Sampler, SamplerOptions};
use osmosis_run::GatewaySessions;
use osmosis_store::{KeyFolder, NewRow, RunKind, RunRecord, RunStatus, Store};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use osmosis_testkit::unigram::{UnigramModel, UnigramSampler};
use osmosis_tokens::ChatFormat;
use osmosis_train::{
    EndCause, NodeGate, TrainEnd, TrainError, TrainEvent, TrainParts, TrainPlan, Trainer,
    checkpoints,
};
use osmosis_worker::{Launch, Limits, PoolOptions, WorkerPool};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::model;

/// Longer than anything here takes; only a test that fails waits this long.
const LONG: Duration = Duration::from_mins(2);
const SEED: u64 = 5;

/// What becomes of a life when something happens in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    GoOn,
    /// Ctrl-C: what runs is finished.
    Drain,
    /// As `kill -9` would: everything is dropped where it stands.
    Die,
    /// The policy answers no more.
    LoseThePolicy,
}

/// How a life ended.
#[derive(Debug)]
pub(crate) enum Ended {
    Trained(Result<TrainEnd, TrainError>),
    Died,
}

impl Ended {
    pub(crate) fn complete(self) -> u64 {
        match self {
            Self::Trained(Ok(end)) if *end.cause() == EndCause::Complete => end.steps(),
            other => panic!("training was not completed: {other:?}"),
        }
    }

    pub(crate) fn end(self) -> TrainEnd {
        match self {
            Self::Trained(Ok(end)) => end,
            other => panic!("training did not come to an end: {other:?}"),
        }
    }

    pub(crate) fn error(self) -> TrainError {
        match self {
            Self::Trained(Err(error)) => error,
            other => panic!("training did not fail: {other:?}"),
        }
    }
}

/// What is trained. Both speak the letters `a` to `h`.
#[derive(Debug, Clone)]
pub(crate) enum Model {
    /// It costs nothing, and is all that the loop needs.
    Unigram(UnigramModel),
    /// A decoder with real gradients.
    Embedded(Box<EmbeddedModel>),
    /// Adapters of such a decoder.
    Adapted(Arc<LoraModel>),
}

/// A model behind the gateway.
struct Served {
    engine: Arc<dyn TokenEngine>,
    sink: Arc<dyn WeightSink>,
    shut_down: Box<dyn Fn() + Send + Sync>,
}

impl Model {
    fn trainable(&self) -> Arc<dyn TrainableModel> {
        match self {
            Self::Unigram(model) => Arc::new(model.clone()),
            Self::Embedded(model) => Arc::new((**model).clone()),
            Self::Adapted(model) => Arc::clone(model) as Arc<dyn TrainableModel>,
        }
    }

    fn chat(&self) -> Arc<ChatFormat> {
        match self {
            Self::Unigram(_) | Self::Adapted(_) => Arc::new(model::chat()),
            Self::Embedded(model) => model.chat.clone(),
        }
    }

    fn serve(&self) -> Served {
        match self {
            Self::Unigram(model) => {
                let sampler = Arc::new(UnigramSampler::new(model, model::CONTEXT).unwrap());
                Served {
                    engine: sampler.clone(),
                    sink: sampler.clone(),
                    shut_down: Box::new(move || sampler.shut_down()),
                }
            }
            Self::Embedded(_) | Self::Adapted(_) => {
                let options = SamplerOptions {
                    max_batch: 16,
                    threads: 1,
                    cache_bytes: 1 << 24,
                };
                let sampler = match self {
                    Self::Adapted(model) => {
                        Sampler::start_adapted(model, PolicyVersion(0), options)
                    }
                    Self::Embedded(model) => Sampler::start(model, PolicyVersion(0), options),
                    Self::Unigram(_) => unreachable!("served above"),
                };
                let sampler = Arc::new(sampler.unwrap());
                Served {
                    engine: sampler.clone(),
                    sink: sampler.clone(),
                    shut_down: Box::new(move || sampler.shut_down()),
                }
            }
        }
    }
}

pub(crate) struct Run {
    pub(crate) plan: TrainPlan,
    pub(crate) model: Model,
    pub(crate) folder: Utf8PathBuf,
    pub(crate) tensorboard: bool,
    pub(crate) nodes: Option<Arc<dyn NodeGate>>,
    _keep: TempDir,
}

/// A row whose right answer begins with `c`.
pub(crate) fn row(index: u64, prompt: &str, doing: &str) -> NewRow {
    let body = json!({"user_prompt": prompt, "ground_truth": "c", "metadata": {"do": doing}});
    NewRow {
        row_index: index,
        line: index + 1,
        body: JsonText::of(&body).unwrap(),
    }
}

impl Run {
    /// Four rows to train on, two held out, all of them doing the same.
    pub(crate) fn new(doing: &str) -> Self {
        let keep = TempDir::new().unwrap();
        let folder = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
        let prompts = ["a", "b", "ab", "ba", "aa", "bb"];
        let mut rows: Vec<NewRow> = prompts
            .iter()
            .zip(0..)
            .map(|(prompt, index)| row(index, prompt, doing))
            .collect();
        let held_out = rows.split_off(4);
        let plan = TrainPlan {
            rows,
            held_out,
            training: Training {
                lr: 0.02,
                n_samples_per_prompt: 8,
                rollout_batch_size: 3,
                max_response_length: 4,
                steps: Some(4),
                ..Training::default()
            },
            checkpoints: Checkpoints {
                eval_interval: 2,
                checkpoint_save_freq: 3,
                ..Checkpoints::default()
            },
            seed: SEED,
        };
        Self {
            plan,
            model: Model::Unigram(UnigramModel::new(model::VOCABULARY)),
            folder,
            tensorboard: false,
            nodes: None,
            _keep: keep,
        }
    }

    /// The same with a real model, for what depends on gradients.
    pub(crate) fn with_gradients(doing: &str) -> Self {
        Self {
            model: Model::Embedded(Box::new(model::tiny())),
            ..Self::new(doing)
        }
    }

    /// The same with adapters of a real model.
    pub(crate) fn with_adapters(doing: &str, base: LoraBase) -> Self {
        let run = Self::new(doing);
        let model = model::tiny();
        let lora = Lora {
            rank: 4,
            alpha: 8.0,
            base,
            ..Lora::default()
        };
        let (digest, folder) = (model.digest(), run.folder.join(checkpoints::BASE_FOLDER));
        let model = LoraModel::new(model, digest, lora, SEED, &folder).unwrap();
        Self {
            model: Model::Adapted(Arc::new(model)),
            ..run
        }
    }

    pub(crate) fn training(mut self, change: impl FnOnce(&mut Training)) -> Self {
        change(&mut self.plan.training);
        self
    }

    /// One process's life, to its end or to what `fate` says of an event.
    pub(crate) fn live(&self, fate: impl FnMut(&TrainEvent) -> Fate) -> Ended {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let ended = runtime.block_on(async { tokio::time::timeout(LONG, self.train(fate)).await });
        // Waits for what runs on blocking threads, an update say, and drops all else.
        runtime.shutdown_timeout(LONG);
        ended.unwrap()
    }

    pub(crate) fn live_to_the_end(&self) -> Ended {
        self.live(|_| Fate::GoOn)
    }

    async fn train(&self, mut fate: impl FnMut(&TrainEvent) -> Fate) -> Ended {
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(&self.folder, SqliteOptions::default()).unwrap());
        if store.run().await.unwrap().is_none() {
            store.create_run(run_record()).await.unwrap();
        }
        store
            .recover(osmosis_store::Recovery::AfterTakeover)
            .await
            .unwrap();
        let served = self.model.serve();
        let policy = TokenPolicy::new(
            served.engine,
            self.model.chat(),
            TokenPolicyOptions {
                model: "letters".to_owned(),
                endpoint: "embedded".to_owned(),
                chat_template: None,
                seed: self.plan.seed,
                max_prompt_tokens: None,
                max_response_tokens: Some(self.plan.training.max_response_length as usize),
            },
        );
        let gateway_options = GatewayOptions {
            sampling: Sampling {
                temperature: Some(1.0),
                top_p: None,
                overrides: true,
            },
            ..GatewayOptions::default()
        };
        let gateway = Gateway::start(gateway_options, Arc::new(policy), store.clone())
            .await
            .unwrap();
        let mut tasks = JoinSet::new();
        let (worker_events, mut told) = mpsc::channel(256);
        tasks.spawn(async move { while told.recv().await.is_some() {} });
        let workers = WorkerPool::start(
            launch(&self.folder),
            load(&self.folder),
            pool_options(),
            worker_events,
        )
        .await
        .unwrap();
        let parts = TrainParts {
            store: store.clone(),
            sessions: Arc::new(GatewaySessions::local(Arc::new(gateway))),
            executor: Arc::new(workers),
            model: self.model.trainable(),
            sampler: served.sink,
            engine: engine_options(),
            folder: self.folder.clone(),
            tensorboard: self.tensorboard,
            nodes: self.nodes.clone(),
        };
        let mut trainer = match Trainer::open(self.plan.clone(), parts).await {
            Ok(trainer) => trainer,
            Err(error) => return Ended::Trained(Err(error)),
        };
        let stop = Stop::default();
        let (events, mut heard) = mpsc::channel(1);
        let deciding = async {
            while let Some(event) = heard.recv().await {
                match fate(&event) {
                    Fate::GoOn => {}
                    Fate::Drain => stop.drain.cancel(),
                    Fate::Die => return,
                    Fate::LoseThePolicy => (served.shut_down)(),
                }
            }
            std::future::pending::<()>().await;
        };
        let ended = tokio::select! {
            ended = trainer.run(&stop, events) => Ended::Trained(ended),
            () = deciding => Ended::Died,
        };
        // What was told just before the end; nothing is decided by it any more.
        while let Ok(event) = heard.try_recv() {
            fate(&event);
        }
        if let Ended::Trained(_) = ended {
            store.close().await.unwrap();
        }
        (served.shut_down)();
        ended
    }

    /// The lines of `metrics.jsonl`.
    pub(crate) fn metrics(&self) -> Vec<Map<String, Value>> {
        let text = std::fs::read_to_string(self.folder.join("metrics.jsonl")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// One number of every step that has it.
    pub(crate) fn numbers(&self, name: &str) -> Vec<(u64, f64)> {
        self.metrics()
            .iter()
            .filter_map(|line| Some((line["step"].as_u64()?, line.get(name)?.as_f64()?)))
            .collect()
    }

    /// Every step tells of its rewards and with what it learned from them.
    pub(crate) fn assert_numbers_of_steps(&self, steps: u64) {
        for name in ["reward/mean", "reward/std", "pass_rate"] {
            let told: Vec<u64> = self.numbers(name).iter().map(|(step, _)| *step).collect();
            assert_eq!(told, (1..=steps).collect::<Vec<u64>>(), "{name}");
        }
        let rates = self.numbers("lr");
        let expected = self.plan.training.lr;
        let same = |(_, lr): &(u64, f64)| (lr - expected).abs() < 1e-9;
        assert!(rates.iter().all(same), "{rates:?}");
    }

    /// Another run that stands where this one does.
    pub(crate) fn copied(&self) -> Self {
        let keep = TempDir::new().unwrap();
        let folder = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
        copy_folder(&self.folder, &folder);
        Self {
            plan: self.plan.clone(),
            model: self.model.clone(),
            folder,
            tensorboard: self.tensorboard,
            nodes: None,
            _keep: keep,
        }
    }

    /// Writes other content over a recorded batch.
    pub(crate) fn rewrite_batch(&self, number: u64, change: impl FnOnce(&mut Value)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let store = SqliteStore::open(&self.folder, SqliteOptions::default()).unwrap();
        runtime.block_on(async {
            let batches = store.batches().await.unwrap();
            let mut batch = batches.into_iter().find(|b| b.number == number).unwrap();
            let mut content: Value = batch.content.read().unwrap();
            change(&mut content);
            batch.content = JsonText::of(&content).unwrap();
            store.record_batch(batch).await.unwrap();
            store.close().await.unwrap();
        });
    }

    /// The batches that were trained on, as the store has them: for each the groups with their rollouts.
    pub(crate) fn batches(&self) -> Vec<Vec<(u64, Vec<String>)>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let store = SqliteStore::open_read_only(&self.folder, &KeyFolder::none()).unwrap();
        let batches = runtime.block_on(store.batches()).unwrap();
        let group = |group: &Value| {
            let members = group["members"].as_array().unwrap().iter();
            let rollout = |member: &Value| member["rollout"].as_str().unwrap().to_owned();
            (
                group["id"].as_u64().unwrap(),
                members.map(rollout).collect(),
            )
        };
        batches
            .iter()
            .map(|batch| {
                let content: Value = batch.content.read().unwrap();
                content["groups"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(group)
                    .collect()
            })
            .collect()
    }

    /// The steps that the store has.
    pub(crate) fn recorded_steps(&self) -> Vec<u64> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let store = SqliteStore::open_read_only(&self.folder, &KeyFolder::none()).unwrap();
        let steps = runtime.block_on(store.steps()).unwrap();
        steps.iter().map(|record| record.step).collect()
    }

    pub(crate) fn saved_steps(&self) -> Vec<u64> {
        let all = checkpoints::list(&self.folder).unwrap();
        all.iter().map(|checkpoint| checkpoint.step).collect()
    }

    /// Every byte of the model and of the optimizer after `step`.
    pub(crate) fn bits(&self, step: u64) -> BTreeMap<String, Vec<u8>> {
        let folder = self.checkpoint(step).folder;
        [folder.clone(), folder.join("trainer")]
            .iter()
            .flat_map(|folder| folder.read_dir_utf8().unwrap().map(Result::unwrap))
            .filter(|file| file.file_type().unwrap().is_file())
            .map(|file| {
                let bytes = std::fs::read(file.path()).unwrap();
                (file.file_name().to_owned(), bytes)
            })
            .collect()
    }

    pub(crate) fn checkpoint(&self, step: u64) -> checkpoints::Checkpoint {
        checkpoints::resolve(&self.folder, checkpoints::Which::Step(step)).unwrap()
    }
}

fn copy_folder(from: &Utf8Path, to: &Utf8Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in from.read_dir_utf8().unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub(crate) fn run_record() -> RunRecord {
    RunRecord {
        name: RunName::new("letters").unwrap(),
        kind: RunKind::Training,
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

fn pool_options() -> PoolOptions {
    PoolOptions {
        agent_workers: 1,
        grader_workers: 1,
        in_flight_per_worker: 64,
        start_limit: LONG,
        cancel_grace: LONG,
        limits: Limits::default(),
        isolation: osmosis_core::config::WorkerIsolation::Shared,
    }
}

fn engine_options() -> EngineOptions {
    EngineOptions {
        owner: "test".to_owned(),
        max_in_flight: 8,
        claims: Claims::Everything,
        agent_limit: LONG,
        grade_limit: LONG,
        pass_threshold: 1.0,
        reward_range: None,
        model_errors: osmosis_core::config::ModelErrors::Infrastructure,
        max_failures: 3,
        retry_wait: Duration::from_millis(1),
        lease: LONG,
        artifacts_root: None,
        measuring: Measuring::Nothing,
        redactor: osmosis_core::Redactor::default(),
    }
}
