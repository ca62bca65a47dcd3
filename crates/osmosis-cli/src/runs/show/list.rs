//! `osmosis eval|train show RUN`: the rollouts of a run in a list.

use std::time::{Duration, Instant};

use osmosis_core::OutcomeKind;
use osmosis_run::RunError;
use osmosis_run::notices::Notice;
use osmosis_run::rollout_query::{
    FoundRollouts, ListedRollout, RolloutSearch, RolloutSort, SearchedRun,
};
use osmosis_run::runs::{Pinned, ReadRun};
use osmosis_store::RunKind;
use owo_colors::Style;
use parking_lot::Mutex;

use crate::arguments::RolloutListArguments;
use crate::command_line;
use crate::error::Exit;
use crate::figures::{ms_text, number, thousands};
use crate::output::{Output, paint};
use crate::run_folder::command_word;
use crate::table::{Column, Table, screen_width};
use crate::workspace::Workspace;

pub(super) async fn run(
    run: &ReadRun,
    kind: RunKind,
    search: RolloutSearch,
    workspace: &Workspace,
    output: &Output,
) -> Result<Exit, RunError> {
    let found = find(run, &search, workspace, output).await?;
    if found.items.is_empty() {
        output.line(empty_text(&search));
    } else {
        output.line(table(&found.items, search.sort).render(screen_width()));
        for line in next_steps(&found, &search, run.folder.name(), kind, workspace) {
            output.line(paint(&line, Style::new().dimmed()));
        }
    }
    output.page(&found.items, found.total_count, found.next.as_ref());
    Ok(Exit::Ok)
}

/// A text in a large run takes a while to find, which is told.
async fn find(
    run: &ReadRun,
    search: &RolloutSearch,
    workspace: &Workspace,
    output: &Output,
) -> Result<FoundRollouts, RunError> {
    if search.text.is_none() {
        return search.run(&*run.store).await;
    }
    let record = run.record(run.folder.name()).await?;
    let calls = match Pinned::read(&record.pinned)?.regraded_from {
        Some(from) => from.open_calls(workspace).await,
        None => None,
    };
    let total = run.store.counts().await?.total();
    let pace = if output.moves() { SOON } else { SELDOM };
    let told = Mutex::new(Instant::now());
    let notices = output.notices();
    let progress = |searched: u64| {
        let mut told = told.lock();
        if told.elapsed() >= pace {
            *told = Instant::now();
            notices.step(format_args!(
                "Searching: {} of {} rollouts",
                thousands(searched),
                thousands(total)
            ));
        }
    };
    let searched = SearchedRun {
        store: &*run.store,
        calls: calls.as_deref().unwrap_or(&*run.store),
        progress: &progress,
    };
    let found = search.run_in(searched).await;
    notices.notice(Notice::StepsDone);
    found
}

/// How often progress is told on a terminal, and elsewhere.
const SOON: Duration = Duration::from_millis(500);
const SELDOM: Duration = Duration::from_secs(10);

fn empty_text(search: &RolloutSearch) -> &'static str {
    if *search
        == (RolloutSearch {
            limit: search.limit,
            ..RolloutSearch::default()
        })
    {
        "The run has no rollouts."
    } else if search.after.is_some() {
        "No more rollouts."
    } else {
        "No rollout matches."
    }
}

fn table(items: &[ListedRollout], sort: RolloutSort) -> Table {
    let by_variance = match sort {
        RolloutSort::Variance => Column::number("row variance"),
        // Empty, and so not shown.
        RolloutSort::Row | RolloutSort::Reward | RolloutSort::Length | RolloutSort::Time => {
            Column::number("")
        }
    };
    let mut table = Table::new([
        Column::text("row"),
        Column::text("outcome"),
        Column::number("reward"),
        by_variance,
        Column::text("answer or error").cut_to(20),
        Column::text("expected").cut_to(8).optional(),
        Column::text("prompt").cut_to(16).optional(),
        Column::number("tokens").optional(),
        Column::number("time").optional(),
    ]);
    for item in items {
        table.row(row(item));
    }
    table
}

fn row(item: &ListedRollout) -> [String; 9] {
    let (result, effort) = (&item.line.result, &item.line.effort);
    let outcome = match (result.outcome, result.passed) {
        (None, _) => "no result yet".to_owned(),
        (Some(OutcomeKind::Scored), Some(true)) => "passed".to_owned(),
        (Some(OutcomeKind::Scored), _) => "did not pass".to_owned(),
        (Some(kind), _) => kind.as_str().replace('_', " "),
    };
    // Why it failed says more than what it said before.
    let text = effort.error.as_ref().or(item.answer.as_ref());
    let time = effort.durations.agent + effort.durations.grade;
    [
        format!("{}.{}", result.row_index, result.run_index),
        outcome,
        result
            .reward
            .map_or_else(String::new, |reward| number(reward.get())),
        item.row_variance.map_or_else(String::new, number),
        text.cloned().unwrap_or_default(),
        item.ground_truth.clone().unwrap_or_default(),
        item.prompt.clone().unwrap_or_default(),
        thousands(effort.completion_tokens),
        if result.outcome.is_some() {
            ms_text(time)
        } else {
            String::new()
        },
    ]
}

/// How to see one of them, and the rest of the list.
fn next_steps(
    found: &FoundRollouts,
    search: &RolloutSearch,
    run: &str,
    kind: RunKind,
    workspace: &Workspace,
) -> Vec<String> {
    let mut lines = vec![];
    let shown = found.items.len() as u64;
    let word = command_word(kind);
    lines.push(if shown == found.total_count {
        format!("{} rollouts", thousands(shown))
    } else {
        format!(
            "{} of {} rollouts",
            thousands(shown),
            thousands(found.total_count)
        )
    });
    if let Some(first) = found.items.first() {
        let result = &first.line.result;
        let place = format!("{}.{}", result.row_index, result.run_index);
        let command = command_line::suggest(&[word, "show", run, &place], workspace);
        lines.push(format!("one of them: {command}"));
    }
    if let Some(next) = &found.next {
        let mut typed = RolloutListArguments::typed(search);
        typed.extend(["--after".to_owned(), next.to_string()]);
        let mut arguments = vec![word, "show", run];
        arguments.extend(typed.iter().map(String::as_str));
        let command = command_line::suggest(&arguments, workspace);
        lines.push(format!("more:        {command}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use osmosis_core::{Durations, Reward, RolloutId};
    use osmosis_run::reports::{OrderedMap, RolloutEffort, RolloutLine, RolloutResult};

    use super::*;

    fn listed(row_index: u64, reward: Option<f64>, text: &str) -> ListedRollout {
        let outcome = match reward {
            Some(_) => OutcomeKind::Scored,
            None => OutcomeKind::AgentFailed,
        };
        ListedRollout {
            line: RolloutLine {
                result: RolloutResult {
                    row_index,
                    run_index: 0,
                    rollout_id: RolloutId::of(row_index, 0),
                    outcome: Some(outcome),
                    reward: reward.map(|reward| Reward::new(reward).unwrap()),
                    passed: Some(reward == Some(1.0)),
                },
                samples: OrderedMap::default(),
                effort: RolloutEffort {
                    error: reward.is_none().then(|| text.to_owned()),
                    attempts: 1,
                    model_calls: 2,
                    prompt_tokens: 155,
                    completion_tokens: 1029,
                    cached_tokens: None,
                    reasoning_tokens: None,
                    judge: osmosis_store::JudgeSummary::default(),
                    durations: Durations {
                        agent: 2300.0,
                        ..Durations::default()
                    },
                },
            },
            row_variance: None,
            prompt: Some("How many albums did the band release after 1999?".to_owned()),
            answer: reward.map(|_| text.to_owned()),
            ground_truth: Some("12".to_owned()),
        }
    }

    fn shown(width: usize) -> String {
        let items = [
            listed(
                3,
                Some(0.25),
                "The band released 11 albums after the year 1999, I think.",
            ),
            listed(14, None, "ToolError: no such table: albums"),
            listed(120, Some(1.0), "12"),
        ];
        table(&items, RolloutSort::Row).render(Some(width))
    }

    #[test]
    fn a_list_of_rollouts_fits_every_screen() {
        insta::assert_snapshot!(shown(120), @r"
        row    outcome       reward  answer or error                     expected  prompt                          tokens   time
        3.0    did not pass    0.25  The band released 11 albums after…  12        How many albums did the band …   1,029  2.3 s
        14.0   agent failed          ToolError: no such table: albums    12        How many albums did the band …   1,029  2.3 s
        120.0  passed             1  12                                  12        How many albums did the band …   1,029  2.3 s
        ");
        insta::assert_snapshot!(shown(80), @r"
        row    outcome       reward  answer or error         expected  prompt
        3.0    did not pass    0.25  The band released 11 …  12        How many albums …
        14.0   agent failed          ToolError: no such ta…  12        How many albums …
        120.0  passed             1  12                      12        How many albums …
        ");
        insta::assert_snapshot!(shown(50), @r"
        row    outcome       reward  answer or error
        3.0    did not pass    0.25  The band released 11…
        14.0   agent failed          ToolError: no such t…
        120.0  passed             1  12
        ");
    }
}
