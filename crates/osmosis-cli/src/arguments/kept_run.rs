//! `osmosis run …`: the files of a run.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum RunCommand {
    /// Check every row, model call and checkpoint of a run against its checksum
    Verify(VerifyArguments),
    /// Copy everything intact from a damaged run into a new one; the damaged run is not changed
    Salvage(SalvageArguments),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis run verify multiply-20260101-120000\n  osmosis run verify train/calculator --json\n\nNothing is changed. Active runs can be verified too.\n\nExit codes: 0 whole, 1 damaged"
)]
pub(crate) struct VerifyArguments {
    /// Run: its name or the beginning of it, or `latest`, `latest~1`, …; KIND/NAME (eval/…, train/…, serve/…) if two
    /// kinds have the name
    pub(crate) run: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis run salvage multiply-20260101-120000\n  osmosis run salvage train/calculator --to calculator-2\n\nRollouts whose row, samples or model calls are lost run again when the new run is resumed."
)]
pub(crate) struct SalvageArguments {
    /// Run: its name or the beginning of it, or `latest`, `latest~1`, …; KIND/NAME (eval/…, train/…, serve/…) if two
    /// kinds have the name
    pub(crate) run: String,

    /// Name of the new run [default: the run's name and `-salvaged`]
    #[arg(long, value_name = "NAME")]
    pub(crate) to: Option<String>,
}
