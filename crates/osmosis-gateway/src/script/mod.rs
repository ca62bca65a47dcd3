//! A policy that follows a script: deterministic, without a model, for tests, demos and examples.
//!
//! A script is a TOML file of rules. They are tried in order, and the first whose conditions all hold
//! answers:
//!
//! ```toml
//! [[reply]]
//! when.last_role = "user"
//! when.last_user = 'What is (?<a>\d+) times (?<b>\d+)'
//! tool_calls = [{ name = "multiply", arguments = { a = "{a:int}", b = "{b:int}" } }]
//!
//! [[reply]]
//! when.last_role = "tool"
//! text = "The answer is {tool_result}."
//! ```
//!
//! `docs/scripted-policy.md` describes the whole format. A call that no rule answers is a fault of the
//! script and fails loudly. The same script and the same calls give the same bytes, ids and times
//! included; token counts are approximations (a token for every four characters), not a tokenizer's.

mod fields;
mod problem;
mod read;
mod rule;
mod template;

pub use problem::{ScriptErrors, ScriptProblem};

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use futures_util::stream;
use osmosis_core::{PolicyVersion, RolloutId};
use osmosis_dialect::completion_to_sse;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::policy::{
    CallFormat, Fault, FaultKind, ModelCall, ModelReply, Policy, PolicyDescription, ReplyBody,
};
use read::Script;
use rule::{Arguments, Conversation, Reply, Rule, Variant, approximate_tokens};
use template::Values;

/// When every scripted completion was made: the first second of 2025.
const CREATED: u64 = 1_735_689_600;

/// What a script calls its model.
const MODEL: &str = "scripted";

/// A policy that follows a script. `docs/scripted-policy.md` describes the format; see also
/// [`ScriptedPolicy::parse`].
#[derive(Debug)]
pub struct ScriptedPolicy {
    file: Utf8PathBuf,
    script: Script,
    /// How often a rule with `times` has answered a rollout.
    answered: Mutex<HashMap<(usize, RolloutId), u32>>,
}

impl ScriptedPolicy {
    /// Reads a script; `file` is only a name, for messages and records.
    pub fn parse(file: &Utf8Path, text: &str) -> Result<Self, ScriptErrors> {
        Ok(Self {
            file: file.to_owned(),
            script: read::read(file, text)?,
            answered: Mutex::default(),
        })
    }

    /// The first rule that answers, and what its conditions captured.
    fn choose(
        &self,
        call: &ModelCall,
        conversation: &Conversation,
    ) -> Option<(usize, &Rule, Values)> {
        for (index, rule) in self.script.rules.iter().enumerate() {
            let Some(captured) = rule.when.matches(conversation) else {
                continue;
            };
            if let Some(times) = rule.times {
                let mut answered = self.answered.lock();
                let count = answered
                    .entry((index, call.rollout_id.clone()))
                    .or_insert(0);
                if *count >= times {
                    continue;
                }
                *count += 1;
            }
            return Some((index, rule, captured));
        }
        None
    }

    /// A mistake in the script.
    fn mistake(&self, message: &str) -> Fault {
        Fault {
            kind: FaultKind::Misconfigured,
            status: 400,
            message: format!("script `{}`: {message}", self.file),
        }
    }

    fn mistake_at(&self, rule: &Rule, message: &str) -> Fault {
        Fault {
            kind: FaultKind::Misconfigured,
            status: 400,
            message: format!(
                "script `{}`, rule at line {}: {message}",
                self.file, rule.line
            ),
        }
    }

    fn fault(&self, kind: FaultKind, status: u16, message: &str) -> Fault {
        Fault {
            kind,
            status,
            message: format!("script `{}` {message}", self.file),
        }
    }
}

#[async_trait]
impl Policy for ScriptedPolicy {
    fn describe(&self) -> PolicyDescription {
        PolicyDescription {
            model: MODEL.to_owned(),
            endpoint: format!("script:{}", self.file),
            version: PolicyVersion::default(),
        }
    }

    async fn answer(&self, call: ModelCall) -> Result<ModelReply, Fault> {
        if call.format == CallFormat::TokenIds {
            return Ok(ModelReply::no_token_ids(&self.describe()));
        }
        let conversation = match Conversation::parse(&call.body) {
            Ok(conversation) => conversation,
            Err(reason) => {
                return Ok(error_reply(
                    400,
                    &format!("the request is not valid: {reason}"),
                ));
            }
        };
        let Some((index, rule, captured)) = self.choose(&call, &conversation) else {
            let shown: String = conversation.last_text.chars().take(200).collect();
            return Err(self.mistake(&format!(
                "no rule answers turn {} of sample `{}`, whose last message is `{}`: `{shown}`",
                conversation.turn, call.sample_id, conversation.last_role,
            )));
        };
        if !rule.delay.is_zero() {
            tokio::time::sleep(rule.delay).await;
        }
        let mut values = conversation.values();
        values.insert("rollout_id".to_owned(), call.rollout_id.to_string());
        values.insert("sample_id".to_owned(), call.sample_id.to_string());
        values.extend(captured);

        let variants = match &rule.reply {
            Reply::Say(variants) => variants,
            Reply::Error { status, message } => {
                let message = message
                    .text(&values)
                    .map_err(|why| self.mistake_at(rule, &why))?;
                // As the same status from an upstream would be taken.
                return match FaultKind::of_status(*status) {
                    Some(kind) => Err(self.fault(
                        kind,
                        *status,
                        &format!("answered with status {status}: {message}"),
                    )),
                    None => Ok(error_reply(*status, &message)),
                };
            }
            Reply::Garbage(text) => {
                let text = text
                    .text(&values)
                    .map_err(|why| self.mistake_at(rule, &why))?;
                let message = format!("sent something that is no completion: `{text}`");
                return Err(self.fault(FaultKind::Garbage, 502, &message));
            }
        };
        let id = completion_id(&call, conversation.turn);
        let mut choices = Vec::new();
        let mut completion_tokens = 0;
        for choice in 0..conversation.choices {
            let picked = pick(
                variants,
                self.script.seed,
                &call,
                conversation.turn,
                index,
                choice,
            );
            let (message, finish_reason, tokens) = message_of(picked, &values, &id, choice)
                .map_err(|why| self.mistake_at(rule, &why))?;
            completion_tokens += tokens;
            choices.push(json!({
                "index": choice,
                "message": message,
                "logprobs": null,
                "finish_reason": finish_reason,
            }));
        }
        let completion = json!({
            "id": id,
            "object": "chat.completion",
            "created": CREATED,
            "model": MODEL,
            "choices": choices,
            "usage": {
                "prompt_tokens": conversation.prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": conversation.prompt_tokens + completion_tokens,
            },
        });
        let cut = rule.cut_after.map(|after| {
            (
                after,
                self.fault(FaultKind::CutShort, 502, "cut the reply short"),
            )
        });
        if call.streamed {
            let events = completion_to_sse(&completion, conversation.include_usage);
            Ok(streamed(events, rule.chunk_delay, cut))
        } else if let Some((_, fault)) = cut {
            Err(fault)
        } else {
            Ok(ModelReply {
                status: 200,
                content_type: "application/json".to_owned(),
                body: ReplyBody::Whole(Bytes::from(completion.to_string())),
            })
        }
    }
}

/// Events with a pause before each; with `cut`, a fault instead of what would follow that many.
fn streamed(mut events: Vec<Bytes>, pause: Duration, cut: Option<(usize, Fault)>) -> ModelReply {
    let mut items: Vec<Result<Bytes, Fault>> = Vec::new();
    match cut {
        Some((after, fault)) => {
            events.truncate(after);
            items.extend(events.into_iter().map(Ok));
            items.push(Err(fault));
        }
        None => items.extend(events.into_iter().map(Ok)),
    }
    let body = stream::unfold(items.into_iter(), move |mut items| async move {
        let item = items.next()?;
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Some((item, items))
    });
    ModelReply {
        status: 200,
        content_type: "text/event-stream".to_owned(),
        body: ReplyBody::Stream(Box::pin(body)),
    }
}

/// The message of a choice, why it finished, and its approximate tokens.
fn message_of(
    variant: &Variant,
    values: &Values,
    completion_id: &str,
    choice: u64,
) -> Result<(Value, String, u64), String> {
    let mut tokens = 0;
    let text = match &variant.text {
        Some(text) => Some(text.text(values)?),
        None => None,
    };
    tokens += text.as_deref().map_or(0, approximate_tokens);
    let mut message = json!({"role": "assistant", "content": text});
    let mut calls = Vec::new();
    for (position, call) in variant.tool_calls.iter().enumerate() {
        let name = call.name.text(values)?;
        let arguments = match &call.arguments {
            Arguments::Json(value) => value.json(values)?.to_string(),
            Arguments::Text(text) => text.text(values)?,
        };
        tokens += approximate_tokens(&name) + approximate_tokens(&arguments);
        let id = digest(&[completion_id, &choice.to_string(), &position.to_string()]);
        calls.push(json!({
            "id": format!("call_{}", hex(&id, 12)),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }));
    }
    let finish_reason = match &variant.finish_reason {
        Some(reason) => reason.clone(),
        None if calls.is_empty() => "stop".to_owned(),
        None => "tool_calls".to_owned(),
    };
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    Ok((message, finish_reason, tokens))
}

/// The same variant for the same rollout, turn and choice, by weight.
fn pick<'v>(
    variants: &'v [Variant],
    seed: i64,
    call: &ModelCall,
    turn: u64,
    rule: usize,
    choice: u64,
) -> &'v Variant {
    let hash = digest(&[
        &seed.to_string(),
        call.rollout_id.as_str(),
        call.sample_id.as_str(),
        &turn.to_string(),
        &rule.to_string(),
        &choice.to_string(),
    ]);
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    let total: u64 = variants.iter().map(|variant| variant.weight).sum();
    let mut left = u64::from_be_bytes(first) % total.max(1);
    for variant in variants {
        if left < variant.weight {
            return variant;
        }
        left -= variant.weight;
    }
    // Not reached: `left` is below the sum of the weights. A rule always has a variant.
    &variants[0]
}

/// Another for each call of a rollout, also for calls that ask the same.
fn completion_id(call: &ModelCall, turn: u64) -> String {
    let body = hex(&Sha256::digest(&call.body).into(), 32);
    let mut hash = digest(&[
        call.rollout_id.as_str(),
        call.sample_id.as_str(),
        &turn.to_string(),
        &body,
    ]);
    let before = call.history.given_before(hash);
    if before > 0 {
        hash = digest(&[&hex(&hash, 32), &before.to_string()]);
    }
    format!("chatcmpl-{}", hex(&hash, 12))
}

fn digest(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().into()
}

fn hex(hash: &[u8; 32], bytes: usize) -> String {
    hash.iter()
        .take(bytes)
        .fold(String::new(), |mut text, byte| {
            // Writing into a `String` cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

fn error_reply(status: u16, message: &str) -> ModelReply {
    let error = json!({"error": {
        "message": message, "type": "invalid_request_error", "param": null, "code": null,
    }});
    ModelReply {
        status,
        content_type: "application/json".to_owned(),
        body: ReplyBody::Whole(Bytes::from(error.to_string())),
    }
}
