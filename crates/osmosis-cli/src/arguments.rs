//! What can be typed, with the help texts.

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand};

mod demo;
mod eval;
mod gateway;
mod kept_run;
mod measure;
mod run;
mod serve;
mod train;
mod view;
mod workspace;

pub(crate) use demo::DemoArguments;
pub(crate) use eval::{
    CompareArguments, EvalCommand, InfoArguments, RegradeArguments, ResumeArguments,
    SubmitArguments,
};
pub(crate) use gateway::{GatewayArguments, NamedUpstream};
pub(crate) use kept_run::{RunCommand, SalvageArguments};
pub(crate) use measure::{GateArguments, WatchArguments};
pub(crate) use serve::ServeArguments;
pub(crate) use train::{
    TrainCommand, TrainResumeArguments, TrainServeArguments, TrainSubmitArguments,
};
pub(crate) use view::ViewArguments;
pub(crate) use workspace::{
    DatasetCommand, ExportArguments, ExportFormatArgument, Framework, InitArguments, RolloutCommand,
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

    /// Log more about the program itself (repeat for more; `OSMOSIS_LOG` filters)
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
    /// Train a policy by reinforcement learning, and inspect the runs
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
    /// Look at runs in a browser
    View(ViewArguments),
    /// Verify the files of a run, and recover the intact part of a damaged one
    #[command(after_help = "Example:\n  osmosis run verify multiply-20260101-120000")]
    Run {
        #[command(subcommand)]
        command: RunCommand,
    },
    /// Watch a small agent learn: evaluate, train, evaluate again
    Demo(DemoArguments),
    /// Create projects: an agent workflow with its grader
    #[command(after_help = "Example:\n  osmosis rollout init hello")]
    Rollout {
        #[command(subcommand)]
        command: RolloutCommand,
    },
    /// Check datasets
    #[command(after_help = "Example:\n  osmosis dataset validate data/hello.jsonl")]
    Dataset {
        #[command(subcommand)]
        command: DatasetCommand,
    },
    /// Write the rollouts of a run to a file for pandas, DuckDB and others
    Export(ExportArguments),
    /// Check this machine and workspace, and list what is missing
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
            | Self::Demo(_)
            | Self::Run { .. }
            | Self::Doctor { .. } => true,
            Self::Rollout { .. }
            | Self::Dataset { .. }
            | Self::Export(_)
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
                EvalCommand::List => "eval list",
                EvalCommand::Info(_) => "eval info",
                EvalCommand::Compare(_) => "eval compare",
                EvalCommand::Show { .. } => "eval show",
                EvalCommand::Logs { .. } => "eval logs",
                EvalCommand::Stop(_) => "eval stop",
            },
            Self::Train { command } => match command {
                TrainCommand::Submit(_) => "train submit",
                TrainCommand::Resume(_) => "train resume",
                TrainCommand::Serve(_) => "train serve",
                TrainCommand::List => "train list",
                TrainCommand::Info { .. } => "train info",
                TrainCommand::Show { .. } => "train show",
                TrainCommand::Logs { .. } => "train logs",
                TrainCommand::Stop(_) => "train stop",
            },
            Self::Gateway(_) => "gateway",
            Self::Serve(_) => "serve",
            Self::View(_) => "view",
            Self::Run { command } => match command {
                RunCommand::Verify(_) => "run verify",
                RunCommand::Salvage(_) => "run salvage",
            },
            Self::Demo(_) => "demo",
            Self::Rollout {
                command: RolloutCommand::Init(_),
            } => "rollout init",
            Self::Dataset {
                command: DatasetCommand::Validate { .. },
            } => "dataset validate",
            Self::Export(_) => "export",
            Self::Doctor { .. } => "doctor",
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
