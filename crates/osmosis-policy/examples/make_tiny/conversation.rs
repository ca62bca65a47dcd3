//! Conversations in the form that the agent of `examples/calculator` has them.

use serde_json::{Value, json};

use super::questions::{Operation, Question};

/// ChatML with Hermes tool calls. A tool is described by its name and the names of its parameters.
#[allow(dead_code, reason = "a module that programs share")]
pub(crate) const CHAT_TEMPLATE: &str = include_str!("chat_template.jinja");

/// The agent's `instructions`.
pub(crate) const INSTRUCTIONS: &str = "Use the tool, then answer with the number alone.";

/// The tools of a request, as the OpenAI Agents SDK sends them for the agent.
pub(crate) fn tools() -> Vec<Value> {
    vec![json!({
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Apply add, subtract, multiply, divide, remainder, larger, smaller or average to two integers.",
            "parameters": {
                "properties": {
                    "a": {"title": "A", "type": "integer"},
                    "operation": {"title": "Operation", "type": "string"},
                    "b": {"title": "B", "type": "integer"}
                },
                "required": ["a", "operation", "b"],
                "title": "calculate_args",
                "type": "object",
                "additionalProperties": false
            },
            "strict": true
        }
    })]
}

/// The messages of the agent's first request.
pub(crate) fn asked(question: &Question) -> Vec<Value> {
    vec![
        json!({"content": INSTRUCTIONS, "role": "system"}),
        json!({"role": "user", "content": question.text}),
    ]
}

pub(crate) fn tool_call(id: &str, name: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

pub(crate) fn calling(tool_calls: &[Value]) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": tool_calls})
}

pub(crate) fn tool_result(id: &str, content: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": content})
}

pub(crate) fn saying(content: &str) -> Value {
    json!({"role": "assistant", "content": content})
}

/// A whole conversation in which the tool is called with these arguments, right or wrong, and its result
/// is the answer.
pub(crate) fn answered(question: &Question, operation: Operation, a: i64, b: i64) -> Vec<Value> {
    let arguments = format!(
        r#"{{"a": {a}, "operation": "{}", "b": {b}}}"#,
        operation.name()
    );
    let result = operation.apply(a, b).unwrap_or_default().to_string();
    let mut messages = asked(question);
    messages.push(calling(&[tool_call("call_0", "calculate", &arguments)]));
    messages.push(tool_result("call_0", &result));
    messages.push(saying(&result));
    messages
}
