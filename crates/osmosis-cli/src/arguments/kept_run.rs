//! `osmosis run …`: runs that are over, and the files of a run.

use clap::{Args, Subcommand, ValueEnum};
use jiff::SignedDuration;
use osmosis_core::{RunName, RunTag};
use osmosis_store::RunKind;

use super::run::LogsArguments;

#[derive(Debug, Subcommand)]
pub(crate) enum RunCommand {
    /// Delete runs for good
    Rm(RemoveArguments),
    /// Take runs out of the lists; `run restore` brings them back
    Archive(ArchiveArguments),
    /// Put an archived run back into the lists
    Restore(RestoreArguments),
    /// Give a run another name
    Rename(RenameArguments),
    /// Mark a run with words, which lists show
    Tag(TagArguments),
    /// Show how much disk space runs take, the largest first
    Du(SizeArguments),
    /// Delete old runs: all but the newest of each kind, or all older than some time
    Prune(PruneArguments),
    /// Copy a run into another store: from the workspace into a database, or back
    Copy(CopyArguments),
    /// Check every row, model call and checkpoint of a run against its checksum
    Verify(VerifyArguments),
    /// Copy everything intact from a damaged run into a new one; the damaged run is not changed
    Salvage(SalvageArguments),
    /// Print the log of a run of any kind, also of `osmosis serve`
    #[command(after_help = "Example:\n  osmosis run logs serve/multiply-20260101-120000 --follow")]
    Logs(LogsArguments),
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
    after_help = "Example:\n  osmosis run copy multiply-20260101-120000 --to postgres://db.example.org/evaluations\n  osmosis run copy latest --store postgres://db.example.org/evaluations --to .\n\nThe run itself is not changed. The copy has the same name."
)]
pub(crate) struct CopyArguments {
    /// Run: its name or the beginning of it, or `latest`, `latest~1`, …; KIND/NAME (eval/…, train/…, serve/…) if two
    /// kinds have the name
    pub(crate) run: String,

    /// Where the copy goes: `postgres://HOST/DATABASE`, or the folder of a workspace
    #[arg(long, value_name = "URL|WORKSPACE")]
    pub(crate) to: String,
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

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis run rm multiply-20260101-120000 --dry-run\n  osmosis run rm eval/before eval/after --yes\n  osmosis run rm --archived multiply-20260101-120000 --yes\n\nActive runs are not deleted. Without a terminal, `--yes` is required."
)]
pub(crate) struct RemoveArguments {
    /// Names of the runs; KIND/NAME (eval/…, train/…, serve/…) if two kinds have the name
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<String>,

    /// Delete archived runs, by name or id
    #[arg(long)]
    pub(crate) archived: bool,

    #[command(flatten)]
    pub(crate) deletion: DeletionArguments,
}

/// What every command that deletes takes.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DeletionArguments {
    /// Only list what would be deleted
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Delete without asking
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis run archive multiply-20260101-120000\n  osmosis eval list --archived\n\nNothing is deleted: the run moves to `.osmosis/archive/`."
)]
pub(crate) struct ArchiveArguments {
    /// Names of the runs; KIND/NAME (eval/…, train/…, serve/…) if two kinds have the name
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis run restore multiply-20260101-120000\n  osmosis run restore multiply-20260101-120000.20260102-090000.1 --as multiply-old"
)]
pub(crate) struct RestoreArguments {
    /// Name of the archived run (the newest of that name), or its id as `list --archived` shows it
    #[arg(value_name = "RUN")]
    pub(crate) archived_run: String,

    /// Another name for it
    #[arg(long = "as", value_name = "NAME", value_parser = name)]
    pub(crate) new_name: Option<RunName>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis run rename multiply-20260101-120000 baseline\n\nWhat names the run by its former name (`run:NAME` in configs, regrades) still finds it, until another run\ngets that name; those are listed."
)]
pub(crate) struct RenameArguments {
    /// Name of the run; KIND/NAME (eval/…, train/…, serve/…) if two kinds have the name
    pub(crate) run: String,

    /// Its new name
    #[arg(value_parser = name)]
    pub(crate) name: RunName,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis run tag multiply-20260101-120000 baseline\n  osmosis run tag multiply-20260101-120000 --remove baseline\n  osmosis eval list --tag baseline\n\nWithout tags it prints those that the run has. `run prune` keeps runs with a tag."
)]
pub(crate) struct TagArguments {
    /// Name of the run; KIND/NAME (eval/…, train/…, serve/…) if two kinds have the name
    pub(crate) run: String,

    /// Tags to add: letters, digits, `.`, `_` and `-`
    #[arg(value_name = "TAG", value_parser = tag)]
    pub(crate) tags: Vec<RunTag>,

    /// Tags to take away
    #[arg(long, value_name = "TAG", value_parser = tag)]
    pub(crate) remove: Vec<RunTag>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  osmosis run du\n  osmosis run du train/calculator --json")]
pub(crate) struct SizeArguments {
    /// Names of the runs [default: all, with the archived ones]
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  osmosis run prune --keep 10 --dry-run\n  osmosis run prune --older-than 30d --kind eval --yes\n\nRuns that are active, have a tag, or are used by a run that stays are never pruned: `--dry-run` lists\nthem with the reason. Without a terminal, `--yes` is required."
)]
#[group(id = "rules", required = true, multiple = true)]
pub(crate) struct PruneArguments {
    /// Keep this many of the newest runs of each kind
    #[arg(long, value_name = "N", group = "rules")]
    pub(crate) keep: Option<usize>,

    /// Only runs that were made longer ago than this: `12h`, `30d`, `8w`
    #[arg(long, value_name = "AGE", value_parser = age, group = "rules")]
    pub(crate) older_than: Option<SignedDuration>,

    /// Only runs of these kinds [default: all]
    #[arg(long, value_enum, value_name = "KINDS", value_delimiter = ',')]
    pub(crate) kind: Vec<KindArgument>,

    #[command(flatten)]
    pub(crate) deletion: DeletionArguments,
}

/// What a list of runs takes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ListArguments {
    /// List the archived runs instead
    #[arg(long)]
    pub(crate) archived: bool,

    /// Only runs with this tag
    #[arg(long, value_name = "TAG", value_parser = tag)]
    pub(crate) tag: Option<RunTag>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindArgument {
    Eval,
    Train,
    Serve,
}

impl From<KindArgument> for RunKind {
    fn from(kind: KindArgument) -> Self {
        match kind {
            KindArgument::Eval => Self::Evaluation,
            KindArgument::Train => Self::Training,
            KindArgument::Serve => Self::Serving,
        }
    }
}

fn name(text: &str) -> Result<RunName, String> {
    RunName::new(text).map_err(|error| error.to_string())
}

fn tag(text: &str) -> Result<RunTag, String> {
    RunTag::new(text).map_err(|error| error.to_string())
}

/// `12h`, `30d`, `8w`.
fn age(text: &str) -> Result<SignedDuration, String> {
    let wrong = || "write a number with h, d or w, like `30d`".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let hours = match &text[digits.len()..] {
        "h" => 1,
        "d" => 24,
        "w" => 24 * 7,
        _ => return Err(wrong()),
    };
    let number: i64 = digits.parse().map_err(|_| wrong())?;
    number
        .checked_mul(hours)
        .filter(|hours| (0..=24 * 365 * 100).contains(hours))
        .map(SignedDuration::from_hours)
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_units() {
        assert_eq!(age("12h"), Ok(SignedDuration::from_hours(12)));
        assert_eq!(age("30d"), Ok(SignedDuration::from_hours(720)));
        assert_eq!(age("1w"), Ok(SignedDuration::from_hours(168)));
        for bad in ["", "d", "30", "3m", "-1d", "99999999999999999w"] {
            assert!(age(bad).is_err(), "{bad}");
        }
    }
}
