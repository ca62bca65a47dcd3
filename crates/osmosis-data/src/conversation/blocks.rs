//! Blocks of content: of OpenAI, Anthropic, Strands and rig.

use serde_json::Value;

use super::items::{push_content, text_at, tool_call};
use super::{Part, Role, Turn};

pub(super) fn push_block(turn: &mut Turn, results: &mut Vec<Turn>, block: &Value) {
    if let Some(used) = block.get("toolUse") {
        let call = tool_call(&used["toolUseId"], &used["name"], used.get("input"));
        turn.tool_calls.push(call);
        return;
    }
    if let Some(result) = block.get("toolResult") {
        let failed = result["status"] == "error";
        results.push(tool_result(result, "toolUseId", failed));
        return;
    }
    if let Some(thought) = block.get("reasoningContent") {
        turn.push_reasoning(&text_of(&thought["reasoningText"]));
        return;
    }
    match block["type"].as_str() {
        Some("tool_use") => {
            let call = tool_call(&block["id"], &block["name"], block.get("input"));
            turn.tool_calls.push(call);
        }
        Some("toolcall") => {
            let function = &block["function"];
            let call = tool_call(&block["id"], &function["name"], function.get("arguments"));
            turn.tool_calls.push(call);
        }
        Some("tool_result") => {
            let failed = block["is_error"] == true;
            results.push(tool_result(block, "tool_use_id", failed));
        }
        Some("toolresult") => results.push(tool_result(block, "id", false)),
        Some("thinking") => turn.push_reasoning(&text_of(&block["thinking"])),
        Some("reasoning") => turn.push_reasoning(&text_of(&block["reasoning"])),
        // Only the provider can read it.
        Some("redacted_thinking") => {}
        _ => {
            if let Some(url) = image(block) {
                turn.content.push(Part::Image(url));
            } else if let Some(text) = plain_text(block) {
                turn.push_text(text);
            } else {
                turn.content.push(Part::Other(block.clone()));
            }
        }
    }
}

fn tool_result(result: &Value, id: &str, failed: bool) -> Turn {
    let mut turn = Turn::new(Role::Tool);
    turn.answers = text_at(result, id);
    turn.is_error = failed;
    push_content(&mut turn, &mut Vec::new(), &result["content"]);
    turn
}

/// The address of a picture.
fn image(block: &Value) -> Option<String> {
    match block["type"].as_str()? {
        "image_url" | "input_image" => {
            let image = &block["image_url"];
            image.as_str().or_else(|| image["url"].as_str())
        }
        "image" => {
            let source = &block["source"];
            if let Some(data) = source["data"].as_str() {
                let media = source["media_type"].as_str().unwrap_or("image/png");
                return Some(format!("data:{media};base64,{data}"));
            }
            source["url"].as_str()
        }
        _ => None,
    }
    .map(str::to_owned)
}

/// The text of a block that is nothing but text.
fn plain_text(block: &Value) -> Option<String> {
    let text = ["text", "refusal"]
        .iter()
        .find_map(|key| block[*key].as_str());
    if let Some(text) = text {
        return Some(text.to_owned());
    }
    // A tool of Strands or rig that returned JSON.
    let json = block.get("json").or_else(|| block.get("value"))?;
    Some(json.to_string())
}

/// The text in a content value: a string, a block, or a list of either.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<String> = blocks.iter().map(text_of).collect();
            texts.join("\n")
        }
        Value::Object(_) => plain_text(content).unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

/// Arguments as a text of JSON: some shapes hold the text, others the object.
pub(super) fn arguments_text(arguments: &Value) -> String {
    match arguments {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
