//! A rollout as a sample of Inspect.

use std::collections::BTreeMap;

use osmosis_core::{OutcomeKind, Reward};
use serde_json::{Map, Value, json};

use super::super::ExportRecord;
use super::super::line::rfc_3339;
use super::super::talk::{RunFacts, SampleTalk};
use super::transcript::{Transcript, message};
use crate::conversation::{CallFacts, Conversation, Role, Turn};

/// Longer texts of the list are cut, as Inspect does.
const SUMMARY_LENGTH: usize = 1024;

pub(super) fn sample(run: &RunFacts, record: &ExportRecord, samples: &[SampleTalk]) -> Value {
    let kept = samples.iter().find(|sample| !sample.removed);
    let main = kept
        .or_else(|| samples.first())
        .and_then(|sample| sample.conversations.get(sample.main));
    let empty = Conversation::default();
    let main = main.unwrap_or(&empty);
    let answer = main
        .turns
        .iter()
        .rev()
        .find(|turn| turn.role == Role::Assistant);
    let said = answer.map(Turn::text);
    let scores = scores(record, samples, said.as_deref());
    let messages: Vec<Value> = main
        .turns
        .iter()
        .enumerate()
        .map(|(place, turn)| message(turn, &format!("m{place}"), main))
        .collect();
    let mut transcript = Transcript::new(record, main, samples.len() > 1);
    for sample in samples {
        for (number, conversation) in sample.conversations.iter().enumerate() {
            transcript.conversation(sample, number, conversation);
        }
    }
    transcript.scores(record, &scores);
    let (events, pool) = transcript.finish();
    let calls = samples.iter().flat_map(|sample| &sample.conversations);
    let mut document = json!({
        "id": record.row_index,
        "epoch": u64::from(record.run_index) + 1,
        "input": input(record, main),
        "target": record.label.as_deref().unwrap_or_default(),
        "messages": messages,
        "output": output(run, answer.and_then(|turn| turn.call.as_deref()), messages.last().filter(|_| answer.is_some())),
        "scores": scores,
        "metadata": metadata(record, samples),
        "store": {},
        "events": events,
        "model_usage": usage_by_model(calls.flat_map(Conversation::calls)),
        "attachments": {},
        "events_data": {"messages": pool, "calls": []},
        "uuid": format!("{}-{}", record.run_name, record.rollout_id),
        "started_at": record.started_at_ms.and_then(rfc_3339),
        "completed_at": record.finished_at_ms.and_then(rfc_3339),
        "total_time": total_time(record),
        "working_time": (record.durations.agent + record.durations.grade) / 1000.0,
    });
    if let Some(error) = &record.error {
        let message = format!("{}: {}", error.kind, error.message);
        document["error"] = json!({"message": message, "traceback": message,
            "traceback_ansi": message});
    }
    document
}

fn total_time(record: &ExportRecord) -> Option<f64> {
    let (from, to) = record.started_at_ms.zip(record.finished_at_ms)?;
    Some((to - from) as f64 / 1000.0)
}

/// What the agent was asked: the last thing the user said before the first reply.
fn input(record: &ExportRecord, main: &Conversation) -> String {
    let before = main
        .turns
        .iter()
        .take_while(|turn| turn.role != Role::Assistant);
    let asked = before.filter(|turn| turn.role == Role::User).last();
    asked.map_or_else(|| record.row.as_str().to_owned(), Turn::text)
}

fn output(run: &RunFacts, call: Option<&CallFacts>, last: Option<&Value>) -> Value {
    let model = call.map_or(run.model.as_str(), |call| call.model.as_str());
    let Some(message) = last.filter(|message| message["role"] == "assistant") else {
        return json!({"model": model, "choices": []});
    };
    let choice = json!({"message": message, "stop_reason": stop_reason(call)});
    let mut output = json!({"model": model, "choices": [choice]});
    if let Some(call) = call {
        output["usage"] = usage(call);
    }
    output
}

pub(super) fn stop_reason(call: Option<&CallFacts>) -> &'static str {
    match call.and_then(|call| call.finish_reason.as_deref()) {
        Some("stop" | "end_turn" | "stop_sequence" | "completed") => "stop",
        Some("length" | "max_tokens" | "max_output_tokens") => "max_tokens",
        Some("tool_calls" | "tool_use" | "function_call") => "tool_calls",
        Some("content_filter" | "refusal") => "content_filter",
        _ => "unknown",
    }
}

pub(super) fn usage(call: &CallFacts) -> Value {
    let mut sums = Sums::default();
    sums.add(call);
    sums.to_json()
}

/// What was graded. A rollout that failed did not pass; one that never really ran has no score.
fn scores(record: &ExportRecord, samples: &[SampleTalk], answer: Option<&str>) -> Value {
    let mut scores = Map::new();
    let Some(outcome) = record.outcome.filter(|outcome| outcome.ran()) else {
        return Value::Object(scores);
    };
    let explanation = match &record.error {
        Some(error) => format!("{}: {}", outcome.as_str(), error.message),
        None => outcome.as_str().to_owned(),
    };
    let value = if record.passed { "C" } else { "I" };
    let passed = json!({"value": value, "answer": answer, "explanation": explanation});
    scores.insert("passed".to_owned(), passed);
    if let Some(reward) = record.reward.map(Reward::get) {
        let by_sample: Map<String, Value> = samples
            .iter()
            .map(|sample| (sample.id.to_string(), json!(sample.reward)))
            .collect();
        let metadata = json!({ "samples": by_sample });
        let reward = json!({"value": reward, "answer": answer, "metadata": metadata});
        scores.insert("reward".to_owned(), reward);
    }
    Value::Object(scores)
}

fn metadata(record: &ExportRecord, samples: &[SampleTalk]) -> Value {
    let conversations: usize = samples.iter().map(|s| s.conversations.len()).sum();
    json!({
        "rollout_id": record.rollout_id,
        "outcome": record.outcome.map(OutcomeKind::as_str),
        "attempts": record.attempts,
        "model_calls": record.model_calls,
        "conversations": conversations,
        "row": record.row,
        "metrics": record.metrics,
        "durations_ms": {
            "queue": record.durations.queue, "agent": record.durations.agent,
            "model": record.durations.model, "grade": record.durations.grade,
        },
    })
}

/// What the list of samples says of one.
pub(super) fn summary(sample: &Value) -> Value {
    let cut = |value: &Value| match value.as_str() {
        Some(text) if text.len() > SUMMARY_LENGTH => {
            let cut: String = text.chars().take(SUMMARY_LENGTH).collect();
            json!(cut)
        }
        _ => value.clone(),
    };
    let mut summary = Map::new();
    for name in [
        "id",
        "epoch",
        "model_usage",
        "started_at",
        "completed_at",
        "total_time",
        "working_time",
        "uuid",
    ] {
        summary.insert(name.to_owned(), sample[name].clone());
    }
    for name in ["input", "target"] {
        summary.insert(name.to_owned(), cut(&sample[name]));
    }
    let mut scores = sample["scores"].clone();
    for score in scores.as_object_mut().into_iter().flat_map(Map::values_mut) {
        for name in ["answer", "explanation"] {
            if let Some(text) = score.get_mut(name) {
                *text = cut(text);
            }
        }
    }
    summary.insert("scores".to_owned(), scores);
    if let Some(error) = sample.get("error") {
        summary.insert("error".to_owned(), cut(&error["message"]));
    }
    summary.insert("completed".to_owned(), json!(true));
    let messages = sample["messages"].as_array().map_or(0, Vec::len);
    summary.insert("message_count".to_owned(), json!(messages));
    Value::Object(summary)
}

/// Numbers over all rollouts, for the header.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) rollouts: u64,
    pub(super) rows: u64,
    last_row: Option<u64>,
    ran: u64,
    passed: u64,
    scored: u64,
    reward_sum: f64,
    usage: BTreeMap<String, Sums>,
}

impl Tally {
    pub(super) fn count(&mut self, record: &ExportRecord, sample: &Value) {
        self.rollouts += 1;
        // Rollouts come in the order of their rows.
        if self.last_row.replace(record.row_index) != Some(record.row_index) {
            self.rows += 1;
        }
        let was_graded = sample["scores"].get("passed").is_some();
        self.ran += u64::from(was_graded);
        self.passed += u64::from(record.passed);
        if let Some(reward) = record.reward {
            self.scored += 1;
            self.reward_sum += reward.get();
        }
        for (model, usage) in sample["model_usage"].as_object().into_iter().flatten() {
            self.usage.entry(model.clone()).or_default().add_json(usage);
        }
    }

    pub(super) fn results(&self) -> Value {
        let metric = |name: &str, value: f64| json!({"name": name, "value": value, "params": {}});
        let mut scores = Vec::new();
        if self.ran > 0 {
            let rate = self.passed as f64 / self.ran as f64;
            scores.push(json!({"name": "passed", "scorer": "passed", "params": {},
                "scored_samples": self.ran, "metrics": {"pass_rate": metric("pass_rate", rate)}}));
        }
        if self.scored > 0 {
            let mean = self.reward_sum / self.scored as f64;
            scores.push(json!({"name": "reward", "scorer": "reward", "params": {},
                "scored_samples": self.scored, "metrics": {"mean": metric("mean", mean)}}));
        }
        json!({"total_samples": self.rollouts, "completed_samples": self.ran, "scores": scores})
    }

    pub(super) fn model_usage(&self) -> Value {
        let models = self.usage.iter();
        let usage: Map<String, Value> = models
            .map(|(model, sums)| (model.clone(), sums.to_json()))
            .collect();
        Value::Object(usage)
    }
}

fn usage_by_model<'a>(calls: impl Iterator<Item = &'a CallFacts>) -> Value {
    let mut tally = Tally::default();
    let mut counted = std::collections::HashSet::new();
    for call in calls {
        // Conversations that part later have the same calls before.
        let first = counted.insert((call.call_id, call.usage.prompt_tokens.is_some()));
        if first {
            tally.usage.entry(call.model.clone()).or_default().add(call);
        }
    }
    tally.model_usage()
}

/// Sums of tokens, as Inspect counts them: what came from the cache is not in the input.
#[derive(Debug, Default)]
struct Sums {
    input: u64,
    output: u64,
    cached: u64,
    reasoning: u64,
}

impl Sums {
    fn add(&mut self, call: &CallFacts) {
        let cached = call.usage.cached_tokens.unwrap_or(0);
        let prompt = call.usage.prompt_tokens.unwrap_or(0);
        self.input += prompt.saturating_sub(cached);
        self.cached += cached;
        self.output += call.usage.completion_tokens.unwrap_or(0);
        self.reasoning += call.usage.reasoning_tokens.unwrap_or(0);
    }

    fn add_json(&mut self, usage: &Value) {
        let number = |name: &str| usage[name].as_u64().unwrap_or(0);
        self.input += number("input_tokens");
        self.output += number("output_tokens");
        self.cached += number("input_tokens_cache_read");
        self.reasoning += number("reasoning_tokens");
    }

    fn to_json(&self) -> Value {
        let mut usage = json!({"input_tokens": self.input, "output_tokens": self.output,
            "total_tokens": self.input + self.cached + self.output});
        if self.cached > 0 {
            usage["input_tokens_cache_read"] = json!(self.cached);
        }
        if self.reasoning > 0 {
            usage["reasoning_tokens"] = json!(self.reasoning);
        }
        usage
    }
}
