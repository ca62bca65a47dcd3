//! `osmosis eval info RUN`.

use osmosis_store::{RunKind, SqliteStore, Store};
use serde_json::{Value, json};

use super::report::Report;
use crate::error::{CliError, Exit};
use crate::figures::time_text;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::runs::list::status_text;
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    run: &str,
    output: &Output,
) -> Result<Exit, CliError> {
    let folder = RunFolder::existing(workspace, RunKind::Evaluation, run)?;
    let store = SqliteStore::open_read_only(&folder.path)?;
    let record = store
        .run()
        .await?
        .ok_or_else(|| CliError::failed("run_damaged", format!("run `{run}` was never begun")))?;
    let holder = SqliteStore::holder(&folder.path);
    let status = status_text(record.status, holder.is_some());
    let report = Report::of(&store, &record.name, &folder, false, None).await?;
    output.line(report.render(workspace));
    output.line(format_args!(
        "  status      {status}, begun {}",
        time_text(record.created_at_ms)
    ));
    let mut data = report.json();
    if let Value::Object(map) = &mut data {
        map.remove("resumed");
        map.insert("status".to_owned(), json!(status));
        map.insert(
            "created_at".to_owned(),
            json!(time_text(record.created_at_ms)),
        );
        map.insert("pinned".to_owned(), json!(record.pinned));
        map.insert("config".to_owned(), json!(record.config_toml));
    }
    output.details(&data);
    Ok(Exit::Ok)
}
