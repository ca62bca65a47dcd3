//! Items of a Responses conversation as chat messages.

use serde_json::{Value, json};

use crate::conversation::{Conversation, content_of, image_part, text_part};
use crate::fields::Fields;
use crate::rejection::RequestError;

/// Adds the item that stands at `place` to a conversation.
pub(super) fn add(
    conversation: &mut Conversation,
    place: &str,
    item: Value,
) -> Result<(), RequestError> {
    let mut item = Fields::of(place, item)?;
    let kind = item.text("type")?;
    match kind.as_deref().unwrap_or("message") {
        "message" => message(conversation, item),
        "function_call" => {
            let id = item.needed_text("call_id")?;
            let name = item.needed_text("name")?;
            conversation.called(&id, &name, &item.needed_text("arguments")?);
            Ok(())
        }
        "function_call_output" => {
            let id = item.needed_text("call_id")?;
            let content = content(&mut item, "output")?;
            conversation.tool_result(&id, content);
            Ok(())
        }
        "reasoning" => reasoning(conversation, item),
        _ => Err(item.unsupported(
            "type",
            "an item of a conversation is a `message`, a `function_call`, its \
             `function_call_output` or `reasoning`",
        )),
    }
}

fn message(conversation: &mut Conversation, mut item: Fields) -> Result<(), RequestError> {
    let role = item.needed_text("role")?;
    if role != "assistant" {
        if !matches!(role.as_str(), "user" | "system" | "developer") {
            return Err(item.wrong("role", "is none of user, assistant, system and developer"));
        }
        let content = content(&mut item, "content")?;
        conversation.message(&role, content);
        return Ok(());
    }
    let parts = match item.take("content") {
        None => Vec::new(),
        Some(Value::String(text)) => {
            conversation.said(&text);
            return Ok(());
        }
        Some(Value::Array(parts)) => parts,
        Some(_) => return Err(item.wrong("content", "is neither a text nor an array of parts")),
    };
    // Also a message of no parts is a message.
    conversation.said("");
    for (index, part) in parts.into_iter().enumerate() {
        let mut part = Fields::of(&format!("{}[{index}]", item.place("content")), part)?;
        match part.needed_text("type")?.as_str() {
            "output_text" | "input_text" | "text" => {
                conversation.went_on(&part.needed_text("text")?);
            }
            "refusal" => conversation.refused(&part.needed_text("refusal")?),
            _ => return Err(part.unsupported("type", "an assistant's parts are texts")),
        }
    }
    Ok(())
}

/// A text, or parts of a message.
fn content(item: &mut Fields, name: &str) -> Result<Value, RequestError> {
    let parts = match item.take(name) {
        None => return Err(item.wrong(name, "is missing")),
        Some(text @ Value::String(_)) => return Ok(text),
        Some(Value::Array(parts)) => parts,
        Some(_) => return Err(item.wrong(name, "is neither a text nor an array of parts")),
    };
    let mut said = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let part = Fields::of(&format!("{}[{index}]", item.place(name)), part)?;
        said.push(content_part(part)?);
    }
    Ok(content_of(said))
}

fn content_part(mut part: Fields) -> Result<Value, RequestError> {
    match part.needed_text("type")?.as_str() {
        "input_text" | "output_text" | "text" => Ok(text_part(&part.needed_text("text")?)),
        "input_image" => {
            let url = part.needed_text("image_url")?;
            Ok(image_part(&url, part.text("detail")?))
        }
        "input_file" => {
            part.refuse("file_url", "files are sent as `file_data`")?;
            let mut file = part.rest();
            file.shift_remove("type");
            Ok(json!({"type": "file", "file": file}))
        }
        "input_audio" => {
            let audio = part.take("input_audio").unwrap_or_default();
            Ok(json!({"type": "input_audio", "input_audio": audio}))
        }
        _ => Err(part.unsupported("type", "parts are texts, images, files and audio")),
    }
}

/// What was thought, in full where it is told, else its summary. Encrypted, it can't be read here.
fn reasoning(conversation: &mut Conversation, mut item: Fields) -> Result<(), RequestError> {
    for name in ["content", "summary"] {
        let mut joined = String::new();
        for (index, part) in item.list(name)?.into_iter().enumerate() {
            let mut part = Fields::of(&format!("{}[{index}]", item.place(name)), part)?;
            joined.push_str(&part.text("text")?.unwrap_or_default());
        }
        if !joined.is_empty() {
            conversation.reasoning(&joined);
            break;
        }
    }
    Ok(())
}
