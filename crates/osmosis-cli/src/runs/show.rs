//! `osmosis eval|train show RUN ROW`: one rollout as a transcript.

use std::fmt::Write;

use osmosis_core::Outcome;
use osmosis_data::conversation::Conversation;
use osmosis_run::reports::{
    CallDetails, Entry, RolloutDetails, SampleDetails, Transcriber, Versions, Wanted,
};
use osmosis_run::runs::ReadRun;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{CallPurpose, RunKind};
use owo_colors::Style;

use super::artifacts;
use crate::command_line;
use crate::error::Exit;
use crate::figures::{ms_text, number};
use crate::output::{Output, paint};
use crate::run_folder::RunFolder;
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    kind: RunKind,
    run: &str,
    row: &str,
    calls: bool,
    output: &Output,
) -> Result<Exit, RunError> {
    let (row_index, run_index) = parse_row(row)?;
    let folder = RunFolder::existing(workspace, kind, run)?;
    let store = ReadRun::open(folder.clone())?.store;
    let wanted = Wanted::default();
    let found = RolloutDetails::of_row(&*store, &folder, row_index, run_index, wanted).await?;
    if found.is_empty() {
        let total = store.counts().await?.total();
        return Err(RunError::failed(
            RunErrorKind::RolloutNotFound,
            format!("run `{run}` has no rollout `{row}`"),
        )
        .hint(format!(
            "rows count from 0 and the run has {total} rollouts; `{}` lists them",
            folder.index()
        )));
    }
    for details in &found {
        output.line(render(details, kind, calls, workspace));
    }
    output.details(&found);
    Ok(Exit::Ok)
}

/// `3` or `3.1`.
fn parse_row(text: &str) -> Result<(u64, Option<u32>), RunError> {
    let bad = || {
        RunError::usage(RunErrorKind::Usage, format!("`{text}` is no row"))
            .hint("give a row index from 0, or ROW.RUN, like `3` or `3.1`")
    };
    match text.split_once('.') {
        None => Ok((text.parse().map_err(|_| bad())?, None)),
        Some((row, run)) => Ok((
            row.parse().map_err(|_| bad())?,
            Some(run.parse().map_err(|_| bad())?),
        )),
    }
}

fn render(details: &RolloutDetails, kind: RunKind, calls: bool, workspace: &Workspace) -> String {
    let mut text = String::new();
    push_head(&mut text, details, kind);
    for sample in &details.samples {
        push_sample(&mut text, sample, details);
    }
    // A rollout without a result may have said something all the same.
    let unfinished = |id: &str| {
        details
            .samples
            .iter()
            .all(|sample| sample.id.as_str() != id)
    };
    for (sample, paths) in details.conversations.iter() {
        if unfinished(sample) {
            let title = paint(&format!("sample {sample}"), Style::new().bold());
            let _ = writeln!(text, "\n{title}  no result");
            push_paths(&mut text, paths);
        }
    }
    if let Some(outcome) = &details.outcome_details {
        push_failure(&mut text, outcome);
    }
    if calls {
        let title = paint("model calls", Style::new().bold());
        let _ = writeln!(text, "\n{title}");
        for call in &details.calls {
            push_call(&mut text, call, kind);
        }
    }
    push_origin(&mut text, details, workspace);
    push_artifacts(&mut text, details);
    text
}

fn push_head(text: &mut String, details: &RolloutDetails, kind: RunKind) {
    let dim = Style::new().dimmed();
    let (result, effort) = (&details.result, &details.effort);
    let outcome = details
        .outcome_details
        .as_ref()
        .map_or_else(|| "no result yet".to_owned(), outcome_text);
    let title = format!(
        "{}  row {} run {}",
        result.rollout_id, result.row_index, result.run_index
    );
    let _ = writeln!(text, "{}  {outcome}", paint(&title, Style::new().bold()));
    let durations = effort.durations;
    let _ = writeln!(
        text,
        "{}",
        paint(
            &format!(
                "queue {} · agent {} (model {}) · grade {} · {} model calls · {}+{} tokens · attempt {}",
                ms_text(durations.queue),
                ms_text(durations.agent),
                ms_text(durations.model),
                ms_text(durations.grade),
                effort.model_calls,
                effort.prompt_tokens,
                effort.completion_tokens,
                effort.attempts,
            ),
            dim
        )
    );
    let judge = effort.judge;
    if judge.calls > 0 {
        let judged = format!(
            "{} judge calls · {}+{} tokens",
            judge.calls, judge.prompt_tokens, judge.completion_tokens
        );
        let _ = writeln!(text, "{}", paint(&judged, dim));
    }
    if let Some(versions) = worth_telling(details.versions, kind) {
        let _ = writeln!(text, "{}", paint(&format!("policy {versions}"), dim));
    }
}

/// Of a policy that has only one version there is nothing to tell.
fn worth_telling(versions: Option<Versions>, kind: RunKind) -> Option<Versions> {
    versions.filter(|versions| versions.any_new() || kind == RunKind::Training)
}

fn push_sample(text: &mut String, sample: &SampleDetails, details: &RolloutDetails) {
    let reward = match (sample.remove_sample, sample.reward) {
        (true, _) => "removed by the grader".to_owned(),
        (false, Some(reward)) => format!("reward {reward}"),
        (false, None) => "no reward".to_owned(),
    };
    let title = paint(&format!("sample {}", sample.id), Style::new().bold());
    let _ = writeln!(text, "\n{title}  {reward}");
    let messages = Conversation::of_messages(&sample.messages);
    let messages = Transcriber::default().entries(&messages);
    if messages.is_empty()
        && let Some(paths) = details.conversations.get(sample.id.as_str())
    {
        push_paths(text, paths);
    }
    push_entries(text, &messages);
    if let Some(metrics) = &sample.metrics {
        push_entry(text, "metrics", metrics.as_str());
    }
}

/// One line.
fn push_call(text: &mut String, call: &CallDetails, kind: RunKind) {
    let versions = worth_telling(call.versions, kind);
    let tokens = |count: Option<u64>| count.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let part =
        |count: Option<u64>, of: &str| count.map_or_else(String::new, |n| format!(" ({n} {of})"));
    let _ = writeln!(
        text,
        "  {:>6}  {}  {}  {}  {}{}+{}{} tokens  {}{}{}",
        call.call_id,
        match call.purpose {
            CallPurpose::Policy => call.sample_id.as_str(),
            CallPurpose::Judge => "(judge)",
            CallPurpose::Other => "(other)",
        },
        call.status,
        call.upstream,
        tokens(call.prompt_tokens),
        part(call.cached_tokens, "cached"),
        tokens(call.completion_tokens),
        part(call.reasoning_tokens, "reasoning"),
        ms_text((call.done_at_ms - call.queued_at_ms) as f64),
        versions.map_or_else(String::new, |versions| format!("  {versions}")),
        call.error
            .as_ref()
            .map_or_else(String::new, |error| format!("  {error}")),
    );
}

fn push_paths(text: &mut String, paths: &[Vec<Entry>]) {
    for (index, said) in paths.iter().enumerate() {
        if paths.len() > 1 {
            let title = format!("path {} of {}", index + 1, paths.len());
            let _ = writeln!(text, "{}", paint(&title, Style::new().dimmed()));
        }
        push_entries(text, said);
    }
}

fn push_entries(text: &mut String, entries: &[Entry]) {
    for entry in entries {
        push_entry(text, entry.speaker.as_str(), &entry.text);
    }
}

fn push_entry(text: &mut String, speaker: &str, said: &str) {
    let label = paint(&format!("{speaker:>12}"), Style::new().cyan());
    let mut lines = said.lines();
    let _ = writeln!(text, "{label}  {}", lines.next().unwrap_or_default());
    for line in lines {
        let _ = writeln!(text, "{:>12}  {line}", "");
    }
}

pub(crate) fn push_failure(text: &mut String, outcome: &Outcome) {
    let Some(why) = outcome.explanation() else {
        return;
    };
    let label = paint(&outcome.kind().to_string(), Style::new().red().bold());
    let _ = writeln!(text, "\n{label}  {why}");
    if let Outcome::AgentFailed { failure }
    | Outcome::Ungraded { failure }
    | Outcome::InfrastructureFailed { failure } = outcome
        && let Some(traceback) = &failure.traceback
    {
        for line in traceback.lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
}

/// Where the rest of a rollout is that was only graded here.
fn push_origin(text: &mut String, details: &RolloutDetails, workspace: &Workspace) {
    let (Some(run), Some(calls_in)) = (&details.regraded_from, &details.policy_calls_in) else {
        return;
    };
    let result = &details.result;
    let place = format!("{}.{}", result.row_index, result.run_index);
    let command = ["eval", "show", calls_in.as_str(), &place, "--calls"];
    let label = paint("regraded", Style::new().bold());
    let _ = writeln!(
        text,
        "\n{label}  the samples are those of run `{run}`; the policy's calls: {}",
        command_line::suggest(&command, workspace)
    );
}

fn push_artifacts(text: &mut String, details: &RolloutDetails) {
    let lines = artifacts::lines(&details.artifacts);
    if lines.is_empty() {
        return;
    }
    let label = paint("artifacts", Style::new().bold());
    let _ = writeln!(text, "\n{label}  {}", details.artifacts.folder);
    for line in lines {
        let _ = writeln!(text, "  {line}");
    }
}

/// `scored: reward 1, passed`.
pub(crate) fn outcome_text(outcome: &Outcome) -> String {
    let kind = outcome.kind().as_str().replace('_', " ");
    match outcome {
        Outcome::Scored { reward, passed } => {
            let verdict = if *passed { "passed" } else { "did not pass" };
            format!("{kind}: reward {}, {verdict}", number(reward.get()))
        }
        Outcome::AgentFailed { .. }
        | Outcome::TimedOut { .. }
        | Outcome::Ungraded { .. }
        | Outcome::Rejected { .. }
        | Outcome::InfrastructureFailed { .. }
        | Outcome::Cancelled => kind,
    }
}
