//! `osmosis train info RUN`.

use osmosis_run::RunError;
use osmosis_store::RunKind;
use osmosis_store_sqlite::SqliteStore;
use serde_json::{Value, json};

use super::report::Report;
use crate::error::Exit;
use crate::figures::time_text;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::runs::list::status_text;
use crate::runs::record_of;
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    run: &str,
    output: &Output,
) -> Result<Exit, RunError> {
    let folder = RunFolder::existing(workspace, RunKind::Training, run)?;
    let record = record_of(&folder, run).await?;
    let store = SqliteStore::open_read_only(&folder.path)?;
    let held = SqliteStore::holder(&folder.path).is_some();
    let status = status_text(record.status, held);
    let report = Report::of(&store, &record.name, &folder, false, None).await?;
    let created = time_text(record.created_at_ms);
    output.line(report.render(workspace));
    output.line(format_args!("  status      {status}, begun {created}"));
    if let Some(processor) = report.processor() {
        output.line(format_args!("  processor   {processor}"));
    }
    let mut data = report.json();
    if let Value::Object(map) = &mut data {
        map.remove("resumed");
        map.insert("status".to_owned(), json!(status));
        map.insert("created_at".to_owned(), json!(created));
        map.insert("pinned".to_owned(), json!(record.pinned));
        map.insert("config".to_owned(), json!(record.config_toml));
    }
    output.details(&data);
    Ok(Exit::Ok)
}
