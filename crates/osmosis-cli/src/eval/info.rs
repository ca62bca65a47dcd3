//! `osmosis eval info RUN`.

use std::iter::repeat;

use osmosis_core::Redactor;
use osmosis_run::RunError;
use osmosis_run::reports::{NodeState, RunInfo, RunRecordReport, RunReport};
use osmosis_store::RunKind;

use super::gates::{self, NOT_JUDGED};
use super::junit::JunitReport;
use super::money::Money;
use super::report;
use crate::arguments::InfoArguments;
use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::runs::{Pinned, ReadRun, open_run};
use crate::workspace::{Workspace, absolute};

pub(crate) async fn run(
    workspace: &Workspace,
    arguments: InfoArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let folder = RunFolder::existing(workspace, RunKind::Evaluation, &arguments.run).await?;
    let read = open_run(folder, output).await?;
    let record = read.record(read.folder.name()).await?;
    let ReadRun {
        folder,
        store,
        held,
    } = read;
    let pinned = Pinned::read(&record.pinned)?;
    let n = pinned.rollouts_per_row().unwrap_or(1);
    let fail_under = &arguments.gates.fail_under;
    for gate in fail_under {
        gate.check_for(n)?;
    }
    let money = Money::of(arguments.prices.prices(), None, &pinned)?;
    let cost = money.cost(&*store).await?;
    let info = RunInfo {
        report: RunReport::of(&*store, &record.name, &folder)
            .await?
            .with_calls_of(&folder)
            .with_cost(cost.map(|cost| cost.report()))
            .judged_by(fail_under),
        record: RunRecordReport::of(&record, held),
        nodes: NodeState::all(&*store).await,
    };
    output.line(report::render(&info.report, workspace, output));
    output.line(format_args!(
        "  status      {}, begun {}",
        info.record.status, info.record.created_at
    ));
    for (node, label) in info
        .nodes
        .iter()
        .zip(["nodes"].into_iter().chain(repeat("")))
    {
        output.line(format_args!(
            "  {label:<11} {} pid {}: {}, {} under way, {} finished, seen {} s ago",
            node.host,
            node.pid,
            node.state.as_str(),
            node.under_way,
            node.finished,
            node.seen_s,
        ));
    }
    let overrides = &pinned.remembered.overrides;
    if !overrides.is_empty() {
        output.line(format_args!("  set         {}", overrides.join(", ")));
    }
    output.details(&info);
    if let Some(file) = &arguments.gates.junit {
        // What the run recorded is without its secrets already.
        let report = JunitReport::of(&*store, workspace, Redactor::default()).await?;
        report.write(&*store, &absolute(file)?).await?;
    }
    if fail_under.is_empty() {
        return Ok(Exit::Ok);
    }
    if info.report.is_incomplete() {
        output.note(NOT_JUDGED);
        return Ok(Exit::Incomplete);
    }
    Ok(gates::tell(&info.report, output))
}
