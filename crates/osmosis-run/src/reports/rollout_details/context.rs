//! What the model was given in a sample, and how its replies ended.

use osmosis_data::conversation::{Conversation, Role, Turn};
use osmosis_data::export::SampleTalk;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::exchange::tool_name;

/// What the recorded calls of a sample tell besides its messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SampleContext {
    /// `null` when the calls had none.
    pub system_prompt: Option<String>,
    /// The tools that the calls offered; empty when they offered none.
    pub tools: Vec<OfferedTool>,
    /// Why each reply ends, in order: `stop`, `tool_calls`, `length`, … as the server reported it.
    pub finish_reasons: Vec<String>,
    /// The last reply ends because it reached its limit of tokens.
    pub cut_off: bool,
}

/// A tool that the model could call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OfferedTool {
    pub name: String,
    pub description: Option<String>,
    /// The JSON schema of its arguments, as it was sent.
    pub parameters: Value,
}

impl SampleContext {
    /// `None` for a sample without calls.
    pub(super) fn of(talk: &SampleTalk) -> Option<Self> {
        let main = talk.conversations.get(talk.main)?;
        let last = main.calls().last();
        if last.is_none() && main.tools.is_empty() && main.error.is_none() {
            return None;
        }
        Some(Self {
            system_prompt: system_prompt(main),
            tools: main.tools.iter().filter_map(OfferedTool::of).collect(),
            finish_reasons: main
                .calls()
                .filter_map(|call| call.finish_reason.clone())
                .collect(),
            cut_off: last.is_some_and(osmosis_data::conversation::CallFacts::reached_token_limit),
        })
    }
}

fn system_prompt(conversation: &Conversation) -> Option<String> {
    let turns = conversation.turns.iter();
    let said: Vec<String> = turns
        .filter(|turn| turn.role == Role::System)
        .map(Turn::text)
        .collect();
    (!said.is_empty()).then(|| said.join("\n"))
}

impl OfferedTool {
    fn of(tool: &Value) -> Option<Self> {
        let function = if tool["function"].is_object() {
            &tool["function"]
        } else {
            tool
        };
        Some(Self {
            name: tool_name(tool)?,
            description: function["description"].as_str().map(str::to_owned),
            parameters: function["parameters"].clone(),
        })
    }
}
