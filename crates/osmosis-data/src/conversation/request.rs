//! Requests of the dialects.

use serde_json::{Value, json};

use super::items::{in_tokens, push_content, turns};
use super::{Role, Turn};

/// What a request asked.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Request {
    pub(super) turns: Vec<Turn>,
    /// In the shape of Chat Completions.
    pub(super) tools: Vec<Value>,
}

/// Reads a request; one that is no JSON object asks nothing.
pub(super) fn read(dialect: &str, body: &[u8]) -> Request {
    let mut body = match serde_json::from_slice::<Value>(body) {
        Ok(body) if body.is_object() => body,
        Ok(_) | Err(_) => return Request::default(),
    };
    let mut said = Vec::new();
    match dialect {
        "responses" => {
            said.extend(system(&body["instructions"]));
            match &body["input"] {
                Value::Array(items) => said.extend(turns(items)),
                Value::String(text) => said.push(Turn::said(Role::User, text)),
                _ => {}
            }
        }
        "messages" => {
            said.extend(system(&body["system"]));
            said.extend(list(&body["messages"]));
        }
        "completions" => {
            let mut turn = Turn::new(Role::User);
            push_content(&mut turn, &mut Vec::new(), &body["prompt"]);
            said.push(turn);
        }
        "generate" => said.push(in_tokens(Role::User, &body["input_ids"])),
        _ => said.extend(list(&body["messages"])),
    }
    let mut tools = match body["tools"].take() {
        Value::Array(tools) => tools,
        _ => Vec::new(),
    };
    if let Value::Array(functions) = body["functions"].take() {
        let functions = functions
            .into_iter()
            .map(|function| json!({"type": "function", "function": function}));
        tools.extend(functions);
    }
    Request {
        turns: said,
        tools: tools.into_iter().map(chat_tool).collect(),
    }
}

fn list(messages: &Value) -> Vec<Turn> {
    messages
        .as_array()
        .map_or_else(Vec::new, |list| turns(list))
}

fn system(content: &Value) -> Option<Turn> {
    let mut turn = Turn::new(Role::System);
    push_content(&mut turn, &mut Vec::new(), content);
    (!turn.content.is_empty()).then_some(turn)
}

/// A tool in the shape of Chat Completions; what is no function stays as it is.
fn chat_tool(mut tool: Value) -> Value {
    if tool.get("function").is_some() || tool["name"].as_str().is_none() {
        return tool;
    }
    let parameters = match (tool.get("parameters"), tool.get("input_schema")) {
        (Some(_), _) => tool["parameters"].take(),
        (None, Some(_)) => tool["input_schema"].take(),
        (None, None) => return tool,
    };
    let mut function = json!({"name": tool["name"]});
    for name in ["description", "strict"] {
        if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
            function[name] = value.clone();
        }
    }
    function["parameters"] = parameters;
    json!({"type": "function", "function": function})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(dialect: &str, body: &Value) -> (Vec<Value>, Vec<Value>) {
        let request = read(dialect, body.to_string().as_bytes());
        let messages = request.turns.iter().map(Turn::chat_message).collect();
        (messages, request.tools)
    }

    fn expected() -> (Vec<Value>, Vec<Value>) {
        let messages = vec![
            json!({"role": "system", "content": "be brief"}),
            json!({"role": "user", "content": "6 * 7?"}),
        ];
        let tools = vec![json!({"type": "function", "function": {"name": "multiply",
            "description": "times", "parameters": {"type": "object"}}})];
        (messages, tools)
    }

    #[test]
    fn a_request_is_the_same_in_every_dialect() {
        let function = json!({"name": "multiply", "description": "times",
            "parameters": {"type": "object"}});
        let chat = json!({"model": "m", "messages": [
            {"role": "system", "content": "be brief"}, {"role": "user", "content": "6 * 7?"}],
            "tools": [{"type": "function", "function": function}]});
        assert_eq!(asked("chat_completions", &chat), expected());
        let old = json!({"messages": chat["messages"], "functions": [function]});
        assert_eq!(asked("chat_completions", &old), expected());
        for input in [
            json!("6 * 7?"),
            json!([{"role": "user", "content": [{"type": "input_text", "text": "6 * 7?"}]}]),
        ] {
            let responses = json!({"instructions": "be brief", "input": input, "tools": [
                {"type": "function", "name": "multiply", "description": "times", "strict": null,
                    "parameters": {"type": "object"}}]});
            assert_eq!(asked("responses", &responses), expected());
        }
        for system in [
            json!("be brief"),
            json!([{"type": "text", "text": "be brief"}]),
        ] {
            let messages = json!({"system": system,
                "messages": [{"role": "user", "content": "6 * 7?"}],
                "tools": [{"name": "multiply", "description": "times",
                    "input_schema": {"type": "object"}}]});
            assert_eq!(asked("messages", &messages), expected());
        }
    }

    #[test]
    fn a_prompt_is_what_the_user_said_and_garbage_is_nothing() {
        let (messages, _) = asked("completions", &json!({"prompt": "once upon"}));
        assert_eq!(messages, [json!({"role": "user", "content": "once upon"})]);
        assert_eq!(read("chat_completions", b"\xff{"), Request::default());
    }
}
