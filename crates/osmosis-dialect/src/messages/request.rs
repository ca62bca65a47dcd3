//! A Messages request as a chat request.

use serde_json::{Map, Value, json};

use super::blocks;
use super::reply::ReplyWriter;
use crate::conversation::{Conversation, content_of, text_part};
use crate::fields::{Fields, put};
use crate::rejection::RequestError;
use crate::translation::ReplyStamp;

/// What means the same under the same name in both, or to servers that know more than chat.
const SAME: [&str; 5] = ["stream", "max_tokens", "temperature", "top_p", "top_k"];

/// Hints about price, speed and caching; and `thinking`, which a policy does or does not do by itself.
const WITHOUT_EFFECT: [&str; 7] = [
    "cache_control",
    "diagnostics",
    "inference_geo",
    "service_tier",
    "speed",
    "thinking",
    "user_profile_id",
];

/// The chat request that stands for `body`, and who writes its reply.
pub(crate) fn to_chat(
    body: Map<String, Value>,
    stamp: ReplyStamp,
) -> Result<(Map<String, Value>, ReplyWriter), RequestError> {
    let asked_model = body.get("model").and_then(Value::as_str);
    let writer = ReplyWriter::new(asked_model.unwrap_or_default().to_owned(), stamp);
    let mut fields = Fields::top(body);
    for name in ["container", "mcp_servers", "context_management"] {
        fields.refuse(name, "nothing but the model is run here")?;
    }
    fields.refuse_several_choices()?;

    let mut chat = Map::new();
    put(&mut chat, "model", fields.take("model"));
    let messages = messages(&mut fields)?;
    chat.insert("messages".to_owned(), Value::Array(messages));
    tools(&mut fields, &mut chat)?;
    tool_choice(&mut fields, &mut chat)?;
    for name in SAME {
        put(&mut chat, name, fields.take(name));
    }
    let stops = fields.list("stop_sequences")?;
    if !stops.is_empty() {
        chat.insert("stop".to_owned(), Value::Array(stops));
    }
    if let Some(mut metadata) = fields.object("metadata")? {
        put(&mut chat, "user", metadata.take("user_id"));
    }
    output_format(&mut fields, &mut chat)?;
    for name in WITHOUT_EFFECT {
        fields.take(name);
    }
    fields.rest_into(&mut chat);
    Ok((chat, writer))
}

fn messages(fields: &mut Fields) -> Result<Vec<Value>, RequestError> {
    let mut conversation = Conversation::default();
    match fields.take("system") {
        None => {}
        Some(Value::String(text)) => conversation.message("system", Value::from(text)),
        Some(Value::Array(blocks)) => {
            let mut parts = Vec::with_capacity(blocks.len());
            for (index, block) in blocks.into_iter().enumerate() {
                let mut block = Fields::of(&format!("system[{index}]"), block)?;
                parts.push(text_part(&block.needed_text("text")?));
            }
            if !parts.is_empty() {
                conversation.message("system", content_of(parts));
            }
        }
        Some(_) => return Err(fields.wrong("system", "is neither a text nor an array of blocks")),
    }
    let Some(Value::Array(messages)) = fields.take("messages") else {
        return Err(fields.wrong("messages", "is missing or not an array"));
    };
    if messages.is_empty() {
        return Err(fields.wrong("messages", "is empty"));
    }
    let mut last = String::new();
    for (index, message) in messages.into_iter().enumerate() {
        let place = format!("messages[{index}]");
        last = blocks::add(&mut conversation, &place, message)?;
    }
    if last == "assistant" {
        return Err(fields.unsupported(
            "messages",
            "the last message is the assistant's, and going on with it can't be said in chat",
        ));
    }
    Ok(conversation.into_messages())
}

fn tools(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), RequestError> {
    let mut offered = Vec::new();
    for (index, tool) in fields.list("tools")?.into_iter().enumerate() {
        let mut tool = Fields::of(&format!("tools[{index}]"), tool)?;
        if !matches!(tool.text("type")?.as_deref(), None | Some("custom")) {
            return Err(tool.unsupported("type", "only tools with an `input_schema` of their own"));
        }
        let mut function = Map::new();
        function.insert("name".to_owned(), Value::from(tool.needed_text("name")?));
        put(&mut function, "description", tool.take("description"));
        put(&mut function, "parameters", tool.take("input_schema"));
        put(&mut function, "strict", tool.take("strict"));
        offered.push(json!({"type": "function", "function": function}));
    }
    if !offered.is_empty() {
        chat.insert("tools".to_owned(), Value::Array(offered));
    }
    Ok(())
}

fn tool_choice(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), RequestError> {
    let Some(mut choice) = fields.object("tool_choice")? else {
        return Ok(());
    };
    let chosen = match choice.needed_text("type")?.as_str() {
        "auto" => json!("auto"),
        "any" => json!("required"),
        "none" => json!("none"),
        "tool" => json!({"type": "function", "function": {"name": choice.needed_text("name")?}}),
        _ => return Err(choice.wrong("type", "is none of auto, any, tool and none")),
    };
    chat.insert("tool_choice".to_owned(), chosen);
    if choice.flag("disable_parallel_tool_use")? {
        chat.insert("parallel_tool_calls".to_owned(), json!(false));
    }
    Ok(())
}

/// `output_config`, and `output_format` as it was called before.
fn output_format(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), RequestError> {
    let mut format = fields.object("output_format")?;
    if let Some(mut config) = fields.object("output_config")? {
        put(chat, "reasoning_effort", config.take("effort"));
        format = config.object("format")?.or(format);
    }
    let Some(mut format) = format else {
        return Ok(());
    };
    if format.needed_text("type")? != "json_schema" {
        return Err(format.unsupported("type", "only `json_schema`"));
    }
    let schema = format.take("schema").unwrap_or_default();
    let asked = json!({"name": "output", "schema": schema, "strict": true});
    chat.insert(
        "response_format".to_owned(),
        json!({"type": "json_schema", "json_schema": asked}),
    );
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
            "model": "m", "max_tokens": 9, "stream": true,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
                    {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Let me look.", "signature": ""},
                    {"type": "text", "text": "Looking."},
                    {"type": "tool_use", "id": "call_1", "name": "look", "input": {"b": 1, "a": 2}},
                    {"type": "tool_use", "id": "call_2", "name": "look", "input": {"raw_arguments": "{oops"}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": "a cat"},
                    {"type": "tool_result", "tool_use_id": "call_2", "is_error": true,
                        "content": [{"type": "text", "text": "no"}]},
                    {"type": "text", "text": "Go on."}]},
            ],
            "tools": [{"name": "look", "description": "d", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "stop_sequences": ["END"], "top_k": 5, "temperature": 0.5,
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"},
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
            "repetition_penalty": 1.1,
        }));
        insta::assert_json_snapshot!(asked);
    }

    #[test]
    fn what_cannot_be_said_in_chat_is_refused_by_name() {
        let user = json!([{"role": "user", "content": "hi"}]);
        for (body, named) in [
            (
                json!({"messages": user, "mcp_servers": [{"url": "x"}]}),
                "`mcp_servers`",
            ),
            (json!({"messages": user, "container": "c"}), "`container`"),
            (
                json!({"messages": user, "tools": [{"type": "web_search_20250305", "name": "w"}]}),
                "`tools[0].type`",
            ),
            (
                json!({"messages": user, "tool_choice": {"type": "all"}}),
                "`tool_choice.type`",
            ),
            (
                json!({"messages": user, "tool_choice": "auto"}),
                "`tool_choice` is not an object",
            ),
            (
                json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}]}),
                "the last message is the assistant's",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}),
                "`messages[0].content[0].type`",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}),
                "`messages[0].content[0].source.type`",
            ),
            (
                json!({"messages": [{"role": "robot", "content": "x"}]}),
                "`messages[0].role`",
            ),
            (json!({"messages": []}), "`messages` is empty"),
            (
                json!({"messages": "hi"}),
                "`messages` is missing or not an array",
            ),
            (json!({}), "`messages` is missing"),
            (
                json!({"messages": user, "system": 7}),
                "`system` is neither",
            ),
            (
                json!({"messages": user, "stop_sequences": "x"}),
                "`stop_sequences` is not an array",
            ),
        ] {
            let refused = chat(body.clone());
            let message = refused["refused"].as_str().unwrap_or_default();
            assert!(message.contains(named), "{body}: {refused}");
        }
    }
}
