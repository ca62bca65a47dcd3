//! `osmosis rollout …`, `dataset …` and `export`.

use camino::Utf8PathBuf;
use clap::{Args, Subcommand, ValueEnum};

use super::run::SecretArguments;

#[derive(Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// Create a project with configs, datasets and a scripted policy, ready to run
    Init(InitArguments),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis rollout init hello\n  osmosis rollout init hello --template strands"
)]
pub(crate) struct InitArguments {
    /// Name of the project: one path segment
    pub(crate) name: String,

    /// What the agent is written with
    #[arg(long, visible_alias = "framework", value_enum, default_value_t = Template::OpenaiAgents)]
    pub(crate) template: Template,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Template {
    /// The OpenAI Agents SDK
    OpenaiAgents,
    /// Strands Agents
    Strands,
    /// An AReaL-style workflow, with the OpenAI client
    Areal,
    /// No framework: plain HTTP calls to the policy
    Plain,
    /// In Rust, with async-openai
    Rust,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DatasetCommand {
    /// Show the columns of a dataset, and its first rows as the agent and the grader get them
    #[command(
        after_help = "Example:\n  osmosis dataset preview data/multiply.jsonl\n  osmosis dataset preview data/gsm8k.parquet --rows 5 \\\n      --column user_prompt=question --column ground_truth=answer"
    )]
    Preview {
        #[command(flatten)]
        dataset: DatasetArguments,

        /// Number of rows to show
        #[arg(long, value_name = "N", default_value_t = 3)]
        rows: usize,
    },
    /// Check every row of a dataset
    #[command(
        after_help = "Example:\n  osmosis dataset validate data/multiply.jsonl\n  osmosis dataset validate data/gsm8k.jsonl --column user_prompt=question --column ground_truth=answer"
    )]
    Validate {
        #[command(flatten)]
        dataset: DatasetArguments,

        /// Allow any columns, for AReaL-style workflows, which take whole rows
        #[arg(long)]
        any_columns: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct DatasetArguments {
    /// Dataset file, pattern ('data/part-*.parquet', in quotes), folder of Hugging Face `datasets`, or a bare
    /// name for `data/NAME.jsonl` of the workspace
    #[arg(value_name = "FILE")]
    pub(crate) file: Utf8PathBuf,

    /// Read a column of the file under another name, as `[dataset.columns]` in a config does; repeatable
    #[arg(long = "column", value_name = "NAME=COLUMN")]
    pub(crate) columns: Vec<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis export multiply-20260101-120000 --format parquet -o runs.parquet\n  \
                  osmosis export multiply-20260101-120000 --format sft --passed -o train.jsonl\n  \
                  osmosis export multiply-20260101-120000 --format inspect -o logs/multiply.eval\n  \
                  osmosis export multiply-train --format verl -o rollouts.parquet"
)]
pub(crate) struct ExportArguments {
    /// Name of the run; KIND/NAME (eval/…, train/…) if two kinds have the name
    pub(crate) run: String,

    /// File format; docs/export.md describes the fields
    #[arg(long, value_enum, default_value_t = ExportFormatArgument::Jsonl)]
    pub(crate) format: ExportFormatArgument,

    /// File to write, `-` for standard output; a folder for one file per ATIF trajectory
    /// [default: RUN and the format's ending]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<Utf8PathBuf>,

    /// Also include rollouts without a result
    #[arg(long)]
    pub(crate) all: bool,

    /// Only samples with at least this reward (`--format sft`)
    #[arg(long, value_name = "REWARD", allow_negative_numbers = true)]
    pub(crate) min_reward: Option<f64>,

    /// Only rollouts that passed (`--format sft`)
    #[arg(long)]
    pub(crate) passed: bool,

    #[command(flatten)]
    pub(crate) secrets: SecretArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormatArgument {
    /// One JSON object per line
    Jsonl,
    /// Columns with types
    Parquet,
    /// The conversation of each sample as Chat Completions messages
    Messages,
    /// Rows for fine-tuning: scored conversations with their tools
    Sft,
    /// Trajectories of the Agent Trajectory Interchange Format 1.7
    Atif,
    /// A log for `inspect view`
    Inspect,
    /// Recorded tokens with their rewards, for AReaL (parquet)
    Areal,
    /// Recorded tokens with their rewards and prompts, for verl (parquet)
    Verl,
    /// Recorded tokens with their rewards, for slime (JSON lines)
    Slime,
}
