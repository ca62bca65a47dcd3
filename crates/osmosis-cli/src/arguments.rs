//! What can be typed, with the help texts.

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Runs AI agents for evaluation and reinforcement learning, and reports honest numbers.
#[derive(Debug, Parser)]
#[command(
    name = "osmosis",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Example:\n  osmosis rollout init hello\n  osmosis eval submit configs/eval/hello.toml"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) output: OutputArguments,

    /// Workspace folder, the one that holds `rollouts/` [default: the nearest one above the config
    /// file or the working directory]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) workspace: Option<Utf8PathBuf>,

    /// Say more about what the program itself does (repeat for more; `OSMOSIS_LOG` filters)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputArguments {
    /// Print one JSON document on standard output (errors as JSON on standard error)
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Plain text: no colours, no moving progress
    #[arg(long, global = true)]
    pub(crate) plain: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run and inspect evaluations
    Eval {
        #[command(subcommand)]
        command: EvalCommand,
    },
    /// Make rollouts: agent workflows with their graders
    Rollout {
        #[command(subcommand)]
        command: RolloutCommand,
    },
    /// Check datasets
    Dataset {
        #[command(subcommand)]
        command: DatasetCommand,
    },
    /// Write the rollouts of a run to a file that pandas, DuckDB and others open
    Export(ExportArguments),
    /// Check this machine and workspace, and say what is missing
    #[command(after_help = "Example:\n  osmosis doctor")]
    Doctor {
        /// Interpreter to check
        #[arg(long, value_name = "PATH")]
        python: Option<Utf8PathBuf>,
    },
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  osmosis completions bash > ~/.local/share/bash-completion/completions/osmosis"
    )]
    Completions { shell: clap_complete::Shell },
}

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

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis export multiply-20260101-120000 --format parquet -o runs.parquet"
)]
pub(crate) struct ExportArguments {
    /// Name of the run
    pub(crate) run: String,

    /// How it is written; `docs/export.md` describes the fields
    #[arg(long, value_enum, default_value_t = ExportFormatArgument::Jsonl)]
    pub(crate) format: ExportFormatArgument,

    /// File to write, `-` for standard output [default: RUN.FORMAT]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<Utf8PathBuf>,

    /// Also rollouts that have no result yet
    #[arg(long)]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) secrets: SecretArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormatArgument {
    /// One JSON object per line
    Jsonl,
    /// Columns with types
    Parquet,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SecretArguments {
    /// File of NAME=VALUE lines for the config's [secrets]; names it lacks come from the environment
    #[arg(long, value_name = "FILE")]
    pub(crate) secrets_file: Option<Utf8PathBuf>,
}

/// Settings that change how fast a run goes, never what it means.
#[derive(Debug, Clone, Args)]
pub(crate) struct ThroughputArguments {
    /// Rollouts under way at once [default: the config's `batch_size`, else 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_in_flight: Option<u32>,

    /// Agent worker processes [default: number of cores, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: Option<u32>,

    /// Address space of each worker process, like `4G` [default: unlimited]
    #[arg(long, value_name = "SIZE")]
    pub(crate) worker_memory: Option<ByteSize>,

    /// Processes and threads that workers may have in all (no limit for root) [default: unlimited]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(8..))]
    pub(crate) worker_processes: Option<u64>,

    /// Python interpreter for the rollout [default: its .venv, VIRTUAL_ENV, PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<Utf8PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// Make a new rollout with config, dataset and a scripted policy, ready to run
    Init(InitArguments),
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  osmosis rollout init hello --framework openai-agents")]
pub(crate) struct InitArguments {
    /// Name of the rollout: one path segment
    pub(crate) name: String,

    /// What the agent is written with
    #[arg(long, value_enum, default_value_t = Framework::OpenaiAgents)]
    pub(crate) framework: Framework,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Framework {
    /// The OpenAI Agents SDK
    OpenaiAgents,
    /// No framework: plain HTTP calls to the policy
    Plain,
    /// In Rust, with async-openai
    Rust,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DatasetCommand {
    /// Check every row of a dataset
    #[command(after_help = "Example:\n  osmosis dataset validate data/multiply.jsonl")]
    Validate {
        /// Dataset file, or a bare name for `data/NAME.jsonl` of the workspace
        file: Utf8PathBuf,
    },
}

impl Command {
    /// The command as it is named in JSON.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Eval { command } => match command {
                EvalCommand::Submit(_) => "eval submit",
                EvalCommand::Resume(_) => "eval resume",
                EvalCommand::List => "eval list",
                EvalCommand::Info { .. } => "eval info",
                EvalCommand::Show { .. } => "eval show",
                EvalCommand::Logs { .. } => "eval logs",
            },
            Self::Rollout {
                command: RolloutCommand::Init(_),
            } => "rollout init",
            Self::Dataset {
                command: DatasetCommand::Validate { .. },
            } => "dataset validate",
            Self::Export(_) => "export",
            Self::Doctor { .. } => "doctor",
            Self::Completions { .. } => "completions",
        }
    }
}

/// A number of bytes: `512M`, `4G`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

impl std::str::FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match &text[digits.len()..] {
            "" | "B" => 0,
            "K" | "KB" | "KiB" => 10,
            "M" | "MB" | "MiB" => 20,
            "G" | "GB" | "GiB" => 30,
            unit => return Err(format!("`{unit}` is no unit; write K, M or G")),
        };
        let number: u64 = digits
            .parse()
            .map_err(|_| "write a size like `512M` or `4G`".to_owned())?;
        number
            .checked_mul(1 << shift)
            .filter(|bytes| *bytes > 0)
            .map(Self)
            .ok_or_else(|| "out of range".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::ByteSize;

    #[test]
    fn sizes_have_units() {
        assert_eq!("512M".parse(), Ok(ByteSize(512 << 20)));
        assert_eq!("4G".parse(), Ok(ByteSize(4 << 30)));
        assert_eq!("10".parse(), Ok(ByteSize(10)));
        for bad in ["", "G", "4T", "-1", "0", "99999999999G"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }
}
