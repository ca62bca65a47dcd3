//! `osmosis eval …`.

use std::net::SocketAddr;

use camino::Utf8PathBuf;
use clap::{Args, Subcommand};
use osmosis_core::config::ConfigSource;
use osmosis_run::RunError;
use osmosis_run::reports::Gate;
use osmosis_server::{Rendezvous, Url, parse_url};

use super::config::{ConfigArguments, model_setting, number_setting};
use super::kept_run::ListArguments;
use super::measure::{CostArguments, GateArguments, PriceArguments, WatchArguments};
use super::node::SharingArguments;
use super::run::{
    LogArguments, LogsArguments, SecretArguments, StopArguments, ThroughputArguments,
};
use super::show::ShowArguments;

#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Run the agent on every row of a config's dataset, and report
    Submit(Box<SubmitArguments>),
    /// Resume an interrupted run: rollouts without a result run
    #[command(after_help = "Example:\n  osmosis eval resume multiply-20260101-120000")]
    Resume(Box<ResumeArguments>),
    /// Grade the recorded samples of a run again with the current grader, without calling the model
    Regrade(Box<RegradeArguments>),
    /// List the runs of the workspace: model, dataset, pass rate, reward, cost, date, status
    #[command(after_help = "Example:\n  osmosis eval list\n  osmosis eval list --json")]
    List(ListArguments),
    /// Show the numbers of a run and its worst rows; -v also explains the numbers
    #[command(
        after_help = "Example:\n  osmosis eval info latest -v\n  osmosis eval info multiply-20260101-120000\n  osmosis eval info multiply-20260101-120000 --fail-under pass_rate=0.8 --junit results.xml"
    )]
    Info(InfoArguments),
    /// Compare runs of one dataset row by row: is the difference significant, and which rows changed?
    Compare(CompareArguments),
    /// Write a report to share: one page without scripts, or Markdown for a pull request
    Report(ReportArguments),
    /// Show why a rollout scored as it did: transcript, ground truth, tools, grader; without ROW, list the rollouts
    #[command(
        after_help = "Example:\n  osmosis eval show latest --failed\n  osmosis eval show multiply-20260101-120000 --sort reward --limit 5\n  osmosis eval show latest --outcome agent_failed --grep timeout --json\n  osmosis eval show latest 3\n  osmosis eval show latest 3.1 --calls\n  osmosis eval show latest 3.1 --raw 0 --part reply\n\ndocs/failures.md goes from a bad score to its cause."
    )]
    Show(ShowArguments),
    /// Stop a run after its active rollouts have finished; waits until it has ended
    #[command(after_help = "Example:\n  osmosis eval stop multiply-20260101-120000")]
    Stop(StopArguments),
    /// Print the log of a run: what user code printed, worker and rollout events
    #[command(
        after_help = "Example:\n  osmosis eval logs multiply-20260101-120000 --rollout r3-0\n  osmosis eval logs multiply-20260101-120000 --follow"
    )]
    Logs(LogsArguments),
}

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Example:\n  osmosis eval submit configs/eval/multiply.toml --limit 10\n\nWith other settings than the config's, and with several models, which are compared:\n  osmosis eval submit configs/eval/multiply.toml --n 4 --set evaluation.pass_threshold=0.5 --set workflow.style=short\n  osmosis eval submit configs/eval/multiply.toml --model openai/gpt-5-mini,openai/gpt-5 --name sizes\n\nWithout a config:\n  osmosis eval submit --rollout multiply --dataset data/multiply.jsonl --model openai/gpt-5-mini\n\nOn a rollout server (`osmosis serve` or `create_rollout_server()`), on this machine and on another:\n  osmosis eval submit configs/eval/multiply.toml --server http://127.0.0.1:8080\n  osmosis eval submit configs/eval/multiply.toml --server http://gpu-box:8080 \\\n      --server-key-env ROLLOUT_SERVER_KEY --public-url http://my-laptop:8900\n\nIn continuous integration:\n  osmosis eval submit configs/eval/multiply.toml --fail-under pass_rate=0.8 --junit results.xml \\\n      --price-prompt 0.15 --price-completion 0.60 --max-cost 2\n\nExit codes: 0 complete, 1 failed, 2 usage, 3 incomplete (infrastructure failures or unrun rows),\n4 below a --fail-under, 130 interrupted"
)]
pub(crate) struct SubmitArguments {
    #[command(flatten)]
    pub(crate) config: ConfigArguments,

    /// Model to evaluate [overrides `model_path` of the config]; several, separated by commas, make one run
    /// each, which are compared at the end
    #[arg(
        id = "model",
        long = "model",
        value_name = "MODEL",
        value_delimiter = ','
    )]
    pub(crate) models: Vec<String>,

    /// Rollouts per row [overrides `n` of the config]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) n: Option<u32>,

    /// Only check: config, dataset, environment, entrypoint
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Serve the run's page while it runs, and print its address (see `osmosis view`)
    #[arg(long)]
    pub(crate) view: bool,

    /// Name of the run; an existing name resumes that run [default: config name and time]. With several
    /// models, NAME-1, NAME-2 and so on
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Only these rows, from 0: `3,7,10-20`
    #[arg(long, value_name = "ROWS")]
    pub(crate) rows: Option<String>,

    /// At most this many rows [overrides `limit` of the config]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,

    /// Archive the existing run of that name and start fresh
    #[arg(long, requires = "name", conflicts_with = "retry_failed")]
    pub(crate) fresh: bool,

    /// On resume: also repeat rollouts that failed, timed out or were not graded; scored ones are kept
    #[arg(long)]
    pub(crate) retry_failed: bool,

    /// Random seed (embedded models only); the same seed gives the same answers
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Run and grade the rollouts on the rollout server at this address; this machine needs no copy of the
    /// project
    #[arg(
        long,
        value_name = "URL",
        value_parser = parse_url,
        conflicts_with_all = ["workers", "worker_memory", "worker_processes", "python", "secrets_file"]
    )]
    pub(crate) server: Option<Url>,

    #[command(flatten)]
    pub(crate) reach: ReachArguments,

    #[command(flatten)]
    pub(crate) sharing: SharingArguments,

    #[command(flatten)]
    pub(crate) secrets: SecretArguments,

    #[command(flatten)]
    pub(crate) throughput: ThroughputArguments,

    #[command(flatten)]
    pub(crate) cost: CostArguments,

    #[command(flatten)]
    pub(crate) gates: GateArguments,

    #[command(flatten)]
    pub(crate) watch: WatchArguments,

    #[command(flatten)]
    pub(crate) log: LogArguments,

    /// Don't ask for confirmation before a run that calls a remote model
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Also copy metrics.json and index.jsonl into this folder
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<Utf8PathBuf>,
}

impl SubmitArguments {
    /// The config of the run with this model.
    pub(crate) fn source(&self, model: Option<&str>) -> Result<ConfigSource, RunError> {
        let n = self.n.map(u64::from);
        let settings = [
            model.map(model_setting),
            number_setting("--n", ("evaluation", "n"), n),
            number_setting("--limit", ("evaluation", "limit"), self.limit),
        ];
        self.config.source(settings.into_iter().flatten().collect())
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis eval regrade multiply-20260101-120000\n  osmosis eval regrade multiply-20260101-120000 --config configs/eval/strict.toml --name strict\n\nThe original run is not changed: the grades become a new run, for `eval info`, `show` and `compare`.\n\nExit codes: 0 complete, 1 failed, 2 usage, 3 incomplete (infrastructure failures or unrun rows), 130 interrupted"
)]
pub(crate) struct RegradeArguments {
    /// Run whose samples are graded: its name or the beginning of it, or `latest`, `latest~1`, …
    pub(crate) run: String,

    /// Config file (TOML) with the [grader] to use [default: the run's config file, in its current state]
    #[arg(long, value_name = "CFG")]
    pub(crate) config: Option<Utf8PathBuf>,

    /// Name of the new run; an existing name resumes that run [default: the run's name and the time]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Only these rows, from 0: `3,7,10-20`
    #[arg(long, value_name = "ROWS")]
    pub(crate) rows: Option<String>,

    /// Only check: config, environment, entrypoint
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Archive the existing run of that name and start fresh
    #[arg(long, requires = "name", conflicts_with = "retry_failed")]
    pub(crate) fresh: bool,

    /// On resume: also repeat gradings that timed out or failed; scored ones are kept
    #[arg(long)]
    pub(crate) retry_failed: bool,

    /// Random seed (embedded judges only)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) watch: WatchArguments,

    #[command(flatten)]
    pub(crate) secrets: SecretArguments,

    #[command(flatten)]
    pub(crate) throughput: ThroughputArguments,

    /// Also copy metrics.json and index.jsonl into this folder
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<Utf8PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArguments {
    /// Run: its name or the beginning of it, or `latest`, `latest~1`, …
    pub(crate) run: String,

    /// Also repeat rollouts that failed, timed out or were not graded; scored ones are kept
    #[arg(long)]
    pub(crate) retry_failed: bool,

    #[command(flatten)]
    pub(crate) reach: ReachArguments,

    #[command(flatten)]
    pub(crate) sharing: SharingArguments,

    #[command(flatten)]
    pub(crate) secrets: SecretArguments,

    #[command(flatten)]
    pub(crate) throughput: ThroughputArguments,

    #[command(flatten)]
    pub(crate) cost: CostArguments,

    #[command(flatten)]
    pub(crate) gates: GateArguments,

    #[command(flatten)]
    pub(crate) watch: WatchArguments,

    #[command(flatten)]
    pub(crate) log: LogArguments,

    /// Also copy metrics.json and index.jsonl into this folder
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<Utf8PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InfoArguments {
    /// Run: its name or the beginning of it, or `latest`, `latest~1`, …
    pub(crate) run: String,

    #[command(flatten)]
    pub(crate) prices: PriceArguments,

    #[command(flatten)]
    pub(crate) gates: GateArguments,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis eval compare before after\n  osmosis eval compare before after-1 after-2 --json\n\nEvery other run is compared with the first. Pass rate: McNemar's exact test, or sign flips by row with several rollouts\nper row; failures likewise; reward: sign-flip permutation test, which decides only where the same rollouts are scored in\nboth runs. docs/compare.md explains the numbers."
)]
pub(crate) struct CompareArguments {
    /// Runs: the baseline, then one or more others; names, beginnings of names, or `latest`, `latest~1`, …
    #[arg(value_name = "RUN", num_args = 2.., required = true)]
    pub(crate) runs: Vec<String>,

    /// If the datasets differ: compare the rows with the same content in both
    #[arg(long)]
    pub(crate) shared_rows: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis eval report multiply-20260101-120000 --out report.html\n  osmosis eval report multiply-20260101-120000 --compare baseline --out report.html\n  osmosis eval report multiply-20260101-120000 --compare baseline --markdown > comment.md\n  osmosis eval report multiply-20260101-120000 --fail-under pass_rate=0.8 --out report.html"
)]
pub(crate) struct ReportArguments {
    /// Name of the run
    pub(crate) run: String,

    /// Run to compare it with: the baseline
    #[arg(long, value_name = "RUN")]
    pub(crate) compare: Option<String>,

    /// If the datasets differ: compare the rows with the same content in both
    #[arg(long, requires = "compare")]
    pub(crate) shared_rows: bool,

    /// Show whether the run reaches this number, and exit with code 4 if it is complete and below: `pass_rate=0.8`, as
    /// in `eval submit`; may be repeated
    #[arg(long, value_name = "NUMBER=LIMIT")]
    pub(crate) fail_under: Vec<Gate>,

    /// File to write; `-` for standard output [default: RUN.html, and standard output for Markdown]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: Option<Utf8PathBuf>,

    /// Markdown instead of a page; implied by a file that ends in `.md`
    #[arg(long)]
    pub(crate) markdown: bool,

    #[command(flatten)]
    pub(crate) secrets: SecretArguments,
}

/// How we and a rollout server find each other. A resume goes on with what the run began with.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ReachArguments {
    /// With --server: URL at which that server reaches this machine, for model calls and callbacks; its
    /// port is the one to listen on [default: loopback, if the server is on this machine]
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub(crate) public_url: Option<Url>,

    /// With --public-url: the address to listen on, if a proxy or router is in between
    /// [default: the port of --public-url on every interface]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,

    /// With --server: environment variable with the key of that server
    #[arg(long, value_name = "NAME")]
    pub(crate) server_key_env: Option<String>,
}

impl From<ReachArguments> for Rendezvous {
    fn from(arguments: ReachArguments) -> Self {
        Self {
            public_url: arguments.public_url,
            listen: arguments.listen,
            server_key_env: arguments.server_key_env,
        }
    }
}
