//! What can be typed, with the help texts.

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand};

mod config;
mod demo;
mod eval;
mod gateway;
mod kept_run;
mod measure;
mod model;
mod node;
mod run;
mod serve;
mod show;
mod train;
mod view;
mod workspace;

pub(crate) use demo::DemoArguments;
pub(crate) use eval::{
    CompareArguments, EvalCommand, InfoArguments, RegradeArguments, ReportArguments,
    ResumeArguments, SubmitArguments,
};
pub(crate) use gateway::{GatewayArguments, NamedUpstream};
pub(crate) use kept_run::{
    CopyArguments, DeletionArguments, ListArguments, PruneArguments, RemoveArguments, RunCommand,
    SalvageArguments, TagArguments,
};
pub(crate) use measure::{GateArguments, WatchArguments};
pub(crate) use model::{DtypeArgument, ModelCommand, ModelFormatArgument, ModelMergeArguments};
pub(crate) use node::{JOIN_VARIABLE, NodeArguments, metrics_options};
pub(crate) use run::LogsArguments;
pub(crate) use serve::ServeArguments;
pub(crate) use show::{CallPart, RolloutListArguments, ShowArguments};
pub(crate) use train::{
    TrainCommand, TrainResumeArguments, TrainServeArguments, TrainSftArguments,
    TrainSubmitArguments,
};
pub(crate) use view::ViewArguments;
pub(crate) use workspace::{
    DatasetArguments, DatasetCommand, ExportArguments, ExportFormatArgument, InitArguments,
    RolloutCommand, RowArguments, Template,
};

/// Runs AI agents for evaluation and reinforcement learning, with honest statistics.
#[derive(Debug, Parser)]
#[command(
    name = "osmosis",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Example:\n  osmosis demo\n  osmosis rollout init hello\n  osmosis eval submit configs/eval/hello.toml"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) output: OutputArguments,

    /// Workspace folder, the one that holds `rollouts/` [default: the nearest one above the config
    /// file or the working directory]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) workspace: Option<Utf8PathBuf>,

    /// Database for the records of runs, `postgres://[USER[:PASSWORD]@]HOST/DATABASE`; files stay in the workspace. For
    /// `gateway` also a folder for the recorded calls [default: the workspace's `.osmosis`] [env: OSMOSIS_STORE]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// Explain the numbers of reports, and log more about the program itself (repeat for more; `OSMOSIS_LOG`
    /// filters)
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

    /// Plain text: no colours, no live progress
    #[arg(long, global = true)]
    pub(crate) plain: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Interpreter to check in place of those of the projects
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<Utf8PathBuf>,

    /// Make what is missing: environments of projects, the unpacked Python SDK
    #[arg(long)]
    pub(crate) fix: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run and inspect evaluations
    #[command(
        after_help = "Example:\n  osmosis eval submit configs/eval/hello.toml\n  osmosis eval list"
    )]
    Eval {
        #[command(subcommand)]
        command: EvalCommand,
    },
    /// Train a policy by rewards or on conversations, and inspect the runs
    #[command(
        after_help = "Example:\n  osmosis train submit configs/training/calculator.toml\n  osmosis train list"
    )]
    Train {
        #[command(subcommand)]
        command: TrainCommand,
    },
    /// Serve a model to any OpenAI client, and record every call
    Gateway(GatewayArguments),
    /// Run and grade rollouts for a training controller over HTTP, and send it the results
    Serve(ServeArguments),
    /// Work on a run that another machine controls: claim rollouts from its database
    Node(Box<NodeArguments>),
    /// Look at runs in a browser
    View(ViewArguments),
    /// Manage runs: rename, tag, archive, delete, measure, verify, print their logs
    #[command(
        after_help = "Example:\n  osmosis run du\n  osmosis run rename multiply-20260101-120000 baseline\n  osmosis run prune --keep 10 --dry-run\n  osmosis run verify multiply-20260101-120000"
    )]
    Run {
        #[command(subcommand)]
        command: RunCommand,
    },
    /// Merge adapters into their base, and write checkpoints for other programs
    #[command(
        after_help = "Example:\n  osmosis model merge smollm2@best --to models/smollm2-calculator\n  osmosis model export smollm2@40 --to models/smollm2-gguf --format gguf"
    )]
    Model {
        #[command(subcommand)]
        command: ModelCommand,
    },
    /// Watch a small agent learn: evaluate, train, evaluate again
    Demo(DemoArguments),
    /// Create projects (an agent workflow with its grader), and debug them on one row
    #[command(
        after_help = "Example:\n  osmosis rollout init hello\n  osmosis rollout run hello --row 0"
    )]
    Rollout {
        #[command(subcommand)]
        command: RolloutCommand,
    },
    /// Show and check datasets
    #[command(
        after_help = "Example:\n  osmosis dataset preview data/hello.jsonl\n  osmosis dataset validate data/hello.jsonl"
    )]
    Dataset {
        #[command(subcommand)]
        command: DatasetCommand,
    },
    /// Write the rollouts of a run to a file for pandas, DuckDB and others
    Export(ExportArguments),
    /// Check this machine and workspace, and list what is missing
    ///
    /// Changes nothing: `--fix` makes the missing environments.
    #[command(after_help = "Example:\n  osmosis doctor\n  osmosis doctor --fix")]
    Doctor(DoctorArguments),
    /// Print a completion script for a shell: commands, options, and the runs, rows and configs of the workspace
    #[command(
        after_help = "Example:\n  osmosis completions bash > ~/.local/share/bash-completion/completions/osmosis\n  osmosis completions zsh > ~/.zfunc/_osmosis\n  osmosis completions fish > ~/.config/fish/completions/osmosis.fish\n\nThe script asks `osmosis`, which has to be on the PATH, at every TAB."
    )]
    Completions { shell: clap_complete::Shell },
    /// Write the manual pages of all commands into a folder
    #[command(after_help = "Example:\n  osmosis man ~/.local/share/man/man1")]
    Man {
        /// Folder for the pages; created if missing
        #[arg(value_name = "DIR")]
        folder: Utf8PathBuf,
    },
}

impl Command {
    /// Whether what it makes is its user's alone, rather than a file that was asked for by name.
    pub(crate) fn makes_private_files(&self) -> bool {
        match self {
            Self::Eval { .. }
            | Self::Train { .. }
            | Self::Gateway(_)
            | Self::Serve(_)
            | Self::Node(_)
            | Self::Demo(_)
            | Self::Run { .. }
            | Self::Rollout {
                command: RolloutCommand::Run(_),
            }
            | Self::Doctor(_) => true,
            Self::Rollout {
                command: RolloutCommand::Init(_),
            }
            | Self::Dataset { .. }
            | Self::Export(_)
            | Self::Model { .. }
            | Self::View(_)
            | Self::Completions { .. }
            | Self::Man { .. } => false,
        }
    }

    /// The command as it is named in JSON.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Eval { command } => match command {
                EvalCommand::Submit(_) => "eval submit",
                EvalCommand::Resume(_) => "eval resume",
                EvalCommand::Regrade(_) => "eval regrade",
                EvalCommand::List(_) => "eval list",
                EvalCommand::Info(_) => "eval info",
                EvalCommand::Compare(_) => "eval compare",
                EvalCommand::Report(_) => "eval report",
                EvalCommand::Show(_) => "eval show",
                EvalCommand::Logs(_) => "eval logs",
                EvalCommand::Stop(_) => "eval stop",
            },
            Self::Train { command } => match command {
                TrainCommand::Submit(_) => "train submit",
                TrainCommand::Sft(_) => "train sft",
                TrainCommand::Resume(_) => "train resume",
                TrainCommand::Serve(_) => "train serve",
                TrainCommand::List(_) => "train list",
                TrainCommand::Info { .. } => "train info",
                TrainCommand::Show(_) => "train show",
                TrainCommand::Logs(_) => "train logs",
                TrainCommand::Stop(_) => "train stop",
            },
            Self::Gateway(_) => "gateway",
            Self::Serve(_) => "serve",
            Self::Node(_) => "node",
            Self::View(_) => "view",
            Self::Run { command } => match command {
                RunCommand::Rm(_) => "run rm",
                RunCommand::Archive(_) => "run archive",
                RunCommand::Restore(_) => "run restore",
                RunCommand::Rename(_) => "run rename",
                RunCommand::Tag(_) => "run tag",
                RunCommand::Du(_) => "run du",
                RunCommand::Prune(_) => "run prune",
                RunCommand::Copy(_) => "run copy",
                RunCommand::Verify(_) => "run verify",
                RunCommand::Salvage(_) => "run salvage",
                RunCommand::Logs(_) => "run logs",
            },
            Self::Model { command } => match command {
                ModelCommand::Merge(_) => "model merge",
                ModelCommand::Export(_) => "model export",
            },
            Self::Demo(_) => "demo",
            Self::Rollout { command } => match command {
                RolloutCommand::Init(_) => "rollout init",
                RolloutCommand::Run(_) => "rollout run",
            },
            Self::Dataset { command } => match command {
                DatasetCommand::Preview { .. } => "dataset preview",
                DatasetCommand::Validate { .. } => "dataset validate",
            },
            Self::Export(_) => "export",
            Self::Doctor(_) => "doctor",
            Self::Completions { .. } => "completions",
            Self::Man { .. } => "man",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// The commands in a help text, with what a shell would make of them.
    fn examples(help: &str) -> Vec<Vec<String>> {
        let joined = help.replace("\\\n", " ");
        let lines = joined.lines().map(str::trim);
        let commands = lines.filter(|line| line.starts_with("osmosis "));
        commands
            .map(|line| {
                let command = line.split(" > ").next().unwrap_or(line);
                command.split_whitespace().map(str::to_owned).collect()
            })
            .collect()
    }

    fn check(command: &clap::Command, path: &str) {
        let help = command
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let examples = examples(&help);
        assert!(
            help.contains("Example:") && !examples.is_empty(),
            "`{path} --help` has no example"
        );
        let mut own = false;
        for example in examples {
            own |= example.join(" ").starts_with(path);
            if let Err(error) = Arguments::try_parse_from(&example) {
                panic!("`{}` in the help of `{path}`: {error}", example.join(" "));
            }
        }
        assert!(own, "`{path} --help` shows other commands alone");
        for sub in command
            .get_subcommands()
            .filter(|sub| sub.get_name() != "help")
        {
            check(sub, &format!("{path} {}", sub.get_name()));
        }
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        check(&Arguments::command(), "osmosis");
    }

    #[test]
    fn the_arguments_contradict_nothing() {
        Arguments::command().debug_assert();
    }
}
