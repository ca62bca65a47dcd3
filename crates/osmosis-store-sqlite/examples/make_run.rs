//! Fills a run as an evaluation would have: rows, rollouts with samples and model calls, some failures. It is
//! what `benches/big_run.py` looks at.
//!
//! `cargo run --release -p osmosis-store-sqlite --example make_run -- TEMPLATE FOLDER DATASET N SEED GAIN`
//!
//! TEMPLATE is the folder of a real run whose config and pinned facts are taken; DATASET a jsonl file whose every
//! line becomes a row; N the rollouts per row. GAIN is how many of a thousand rows pass that would not have.
#![expect(
    clippy::unwrap_used,
    reason = "a program that makes data for measurements"
)]

use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use camino::Utf8PathBuf;
use osmosis_core::statistics::Generator;
use osmosis_core::{
    Durations, ErrorCategory, Failure, JsonText, Outcome, PolicyVersion, Reward, RolloutId,
    RunName, Sample, SampleId,
};
use osmosis_store::{
    CallPurpose, CallSummary, Claim, Completion, KeyFolder, NewCall, NewRollout, NewRow, RunRecord,
    RunStatus, Store,
};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Rollouts that are made at once: many, so that few commits wait for the disk.
const AT_ONCE: usize = 1_000;
/// When the first rollout began, in milliseconds since 1970.
const BEGAN: i64 = 1_767_225_600_000;

#[derive(Debug, Clone, Copy)]
struct Shape {
    seed: u64,
    gain: u64,
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [template, folder, dataset, n, seed, gain] = &arguments[..] else {
        unreachable!("six arguments, see the head of this file");
    };
    let folder = Utf8PathBuf::from(folder);
    let n: u32 = n.parse().unwrap();
    let shape = Shape {
        seed: seed.parse().unwrap(),
        gain: gain.parse().unwrap(),
    };
    std::fs::create_dir_all(&folder).unwrap();
    let template =
        SqliteStore::open_read_only(&Utf8PathBuf::from(template), &KeyFolder::none()).unwrap();
    let record = template.run().await.unwrap().unwrap();
    let store: Arc<dyn Store> =
        Arc::new(SqliteStore::open(&folder, SqliteOptions::default()).unwrap());
    let run = RunRecord {
        name: RunName::new(folder.file_name().unwrap()).unwrap(),
        status: RunStatus::Running,
        ..record
    };
    store.create_run(run).await.unwrap();
    enqueue(&store, dataset, n).await;
    fill(&store, shape).await;
    store.set_status(RunStatus::Finished).await.unwrap();
    store.close().await.unwrap();
}

async fn enqueue(store: &Arc<dyn Store>, dataset: &str, n: u32) {
    let file = std::io::BufReader::new(std::fs::File::open(dataset).unwrap());
    let (mut rows, mut rollouts) = (vec![], vec![]);
    for (row_index, line) in (0..).zip(file.lines()) {
        rows.push(NewRow {
            row_index,
            line: row_index + 1,
            body: JsonText::parse(line.unwrap()).unwrap(),
        });
        rollouts.extend((0..n).map(|run_index| NewRollout {
            id: RolloutId::of(row_index, run_index),
            row_index,
            run_index,
        }));
        if rows.len() == 500 {
            store
                .enqueue(std::mem::take(&mut rows), std::mem::take(&mut rollouts))
                .await
                .unwrap();
        }
    }
    store.enqueue(rows, rollouts).await.unwrap();
}

async fn fill(store: &Arc<dyn Store>, shape: Shape) {
    loop {
        let lease = Duration::from_mins(10);
        let claims = store.claim("make_run", AT_ONCE, lease).await.unwrap();
        if claims.is_empty() {
            return;
        }
        let mut flying = JoinSet::new();
        for claim in claims {
            let store = Arc::clone(store);
            flying.spawn(async move {
                let made = Made::of(&claim, shape);
                for call in made.calls {
                    store.record_call(call).await.unwrap();
                }
                store.complete(made.completion).await.unwrap();
            });
        }
        flying.join_all().await;
    }
}

/// One rollout: a question, a tool call, an answer.
struct Made {
    calls: Vec<NewCall>,
    completion: Completion,
}

impl Made {
    fn of(claim: &Claim, shape: Shape) -> Self {
        let row: Value = claim.row.body.read().unwrap();
        // How hard a row is does not depend on the seed of the run.
        let difficulty = Generator::new(claim.row_index).unit();
        let mut generator = Generator::new(
            shape.seed ^ (claim.row_index << 8) ^ u64::from(claim.run_index).rotate_left(48),
        );
        let luck = generator.unit();
        let gained = claim.row_index * 7919 % 1000 < shape.gain;
        let passes = gained || luck > difficulty;
        let label = row["ground_truth"].as_str().unwrap_or_default();
        let answer = if passes { label } else { "I do not know" };
        let first = vec![
            json!({"role": "system", "content": "You are a careful calculator. Use the tool for every product."}),
            json!({"role": "user", "content": row["user_prompt"]}),
        ];
        let mut second = first.clone();
        second.extend([
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": format!("call_{}", claim.row_index),
                   "type": "function", "function": {"name": "multiply", "arguments": "{\"a\": 3, \"b\": 4}"}}]}),
            json!({"role": "tool", "tool_call_id": format!("call_{}", claim.row_index), "content": answer}),
        ]);
        let mut messages = second.clone();
        messages.push(json!({"role": "assistant", "content": format!("The answer is {answer}")}));
        let calls = vec![
            call(claim, &first, &second[2], 60, 20),
            call(claim, &second, &messages[4], 95, 9),
        ];
        let fails = generator.index(50) == 0;
        let outcome = if fails {
            Outcome::AgentFailed {
                failure: failure(claim, generator.index(3)),
            }
        } else {
            Outcome::Scored {
                reward: Reward::new(if passes { 1.0 } else { luck / 2.0 }).unwrap(),
                passed: passes,
            }
        };
        let samples = match &outcome {
            Outcome::Scored { reward, .. } => vec![Sample {
                id: SampleId::new("main").unwrap(),
                messages: JsonText::of(&messages).unwrap(),
                reward: Some(*reward),
                remove_sample: false,
                metrics: None,
                extra_fields: None,
            }],
            _ => vec![],
        };
        let began = BEGAN + i64::try_from(claim.row_index).unwrap() * 20;
        let completion = Completion {
            id: claim.id.clone(),
            attempt: claim.attempt,
            outcome,
            samples,
            metrics: None,
            durations: Durations {
                queue: 1.0,
                agent: 400.0 + 300.0 * luck,
                model: 350.0,
                grade: 3.0,
            },
            calls: CallSummary {
                model_calls: 2,
                prompt_tokens: 155,
                completion_tokens: 29,
                cached_tokens: None,
                reasoning_tokens: None,
                ..CallSummary::default()
            },
            started_at_ms: began,
            finished_at_ms: began + 700,
        };
        Self { calls, completion }
    }
}

fn failure(claim: &Claim, kind: usize) -> Failure {
    let (name, message, line) = match kind {
        0 => ("KeyError", format!("'item-{}'", claim.row_index), 31),
        1 => (
            "ValueError",
            format!(
                "no number in 'answer {}' of row {}",
                claim.run_index, claim.row_index
            ),
            40,
        ),
        _ => ("ToolError", "the table is locked".to_owned(), 52),
    };
    let mut failure = Failure::new(ErrorCategory::AgentError, name, message.clone());
    failure.traceback = Some(format!(
        "Traceback (most recent call last):\n  File \"/w/rollouts/r/main.py\", line {line}, in run\n    \
         answer = lookup(word)\n{name}: {message}"
    ));
    failure
}

fn call(
    claim: &Claim,
    messages: &[Value],
    reply: &Value,
    prompt_tokens: u64,
    completion_tokens: u64,
) -> NewCall {
    let request = json!({
        "model": "osmosis-rollout", "messages": messages, "temperature": 1.0,
        "tools": [{"type": "function", "function": {"name": "multiply", "description": "Return the product.",
                   "parameters": {"type": "object", "properties": {"a": {"type": "integer"},
                                  "b": {"type": "integer"}}, "required": ["a", "b"]}}}],
    });
    let response = json!({
        "id": format!("chatcmpl-{}", claim.id), "object": "chat.completion", "created": BEGAN / 1000,
        "model": "m", "choices": [{"index": 0, "message": reply, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
                  "total_tokens": prompt_tokens + completion_tokens},
    });
    let at = BEGAN + i64::try_from(claim.row_index).unwrap() * 20;
    NewCall {
        rollout_id: claim.id.clone(),
        attempt: claim.attempt,
        sample_id: SampleId::new("main").unwrap(),
        dialect: "chat_completions".to_owned(),
        model: "osmosis-rollout".to_owned(),
        upstream: "http://127.0.0.1:8000/v1".to_owned(),
        policy_version: PolicyVersion(0),
        streamed: false,
        status: 200,
        error: None,
        prompt_tokens: Some(prompt_tokens),
        completion_tokens: Some(completion_tokens),
        cached_tokens: None,
        reasoning_tokens: None,
        purpose: CallPurpose::Policy,
        queued_at_ms: at,
        sent_at_ms: Some(at + 1),
        first_byte_at_ms: Some(at + 150),
        done_at_ms: at + 175,
        request: Bytes::from(request.to_string()),
        response: response.to_string().into(),
        tokens: vec![],
    }
}
