//! `osmosis eval info RUN`.

use osmosis_core::Redactor;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{RunKind, SqliteStore, Store};
use serde_json::{Value, json};

use super::gates::{Judged, NOT_JUDGED};
use super::junit::JunitReport;
use super::money::Money;
use super::report::Report;
use crate::arguments::InfoArguments;
use crate::error::Exit;
use crate::figures::time_text;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::runs::Pinned;
use crate::runs::list::status_text;
use crate::workspace::{Workspace, absolute};

pub(crate) async fn run(
    workspace: &Workspace,
    arguments: InfoArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let run = arguments.run.as_str();
    let folder = RunFolder::existing(workspace, RunKind::Evaluation, run)?;
    let store = SqliteStore::open_read_only(&folder.path)?;
    let record = store.run().await?.ok_or_else(|| {
        RunError::failed(
            RunErrorKind::RunDamaged,
            format!("run `{run}` was never begun"),
        )
    })?;
    let holder = SqliteStore::holder(&folder.path);
    let status = status_text(record.status, holder.is_some());
    let pinned = Pinned::read(&record.pinned)?;
    let n = pinned.rollouts_per_row().unwrap_or(1);
    let gates = &arguments.gates.fail_under;
    for gate in gates {
        gate.check_for(n)?;
    }
    let money = Money::of(arguments.prices.prices(), None, &pinned)?;
    let report = Report::of(&store, &record.name, &folder, false, None)
        .await?
        .with_cost(money.cost(&store).await?);
    output.line(report.render(workspace));
    output.line(format_args!(
        "  status      {status}, begun {}",
        time_text(record.created_at_ms)
    ));
    let judged = Judged::of(gates, report.json());
    let mut data = judged.numbers().clone();
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
    if let Some(file) = &arguments.gates.junit {
        // What the run recorded is without its secrets already.
        let report = JunitReport::of(&store, workspace, Redactor::default()).await?;
        report.write(&store, &absolute(file)?).await?;
    }
    if gates.is_empty() {
        return Ok(Exit::Ok);
    }
    if report.is_incomplete() {
        output.note(NOT_JUDGED);
        return Ok(Exit::Incomplete);
    }
    Ok(judged.tell(output))
}
