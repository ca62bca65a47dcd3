//! Content blocks of a Messages conversation as chat messages.

use serde_json::{Value, json};

use super::RAW_ARGUMENTS;
use crate::conversation::{Conversation, content_of, image_part, text_part};
use crate::fields::Fields;
use crate::rejection::RequestError;

/// Adds the message that stands at `place` to a conversation, and returns its role.
pub(super) fn add(
    conversation: &mut Conversation,
    place: &str,
    message: Value,
) -> Result<String, RequestError> {
    let mut message = Fields::of(place, message)?;
    let role = message.needed_text("role")?;
    let blocks = match message.take("content") {
        None => return Err(message.wrong("content", "is missing")),
        Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
        Some(Value::Array(blocks)) => blocks,
        Some(_) => return Err(message.wrong("content", "is neither a text nor an array of blocks")),
    };
    let blocks = blocks
        .into_iter()
        .enumerate()
        .map(|(index, block)| Fields::of(&format!("{}[{index}]", message.place("content")), block));
    match role.as_str() {
        "user" | "system" => others(conversation, &role, blocks)?,
        "assistant" => assistants(conversation, blocks)?,
        _ => return Err(message.wrong("role", "is none of user, assistant and system")),
    }
    Ok(role)
}

/// Results of tools are messages of their own in chat, before what the user says beside them.
fn others(
    conversation: &mut Conversation,
    role: &str,
    blocks: impl Iterator<Item = Result<Fields, RequestError>>,
) -> Result<(), RequestError> {
    let mut parts = Vec::new();
    let mut results = false;
    for block in blocks {
        let mut block = block?;
        let kind = block.needed_text("type")?;
        if kind == "tool_result" {
            results = true;
            let id = block.needed_text("tool_use_id")?;
            let content = result(&mut block)?;
            conversation.tool_result(&id, content);
        } else {
            parts.push(part(&kind, block)?);
        }
    }
    if !parts.is_empty() || !results {
        conversation.message(role, content_of(parts));
    }
    Ok(())
}

/// What a tool gave. That it failed is not something chat has a field for: the text has to say it.
fn result(block: &mut Fields) -> Result<Value, RequestError> {
    let blocks = match block.take("content") {
        None => return Ok(json!("")),
        Some(text @ Value::String(_)) => return Ok(text),
        Some(Value::Array(blocks)) => blocks,
        Some(_) => return Err(block.wrong("content", "is neither a text nor an array of blocks")),
    };
    let mut parts = Vec::with_capacity(blocks.len());
    for (index, inner) in blocks.into_iter().enumerate() {
        let mut inner = Fields::of(&format!("{}[{index}]", block.place("content")), inner)?;
        let kind = inner.needed_text("type")?;
        parts.push(part(&kind, inner)?);
    }
    Ok(content_of(parts))
}

fn part(kind: &str, mut block: Fields) -> Result<Value, RequestError> {
    match kind {
        "text" => Ok(text_part(&block.needed_text("text")?)),
        "image" => {
            let mut source = source(&mut block)?;
            match source.needed_text("type")?.as_str() {
                "base64" => Ok(image_part(&data_url(&mut source)?, None)),
                "url" => Ok(image_part(&source.needed_text("url")?, None)),
                _ => Err(source.unsupported("type", "images are sent as `base64` or `url`")),
            }
        }
        "document" => {
            let title = block.text("title")?;
            let mut source = source(&mut block)?;
            match source.needed_text("type")?.as_str() {
                "text" => Ok(text_part(&source.needed_text("data")?)),
                "base64" => {
                    let mut file = json!({"file_data": data_url(&mut source)?});
                    if let Some(title) = title {
                        file["filename"] = json!(title);
                    }
                    Ok(json!({"type": "file", "file": file}))
                }
                _ => Err(source.unsupported("type", "documents are sent as `base64` or `text`")),
            }
        }
        _ => Err(block.unsupported(
            "type",
            "blocks are texts, images, documents, thinking, tool uses and tool results",
        )),
    }
}

fn source(block: &mut Fields) -> Result<Fields, RequestError> {
    match block.object("source")? {
        Some(source) => Ok(source),
        None => Err(block.wrong("source", "is missing")),
    }
}

fn data_url(source: &mut Fields) -> Result<String, RequestError> {
    let kind = source.needed_text("media_type")?;
    Ok(format!(
        "data:{kind};base64,{}",
        source.needed_text("data")?
    ))
}

fn assistants(
    conversation: &mut Conversation,
    blocks: impl Iterator<Item = Result<Fields, RequestError>>,
) -> Result<(), RequestError> {
    conversation.end_turn();
    let mut spoke = false;
    for block in blocks {
        let mut block = block?;
        match block.needed_text("type")?.as_str() {
            "text" => conversation.went_on(&block.needed_text("text")?),
            "thinking" => conversation.thought(&block.needed_text("thinking")?),
            // Nobody but who made it can read it.
            "redacted_thinking" => continue,
            "tool_use" => {
                let id = block.needed_text("id")?;
                let name = block.needed_text("name")?;
                let input = block.take("input").unwrap_or_else(|| json!({}));
                conversation.called(&id, &name, &arguments(&input));
            }
            _ => return Err(block.unsupported("type", "an assistant says, thinks and uses tools")),
        }
        spoke = true;
    }
    if !spoke {
        conversation.went_on("");
    }
    conversation.end_turn();
    Ok(())
}

/// The arguments of a call as chat has them: a text.
fn arguments(input: &Value) -> String {
    match input.as_object() {
        Some(fields) if fields.len() == 1 => match fields.get(RAW_ARGUMENTS) {
            Some(Value::String(raw)) => raw.clone(),
            _ => input.to_string(),
        },
        _ => input.to_string(),
    }
}
