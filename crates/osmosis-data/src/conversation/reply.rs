//! Replies of the dialects, whole or streamed.

use serde_json::{Value, json};

use super::items::{in_tokens, turns};
use super::stream;
use super::{Role, Turn, Usage};

/// One of the answers in a reply.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Choice {
    pub(super) turns: Vec<Turn>,
    pub(super) finish_reason: Option<String>,
}

/// What a reply said.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Reply {
    pub(super) id: Option<String>,
    pub(super) choices: Vec<Choice>,
    pub(super) usage: Usage,
}

/// Reads a reply. What is neither JSON nor a stream of it says nothing.
pub(super) fn read(dialect: &str, body: &[u8]) -> Reply {
    let whole = serde_json::from_slice::<Value>(body).ok();
    let Some(body) = whole.or_else(|| stream::assemble(dialect, body)) else {
        return Reply::default();
    };
    let choices = match dialect {
        "responses" => vec![Choice {
            turns: body["output"]
                .as_array()
                .map_or_else(Vec::new, |list| turns(list)),
            finish_reason: text(&body["incomplete_details"]["reason"])
                .or_else(|| text(&body["status"])),
        }],
        "messages" => vec![Choice {
            turns: turns(&[json!({"role": "assistant", "content": body["content"]})]),
            finish_reason: text(&body["stop_reason"]),
        }],
        "generate" => vec![Choice {
            turns: vec![in_tokens(Role::Assistant, &body["output_ids"])],
            finish_reason: text(&body["meta_info"]["finish_reason"]["type"])
                .or_else(|| text(&body["stop_reason"])),
        }],
        _ => {
            let choices = body["choices"].as_array().into_iter().flatten();
            choices.map(choice).collect()
        }
    };
    let choices: Vec<Choice> = choices
        .into_iter()
        .filter(|choice| !choice.turns.is_empty())
        .collect();
    Reply {
        id: text(&body["id"]),
        choices,
        usage: usage(&body["usage"]),
    }
}

/// Whether an answer of a recorded reply ended at the token limit.
pub fn is_cut_at_limit(dialect: &str, body: &[u8]) -> bool {
    // Few replies have these words, and reading a long one costs.
    let word = match dialect {
        "responses" => "max_output_tokens",
        "messages" => "max_tokens",
        _ => "length",
    };
    if !String::from_utf8_lossy(body).contains(word) {
        return false;
    }
    let whole = serde_json::from_slice::<Value>(body).ok();
    let Some(body) = whole.or_else(|| stream::assemble(dialect, body)) else {
        return false;
    };
    match dialect {
        "responses" => body["incomplete_details"]["reason"] == word,
        "messages" | "generate" => body["stop_reason"] == word,
        _ => {
            let mut choices = body["choices"].as_array().into_iter().flatten();
            choices.any(|choice| choice["finish_reason"] == word)
        }
    }
}

fn choice(choice: &Value) -> Choice {
    let turns = match (choice.get("message"), choice["text"].as_str()) {
        (Some(message), _) if message.is_object() => {
            let mut message = message.clone();
            // Some servers leave it out.
            message["role"] = json!("assistant");
            turns(&[message])
        }
        (_, Some(text)) => vec![Turn::said(Role::Assistant, text)],
        _ => Vec::new(),
    };
    Choice {
        turns,
        finish_reason: text(&choice["finish_reason"]),
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// What the reply says of its tokens, in either of the three ways.
fn usage(usage: &Value) -> Usage {
    let number = |path: &str| usage.pointer(path).and_then(Value::as_u64);
    let first = |paths: [&str; 2]| paths.into_iter().find_map(number);
    let from_cache = number("/cache_read_input_tokens");
    let into_cache = number("/cache_creation_input_tokens");
    let prompt_tokens = first(["/prompt_tokens", "/input_tokens"]).map(|fresh| {
        // Anthropic counts what comes from the cache apart.
        fresh + from_cache.unwrap_or(0) + into_cache.unwrap_or(0)
    });
    Usage {
        prompt_tokens,
        completion_tokens: first(["/completion_tokens", "/output_tokens"]),
        cached_tokens: first([
            "/prompt_tokens_details/cached_tokens",
            "/input_tokens_details/cached_tokens",
        ])
        .or(from_cache),
        reasoning_tokens: first([
            "/completion_tokens_details/reasoning_tokens",
            "/output_tokens_details/reasoning_tokens",
        ]),
        cost: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "tests read better")]
    fn check(dialect: &str, body: Value, message: Value, finish: &str, usage: [u64; 3]) {
        let reply = read(dialect, body.to_string().as_bytes());
        let choice = &reply.choices[0];
        assert_eq!(choice.turns.len(), 1, "{dialect}");
        assert_eq!(choice.turns[0].chat_message(), message, "{dialect}");
        assert_eq!(choice.finish_reason.as_deref(), Some(finish), "{dialect}");
        let found = reply.usage;
        let found = [
            found.prompt_tokens,
            found.completion_tokens,
            found.cached_tokens,
        ];
        assert_eq!(found, usage.map(Some), "{dialect}");
    }

    #[test]
    fn a_reply_is_the_same_in_every_dialect() {
        let message = json!({"role": "assistant", "content": "let me see",
            "reasoning_content": "hm", "tool_calls": [{"id": "c", "type": "function",
                "function": {"name": "multiply", "arguments": "{\"a\":6}"}}]});
        check(
            "chat_completions",
            json!({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                "usage": {"prompt_tokens": 9, "completion_tokens": 4,
                    "prompt_tokens_details": {"cached_tokens": 3}}}),
            message.clone(),
            "tool_calls",
            [9, 4, 3],
        );
        check(
            "responses",
            json!({"status": "completed", "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "content":
                    [{"type": "output_text", "text": "let me see"}]},
                {"type": "function_call", "call_id": "c", "name": "multiply",
                    "arguments": "{\"a\":6}"}],
                "usage": {"input_tokens": 9, "output_tokens": 4,
                    "input_tokens_details": {"cached_tokens": 3}}}),
            message.clone(),
            "completed",
            [9, 4, 3],
        );
        check(
            "messages",
            json!({"role": "assistant", "stop_reason": "tool_use", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "let me see"},
                {"type": "tool_use", "id": "c", "name": "multiply", "input": {"a": 6}}],
                "usage": {"input_tokens": 6, "output_tokens": 4, "cache_read_input_tokens": 3}}),
            message,
            "tool_use",
            [9, 4, 3],
        );
    }

    #[test]
    fn several_choices_and_plain_completions_are_read() {
        let body = json!({"choices": [{"text": "a", "finish_reason": "stop"}, {"text": "b"}]});
        let reply = read("completions", body.to_string().as_bytes());
        let texts: Vec<String> = reply.choices.iter().map(|c| c.turns[0].text()).collect();
        assert_eq!(texts, ["a", "b"]);
    }

    #[test]
    fn garbage_says_nothing() {
        for body in [
            "",
            "<html>",
            "{}",
            "[1]",
            "data: x\n\n",
            "null",
            "{\"choices\": 3}",
        ] {
            assert_eq!(
                read("chat_completions", body.as_bytes()).choices,
                [],
                "{body}"
            );
        }
    }
}
