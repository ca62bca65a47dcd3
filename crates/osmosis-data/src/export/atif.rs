//! `atif`: trajectories of the Agent Trajectory Interchange Format, version 1.7. A trajectory is one
//! conversation; results of tools stand in the step that called them.

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::Redactor;
use serde_json::{Map, Value, json};

use super::ExportRecord;
use super::line::rfc_3339;
use super::lines::JsonLines;
use super::talk::{RunFacts, SampleTalk, identity};
use crate::DataError;
use crate::conversation::{CallFacts, Conversation, Part, Role, Turn};

const VERSION: &str = "ATIF-v1.7";

/// Where trajectories go.
#[derive(Debug)]
pub enum AtifExport {
    /// One on each line of a file.
    Lines(JsonLines),
    /// A file for each.
    Folder {
        folder: Utf8PathBuf,
        redactor: Redactor,
        written: u64,
    },
}

impl AtifExport {
    pub fn create(path: &Utf8Path, redactor: Redactor) -> Result<Self, DataError> {
        if !path.is_dir() && !path.as_str().ends_with('/') {
            return Ok(Self::Lines(JsonLines::create(path, redactor)?));
        }
        std::fs::create_dir_all(path).map_err(|error| DataError::Unwritable {
            to: format!("`{path}`"),
            error,
        })?;
        Ok(Self::Folder {
            folder: path.to_owned(),
            redactor,
            written: 0,
        })
    }

    pub fn write(
        &mut self,
        run: &RunFacts,
        record: &ExportRecord,
        samples: &[SampleTalk],
    ) -> Result<(), DataError> {
        for sample in samples {
            for (number, conversation) in sample.conversations.iter().enumerate() {
                // The format knows no trajectory without a step.
                if conversation.turns.is_empty() {
                    continue;
                }
                let trajectory = trajectory(run, record, sample, number, conversation);
                match self {
                    Self::Lines(lines) => lines.write(&trajectory)?,
                    Self::Folder {
                        folder,
                        redactor,
                        written,
                    } => {
                        let name = format!("{}.{}.{number}.json", record.rollout_id, sample.id);
                        let mut file = JsonLines::create(&folder.join(name), redactor.clone())?;
                        file.write(&trajectory)?;
                        file.finish()?;
                        *written += 1;
                    }
                }
            }
        }
        Ok(())
    }

    pub fn finish(self) -> Result<u64, DataError> {
        match self {
            Self::Lines(lines) => lines.finish(),
            Self::Folder { written, .. } => Ok(written),
        }
    }
}

fn trajectory(
    run: &RunFacts,
    record: &ExportRecord,
    sample: &SampleTalk,
    number: usize,
    conversation: &Conversation,
) -> Value {
    let steps = steps(conversation);
    let model = conversation.calls().last().map(|call| call.model.as_str());
    let mut agent = json!({"name": run.rollout, "version": run.version,
        "model_name": model.unwrap_or(&run.model)});
    if !conversation.tools.is_empty() {
        agent["tool_definitions"] = json!(conversation.tools);
    }
    let mut extra = identity(record, sample, number);
    extra.insert("main".to_owned(), json!(number == sample.main));
    if let Some(error) = &conversation.error {
        extra.insert("call_error".to_owned(), json!(error));
    }
    let session = format!("{}/{}", record.run_name, record.rollout_id);
    json!({
        "schema_version": VERSION,
        "session_id": session,
        "trajectory_id": format!("{session}/{}/{number}", sample.id),
        "agent": agent,
        "final_metrics": final_metrics(conversation, steps.len()),
        "extra": extra,
        "steps": steps,
    })
}

fn steps(conversation: &Conversation) -> Vec<Value> {
    // Without calls nobody knows which replies were given as examples.
    let knows_calls = conversation.calls().next().is_some();
    let mut steps: Vec<Step> = Vec::new();
    let mut ids = CallIds::default();
    for turn in &conversation.turns {
        match turn.role {
            Role::Tool => observe(&mut steps, turn),
            Role::Assistant => steps.push(agent_step(turn, knows_calls, &mut ids)),
            Role::System => steps.push(Step::new("system", turn)),
            Role::User => steps.push(Step::new("user", turn)),
        }
    }
    let numbered = steps.into_iter().zip(1..);
    numbered.map(|(step, id)| step.into_json(id)).collect()
}

struct Step {
    fields: Map<String, Value>,
    /// The ids of its tool calls, as the conversation has them and as they are written, and whether a
    /// result has come.
    calls: Vec<(String, String, bool)>,
    results: Vec<Value>,
}

impl Step {
    fn new(source: &str, turn: &Turn) -> Self {
        let mut fields = Map::new();
        if let Some(at) = turn.at_ms.and_then(rfc_3339) {
            fields.insert("timestamp".to_owned(), json!(at));
        }
        fields.insert("source".to_owned(), json!(source));
        fields.insert("message".to_owned(), content(turn));
        Self {
            fields,
            calls: Vec::new(),
            results: Vec::new(),
        }
    }

    fn into_json(self, id: u64) -> Value {
        let mut step = Map::new();
        step.insert("step_id".to_owned(), json!(id));
        step.extend(self.fields);
        if !self.results.is_empty() {
            step.insert("observation".to_owned(), json!({"results": self.results}));
        }
        Value::Object(step)
    }
}

/// Gives ids to tool calls that have none, or one that another has.
#[derive(Default)]
struct CallIds {
    given: std::collections::HashSet<String>,
}

impl CallIds {
    fn unique(&mut self, id: &str) -> String {
        let mut unique = id.to_owned();
        let mut number = self.given.len();
        while unique.is_empty() || self.given.contains(&unique) {
            number += 1;
            unique = format!(
                "{}{}call_{number}",
                id,
                if id.is_empty() { "" } else { "_" }
            );
        }
        self.given.insert(unique.clone());
        unique
    }
}

fn agent_step(turn: &Turn, knows_calls: bool, ids: &mut CallIds) -> Step {
    let mut step = Step::new("agent", turn);
    let fields = &mut step.fields;
    if let Some(reasoning) = &turn.reasoning {
        fields.insert("reasoning_content".to_owned(), json!(reasoning));
    }
    for call in &turn.tool_calls {
        step.calls
            .push((call.id.clone(), ids.unique(&call.id), false));
    }
    if !turn.tool_calls.is_empty() {
        let calls = turn.tool_calls.iter().zip(&step.calls);
        let calls: Vec<Value> = calls
            .map(|(call, (_, id, _))| {
                json!({"tool_call_id": id, "function_name": call.name,
                    "arguments": call.arguments_object()})
            })
            .collect();
        fields.insert("tool_calls".to_owned(), json!(calls));
    }
    match &turn.call {
        Some(call) => {
            fields.insert("model_name".to_owned(), json!(call.model));
            fields.insert("llm_call_count".to_owned(), json!(1));
            fields.insert("metrics".to_owned(), metrics(call));
        }
        None if knows_calls => {
            fields.insert("is_copied_context".to_owned(), json!(true));
        }
        None => {}
    }
    step
}

/// Puts a tool's result into the step that called it, or else into the step before.
fn observe(steps: &mut Vec<Step>, turn: &Turn) {
    let answered = turn.answers.as_deref().unwrap_or_default();
    let mut result = json!({"content": content(turn)});
    if turn.is_error {
        result["extra"] = json!({"is_error": true});
    }
    let open =
        |(id, _, done): &(String, String, bool)| !done && (id == answered || answered.is_empty());
    let place = steps.iter().rposition(|step| step.calls.iter().any(open));
    if let Some(place) = place {
        let step = &mut steps[place];
        if let Some(call) = step.calls.iter_mut().find(|call| open(call)) {
            call.2 = true;
            result["source_call_id"] = json!(call.1);
        }
        step.results.push(result);
        return;
    }
    if steps.is_empty() {
        let mut step = Step::new("system", turn);
        step.fields.insert("message".to_owned(), json!(""));
        steps.push(step);
    }
    if let Some(step) = steps.last_mut() {
        step.results.push(result);
    }
}

fn metrics(call: &CallFacts) -> Value {
    let usage = call.usage;
    let mut metrics = Map::new();
    for (name, count) in [
        ("prompt_tokens", usage.prompt_tokens),
        ("completion_tokens", usage.completion_tokens),
        ("cached_tokens", usage.cached_tokens),
    ] {
        if let Some(count) = count {
            metrics.insert(name.to_owned(), json!(count));
        }
    }
    if let Some(cost) = usage.cost {
        metrics.insert("cost_usd".to_owned(), json!(cost));
    }
    if let Some(tokens) = call
        .tokens
        .as_ref()
        .filter(|tokens| !tokens.sampled.is_empty())
    {
        metrics.insert("prompt_token_ids".to_owned(), json!(tokens.prompt));
        metrics.insert("completion_token_ids".to_owned(), json!(tokens.sampled));
        metrics.insert("logprobs".to_owned(), json!(tokens.logprobs));
    }
    let mut extra =
        json!({"call_id": call.call_id, "duration_ms": call.done_at_ms - call.queued_at_ms});
    if let Some(first) = call.first_byte_at_ms {
        extra["first_byte_ms"] = json!(first - call.queued_at_ms);
    }
    if let Some(reason) = &call.finish_reason {
        extra["finish_reason"] = json!(reason);
    }
    if let Some(count) = usage.reasoning_tokens {
        extra["reasoning_tokens"] = json!(count);
    }
    metrics.insert("extra".to_owned(), extra);
    Value::Object(metrics)
}

fn final_metrics(conversation: &Conversation, steps: usize) -> Value {
    type Count = fn(&CallFacts) -> Option<u64>;
    let mut metrics = json!({ "total_steps": steps });
    let sums: [(&str, Count); 3] = [
        ("total_prompt_tokens", |call| call.usage.prompt_tokens),
        ("total_completion_tokens", |call| {
            call.usage.completion_tokens
        }),
        ("total_cached_tokens", |call| call.usage.cached_tokens),
    ];
    for (name, count) in sums {
        let counts: Vec<u64> = conversation.calls().filter_map(count).collect();
        if !counts.is_empty() {
            metrics[name] = json!(counts.iter().sum::<u64>());
        }
    }
    let costs: Vec<f64> = conversation
        .calls()
        .filter_map(|call| call.usage.cost)
        .collect();
    if !costs.is_empty() {
        metrics["total_cost_usd"] = json!(costs.iter().sum::<f64>());
    }
    metrics
}

/// A text, or parts when there is a picture with an address; a picture in the message itself is named.
fn content(turn: &Turn) -> Value {
    let address = |part: &Part| matches!(part, Part::Image(url) if image_type(url).is_some());
    if !turn.content.iter().any(address) {
        return turn.text().into();
    }
    let parts = turn.content.iter().map(|part| match part {
        Part::Image(url) => match image_type(url) {
            Some(media) => json!({"type": "image", "source": {"media_type": media, "path": url}}),
            None => json!({"type": "text", "text": "[image]"}),
        },
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Other(value) => json!({"type": "text", "text": value.to_string()}),
    });
    parts.collect()
}

/// Of a picture that stands elsewhere: the format refers to files and addresses only.
fn image_type(url: &str) -> Option<&'static str> {
    let path = url.split(['?', '#']).next()?;
    let (_, extension) = path.rsplit_once('.')?;
    if !url.starts_with("http") {
        return None;
    }
    match extension.to_ascii_lowercase().as_str() {
        "png" => Some("image/png"),
        "jpg" | "jpeg" => Some("image/jpeg"),
        "gif" => Some("image/gif"),
        "webp" => Some("image/webp"),
        _ => None,
    }
}
