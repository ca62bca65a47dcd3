//! `osmosis run rm` and `run prune`: what would go is listed before anything does.

use osmosis_run::figures::bytes_text;
use osmosis_run::reports::RemovalReport;
use osmosis_run::runs::kept::{self, KeepReason, PruneRules, RunToRemove};
use osmosis_run::{RunError, RunErrorKind};

use crate::arguments::{DeletionArguments, PruneArguments, RemoveArguments};
use crate::error::Exit;
use crate::output::Output;
use crate::workspace::Workspace;

pub(super) async fn remove(
    workspace: &Workspace,
    arguments: &RemoveArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let removals = kept::to_remove(workspace, &arguments.runs, arguments.archived).await?;
    let report = RemovalReport::of(&removals, arguments.deletion.dry_run);
    delete(workspace, &removals, &report, arguments.deletion, output).await
}

pub(super) async fn prune(
    workspace: &Workspace,
    arguments: &PruneArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let kinds = if arguments.kind.is_empty() {
        kept::KINDS.to_vec()
    } else {
        arguments.kind.iter().map(|kind| (*kind).into()).collect()
    };
    let rules = PruneRules {
        kinds,
        keep: arguments.keep,
        older_than: arguments.older_than,
    };
    let pruning = kept::prune(workspace, &rules).await?;
    let report = RemovalReport::of_pruning(&pruning, arguments.deletion.dry_run);
    delete(
        workspace,
        &pruning.remove,
        &report,
        arguments.deletion,
        output,
    )
    .await
}

/// Lists what goes, asks, and deletes.
async fn delete(
    workspace: &Workspace,
    removals: &[RunToRemove],
    report: &RemovalReport,
    DeletionArguments { dry_run, yes }: DeletionArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    for run in &report.removed {
        output.line(format_args!("{:>10}  {}", bytes_text(run.bytes), run.run));
        for one in &run.used_by {
            output.line(format_args!("            {one}"));
        }
    }
    for kept in &report.kept {
        output.line(format_args!(
            "     stays  {}: {}",
            kept.run,
            why_kept(kept.reason)
        ));
    }
    let runs = match removals.len() {
        0 => {
            output.line("Nothing to delete.");
            output.operation("nothing_to_delete", report);
            return Ok(Exit::Ok);
        }
        1 => "1 run".to_owned(),
        count => format!("{count} runs"),
    };
    let bytes = bytes_text(report.bytes);
    if dry_run {
        output.line(format_args!(
            "Would delete {runs} ({bytes}). Nothing was touched."
        ));
        output.operation("dry_run", report);
        return Ok(Exit::Ok);
    }
    if !yes {
        confirm(&format!("Delete {runs} ({bytes}) for good? [y/N] "), output)?;
    }
    for removal in removals {
        removal.remove(workspace).await?;
    }
    output.line(format_args!("Deleted {runs} ({bytes})."));
    output.operation("deleted", report);
    Ok(Exit::Ok)
}

fn why_kept(reason: KeepReason) -> &'static str {
    match reason {
        KeepReason::Held => "it is active",
        KeepReason::Tagged => "it has a tag",
        KeepReason::Needed => "a run that stays uses it",
        KeepReason::Unreadable => "it can't be read; `osmosis run rm` deletes it",
    }
}

/// Asks a person; without one, only `--yes` will do.
fn confirm(question: &str, output: &Output) -> Result<(), RunError> {
    if !output.can_ask() {
        return Err(RunError::usage(
            RunErrorKind::Usage,
            "nobody is there to confirm the deletion",
        )
        .hint("pass `--yes` to delete, or `--dry-run` to only list what would be deleted"));
    }
    output.question(question);
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(|error| RunError::failed(RunErrorKind::Io, format!("no answer: {error}")))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(RunError::failed(
            RunErrorKind::Declined,
            "nothing was deleted",
        )),
    }
}
