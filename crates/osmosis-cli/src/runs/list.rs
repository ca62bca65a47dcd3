//! `osmosis eval|train list`.

use osmosis_run::RunError;
use osmosis_store::{RunKind, RunStatus, Store};
use osmosis_store_sqlite::SqliteStore;
use serde_json::json;

use crate::error::Exit;
use crate::figures::time_text;
use crate::output::Output;
use crate::run_folder::{RunFolder, command_word};
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    kind: RunKind,
    output: &Output,
) -> Result<Exit, RunError> {
    let mut items = vec![];
    for name in RunFolder::names(workspace, kind) {
        let folder = RunFolder::existing(workspace, kind, &name)?;
        // One run that can't be read must not hide the others.
        match Summary::of(&folder).await {
            Ok(Some(summary)) => {
                output.line(summary.line(&name, kind));
                let mut item = json!({
                    "run_name": name, "status": summary.status, "done": summary.done,
                    "total": summary.total, "created_at": summary.created,
                    "output_path": folder.path,
                });
                if kind == RunKind::Training {
                    item["steps"] = json!(summary.steps);
                }
                items.push(item);
            }
            Ok(None) => output.warn(format_args!("run `{name}` was never begun")),
            Err(error) => output.warn(format_args!("run `{name}`: {error}")),
        }
    }
    if items.is_empty() {
        output.line(format_args!(
            "No runs yet. `osmosis {} submit CFG` makes one.",
            command_word(kind)
        ));
    }
    output.list(&items);
    Ok(Exit::Ok)
}

/// One line of the list.
struct Summary {
    status: &'static str,
    /// Rollouts with a result, and all of them.
    done: u64,
    total: u64,
    /// Steps of training.
    steps: u64,
    created: String,
}

impl Summary {
    async fn of(folder: &RunFolder) -> Result<Option<Self>, RunError> {
        let store = SqliteStore::open_read_only(&folder.path)?;
        let Some(run) = store.run().await? else {
            return Ok(None);
        };
        let counts = store.counts().await?;
        let held = SqliteStore::holder(&folder.path).is_some();
        let steps = match run.kind {
            RunKind::Training => store.steps().await?.last().map_or(0, |step| step.step),
            RunKind::Evaluation | RunKind::Serving => 0,
        };
        Ok(Some(Self {
            status: status_text(run.status, held),
            done: counts.done,
            total: counts.total(),
            steps,
            created: time_text(run.created_at_ms),
        }))
    }

    fn line(&self, name: &str, kind: RunKind) -> String {
        let Self {
            status,
            done,
            total,
            steps,
            created,
        } = self;
        match kind {
            RunKind::Training => {
                format!("{name:<40} {status:<12} step {steps:<6} {done:>7} rollouts {created}")
            }
            RunKind::Evaluation | RunKind::Serving => {
                format!("{name:<40} {status:<12} {done:>7}/{total:<7} {created}")
            }
        }
    }
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
