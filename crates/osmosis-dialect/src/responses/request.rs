//! A Responses request as a chat request.

use serde_json::{Map, Value, json};

use super::input;
use super::reply::ReplyWriter;
use crate::conversation::Conversation;
use crate::fields::{Fields, put};
use crate::rejection::RequestError;
use crate::translation::ReplyStamp;

const NO_STATE: &str = "the gateway keeps no responses; send the whole conversation as `input`";

/// What means the same under the same name in both.
const SAME: [&str; 9] = [
    "stream",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// Asks for nothing that an answer would lack: a limit for tools that are refused anyway, labels, and
/// hints for a server that keeps things.
const WITHOUT_EFFECT: [&str; 3] = ["max_tool_calls", "stream_options", "prompt_cache_options"];

/// The fields that a response repeats from its request, with what they are when it has none.
fn repeated() -> Map<String, Value> {
    let defaults = json!({
        "instructions": null,
        "max_output_tokens": null,
        "max_tool_calls": null,
        "metadata": {},
        "parallel_tool_calls": true,
        "reasoning": {"effort": null, "summary": null},
        "temperature": null,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": null,
        "user": null,
    });
    match defaults {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The chat request that stands for `body`, and who writes its reply.
pub(crate) fn to_chat(
    body: Map<String, Value>,
    stamp: ReplyStamp,
) -> Result<(Map<String, Value>, ReplyWriter), RequestError> {
    let mut repeat = repeated();
    for (name, value) in &mut repeat {
        if let Some(given) = body.get(name).filter(|given| !given.is_null()) {
            value.clone_from(given);
        }
    }
    let asked_model = body.get("model").and_then(Value::as_str);
    let asked_model = asked_model.unwrap_or_default().to_owned();
    let mut fields = Fields::top(body);
    refuse_state(&mut fields)?;

    let mut chat = Map::new();
    put(&mut chat, "model", fields.take("model"));
    let messages = messages(&mut fields)?;
    chat.insert("messages".to_owned(), Value::Array(messages));
    tools(&mut fields, &mut chat)?;
    put(&mut chat, "max_tokens", fields.take("max_output_tokens"));
    for name in SAME {
        put(&mut chat, name, fields.take(name));
    }
    text_format(&mut fields, &mut chat)?;
    if let Some(mut reasoning) = fields.object("reasoning")? {
        put(&mut chat, "reasoning_effort", reasoning.take("effort"));
    }
    logprobs(&mut fields, &mut chat)?;
    fields.take("metadata");
    for name in WITHOUT_EFFECT {
        fields.take(name);
    }
    fields.rest_into(&mut chat);
    Ok((chat, ReplyWriter::new(asked_model, repeat, stamp)))
}

fn refuse_state(fields: &mut Fields) -> Result<(), RequestError> {
    for name in ["previous_response_id", "conversation", "prompt"] {
        fields.refuse(name, NO_STATE)?;
    }
    fields.refuse("store", NO_STATE)?;
    fields.refuse("background", "the answer comes with the call")?;
    fields.refuse("context_management", "nothing is compacted")?;
    fields.refuse("moderation", "nothing is moderated")?;
    fields.refuse_several_choices()?;
    match fields.text("truncation")?.as_deref() {
        None | Some("disabled") => Ok(()),
        Some(_) => Err(fields.unsupported("truncation", "nothing is left out of a conversation")),
    }
}

fn messages(fields: &mut Fields) -> Result<Vec<Value>, RequestError> {
    let mut conversation = Conversation::default();
    if let Some(instructions) = fields.text("instructions")? {
        conversation.message("system", Value::from(instructions));
    }
    match fields.take("input") {
        None => return Err(fields.wrong("input", "is missing")),
        Some(Value::String(text)) => conversation.message("user", Value::from(text)),
        Some(Value::Array(items)) => {
            for (index, item) in items.into_iter().enumerate() {
                input::add(&mut conversation, &format!("input[{index}]"), item)?;
            }
        }
        Some(_) => {
            return Err(fields.wrong("input", "is neither a text nor an array of items"));
        }
    }
    if conversation.is_empty() {
        return Err(fields.wrong("input", "is empty"));
    }
    Ok(conversation.into_messages())
}

fn tools(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), RequestError> {
    let mut offered = Vec::new();
    for (index, tool) in fields.list("tools")?.into_iter().enumerate() {
        let mut tool = Fields::of(&format!("tools[{index}]"), tool)?;
        if tool.needed_text("type")? != "function" {
            return Err(tool.unsupported("type", "only functions, which the caller runs itself"));
        }
        let mut function = Map::new();
        function.insert("name".to_owned(), Value::from(tool.needed_text("name")?));
        for name in ["description", "parameters", "strict"] {
            put(&mut function, name, tool.take(name));
        }
        offered.push(json!({"type": "function", "function": function}));
    }
    if !offered.is_empty() {
        chat.insert("tools".to_owned(), Value::Array(offered));
    }
    let choice = match fields.take("tool_choice") {
        None => return Ok(()),
        Some(Value::String(choice)) => Value::from(choice),
        Some(choice) => {
            let mut choice = Fields::of("tool_choice", choice)?;
            if choice.needed_text("type")? != "function" {
                return Err(choice.unsupported("type", "a text, or a function by its name"));
            }
            json!({"type": "function", "function": {"name": choice.needed_text("name")?}})
        }
    };
    chat.insert("tool_choice".to_owned(), choice);
    Ok(())
}

fn text_format(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), RequestError> {
    let Some(mut text) = fields.object("text")? else {
        return Ok(());
    };
    put(chat, "verbosity", text.take("verbosity"));
    let Some(mut format) = text.object("format")? else {
        return Ok(());
    };
    let asked = match format.needed_text("type")?.as_str() {
        "text" => return Ok(()),
        "json_object" => json!({"type": "json_object"}),
        "json_schema" => {
            let mut schema = Map::new();
            for name in ["name", "description", "schema", "strict"] {
                put(&mut schema, name, format.take(name));
            }
            json!({"type": "json_schema", "json_schema": schema})
        }
        _ => return Err(format.unsupported("type", "`text`, `json_object` or `json_schema`")),
    };
    chat.insert("response_format".to_owned(), asked);
    Ok(())
}

/// Logprobs come when the answer shall include them, alternatives too when some are asked for.
fn logprobs(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), RequestError> {
    let included = fields
        .list("include")?
        .iter()
        .any(|what| what == "message.output_text.logprobs");
    let alternatives = fields.take("top_logprobs");
    let some = alternatives.as_ref().is_some_and(|count| *count != 0);
    if included || some {
        chat.insert("logprobs".to_owned(), Value::Bool(true));
        put(chat, "top_logprobs", alternatives);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: Value) -> Value {
        let Value::Object(body) = body else {
            panic!("a request is an object")
        };
        to_chat(body, ReplyStamp::default()).map_or_else(
            |refusal| json!({"refused": refusal.message()}),
            |(chat, _)| Value::Object(chat),
        )
    }

    #[test]
    fn a_conversation_with_tools_becomes_chat_messages() {
        let asked = chat(json!({
            "model": "m", "instructions": "Be brief.", "max_output_tokens": 9, "stream": true,
            "input": [
                {"role": "developer", "content": "Use tools."},
                {"role": "user", "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}]},
                {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
                    {"type": "reasoning_text", "text": "Let me "}, {"type": "reasoning_text", "text": "look."}]},
                {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": "Looking.", "annotations": []}]},
                {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": "{}"},
                {"type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "look", "arguments": "{\"a\":1}"},
                {"type": "function_call_output", "call_id": "call_1", "output": "a cat"},
                {"type": "function_call_output", "call_id": "call_2", "output": [
                    {"type": "input_text", "text": "a dog"}]},
            ],
            "tools": [{"type": "function", "name": "look", "description": "d", "parameters": {"type": "object"},
                "strict": true}],
            "tool_choice": {"type": "function", "name": "look"}, "parallel_tool_calls": false,
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true},
                "verbosity": "low"},
            "include": ["message.output_text.logprobs"], "top_logprobs": 2, "top_k": 5,
            "metadata": {"a": "b"}, "store": false, "previous_response_id": null,
        }));
        insta::assert_json_snapshot!(asked);
    }

    #[test]
    fn what_needs_state_or_another_server_is_refused_by_name() {
        let user = json!("hi");
        for (body, named) in [
            (
                json!({"input": user, "previous_response_id": "resp_1"}),
                "`previous_response_id`",
            ),
            (json!({"input": user, "store": true}), "`store`"),
            (json!({"input": user, "background": true}), "`background`"),
            (
                json!({"input": user, "conversation": {"id": "c"}}),
                "`conversation`",
            ),
            (json!({"input": user, "truncation": "auto"}), "`truncation`"),
            (json!({"input": user, "n": 2}), "`n`"),
            (
                json!({"input": user, "tools": [{"type": "web_search"}]}),
                "`tools[0].type`",
            ),
            (
                json!({"input": user, "tool_choice": {"type": "file_search"}}),
                "`tool_choice.type`",
            ),
            (
                json!({"input": user, "text": {"format": {"type": "xml"}}}),
                "`text.format.type`",
            ),
            (
                json!({"input": [{"type": "item_reference", "id": "x"}]}),
                "`input[0].type`",
            ),
            (
                json!({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}),
                "`input[0].content[0].image_url`",
            ),
            (json!({"input": []}), "`input` is empty"),
            (json!({}), "`input` is missing"),
            (json!({"input": 7}), "`input` is neither"),
            (json!({"input": [7]}), "`input[0]` is not an object"),
            (
                json!({"input": user, "tools": {}}),
                "`tools` is not an array",
            ),
            (
                json!({"input": user, "instructions": []}),
                "`instructions` is not a text",
            ),
        ] {
            let refused = chat(body.clone());
            let message = refused["refused"].as_str().unwrap_or_default();
            assert!(message.contains(named), "{body}: {refused}");
        }
    }
}
