//! `[trainer] kind = "torch"`: an inference server samples, a torch process trains.
//!
//! The training loop is the one of embedded models: it knows a `Learner` and a `WeightSink`. Here the learner is a
//! Python process (`osmosis_ai.trainer.torch`, carried by this program) that rows and logprobs go to over a socket,
//! and the sink is a vLLM server that loads what the trainer wrote. Both are started, watched and started again here,
//! and end with the run.

mod learner;
mod model_folder;
mod process_log;
mod server;
mod server_command;
mod trainer_process;
mod wire;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::PolicyVersion;
use osmosis_core::config::{
    CheckpointStep, Lora, LoraBase, ModelPath, Sampling, TorchSettings, TrainConfig, Training,
};
use osmosis_core::learner::{
    Learner, LearnerError, LearnerErrorKind, ModelFiles, TrainableModel, WeightSink, Weights,
};
use osmosis_gateway::{ExchangingEngine, ServerLogprobs};
use osmosis_tokens::ChatFormat;
use osmosis_worker::guard::GuardProgram;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use self::learner::{Role, TorchLearner};
use self::model_folder::ModelFolder;
use self::process_log::ProcessLog;
use self::server::{Server, ServerPlan};
use self::trainer_process::{Trainer, TrainerPlan};
use crate::chat_choice::ChatChoice;
use crate::life::Part;
use crate::notices::{Notice, Notices};
use crate::policy;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// Below the run's folder: what is loaded into the server, and what a trainer that is started again goes on from.
const STATES: &str = "trainer";
const TRAINER_LOG: &str = "trainer.log";
const SERVER_LOG: &str = "server.log";
/// How long the server may take to end by itself.
const END_GRACE: Duration = Duration::from_secs(5);

/// A model in a folder that others sample and train.
#[derive(Debug)]
pub struct TorchModel {
    folder: ModelFolder,
    settings: TorchSettings,
    python: Utf8PathBuf,
    /// Where the server is started: what is relative in its command is so to the workspace.
    workspace: Utf8PathBuf,
    pub chat: Arc<ChatFormat>,
    pub choice: ChatChoice,
    logprobs: ServerLogprobs,
}

/// Refuses another base than the model's own: `dtype` decides how the trainer holds it.
fn refuse_base(training: &Training) -> Result<(), RunError> {
    match training.lora.as_ref().map(|lora| lora.base) {
        None | Some(LoraBase::F32) => Ok(()),
        Some(base @ (LoraBase::Bf16 | LoraBase::Q8)) => Err(RunError::failed(
            RunErrorKind::ConfigInvalid,
            format!(
                "`base = \"{}\"` in [training.lora] is for embedded models",
                base.name()
            ),
        )
        .hint("leave it out: with the torch trainer, `dtype` in [trainer] decides")),
    }
}

impl TorchModel {
    pub async fn open(config: &TrainConfig, workspace: &Workspace) -> Result<Self, RunError> {
        refuse_base(&config.training)?;
        let model = &config.experiment.model_path;
        let path = folder_of(model, workspace).await?;
        let folder = ModelFolder::open(&path)?;
        let choice = ChatChoice::of_experiment(&config.experiment, workspace)?;
        let chat = ChatFormat::load_with(&path, &choice.settings).map_err(|error| {
            if choice.blamed_for(&error).is_some() {
                return policy::template_error(&choice, &error);
            }
            RunError::failed(
                RunErrorKind::TokenizerInvalid,
                format!("model_path `{model}`: {error}"),
            )
            .maybe_hint(error.hint())
        })?;
        let mut settings = config.trainer.torch.clone();
        for word in settings.server_command.iter_mut().flatten() {
            if word.starts_with("~/") {
                *word = policy::local(Utf8Path::new(word), workspace)?.into_string();
            }
        }
        Ok(Self {
            python: python(settings.python.as_deref(), workspace)?,
            logprobs: logprobs_of(config.sampling)?,
            workspace: workspace.root.clone(),
            folder,
            settings,
            chat: Arc::new(chat),
            choice,
        })
    }

    /// What a resume must find unchanged.
    pub fn digest(&self) -> &str {
        &self.folder.digest
    }

    pub fn parameters(&self) -> usize {
        self.folder.parameters
    }

    /// Refuses an interpreter without the packages, before anything is started.
    pub async fn check(&self) -> Result<(), RunError> {
        trainer_process::check_packages(&self.python).await
    }
}

/// The running pair of a training: a trainer process and an inference server.
#[derive(Debug)]
pub struct TorchRuntime {
    trainer: Arc<Trainer>,
    server: Arc<Server>,
    /// What the server is to load next, left by the learner: adapters and large models go by files.
    published: Arc<Published>,
    training: Training,
    roles: Mutex<Vec<Role>>,
}

/// Where the newest weights are.
#[derive(Debug, Default)]
struct Published(Mutex<Option<Utf8PathBuf>>);

impl Published {
    fn set(&self, folder: Utf8PathBuf) {
        *self.0.lock() = Some(folder);
    }

    fn folder(&self) -> Option<Utf8PathBuf> {
        self.0.lock().clone()
    }
}

/// What the pair is started for.
#[derive(Debug)]
pub struct TorchStart<'a> {
    pub model: &'a TorchModel,
    pub training: &'a Training,
    pub seed: u64,
    pub run_folder: &'a Utf8Path,
    pub notices: &'a Arc<dyn Notices>,
}

impl TorchRuntime {
    /// Starts both; returns when the server is ready and the trainer has its model.
    pub async fn start(start: TorchStart<'_>) -> Result<Arc<Self>, RunError> {
        let TorchStart {
            model,
            training,
            seed,
            run_folder,
            notices,
        } = start;
        let states = run_folder.join(STATES);
        // A resume goes on from checkpoints.
        match fs::remove_dir_all(&states) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(crate::io_error(&states, &error));
            }
            Ok(()) | Err(_) => {}
        }
        fs::create_dir_all(&states).map_err(|error| crate::io_error(&states, &error))?;
        let guard = GuardProgram::this();
        let server = ServerPlan {
            command: model.settings.server_command.clone(),
            python: model.python.clone(),
            model: model.folder.path.clone(),
            dtype: model.settings.dtype,
            max_context: context_of(training, model.folder.context),
            lora_rank: training.lora.as_ref().map(|lora| lora.rank),
            logprobs: model.logprobs,
            working_directory: model.workspace.clone(),
            log: ProcessLog::at(run_folder.join(SERVER_LOG)),
            guard: guard.clone(),
            notices: Arc::clone(notices),
        };
        let trainer = TrainerPlan {
            python: model.python.clone(),
            devices: model.settings.devices.clone(),
            open: wire::Open {
                model: model.folder.path.clone(),
                lr: training.lr,
                seed,
                dtype: model.settings.dtype.as_str(),
                lora: training.lora.clone(),
            },
            states,
            working_directory: run_folder.to_owned(),
            log: ProcessLog::at(run_folder.join(TRAINER_LOG)),
            guard,
            notices: Arc::clone(notices),
        };
        notices.step(format_args!(
            "Starting the inference server and the trainer (logs: {SERVER_LOG}, {TRAINER_LOG})"
        ));
        // The server first: it takes the longest, and reserves its memory.
        let (server, trainer) = tokio::join!(Server::start(server), Trainer::start(trainer));
        notices.notice(Notice::StepsDone);
        let (server, trainer) = match (server, trainer) {
            (Ok(server), Ok(trainer)) => (server, trainer),
            (server, trainer) => {
                if let Ok(server) = &server {
                    server.shut_down().await;
                }
                if let Ok(trainer) = &trainer {
                    trainer.shut_down().await;
                }
                return Err(match (server, trainer) {
                    (Err(error), _) | (_, Err(error)) => error,
                    (Ok(_), Ok(_)) => {
                        RunError::failed(RunErrorKind::Internal, "both have started".to_owned())
                    }
                });
            }
        };
        notices.note(format_args!("{}", trainer.described()));
        let reference = training.kl_coef > 0.0;
        Ok(Arc::new(Self {
            trainer: Arc::new(trainer),
            server: Arc::new(server),
            published: Arc::new(Published::default()),
            training: training.clone(),
            // In the order in which the loop asks for them, the last first.
            roles: Mutex::new(if reference {
                vec![Role::Policy, Role::Reference]
            } else {
                vec![Role::Policy]
            }),
        }))
    }

    /// What samples.
    pub fn engine(&self) -> Arc<ExchangingEngine> {
        Arc::clone(self.server.engine())
    }

    fn lora(&self) -> Option<&Lora> {
        self.training.lora.as_ref()
    }
}

#[async_trait]
impl Part for TorchRuntime {
    async fn shut_down(&self) {
        self.server.shut_down().await;
        self.trainer.shut_down().await;
        // Checkpoints have what is to be kept.
        let _ = fs::remove_dir_all(self.trainer.states());
    }
}

impl TrainableModel for TorchRuntime {
    fn learner(&self, _lr: f64) -> Result<Box<dyn Learner>, LearnerError> {
        let role = self.roles.lock().pop().unwrap_or(Role::Policy);
        Ok(Box::new(TorchLearner::new(
            Arc::clone(&self.trainer),
            Arc::clone(&self.published),
            role,
            self.lora().is_some(),
        )))
    }

    /// They are in files: others have no use for them here.
    fn weights(&self) -> Arc<Weights> {
        Arc::default()
    }

    fn files(&self) -> Arc<dyn ModelFiles> {
        Arc::new(NoFiles)
    }
}

impl WeightSink for TorchRuntime {
    fn load(&self, _weights: &Weights, version: PolicyVersion) -> Result<(), LearnerError> {
        let Some(folder) = self.published.folder() else {
            return Err(failed(
                LearnerErrorKind::Invalid,
                "no weights were published".to_owned(),
            ));
        };
        let loading = self.server.exchange(folder, version);
        Handle::current()
            .block_on(loading)
            .map_err(|message| failed(LearnerErrorKind::Ended, message))
    }

    fn sampled_tokens(&self) -> u64 {
        self.server.engine().sampled_tokens()
    }
}

/// Model folders are read and written by the trainer process.
#[derive(Debug)]
struct NoFiles;

impl ModelFiles for NoFiles {
    fn read(&self, _folder: &Utf8Path) -> Result<Weights, LearnerError> {
        Err(of_trainer())
    }

    fn write(&self, _folder: &Utf8Path, _weights: &Weights) -> Result<(), LearnerError> {
        Err(of_trainer())
    }
}

fn of_trainer() -> LearnerError {
    failed(
        LearnerErrorKind::Invalid,
        "the files of this model are the trainer's".to_owned(),
    )
}

fn failed(kind: LearnerErrorKind, message: String) -> LearnerError {
    LearnerError {
        kind,
        message,
        hint: None,
    }
}

async fn folder_of(model: &ModelPath, workspace: &Workspace) -> Result<Utf8PathBuf, RunError> {
    match model {
        ModelPath::Local(path) => policy::local(path, workspace),
        ModelPath::Run { name, step } => {
            if *step == CheckpointStep::Best {
                tracing::warn!("`{model}` was chosen by its score on the run's held-out rows");
            }
            policy::checkpoint(name.as_str(), *step, workspace).await
        }
        ModelPath::Builtin(_)
        | ModelPath::Script(_)
        | ModelPath::Provider { .. }
        | ModelPath::Endpoint(_) => Err(RunError::failed(
            RunErrorKind::ModelNotTrainable,
            format!(
                "model_path `{model}` is no folder, and `[trainer] kind = \"torch\"` trains folders"
            ),
        )
        .hint("use a folder in Hugging Face layout, like `./models/NAME`, or `run:NAME`")),
    }
}

/// The interpreter of the config, or the one that is found first.
fn python(chosen: Option<&Utf8Path>, workspace: &Workspace) -> Result<Utf8PathBuf, RunError> {
    match chosen {
        Some(path) if path.as_str().contains('/') => policy::local(path, workspace),
        Some(name) => Ok(name.to_owned()),
        None => Ok(Utf8PathBuf::from("python3")),
    }
}

/// Which of its logprobs the server is to report, so that they are of the distribution that tokens are drawn from.
fn logprobs_of(sampling: Sampling) -> Result<ServerLogprobs, RunError> {
    let temperature = sampling.rollout_temperature.unwrap_or(1.0);
    let top_p = sampling.rollout_top_p.unwrap_or(1.0);
    // What top-p leaves out is in the raw logprobs, and the temperature in the processed ones: never both.
    if (temperature - 1.0).abs() < f64::EPSILON {
        return Ok(ServerLogprobs::Raw);
    }
    if (top_p - 1.0).abs() < f64::EPSILON {
        return Ok(ServerLogprobs::Processed);
    }
    Err(RunError::failed(
        RunErrorKind::ConfigInvalid,
        format!(
            "`[sampling]` has rollout_temperature {temperature} and rollout_top_p {top_p}: an inference server \
             reports no logprobs that can be trained on with both"
        ),
    )
    .hint("leave one of them at 1"))
}

/// What a call may take of the context, prompt and answer together.
fn context_of(training: &Training, of_model: Option<usize>) -> usize {
    let wanted = training.max_prompt_length as usize + training.max_response_length as usize;
    of_model.map_or(wanted, |most| wanted.min(most))
}
