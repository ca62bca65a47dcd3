//! `osmosis train serve`: rollouts for a trainer in another process.

use std::sync::Arc;

use camino::Utf8Path;
use osmosis_core::config::{ModelPath, TrainConfig};
use osmosis_engine::Stop;
use osmosis_gateway::{Gateway, GatewayOptions, Policy, Secret};
use osmosis_policy::{EmbeddedModel, Sampler};
use osmosis_run::reports::{Curve, TrainingReport};
use osmosis_run::{RunError, RunErrorKind};
use osmosis_server::BatchService;
use osmosis_store::{RunStatus, Store};
use osmosis_train::TrainEvent;
use osmosis_train::delivery::{
    AnnouncedVersion, OutsideEnd, OutsideParts, OutsidePlan, OutsideTraining,
};
use serde_json::json;

use super::plan::{Plan, PlannedModel, Request};
use super::submit::Job;
use super::view::TrainView;
use crate::arguments::TrainServeArguments;
use crate::command_line;
use crate::error::Exit;
use crate::eval::submit::archive;
use crate::events::EventSink;
use crate::execution::{self, SHUTDOWN_GRACE};
use crate::gateway::CONTROL_KEY_VARIABLE;
use crate::output::Output;
use crate::policy::{self, ReadyPolicy, TokenLimits, variable};
use crate::prepared::Prepared;
use crate::run_log::RunLog;
use crate::runs::{Opened, Pinned, given_name};
use crate::stop_signals::StopSignals;
use crate::workspace::{Workspace, read_config};

/// What the trainer's client looks for.
const URL_VARIABLE: &str = "OSMOSIS_TRAINER_URL";

pub(crate) async fn serve(
    arguments: TrainServeArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    let (config_path, config_text) = read_config(&arguments.config)?;
    let name = given_name(arguments.name.as_deref())?;
    let request = Request {
        config_path,
        config_text,
        secrets_file: arguments.secrets.secrets_file.clone(),
        rows_not_compared: false,
    };
    let plan: Plan<OutsideModel> = Plan::check(request, workspace)?;
    let mut job = Job::new(plan, name, *output)?;
    job.throughput = arguments.throughput.clone().into();
    if arguments.fresh {
        archive(&job.folder, &job.plan.workspace, output)?;
    }
    Box::pin(Serving { job, arguments }.run()).await
}

/// A policy that is trained by somebody else.
#[derive(Debug)]
pub(crate) enum OutsideModel {
    /// It samples here, with weights that the trainer announces.
    Embedded(Box<EmbeddedModel>),
    /// Servers of the trainer's sample.
    Servers(ReadyPolicy),
}

impl PlannedModel for OutsideModel {
    fn open(config: &TrainConfig, workspace: &Workspace) -> Result<Self, RunError> {
        let model = &config.experiment.model_path;
        if matches!(
            model,
            ModelPath::Builtin(_) | ModelPath::Run { .. } | ModelPath::Local(_)
        ) {
            let embedded = policy::open_model(model, workspace)?;
            return Ok(Self::Embedded(Box::new(embedded)));
        }
        let ready = policy::open(model, config.training.seed.unwrap_or(0), workspace)?;
        if ready.tells_tokens {
            return Ok(Self::Servers(ready));
        }
        Err(RunError::failed(
            RunErrorKind::ModelNotTrainable,
            format!("model_path `{model}` tells no token ids, and a trainer needs them"),
        )
        .hint(
            "say which engine answers: OSMOSIS_ENGINE=vllm, or sglang with OSMOSIS_TOKENIZER \
             (docs/gateway-tokens.md)",
        ))
    }

    fn pin(&self, facts: &mut Pinned) {
        facts.trainer = Some("outside".to_owned());
        match self {
            Self::Embedded(model) => facts.model_sha256 = Some(model.digest().to_owned()),
            Self::Servers(ready) => facts.model = Some(ready.identity.clone()),
        }
    }

    fn secrets(&self) -> &[String] {
        match self {
            Self::Embedded(_) => &[],
            Self::Servers(ready) => &ready.secrets,
        }
    }
}

struct Serving {
    job: Job<OutsideModel>,
    arguments: TrainServeArguments,
}

/// What answers the agents.
struct ServedPolicy {
    gateway: Arc<Gateway>,
    service: Arc<BatchService>,
    sampler: Option<Arc<Sampler>>,
    /// Where the version is kept of a policy that does not keep it itself.
    version: Option<AnnouncedVersion>,
}

impl ServedPolicy {
    async fn shut_down(&self) {
        self.gateway.shut_down(SHUTDOWN_GRACE).await;
        if let Some(sampler) = &self.sampler {
            sampler.shut_down();
        }
    }
}

impl Serving {
    async fn run(&self) -> Result<Exit, RunError> {
        let job = &self.job;
        let signals = StopSignals::listen()?;
        let prepared = signals.unless_stopped(job.prepare()).await?;
        if job.plan.depends_on_workflow() {
            signals.unless_stopped(job.ask_workflow(&prepared)).await?;
        }
        let pinned = job.plan.pinned(prepared.digest())?;
        let Opened { store, resumed } = job.open_store(&pinned).await?;
        let so_far = Curve::of(&*store).await?;
        let mut display = EventSink::start();
        let log = RunLog::open(&job.folder.logs(), job.redactor(), job.plan.config.logs)?;
        display.open(log, Box::new(TrainView::new(job.output, &so_far)));
        let driven = Box::pin(self.drive(&signals, &prepared, &store, &display)).await;
        display.finish().await;
        let status = match driven {
            Ok(OutsideEnd::Complete { .. }) => RunStatus::Finished,
            Ok(OutsideEnd::Stopped { .. }) | Err(_) => RunStatus::Interrupted,
        };
        let end = match driven {
            Ok(end) => end,
            Err(error) => {
                // Closing makes what was recorded whole; the first error is the one to tell.
                let _ = store.set_status(status).await;
                let _ = store.close().await;
                return Err(command_line::with_resume_hint(error, &self.again()));
            }
        };
        store.set_status(status).await?;
        let report = TrainingReport::of(&*store, &job.name, &job.folder)
            .await?
            .ran_here(resumed, None)
            .with_withheld(&job.plan.code.withheld);
        job.folder.write_index(&*store).await?;
        job.folder.write_metrics(&report)?;
        store.close().await?;
        Ok(self.conclude(end, &report))
    }

    fn conclude(&self, end: OutsideEnd, report: &TrainingReport) -> Exit {
        match end {
            OutsideEnd::Complete { batches } => {
                self.job.output.operation_line("completed", report);
                self.job.output.note(format_args!(
                    "All {batches} batches are acknowledged, and the trainer knows."
                ));
                Exit::Ok
            }
            OutsideEnd::Stopped { batches } => {
                self.job.output.operation_line("interrupted", report);
                self.job.output.note(format_args!(
                    "Stopped with {batches} batches acknowledged. Go on with:\n  {}",
                    self.again()
                ));
                Exit::Interrupted
            }
        }
    }

    /// Runs rollouts. Whatever happens, workers, gateway and sampler are gone afterwards.
    async fn drive(
        &self,
        signals: &StopSignals,
        prepared: &Prepared,
        store: &Arc<dyn Store>,
        display: &EventSink<TrainEvent>,
    ) -> Result<OutsideEnd, RunError> {
        let job = &self.job;
        let starting = job.start_workers(prepared, display);
        let workers = Arc::new(signals.unless_stopped(starting).await?);
        job.plan
            .code
            .tell(workers.manifest(), &job.plan.amount(), &*job.notices);
        let served = match self.serve_policy(store).await {
            Ok(served) => served,
            Err(error) => {
                workers.shut_down(SHUTDOWN_GRACE).await;
                return Err(error);
            }
        };
        let stop = Stop {
            drain: signals.drain.clone(),
            now: signals.now.clone(),
        };
        let plan = job.plan.train_plan()?;
        let plan = OutsidePlan {
            rows: plan.rows,
            training: plan.training,
            seed: plan.seed,
        };
        let parts = OutsideParts {
            store: Arc::clone(store),
            gateway: Arc::clone(&served.gateway),
            workers: Arc::clone(&workers),
            engine: job.engine_options(),
            folder: job.folder.path.clone(),
            version: served.version.clone(),
        };
        let end = match OutsideTraining::open(plan, parts, &stop).await {
            Ok((training, desk)) => {
                served.service.open(desk);
                self.tell(&served.gateway, &training);
                training.run(&stop, display.run_events()).await
            }
            Err(error) => Err(error),
        };
        workers.shut_down(SHUTDOWN_GRACE).await;
        served.shut_down().await;
        Ok(end?)
    }

    /// Says where it is, and with which key.
    fn tell(&self, gateway: &Gateway, training: &OutsideTraining) {
        let output = &self.job.output;
        let key = gateway.control_key().expose();
        output.line(format_args!("{URL_VARIABLE}={}", gateway.url()));
        output.line(format_args!("{CONTROL_KEY_VARIABLE}={key}"));
        let (done, all) = (training.acknowledged(), training.batches());
        let next = if done < all {
            format!("Batch {} of {all} is next", done + 1)
        } else {
            format!("All {all} batches are acknowledged; this waits for a trainer, to tell it so")
        };
        let folder = &self.job.folder.path;
        output.note(format_args!(
            "{next}; the run is in {folder}. Ctrl-C stops."
        ));
        output.operation_line(
            "serving",
            &json!({
                "run_name": self.job.name,
                "url": gateway.url(),
                "control_key": key,
                "model": self.job.plan.config.experiment.model_path.to_string(),
                "version": *gateway.announced_versions().borrow(),
                "acknowledged": done,
                "batches": all,
                "output_path": self.job.folder.path,
            }),
        );
    }

    /// The policy behind a gateway whose `[sampling]` wins over what agents ask for.
    async fn serve_policy(&self, store: &Arc<dyn Store>) -> Result<ServedPolicy, RunError> {
        let config = &self.job.plan.config;
        let limits = TokenLimits {
            prompt: config.training.max_prompt_length as usize,
            response: config.training.max_response_length as usize,
        };
        let (policy, sampler, version): (Arc<dyn Policy>, _, _) = match &self.job.plan.model {
            OutsideModel::Embedded(model) => {
                let every = config.checkpoints.checkpoint_save_freq;
                let kept = (self.job.folder.path.clone(), every);
                let (policy, sampler) = policy::trained_outside(
                    &config.experiment.model_path,
                    model,
                    self.job.plan.seed(),
                    limits,
                    kept,
                )?;
                (policy, Some(sampler), None)
            }
            OutsideModel::Servers(ready) => {
                let kept = AnnouncedVersion::kept_in(&self.job.folder.path);
                // Servers do not know what they were announced as.
                if let Some(version) = kept.read()? {
                    ready.policy.set_version(version);
                }
                (Arc::clone(&ready.policy), None, Some(kept))
            }
        };
        let sampling = execution::sampling(config.sampling, true);
        let service = Arc::new(BatchService::default());
        let options = GatewayOptions {
            services: vec![(BatchService::PATH.to_owned(), Arc::clone(&service) as _)],
            control_key: variable(CONTROL_KEY_VARIABLE).map(Secret::new),
            ..execution::gateway_options(self.arguments.listen, sampling)
        };
        let started = execution::start_gateway_with(options, &policy, store).await;
        let gateway = match started {
            Ok(gateway) => Arc::new(gateway),
            Err(error) => {
                if let Some(sampler) = &sampler {
                    sampler.shut_down();
                }
                return Err(error.hint("choose another address with `--listen ADDR`"));
            }
        };
        if let Some(judge) = &self.job.plan.judge {
            judge.serve_at(&gateway);
        }
        Ok(ServedPolicy {
            gateway,
            service,
            sampler,
            version,
        })
    }

    fn again(&self) -> String {
        let config = self.job.plan.request.config_path.as_str();
        command_line::suggest(
            &["train", "serve", config, "--name", self.job.name.as_str()],
            &self.job.plan.workspace,
        )
    }
}
