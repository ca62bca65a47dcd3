//! `osmosis train info RUN`.

use osmosis_core::config::SupervisedConfig;
use osmosis_run::RunError;
use osmosis_run::reports::{
    RunRecordReport, SupervisedTrainingReport, TrainingInfo, TrainingReport,
};
use osmosis_run::runs::ReadRun;
use osmosis_store::RunKind;

use super::{report, sft};
use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::runs::open_run;
use crate::runs::record_of;
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    run: &str,
    output: &Output,
) -> Result<Exit, RunError> {
    let folder = RunFolder::existing(workspace, RunKind::Training, run).await?;
    let record = record_of(&folder, run).await?;
    let ReadRun {
        folder,
        store,
        held,
    } = open_run(folder, output).await?;
    if SupervisedConfig::is_meant(&record.config_toml) {
        let report = SupervisedTrainingReport::of(&*store, &record.name, &folder).await?;
        output.line(sft::render(&report, workspace));
        let RunRecordReport {
            status, created_at, ..
        } = RunRecordReport::of(&record, held);
        output.line(format_args!("  status      {status}, begun {created_at}"));
        output.details(&report);
        return Ok(Exit::Ok);
    }
    let info = TrainingInfo {
        report: TrainingReport::of(&*store, &record.name, &folder).await?,
        record: RunRecordReport::of(&record, held),
    };
    output.line(report::render(&info.report, workspace));
    let RunRecordReport {
        status, created_at, ..
    } = &info.record;
    output.line(format_args!("  status      {status}, begun {created_at}"));
    if let Some(processor) = &info.report.processor {
        output.line(format_args!("  processor   {processor}"));
    }
    output.details(&info);
    Ok(Exit::Ok)
}
