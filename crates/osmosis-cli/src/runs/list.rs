//! `osmosis eval|train list`.

use std::fmt::Write as _;

use osmosis_core::RunTag;
use osmosis_run::RunError;
use osmosis_run::eval::prices::dollars_text;
use osmosis_run::reports::{RunState, RunSummary};
use osmosis_run::runs::{FoundRun, ReadRun, kept};
use osmosis_store::{ArchivedRun, RunKind};

use crate::arguments::ListArguments;
use crate::error::Exit;
use crate::figures::{number, percent, thousands};
use crate::output::Output;
use crate::run_folder::{RunFolder, command_word};
use crate::table::{Column, Table, screen_width};
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
    } else {
        output.line(table(&items, kind).render(screen_width()));
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
        let runs = FoundRun::all(workspace, &[kind]).await?.into_iter();
        return Ok(runs.map(|run| (run.folder, None)).collect());
    }
    let archived = kept::archived_runs(workspace, &[kind]).await?.into_iter();
    Ok(archived
        .map(|run| (RunFolder::of_archived(workspace, &run), Some(run)))
        .collect())
}

async fn summary(
    folder: &RunFolder,
    archived: Option<ArchivedRun>,
) -> Result<Option<RunSummary>, RunError> {
    let run = ReadRun::open(folder.clone()).await?;
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

/// Newest first.
fn table(items: &[RunSummary], kind: RunKind) -> Table {
    let progress = match kind {
        RunKind::Training => "steps",
        RunKind::Evaluation | RunKind::Serving => "rollouts",
    };
    let mut table = Table::new([
        Column::text("run"),
        Column::text("status"),
        Column::number("pass rate"),
        Column::number("reward"),
        Column::text("model").cut_to(12),
        Column::text("begun (UTC)").optional(),
        Column::number(progress).optional(),
        Column::text("dataset").cut_to(10).optional(),
        Column::number("cost").optional(),
    ]);
    for item in items {
        table.row(row(item));
    }
    table
}

fn row(summary: &RunSummary) -> [String; 9] {
    let RunSummary {
        run_name,
        status,
        done,
        total,
        created_at,
        output_path: _,
        steps,
        model,
        dataset,
        pass_rate,
        reward,
        cost,
        regraded_from: _,
        tags,
        archive_id,
    } = summary;
    let mut name = run_name.clone();
    if !tags.is_empty() {
        let tags: Vec<&str> = tags.iter().map(RunTag::as_str).collect();
        let _ = write!(name, " [{}]", tags.join(", "));
    }
    if let Some(id) = archive_id {
        let _ = write!(name, " (archived as {id})");
    }
    let progress = match (steps, status) {
        (Some(steps), _) => thousands(*steps),
        (None, RunState::Finished) if done == total => thousands(*done),
        (None, _) => format!("{}/{}", thousands(*done), thousands(*total)),
    };
    let shown = |value: Option<f64>, show: fn(f64) -> String| value.map_or_else(dash, show);
    [
        name,
        status.to_string(),
        shown(*pass_rate, percent),
        shown(*reward, number),
        model.clone().unwrap_or_else(dash),
        // Seconds tell nobody more.
        created_at.chars().take(16).collect(),
        progress,
        dataset.clone().unwrap_or_else(dash),
        // Most runs have no prices; then there is no such column.
        cost.map_or_else(String::new, dollars_text),
    ]
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(run_name: &str, status: RunState, pass_rate: Option<f64>) -> RunSummary {
        RunSummary {
            run_name: run_name.to_owned(),
            status,
            done: 1200,
            total: if status == RunState::Finished {
                1200
            } else {
                5000
            },
            created_at: "2026-01-31 12:00:07Z".to_owned(),
            output_path: "x".into(),
            steps: None,
            model: Some("hosted_vllm/Qwen/Qwen3-4B-Instruct".to_owned()),
            dataset: Some("data/sql-questions.jsonl".to_owned()),
            pass_rate,
            reward: pass_rate,
            cost: pass_rate.map(|_| 1.25),
            regraded_from: None,
            tags: vec![],
            archive_id: None,
        }
    }

    fn shown(width: usize) -> String {
        let items = [
            summary("text-to-sql-20260131-120000", RunState::Running, None),
            summary("hello-20260130-093000", RunState::Finished, Some(0.6)),
        ];
        table(&items, RunKind::Evaluation).render(Some(width))
    }

    #[test]
    fn runs_are_a_table_on_a_wide_screen() {
        insta::assert_snapshot!(shown(160), @r"
        run                          status    pass rate  reward  model                               begun (UTC)          rollouts  dataset                    cost
        text-to-sql-20260131-120000  running           -       -  hosted_vllm/Qwen/Qwen3-4B-Instruct  2026-01-31 12:00  1,200/5,000  data/sql-questions.jsonl
        hello-20260130-093000        finished      60.0%     0.6  hosted_vllm/Qwen/Qwen3-4B-Instruct  2026-01-31 12:00        1,200  data/sql-questions.jsonl  $1.25
        ");
        insta::assert_snapshot!(shown(120), @r"
        run                          status    pass rate  reward  model         begun (UTC)          rollouts  dataset      cost
        text-to-sql-20260131-120000  running           -       -  hosted_vllm…  2026-01-31 12:00  1,200/5,000  data/sql-…
        hello-20260130-093000        finished      60.0%     0.6  hosted_vllm…  2026-01-31 12:00        1,200  data/sql-…  $1.25
        ");
    }

    #[test]
    fn runs_are_a_shorter_table_on_a_screen_of_80_columns() {
        insta::assert_snapshot!(shown(80), @r"
        run                          status    pass rate  reward  model
        text-to-sql-20260131-120000  running           -       -  hosted_vllm/Qwen/Qwen…
        hello-20260130-093000        finished      60.0%     0.6  hosted_vllm/Qwen/Qwen…
        ");
    }

    #[test]
    fn runs_are_paragraphs_on_a_screen_of_50_columns() {
        insta::assert_snapshot!(shown(50), @r"
        text-to-sql-20260131-120000
            status running · pass rate - · reward -
            model hosted_vllm/Qwen/Qwen3-4B-Instruct
            begun (UTC) 2026-01-31 12:00
            rollouts 1,200/5,000
            dataset data/sql-questions.jsonl
        hello-20260130-093000
            status finished · pass rate 60.0% · reward 0.6
            model hosted_vllm/Qwen/Qwen3-4B-Instruct
            begun (UTC) 2026-01-31 12:00 · rollouts 1,200
            dataset data/sql-questions.jsonl · cost $1.25
        ");
    }
}
