//! `osmosis model`.

use camino::Utf8PathBuf;
use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Merge the adapters of a checkpoint into their base, and write a Hugging Face folder
    ///
    /// The folder opens in transformers, vLLM and as `model_path` here. A checkpoint without adapters is written
    /// as it is, without the state of its training.
    #[command(
        after_help = "Example:\n  osmosis model merge smollm2@best --to models/smollm2-calculator"
    )]
    Merge(ModelMergeArguments),
    /// Write a checkpoint for other programs: Hugging Face folder, GGUF file or PEFT adapters
    #[command(
        after_help = "Example:\n  osmosis model export smollm2@40 --to models/smollm2-gguf --format gguf --dtype f16\n  osmosis model export smollm2@best --to adapters/calculator --format peft"
    )]
    Export(ModelExportArguments),
}

#[derive(Debug, Args)]
pub(crate) struct ModelMergeArguments {
    /// Checkpoint: RUN, RUN@STEP, RUN@best, or a model folder like ./models/NAME
    #[arg(value_name = "RUN@STEP")]
    pub(crate) model: String,

    /// Folder to write; must not exist, or be empty
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Utf8PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ModelExportArguments {
    #[command(flatten)]
    pub(crate) model: ModelMergeArguments,

    /// What to write; adapters are merged, except for peft
    #[arg(long, value_enum, default_value_t = ModelFormatArgument::Hf)]
    pub(crate) format: ModelFormatArgument,

    /// Type of the matrices in a GGUF file
    #[arg(long, value_enum, default_value_t = DtypeArgument::F32)]
    pub(crate) dtype: DtypeArgument,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelFormatArgument {
    /// Hugging Face folder
    Hf,
    /// One GGUF file
    Gguf,
    /// Adapters in PEFT's layout
    Peft,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DtypeArgument {
    F32,
    F16,
}
