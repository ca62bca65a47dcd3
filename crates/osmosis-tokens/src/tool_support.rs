//! Whether a chat template shows tools to the model, found out by rendering some.

use serde_json::{Map, Value, json};

use crate::TokensError;

/// What becomes of tools in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolSupport {
    /// The model sees them.
    Rendered,
    /// The prompt is the same without them.
    Ignored,
    /// The template fails when there are some.
    Refused { message: String },
}

/// No template has these words by itself.
const NAMES: [&str; 2] = ["osmosis_probe_lookup", "osmosis_probe_convert"];

type Rendering<'r> =
    &'r dyn Fn(&[Value], Option<&[Value]>, &Map<String, Value>) -> Result<String, TokensError>;

/// Renders short conversations with and without tools. One in which their names can be read is enough: some
/// templates place them in the first user's message, others in the last.
pub(crate) fn probe(render: Rendering<'_>) -> ToolSupport {
    let tools = NAMES.map(|name| {
        json!({"type": "function", "function": {
            "name": name,
            "description": "text",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
        }})
    });
    let user = json!({"role": "user", "content": "a question"});
    let system = json!({"role": "system", "content": "instructions"});
    let assistant = json!({"role": "assistant", "content": "an answer"});
    let conversations: [Vec<Value>; 3] = [
        vec![user.clone()],
        vec![system, user.clone()],
        vec![user.clone(), assistant, user],
    ];
    let (mut ignored, mut refused) = (false, None);
    for messages in &conversations {
        let plain = render(messages, None, &Map::new()).is_ok();
        match render(messages, Some(&tools), &Map::new()) {
            Ok(text) if NAMES.iter().all(|name| text.contains(name)) => {
                return ToolSupport::Rendered;
            }
            Ok(_) => ignored = true,
            Err(error) if plain => refused = Some(error.to_string()),
            // What this template takes is not what was tried: a call will say why.
            Err(_) => {}
        }
    }
    match (ignored, refused) {
        (true, _) => ToolSupport::Ignored,
        (false, Some(message)) => ToolSupport::Refused { message },
        (false, None) => ToolSupport::Rendered,
    }
}
