//! `osmosis eval|train list`.

use osmosis_run::RunError;
use osmosis_run::reports::RunSummary;
use osmosis_run::runs::{ReadRun, kept};
use osmosis_store::{ArchivedRun, RunKind};

use crate::arguments::ListArguments;
use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::{RunFolder, command_word};
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    kind: RunKind,
    arguments: &ListArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let mut items = vec![];
    for (folder, archived) in folders(workspace, kind, arguments.archived).await? {
        let name = folder.name();
        // One run that can't be read must not hide the others.
        match summary(&folder, archived).await {
            Ok(Some(summary)) => {
                let wanted = arguments.tag.as_ref();
                if wanted.is_some_and(|tag| !summary.tags.contains(tag)) {
                    continue;
                }
                output.line(line(&summary));
                items.push(summary);
            }
            Ok(None) => output.warn(format_args!("run `{name}` was never begun")),
            Err(error) => output.warn(format_args!("run `{name}`: {error}")),
        }
    }
    if items.is_empty() && arguments.archived {
        output.line("No archived runs.");
    } else if items.is_empty() && arguments.tag.is_some() {
        output.line("No runs with that tag.");
    } else if items.is_empty() {
        output.line(format_args!(
            "No runs yet. `osmosis {} submit CFG` makes one.",
            command_word(kind)
        ));
    }
    output.list(&items);
    Ok(Exit::Ok)
}

/// Where the runs are, with the ids of those that are archived.
async fn folders(
    workspace: &Workspace,
    kind: RunKind,
    archived: bool,
) -> Result<Vec<(RunFolder, Option<ArchivedRun>)>, RunError> {
    if !archived {
        let names = RunFolder::names(workspace, kind).into_iter();
        return names
            .map(|name| Ok((RunFolder::existing(workspace, kind, &name)?, None)))
            .collect();
    }
    let archived = kept::archived_runs(workspace, &[kind]).await?.into_iter();
    archived
        .map(|run| {
            let path = run.url.folder()?;
            Ok((RunFolder { path }, Some(run)))
        })
        .collect()
}

async fn summary(
    folder: &RunFolder,
    archived: Option<ArchivedRun>,
) -> Result<Option<RunSummary>, RunError> {
    let run = ReadRun::open(folder.clone())?;
    let summary = RunSummary::of(&run).await?;
    Ok(summary.map(|summary| match archived {
        Some(archived) => RunSummary {
            run_name: archived.key.name.to_string(),
            archive_id: Some(archived.id),
            ..summary
        },
        None => summary,
    }))
}

fn line(summary: &RunSummary) -> String {
    let RunSummary {
        run_name,
        status,
        done,
        total,
        created_at,
        output_path: _,
        steps,
        tags,
        archive_id,
    } = summary;
    let mut text = match steps {
        Some(steps) => {
            format!("{run_name:<40} {status:<12} step {steps:<6} {done:>7} rollouts {created_at}")
        }
        None => format!("{run_name:<40} {status:<12} {done:>7}/{total:<7} {created_at}"),
    };
    if !tags.is_empty() {
        let tags: Vec<&str> = tags.iter().map(osmosis_core::RunTag::as_str).collect();
        text.push_str(&format!("  [{}]", tags.join(", ")));
    }
    if let Some(id) = archive_id {
        text.push_str(&format!("  archived as {id}"));
    }
    text
}
