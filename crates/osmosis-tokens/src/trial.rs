//! A chat template is a program of whoever made the model. Its steps, its recursion and what it writes are
//! bounded, but not the memory of what it keeps, nor the time of a single step. So a program may have
//! templates tried out in a process of its own first, with limits of the system, before they run in this one.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::TokensError;
use crate::template::Template;

/// Has a template tried out elsewhere. `Err` says why it must not be run here.
pub type TemplateTrialRunner = fn(&TemplateTrial) -> Result<(), String>;

static RUNNER: OnceLock<TemplateTrialRunner> = OnceLock::new();

/// From now on every template of this process is tried out by `runner` before it is run. Only the first
/// call counts.
pub fn try_templates_with(runner: TemplateTrialRunner) {
    let _ = RUNNER.set(runner);
}

/// All that a template needs to be run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TemplateTrial {
    pub source: String,
    pub special_tokens: Vec<(String, Value)>,
}

impl TemplateTrial {
    /// Renders conversations of several shapes and lengths. What a template refuses is its own matter: the
    /// point is to come back.
    pub fn run(&self) {
        let Ok(template) = Template::new(&self.source, &self.special_tokens) else {
            return;
        };
        let tools = [json!({"type": "function", "function": {
            "name": "tool", "description": "text",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        }})];
        for turns in [0, 1, 2, 3, 8, 64] {
            for system in [false, true] {
                let messages = conversation(turns, system);
                for tools in [None, Some(&tools[..])] {
                    for prompt in [false, true] {
                        let _ = template.render(&messages, tools, prompt, &Map::new());
                    }
                }
            }
        }
    }
}

fn conversation(turns: usize, system: bool) -> Vec<Value> {
    let mut messages = Vec::new();
    if system {
        messages.push(json!({"role": "system", "content": "instructions"}));
    }
    for turn in 0..turns {
        messages.push(match turn % 4 {
            0 => json!({"role": "user", "content": "question"}),
            1 => json!({"role": "assistant", "content": "", "tool_calls": [{
                "id": "abcdefghi", "type": "function",
                "function": {"name": "tool", "arguments": "{\"a\": 1}"},
            }]}),
            2 => json!({"role": "tool", "tool_call_id": "abcdefghi", "content": "result"}),
            _ => json!({"role": "assistant", "content": "answer"}),
        });
    }
    messages
}

/// Tries a template out, when this process has a way to.
pub(crate) fn passed(source: &str, special_tokens: &[(String, Value)]) -> Result<(), TokensError> {
    let Some(run) = RUNNER.get() else {
        return Ok(());
    };
    run(&TemplateTrial {
        source: source.to_owned(),
        special_tokens: special_tokens.to_vec(),
    })
    .map_err(|message| TokensError::TemplateRefused { message })
}
