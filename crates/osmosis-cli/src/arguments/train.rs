//! `osmosis train …`.

use std::net::SocketAddr;

use camino::Utf8PathBuf;
use clap::{Args, Subcommand};
use osmosis_core::config::{ConfigSource, Override};
use osmosis_run::RunError;

use super::config::{ConfigArguments, model_setting, number_setting, parse_setting};
use super::kept_run::ListArguments;
use super::node::SharingArguments;
use super::run::{
    LogArguments, LogsArguments, SecretArguments, StopArguments, ThroughputArguments,
};
use super::show::ShowArguments;
use crate::workspace::read_config;

#[derive(Debug, Subcommand)]
pub(crate) enum TrainCommand {
    /// Train a config's model on its dataset, and report before and after
    Submit(Box<TrainSubmitArguments>),
    /// Train a model on chat messages, with the loss on the assistant's tokens: a warm start before rewards
    Sft(Box<TrainSftArguments>),
    /// Resume an interrupted run from its last checkpoint
    #[command(after_help = "Example:\n  osmosis train resume calculator-20260101-120000")]
    Resume(Box<TrainResumeArguments>),
    /// Run rollouts for an external trainer, which fetches batches and announces new weights
    Serve(TrainServeArguments),
    /// List the training runs of the workspace: model, dataset, steps, reward, date, status
    #[command(after_help = "Example:\n  osmosis train list --json")]
    List(ListArguments),
    /// Show the numbers of a training run: reward curve, before and after, checkpoints
    #[command(after_help = "Example:\n  osmosis train info calculator-20260101-120000")]
    Info {
        /// Run: its name or the beginning of it, or `latest`, `latest~1`, …
        run: String,
    },
    /// Show why a rollout scored as it did: transcript, ground truth, tools, grader; without ROW, list the rollouts
    #[command(
        after_help = "Example:\n  osmosis train show latest --failed\n  osmosis train show calculator-20260101-120000 --sort variance\n  osmosis train show calculator-20260101-120000 3\n  osmosis train show latest 3.1 --calls"
    )]
    Show(ShowArguments),
    /// Stop a training run; waits until it has ended. A resume continues from there
    #[command(after_help = "Example:\n  osmosis train stop calculator-20260101-120000")]
    Stop(StopArguments),
    /// Print the log of a run: what user code printed, worker and rollout events
    #[command(
        after_help = "Example:\n  osmosis train logs calculator-20260101-120000 --rollout r3-0\n  osmosis train logs calculator-20260101-120000 --follow"
    )]
    Logs(LogsArguments),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis train submit configs/training/calculator.toml\n\nWith other settings than the config's, and without a config:\n  osmosis train submit configs/training/calculator.toml --steps 5 --set training.lr=1e-4\n  osmosis train submit --rollout calculator --dataset data/calculator.jsonl --model builtin/tiny --steps 5\n\nExit codes: 0 complete, 1 failed, 2 usage, 3 no update was made or planned steps are missing, 130 interrupted"
)]
pub(crate) struct TrainSubmitArguments {
    #[command(flatten)]
    pub(crate) config: ConfigArguments,

    /// Model to train [overrides `model_path` of the config]
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,

    /// Rollouts of each row in a step [overrides `n_samples_per_prompt` of the config]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) n: Option<u32>,

    /// End after this many steps [overrides `steps` of the config]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,

    /// Only check: config, model, datasets, environment, entrypoint
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Serve the run's page while it trains, and print its address (see `osmosis view`)
    #[arg(long)]
    pub(crate) view: bool,

    /// Name of the run; an existing name resumes that run [default: config name and time]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Archive the existing run of that name and start fresh
    #[arg(long, requires = "name")]
    pub(crate) fresh: bool,

    /// Also write TensorBoard event files, into the run's folder
    #[arg(long)]
    pub(crate) tensorboard: bool,

    #[command(flatten)]
    pub(crate) sharing: SharingArguments,

    #[command(flatten)]
    pub(crate) secrets: SecretArguments,

    #[command(flatten)]
    pub(crate) throughput: ThroughputArguments,

    #[command(flatten)]
    pub(crate) log: LogArguments,

    /// No effect: training never asks (accepted so that scripts can pass it to every command)
    #[arg(short, long)]
    pub(crate) yes: bool,
}

impl TrainSubmitArguments {
    /// The config with what is set beside it.
    pub(crate) fn source(&self) -> Result<ConfigSource, RunError> {
        let n = self.n.map(u64::from);
        let settings = [
            self.model.as_deref().map(model_setting),
            number_setting("--n", ("training", "n_samples_per_prompt"), n),
            number_setting("--steps", ("training", "steps"), self.steps),
        ];
        self.config.source(settings.into_iter().flatten().collect())
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis train sft configs/sft/warm_start.toml\n  osmosis train sft configs/sft/warm_start.toml --dry-run\n\nA config has `model_path` and `dataset` in [experiment], and `lr`, `batch_size`, `total_epochs` and others in [sft].\nThe rows of the dataset have `messages`, and `tools` where there are some: docs/training.md.\n\nExit codes: 0 complete, 1 failed, 2 usage, 130 interrupted"
)]
pub(crate) struct TrainSftArguments {
    /// Config file (TOML)
    #[arg(value_name = "CFG")]
    pub(crate) config: Utf8PathBuf,

    /// Model to train [overrides `model_path` of the config]
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,

    /// End after this many steps [overrides `steps` of the config]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,

    /// Set any key of the config: `sft.lr=1e-4`. VALUE is written as in TOML, and a bare word is a string; may be
    /// repeated
    #[arg(
        id = "settings",
        long = "set",
        value_name = "SECTION.KEY=VALUE",
        value_parser = parse_setting
    )]
    pub(crate) settings: Vec<Override>,

    /// Only check: config, model, and every row of the datasets in the model's tokens
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Name of the run; an existing name resumes that run [default: config name and time]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Archive the existing run of that name and start fresh
    #[arg(long, requires = "name")]
    pub(crate) fresh: bool,

    /// Also write TensorBoard event files, into the run's folder
    #[arg(long)]
    pub(crate) tensorboard: bool,

    #[command(flatten)]
    pub(crate) log: LogArguments,

    /// No effect: training never asks (accepted so that scripts can pass it to every command)
    #[arg(short, long)]
    pub(crate) yes: bool,
}

impl TrainSftArguments {
    /// The config with what is set beside it.
    pub(crate) fn source(&self) -> Result<ConfigSource, RunError> {
        let (path, text) = read_config(&self.config)?;
        let flags = [
            self.model.as_deref().map(model_setting),
            number_setting("--steps", ("sft", "steps"), self.steps),
        ];
        let mut source = ConfigSource::of_file(path, text);
        source.overrides.extend(flags.into_iter().flatten());
        source.overrides.extend(self.settings.iter().cloned());
        Ok(source)
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis train serve configs/training/calculator.toml --name mine --listen 127.0.0.1:8100\n\nIt prints its URL and the control key; the variable OSMOSIS_CONTROL_KEY sets the key.\nA trainer fetches batches at GET /v1/training/batches, acknowledges them at\nPOST /v1/training/batches/NUMBER/ack, and announces its weights at POST /v1/policy:\ndocs/outside-trainers.md. A first SIGTERM or Ctrl-C drains, a second one stops immediately."
)]
pub(crate) struct TrainServeArguments {
    /// Config file (TOML)
    #[arg(value_name = "CFG")]
    pub(crate) config: Utf8PathBuf,

    /// Address to listen on [default: 127.0.0.1 and any free port]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,

    /// Name of the run; an existing name resumes that run [default: config name and time]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Archive the existing run of that name and start fresh
    #[arg(long, requires = "name")]
    pub(crate) fresh: bool,

    #[command(flatten)]
    pub(crate) secrets: SecretArguments,

    #[command(flatten)]
    pub(crate) throughput: ThroughputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct TrainResumeArguments {
    /// Run: its name or the beginning of it, or `latest`, `latest~1`, …
    pub(crate) run: String,

    /// Also write TensorBoard event files, into the run's folder
    #[arg(long)]
    pub(crate) tensorboard: bool,

    #[command(flatten)]
    pub(crate) sharing: SharingArguments,

    #[command(flatten)]
    pub(crate) secrets: SecretArguments,

    #[command(flatten)]
    pub(crate) throughput: ThroughputArguments,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}
