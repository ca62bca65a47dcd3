//! `osmosis demo`.

use camino::Utf8PathBuf;
use clap::Args;

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis demo\n  osmosis demo --dir calculator --seed 3\n\nIt creates a workspace for you to change: an agent on the OpenAI Agents SDK with a calculator tool, its grader, its data and the training config."
)]
pub(crate) struct DemoArguments {
    /// Random seed, for sampling and the order of the rows
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Training steps [default: from the demo's config]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,

    /// Folder of the workspace; existing files are kept [default: `demo` in the cache folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<Utf8PathBuf>,

    /// Python interpreter for the project [default: its .venv, VIRTUAL_ENV, PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<Utf8PathBuf>,
}
