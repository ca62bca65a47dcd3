//! `osmosis eval|train show RUN ROW`: one rollout as a transcript.

use std::fmt::Write;
use std::sync::Arc;

use camino::Utf8Path;
use osmosis_core::config::ModelPath;
use osmosis_core::credit::Credit;
use osmosis_core::{Outcome, Sample, SampleId};
use osmosis_data::conversation::Conversation;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{
    CallPurpose, CallQuery, CallRecord, RolloutQuery, RolloutRecord, RunKind, SqliteStore, Store,
};
use osmosis_tokens::ChatFormat;
use owo_colors::Style;
use serde_json::{Map, Value, json};

use super::artifacts::Artifacts;
use super::recorded_calls::RecordedCalls;
use super::transcript::{Entry, Transcriber};
use super::{Pinned, RegradedFrom};
use crate::command_line;
use crate::error::Exit;
use crate::figures::{ms_text, number};
use crate::output::{Output, paint};
use crate::policy;
use crate::run_folder::{RunFolder, index_line};
use crate::talk::{self, Telling};
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
    let store = SqliteStore::open_read_only(&folder.path)?;
    let query = RolloutQuery {
        row_index: Some(row_index),
        ..RolloutQuery::default()
    };
    let found: Vec<RolloutRecord> = store
        .rollouts(query)
        .await?
        .items
        .into_iter()
        .filter(|rollout| run_index.is_none_or(|wanted| rollout.run_index == wanted))
        .collect();
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
    let regraded_from = match store.run().await? {
        Some(record) => Pinned::read(&record.pinned)?.regraded_from,
        None => None,
    };
    let mut details = vec![];
    for rollout in &found {
        let samples = store.samples(&rollout.id).await?;
        let query = CallQuery {
            rollout_id: rollout.id.clone(),
            attempt: None,
        };
        let recorded = RecordedCalls::read(&store, kind, query).await?;
        let spoken = spoken(&store, workspace, rollout, &samples, &recorded.calls).await?;
        let left_in = folder.artifacts().join(rollout.id.as_str());
        let artifacts = Artifacts::of(&left_in);
        if output.is_json() {
            let mut shown = details_of(rollout, &samples, &spoken, &recorded)?;
            shown["artifacts"] = artifacts.to_json(&left_in);
            if let Some(from) = &regraded_from {
                shown["regraded_from"] = json!(from.run);
                shown["policy_calls_in"] = json!(from.calls_in);
            }
            details.push(shown);
        } else {
            let mut text = render(rollout, &samples, &spoken, &recorded, calls)?;
            if let Some(from) = &regraded_from {
                push_origin(&mut text, from, rollout, workspace);
            }
            push_artifacts(&mut text, &left_in, &artifacts);
            output.line(text);
        }
    }
    output.details(&details);
    Ok(Exit::Ok)
}

/// What was said in a sample that brings no messages.
struct Spoken {
    sample: SampleId,
    /// Each from its beginning to its end.
    paths: Vec<Vec<Entry>>,
}

/// Reads from the recorded calls what samples without messages said, and those that never came to be.
async fn spoken(
    store: &SqliteStore,
    workspace: &Workspace,
    rollout: &RolloutRecord,
    samples: &[Sample],
    calls: &[CallRecord],
) -> Result<Vec<Spoken>, RunError> {
    let mut transcriber = Transcriber::default();
    let mut told = vec![];
    for sample in samples {
        if !messages_of(sample)?.is_empty() {
            told.push(&sample.id);
        }
        // Fields of the user's own may have any shape.
        let credit = Credit::read(sample.extra_fields.as_ref()).unwrap_or_default();
        let interactions = credit.interactions.into_iter();
        let rewards = interactions.map(|one| (one.completion, one.reward.get()));
        transcriber.rewards.extend(rewards);
    }
    let of_policy = |call: &&CallRecord| call.purpose == CallPurpose::Policy;
    let mut asked = calls.iter().filter(of_policy);
    if asked.all(|call| told.contains(&&call.sample_id)) {
        return Ok(vec![]);
    }
    let mut talks = talk::of(store, &rollout.id, samples, &Telling::default()).await?;
    talks.retain(|talk| !told.contains(&&talk.id) && !talk.conversations.is_empty());
    let conversations = talks.iter().flat_map(|talk| &talk.conversations);
    let mut turns = conversations.flat_map(|conversation| &conversation.turns);
    if turns.any(|turn| turn.token_ids.is_some()) {
        transcriber.tokenizer = tokenizer_of(store, workspace).await?;
    }
    let spoken = talks.into_iter().map(|talk| Spoken {
        paths: transcriber.paths(&talk.conversations),
        sample: talk.id,
    });
    Ok(spoken.collect())
}

/// The tokenizer of the run's policy, when it has one that can be had without the weights.
async fn tokenizer_of(
    store: &SqliteStore,
    workspace: &Workspace,
) -> Result<Option<Arc<ChatFormat>>, RunError> {
    let Some(run) = store.run().await? else {
        return Ok(None);
    };
    let pinned = Pinned::read(&run.pinned)?;
    let model = pinned.model_path();
    let model = model.and_then(|text| text.parse::<ModelPath>().ok());
    Ok(model.and_then(|model| policy::tokenizer(&model, workspace)))
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

fn messages_of(sample: &Sample) -> Result<Vec<Value>, RunError> {
    // Older versions recorded these; they are shown as the text they are.
    if sample.messages.problem().is_some() {
        return Ok(vec![sample.messages.as_str().into()]);
    }
    sample
        .messages
        .read()
        .map_err(|error| RunError::failed(RunErrorKind::RunDamaged, error.to_string()))
}

fn render(
    rollout: &RolloutRecord,
    samples: &[Sample],
    spoken: &[Spoken],
    recorded: &RecordedCalls,
    with_calls: bool,
) -> Result<String, RunError> {
    let bold = Style::new().bold();
    let dim = Style::new().dimmed();
    let mut text = String::new();
    let outcome = rollout
        .outcome
        .as_ref()
        .map_or_else(|| "no result yet".to_owned(), outcome_text);
    let title = format!(
        "{}  row {} run {}",
        rollout.id, rollout.row_index, rollout.run_index
    );
    let _ = writeln!(text, "{}  {outcome}", paint(&title, bold));
    let durations = rollout.durations;
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
                rollout.calls.model_calls,
                rollout.calls.prompt_tokens,
                rollout.calls.completion_tokens,
                rollout.attempts,
            ),
            dim
        )
    );
    let judge = rollout.calls.judge;
    if judge.calls > 0 {
        let judged = format!(
            "{} judge calls · {}+{} tokens",
            judge.calls, judge.prompt_tokens, judge.completion_tokens
        );
        let _ = writeln!(text, "{}", paint(&judged, dim));
    }
    if let Some(versions) = recorded.told(recorded.versions()) {
        let _ = writeln!(text, "{}", paint(&format!("policy {versions}"), dim));
    }
    for sample in samples {
        let reward = match (sample.remove_sample, sample.reward) {
            (true, _) => "removed by the grader".to_owned(),
            (false, Some(reward)) => format!("reward {reward}"),
            (false, None) => "no reward".to_owned(),
        };
        let _ = writeln!(
            text,
            "\n{}  {reward}",
            paint(&format!("sample {}", sample.id), bold)
        );
        let messages = Conversation::of_messages(&messages_of(sample)?);
        let messages = Transcriber::default().entries(&messages);
        if messages.is_empty()
            && let Some(spoken) = spoken.iter().find(|spoken| spoken.sample == sample.id)
        {
            push_paths(&mut text, &spoken.paths);
        }
        push_entries(&mut text, &messages);
        if let Some(metrics) = &sample.metrics {
            push_entry(&mut text, "metrics", metrics.as_str());
        }
    }
    // A rollout without a result may have said something all the same.
    let unfinished = |id: &SampleId| samples.iter().all(|sample| sample.id != *id);
    for spoken in spoken.iter().filter(|spoken| unfinished(&spoken.sample)) {
        let title = format!("sample {}", spoken.sample);
        let _ = writeln!(text, "\n{}  no result", paint(&title, bold));
        push_paths(&mut text, &spoken.paths);
    }
    if let Some(outcome) = &rollout.outcome {
        push_failure(&mut text, outcome);
    }
    if with_calls {
        let _ = writeln!(text, "\n{}", paint("model calls", bold));
        recorded.push_lines(&mut text);
    }
    Ok(text)
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
        push_entry(text, entry.speaker, &entry.text);
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

fn push_failure(text: &mut String, outcome: &Outcome) {
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
fn push_origin(
    text: &mut String,
    from: &RegradedFrom,
    rollout: &RolloutRecord,
    workspace: &Workspace,
) {
    let place = format!("{}.{}", rollout.row_index, rollout.run_index);
    let command = ["eval", "show", from.calls_in.as_str(), &place, "--calls"];
    let label = paint("regraded", Style::new().bold());
    let _ = writeln!(
        text,
        "\n{label}  the samples are those of run `{}`; the policy's calls: {}",
        from.run,
        command_line::suggest(&command, workspace)
    );
}

fn push_artifacts(text: &mut String, folder: &Utf8Path, artifacts: &Artifacts) {
    let lines = artifacts.lines();
    if lines.is_empty() {
        return;
    }
    let label = paint("artifacts", Style::new().bold());
    let _ = writeln!(text, "\n{label}  {folder}");
    for line in lines {
        let _ = writeln!(text, "  {line}");
    }
}

/// `scored: reward 1, passed`.
fn outcome_text(outcome: &Outcome) -> String {
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

fn details_of(
    rollout: &RolloutRecord,
    samples: &[Sample],
    spoken: &[Spoken],
    recorded: &RecordedCalls,
) -> Result<Value, RunError> {
    let mut details = index_line(rollout);
    let mut shown = vec![];
    for sample in samples {
        shown.push(json!({
            "id": sample.id, "reward": sample.reward, "remove_sample": sample.remove_sample,
            "messages": messages_of(sample)?, "metrics": sample.metrics,
            "extra_fields": sample.extra_fields,
        }));
    }
    let spoken: Map<String, Value> = spoken
        .iter()
        .map(|one| (one.sample.to_string(), json!(one.paths)))
        .collect();
    if let Some(map) = details.as_object_mut() {
        map.insert("samples".to_owned(), json!(shown));
        map.insert("conversations".to_owned(), Value::Object(spoken));
        map.insert("versions".to_owned(), json!(recorded.versions()));
        map.insert("calls".to_owned(), recorded.to_json());
        map.insert("outcome_details".to_owned(), json!(rollout.outcome));
    }
    Ok(details)
}
