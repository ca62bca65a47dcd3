//! Messages and items of every shape as turns.

use serde_json::Value;

use super::blocks::{arguments_text, push_block, text_of};
use super::{Part, Role, ToolCall, Turn};

/// The turns that a list of messages tells.
pub(super) fn turns(items: &[Value]) -> Vec<Turn> {
    let mut turns = Turns::default();
    for item in items {
        turns.item(item);
    }
    turns.end_open();
    turns.done
}

#[derive(Default)]
struct Turns {
    done: Vec<Turn>,
    /// The items of one reply of Responses stand one after the other.
    open: Option<Turn>,
}

impl Turns {
    fn item(&mut self, item: &Value) {
        match item["type"].as_str() {
            Some("function_call" | "custom_tool_call") => {
                let arguments = item.get("arguments").or_else(|| item.get("input"));
                let call = tool_call(&item["call_id"], &item["name"], arguments);
                self.open().tool_calls.push(call);
            }
            Some("function_call_output" | "custom_tool_call_output") => {
                let mut turn = Turn::new(Role::Tool);
                turn.answers = text_at(item, "call_id");
                push_content(&mut turn, &mut Vec::new(), &item["output"]);
                self.push(turn);
            }
            Some("reasoning") => {
                let summary = text_of(&item["summary"]);
                let thought = if summary.is_empty() {
                    text_of(&item["content"])
                } else {
                    summary
                };
                self.open().push_reasoning(&thought);
            }
            Some("message") if item["role"] == "assistant" => {
                let open = self.open();
                push_content(open, &mut Vec::new(), &item["content"]);
            }
            Some("message") | None if item["role"].is_string() => self.message(item),
            _ => self.open().content.push(Part::Other(item.clone())),
        }
    }

    fn message(&mut self, message: &Value) {
        let role = match message["role"].as_str() {
            Some("system" | "developer") => Role::System,
            Some("assistant" | "model") => Role::Assistant,
            Some("tool" | "function") => Role::Tool,
            _ => Role::User,
        };
        let mut turn = Turn::new(role);
        let mut results = Vec::new();
        for name in ["reasoning_content", "reasoning"] {
            if turn.reasoning.is_none() {
                turn.push_reasoning(message[name].as_str().unwrap_or_default());
            }
        }
        push_content(&mut turn, &mut results, &message["content"]);
        if let Some(refusal) = message["refusal"].as_str() {
            turn.push_text(refusal.to_owned());
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            // `custom` holds free text, `function` JSON.
            let called = call.get("function").unwrap_or(&call["custom"]);
            let arguments = called.get("arguments").or_else(|| called.get("input"));
            let call = tool_call(&call["id"], &called["name"], arguments);
            turn.tool_calls.push(call);
        }
        if let Some(call) = message.get("function_call").filter(|call| call.is_object()) {
            let call = tool_call(&Value::Null, &call["name"], call.get("arguments"));
            turn.tool_calls.push(call);
        }
        if role == Role::Tool {
            turn.answers = text_at(message, "tool_call_id");
        }
        // Anthropic and Strands send the results of tools in a message of the user.
        let only_results = !results.is_empty() && turn.content.is_empty();
        for result in results {
            self.push(result);
        }
        if !only_results {
            self.push(turn);
        }
    }

    fn open(&mut self) -> &mut Turn {
        self.open.get_or_insert_with(|| Turn::new(Role::Assistant))
    }

    fn end_open(&mut self) {
        self.done.extend(self.open.take());
    }

    fn push(&mut self, turn: Turn) {
        self.end_open();
        self.done.push(turn);
    }
}

/// Adds content to a turn: a text, a block, or a list of either. Tools' results are turns of their own.
pub(super) fn push_content(turn: &mut Turn, results: &mut Vec<Turn>, content: &Value) {
    match content {
        Value::Null => {}
        Value::String(text) => turn.push_text(text.clone()),
        Value::Array(blocks) => {
            for block in blocks {
                push_content(turn, results, block);
            }
        }
        Value::Object(_) => push_block(turn, results, content),
        other => turn.push_text(other.to_string()),
    }
}

pub(super) fn tool_call(id: &Value, name: &Value, arguments: Option<&Value>) -> ToolCall {
    ToolCall {
        id: id.as_str().unwrap_or_default().to_owned(),
        name: name.as_str().unwrap_or_default().to_owned(),
        arguments: arguments.map(arguments_text).unwrap_or_default(),
    }
}

/// A turn of a call that was made in token ids.
pub(super) fn in_tokens(role: Role, ids: &Value) -> Turn {
    let ids = ids.as_array().into_iter().flatten();
    let ids = ids.filter_map(|id| u32::try_from(id.as_u64()?).ok());
    let mut turn = Turn::new(role);
    turn.token_ids = Some(ids.collect());
    turn
}

pub(super) fn text_at(value: &Value, key: &str) -> Option<String> {
    value[key].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conversation::Conversation;

    /// What the messages become in the shape of Chat Completions.
    #[expect(clippy::needless_pass_by_value, reason = "tests read better")]
    fn check(messages: Value, expected: Value) {
        let conversation = Conversation::of_messages(messages.as_array().unwrap());
        assert_eq!(Value::from(conversation.chat_messages()), expected);
    }

    fn called() -> Value {
        json!([
            {"role": "user", "content": "6 * 7?"},
            {"role": "assistant", "content": "let me see", "tool_calls": [{"id": "c", "type": "function",
                "function": {"name": "multiply", "arguments": "{\"a\":6}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "42"},
            {"role": "assistant", "content": "42"},
        ])
    }

    #[test]
    fn chat_messages_stay_what_they_are() {
        check(called(), called());
        check(
            json!([{"role": "developer", "content": [{"type": "text", "text": "be brief"}]},
                {"role": "assistant", "content": null, "refusal": "no", "reasoning_content": "hm"}]),
            json!([{"role": "system", "content": "be brief"},
                {"role": "assistant", "content": "no", "reasoning_content": "hm"}]),
        );
    }

    #[test]
    fn items_of_a_reply_of_responses_are_one_turn() {
        check(
            json!([
                {"role": "user", "content": "6 * 7?"},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "use the tool"}]},
                {"type": "message", "role": "assistant",
                    "content": [{"type": "output_text", "text": "let me see"}]},
                {"type": "function_call", "call_id": "c", "name": "multiply", "arguments": "{\"a\":6}"},
                {"type": "function_call_output", "call_id": "c", "output": "42"},
                {"type": "message", "role": "assistant",
                    "content": [{"type": "output_text", "text": "42"}]},
            ]),
            {
                let mut expected = called();
                expected[1]["reasoning_content"] = json!("use the tool");
                expected
            },
        );
    }

    #[test]
    fn blocks_of_anthropic_are_calls_and_results() {
        check(
            json!([
                {"role": "user", "content": "6 * 7?"},
                {"role": "assistant", "content": [{"type": "text", "text": "let me see"},
                    {"type": "tool_use", "id": "c", "name": "multiply", "input": {"a": 6}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c",
                    "content": [{"type": "text", "text": "42"}]}]},
                {"role": "assistant", "content": [{"type": "text", "text": "42"}]},
            ]),
            called(),
        );
    }

    #[test]
    fn blocks_of_strands_are_calls_and_results() {
        check(
            json!([
                {"role": "user", "content": [{"text": "6 * 7?"}]},
                {"role": "assistant", "content": [{"text": "let me see"},
                    {"toolUse": {"toolUseId": "c", "name": "multiply", "input": {"a": 6}}}]},
                {"role": "user", "content": [{"toolResult": {"toolUseId": "c", "status": "success",
                    "content": [{"text": "42"}]}}]},
                {"role": "assistant", "content": [{"text": "42"}]},
            ]),
            called(),
        );
    }

    #[test]
    fn blocks_of_rig_are_calls_and_results() {
        check(
            json!([
                {"role": "user", "content": "6 * 7?"},
                {"role": "assistant", "content": [{"type": "text", "text": "let me see"},
                    {"type": "toolcall", "id": "c", "function":
                        {"name": "multiply", "arguments": {"a": 6}}}]},
                {"role": "user", "content": [{"type": "toolresult", "id": "c",
                    "content": [{"type": "json", "value": 42}]}]},
                {"role": "assistant", "content": "42"},
            ]),
            called(),
        );
    }

    #[test]
    fn what_a_tool_says_of_its_failure_is_kept() {
        let messages = json!([{"role": "user", "content": [{"type": "tool_result",
            "tool_use_id": "c", "is_error": true, "content": "boom"}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "c", "status": "error",
                "content": [{"text": "boom"}]}}]}]);
        let found = turns(messages.as_array().unwrap());
        assert!(found.iter().all(|turn| turn.is_error));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn text_beside_a_tool_s_result_comes_after_it() {
        check(
            json!([{"role": "user", "content": [{"type": "text", "text": "go on"},
                {"type": "tool_result", "tool_use_id": "c", "content": "42"}]}]),
            json!([{"role": "tool", "tool_call_id": "c", "content": "42"},
                {"role": "user", "content": "go on"}]),
        );
    }

    #[test]
    fn pictures_are_kept_whatever_dialect_shows_them() {
        let expected = json!([{"role": "user", "content": [{"type": "text", "text": "what is it?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]);
        let text = json!({"type": "text", "text": "what is it?"});
        for image in [
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}),
            json!({"type": "input_image", "image_url": "data:image/png;base64,AAAA"}),
            json!({"type": "image", "source":
                {"type": "base64", "media_type": "image/png", "data": "AAAA"}}),
        ] {
            check(
                json!([{"role": "user", "content": [text, image]}]),
                expected.clone(),
            );
        }
    }

    #[test]
    fn what_is_unknown_is_kept_and_not_dropped() {
        check(
            json!([{"type": "web_search_call", "id": "w"}]),
            json!([{"role": "assistant", "content": "{\"type\":\"web_search_call\",\"id\":\"w\"}"}]),
        );
    }
}
