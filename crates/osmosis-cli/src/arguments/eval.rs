//! `osmosis eval …`.

use camino::Utf8PathBuf;
use clap::{Args, Subcommand};

use super::run::{SecretArguments, StopArguments, ThroughputArguments};

#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Check a config, run every row of its dataset through the agent, and report
    Submit(SubmitArguments),
    /// Go on with a run that was interrupted: only what has no result is run
    #[command(after_help = "Example:\n  osmosis eval resume multiply-20260101-120000")]
    Resume(ResumeArguments),
    /// List the runs of the workspace
    #[command(after_help = "Example:\n  osmosis eval list --json")]
    List,
    /// Show the numbers of a run
    #[command(after_help = "Example:\n  osmosis eval info multiply-20260101-120000")]
    Info {
        /// Name of the run
        run: String,
    },
    /// Print one rollout as a transcript: messages, tool calls, rewards, errors, times
    #[command(
        after_help = "Example:\n  osmosis eval show multiply-20260101-120000 3\n  osmosis eval show multiply-20260101-120000 3.1 --calls"
    )]
    Show {
        /// Name of the run
        run: String,
        /// Row index from 0, or ROW.RUN for one of several runs of a row
        row: String,
        /// Also list every model call, with its status, tokens and times
        #[arg(long)]
        calls: bool,
    },
    /// Ask the process that runs it to finish what is under way and end; waits until it has
    #[command(after_help = "Example:\n  osmosis eval stop multiply-20260101-120000")]
    Stop(StopArguments),
    /// Print the log of a run: what user code printed, worker and rollout events
    #[command(after_help = "Example:\n  osmosis eval logs multiply-20260101-120000 --rollout r3-0")]
    Logs {
        /// Name of the run
        run: String,
        /// Only lines of this rollout
        #[arg(long, value_name = "ID")]
        rollout: Option<String>,
    },
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis eval submit configs/eval/multiply.toml --limit 10\n\nExit codes: 0 complete, 1 failed, 2 usage, 3 incomplete (infrastructure failures or unrun rows), 130 interrupted"
)]
pub(crate) struct SubmitArguments {
    /// Config file (TOML)
    #[arg(value_name = "CFG")]
    pub(crate) config: Utf8PathBuf,

    /// Stop after the checks: config, dataset, environment, entrypoint
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Name of the run; an existing name resumes that run [default: config name and time]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Only these rows, from 0: `3,7,10-20`
    #[arg(long, value_name = "ROWS")]
    pub(crate) rows: Option<String>,

    /// At most this many rows (overrides the config's `limit`)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,

    /// Put an existing run of that name away and start anew
    #[arg(long, requires = "name", conflicts_with = "retry_failed")]
    pub(crate) fresh: bool,

    /// Resuming: also run again what failed, timed out or was not graded; rewards stay
    #[arg(long)]
    pub(crate) retry_failed: bool,

    /// Where the random numbers of an embedded policy start; the same seed gives the same answers
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) secrets: SecretArguments,

    #[command(flatten)]
    pub(crate) throughput: ThroughputArguments,

    /// Do not ask before a run that goes to a remote model
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Also copy metrics.json and index.jsonl into this folder
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<Utf8PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArguments {
    /// Name of the run
    pub(crate) run: String,

    /// Also run again what failed, timed out or was not graded; rewards stay
    #[arg(long)]
    pub(crate) retry_failed: bool,

    #[command(flatten)]
    pub(crate) secrets: SecretArguments,

    #[command(flatten)]
    pub(crate) throughput: ThroughputArguments,

    /// Also copy metrics.json and index.jsonl into this folder
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<Utf8PathBuf>,
}
