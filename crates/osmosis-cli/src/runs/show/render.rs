//! One rollout for people: what it was asked, what it said, and why it got its reward.

use std::fmt::Write;

use osmosis_core::{Outcome, Reward};
use osmosis_run::reports::{
    Entry, RolloutDetails, SampleContext, SampleDetails, Speaker, Versions,
};
use osmosis_store::RunKind;
use owo_colors::Style;

use super::calls;
use crate::command_line;
use crate::figures::{ms_text, number};
use crate::output::paint;
use crate::run_folder::command_word;
use crate::runs::artifacts;
use crate::workspace::Workspace;

/// Lines of output that are shown; `logs` has them all.
const MOST_LINES: usize = 20;
/// Characters of a tool's description that are shown.
const DESCRIPTION_WIDTH: usize = 80;

/// A rollout, and what of it is shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rendered<'a> {
    pub(super) details: &'a RolloutDetails,
    pub(super) run: &'a str,
    pub(super) kind: RunKind,
    pub(super) calls: bool,
    pub(super) workspace: &'a Workspace,
}

impl Rendered<'_> {
    pub(super) fn text(&self) -> String {
        let Self { details, kind, .. } = *self;
        let mut text = String::new();
        push_head(&mut text, details, kind);
        self.push_row(&mut text);
        for sample in &details.samples {
            push_sample(&mut text, sample, details);
        }
        // A rollout without a result may have said something all the same.
        let unfinished = |id: &str| {
            let mut samples = details.samples.iter();
            samples.all(|sample| sample.id.as_str() != id)
        };
        for (sample, paths) in details.conversations.iter() {
            if unfinished(sample) {
                let title = paint(&format!("sample {sample}"), Style::new().bold());
                let _ = writeln!(text, "\n{title}  no result");
                push_context(&mut text, details.contexts.get(sample), paths);
                push_paths(&mut text, paths);
            }
        }
        if let Some(outcome) = &details.outcome_details {
            push_failure(&mut text, outcome);
        }
        self.push_output(&mut text, "agent output", &details.agent_output);
        self.push_output(&mut text, "grader output", &details.grader_output);
        if self.calls {
            calls::push(&mut text, details, kind);
        }
        push_origin(&mut text, details, self.workspace);
        push_artifacts(&mut text, details);
        self.push_more(&mut text);
        text.trim_end().to_owned()
    }

    /// What the grader compared with.
    fn push_row(&self, text: &mut String) {
        let Some(truth) = &self.details.ground_truth else {
            return;
        };
        // A row without a label is all that a grader can compare with.
        let (title, said) = match &truth.label {
            Some(label) => ("ground truth", label.as_str()),
            None => ("dataset row", truth.row.as_str()),
        };
        push_block(text, &paint(title, Style::new().bold()), said);
    }

    fn push_output(&self, text: &mut String, title: &str, lines: &[String]) {
        if lines.is_empty() {
            return;
        }
        let title = paint(title, Style::new().bold());
        let hidden = lines.len().saturating_sub(MOST_LINES);
        let _ = writeln!(text, "\n{title}");
        if hidden > 0 {
            let id = self.details.result.rollout_id.as_str();
            let command = [command_word(self.kind), "logs", self.run, "--rollout", id];
            let command = command_line::suggest(&command, self.workspace);
            let _ = writeln!(text, "  … {hidden} lines before these: {command}");
        }
        for line in &lines[hidden..] {
            let _ = writeln!(text, "  {line}");
        }
    }

    /// The command that shows the calls.
    fn push_more(&self, text: &mut String) {
        if self.calls || self.details.calls.is_empty() {
            return;
        }
        let result = &self.details.result;
        let place = format!("{}.{}", result.row_index, result.run_index);
        let command = [command_word(self.kind), "show", self.run, &place, "--calls"];
        let command = command_line::suggest(&command, self.workspace);
        let hint = format!("requests and replies: {command}");
        let _ = writeln!(text, "\n{}", paint(&hint, Style::new().dimmed()));
    }
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
pub(super) fn worth_telling(versions: Option<Versions>, kind: RunKind) -> Option<Versions> {
    versions.filter(|versions| versions.any_new() || kind == RunKind::Training)
}

/// `reward 1, by turn 0, 0.5, 1`.
pub(crate) fn reward_text(sample: &SampleDetails) -> String {
    let whole = match (sample.remove_sample, sample.reward) {
        (true, _) => return "removed by the grader".to_owned(),
        (false, Some(reward)) => format!("reward {reward}"),
        (false, None) => "no reward".to_owned(),
    };
    if sample.turn_rewards.is_empty() {
        return whole;
    }
    let turns: Vec<String> = sample.turn_rewards.iter().map(Reward::to_string).collect();
    format!("{whole}, by turn {}", turns.join(", "))
}

fn push_sample(text: &mut String, sample: &SampleDetails, details: &RolloutDetails) {
    let reward = reward_text(sample);
    let title = paint(&format!("sample {}", sample.id), Style::new().bold());
    let context = details.contexts.get(sample.id.as_str());
    let cut = context.is_some_and(|context| context.cut_off);
    let cut = if cut {
        paint("  the answer is cut off", Style::new().red().bold())
    } else {
        String::new()
    };
    let _ = writeln!(text, "\n{title}  {reward}{cut}");
    let paths = details.conversations.get(sample.id.as_str());
    let paths = paths.filter(|_| sample.transcript.is_empty());
    if let Some(paths) = paths {
        push_context(text, context, paths);
        push_paths(text, paths);
    } else {
        push_context(text, context, std::slice::from_ref(&sample.transcript));
        push_entries(text, &sample.transcript);
    }
    if let Some(context) = context.filter(|context| !context.finish_reasons.is_empty()) {
        push_entry(text, "finished", &context.finish_reasons.join(", "));
    }
    if let Some(metrics) = &sample.metrics {
        push_entry(text, "metrics", metrics.as_str());
    }
}

/// What the model was given besides the messages.
fn push_context(text: &mut String, context: Option<&SampleContext>, shown: &[Vec<Entry>]) {
    let Some(context) = context else {
        return;
    };
    let mut entries = shown.iter().flatten();
    let has_system = entries.any(|entry| entry.speaker == Speaker::System);
    if let Some(prompt) = context.system_prompt.as_ref().filter(|_| !has_system) {
        push_entry(text, Speaker::System.as_str(), prompt);
    }
    for (place, tool) in context.tools.iter().enumerate() {
        let label = if place == 0 { "tools" } else { "" };
        let description = tool.description.as_deref().unwrap_or_default();
        let line = description.lines().next().unwrap_or_default();
        let line: String = line.chars().take(DESCRIPTION_WIDTH).collect();
        let named = if line.is_empty() {
            tool.name.clone()
        } else {
            format!("{}: {line}", tool.name)
        };
        push_entry(text, label, &named);
    }
}

pub(super) fn push_paths(text: &mut String, paths: &[Vec<Entry>]) {
    for (index, said) in paths.iter().enumerate() {
        if paths.len() > 1 {
            let title = format!("path {} of {}", index + 1, paths.len());
            let _ = writeln!(text, "{}", paint(&title, Style::new().dimmed()));
        }
        push_entries(text, said);
    }
}

pub(super) fn push_entries(text: &mut String, entries: &[Entry]) {
    for entry in entries {
        push_entry(text, entry.speaker.as_str(), &entry.text);
    }
}

pub(super) fn push_entry(text: &mut String, speaker: &str, said: &str) {
    let style = if speaker == Speaker::CutOff.as_str() {
        Style::new().red().bold()
    } else {
        Style::new().cyan()
    };
    let label = paint(&format!("{speaker:>12}"), style);
    let mut lines = said.lines();
    let first = format!("{label}  {}", lines.next().unwrap_or_default());
    let _ = writeln!(text, "{}", first.trim_end());
    for line in lines {
        let _ = writeln!(text, "{:>12}  {line}", "");
    }
}

/// A title, and a text of any length behind it or below it.
fn push_block(text: &mut String, title: &str, said: &str) {
    if said.contains('\n') {
        let _ = writeln!(text, "\n{title}");
        for line in said.lines() {
            let _ = writeln!(text, "    {line}");
        }
    } else {
        let _ = writeln!(text, "\n{title}  {said}");
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
