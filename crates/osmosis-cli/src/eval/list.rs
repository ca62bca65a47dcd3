//! `osmosis eval list`.

use osmosis_store::{RunStatus, SqliteStore, Store};
use serde_json::json;

use crate::error::{CliError, Exit};
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::workspace::Workspace;

pub(crate) async fn run(workspace: &Workspace, output: &Output) -> Result<Exit, CliError> {
    let mut items = vec![];
    for name in RunFolder::names(workspace) {
        let folder = RunFolder::existing(workspace, &name)?;
        // One run that can't be read must not hide the others.
        match summary(&folder).await {
            Ok(Some((status, done, total, created))) => {
                output.line(format_args!(
                    "{name:<40} {status:<12} {done:>7}/{total:<7} {created}"
                ));
                items.push(json!({
                    "run_name": name, "status": status, "done": done, "total": total,
                    "created_at": created, "output_path": folder.path,
                }));
            }
            Ok(None) => output.warn(format_args!("run `{name}` was never begun")),
            Err(error) => output.warn(format_args!("run `{name}`: {}", error.message)),
        }
    }
    if items.is_empty() {
        output.line("No runs yet. `osmosis eval submit CFG` makes one.");
    }
    output.list(&items);
    Ok(Exit::Ok)
}

async fn summary(folder: &RunFolder) -> Result<Option<(&'static str, u64, u64, String)>, CliError> {
    let store = SqliteStore::open_read_only(&folder.path)?;
    let Some(run) = store.run().await? else {
        return Ok(None);
    };
    let counts = store.counts().await?;
    let held = SqliteStore::holder(&folder.path).is_some();
    let created = super::report::time_text(run.created_at_ms);
    Ok(Some((
        status_text(run.status, held),
        counts.done,
        counts.total(),
        created,
    )))
}

/// What a person calls the state of a run. A run that says it is running but has no living process
/// was cut off.
pub(crate) fn status_text(status: RunStatus, held: bool) -> &'static str {
    match (status, held) {
        (_, true) => "running",
        (RunStatus::Finished, false) => "finished",
        (RunStatus::Interrupted | RunStatus::Running, false) => "interrupted",
    }
}
