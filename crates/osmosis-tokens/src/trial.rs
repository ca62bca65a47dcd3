//! A chat template is a program of whoever made the model. Its steps, its recursion and what it writes are
//! bounded, but not the memory of what it keeps, nor the time of a single step. So a program may have
//! templates tried out in a process of its own first, with limits of the system, before they run in this one.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::TokensError;
use crate::template::{Template, refused};

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
    /// point is to come back, and not to be stopped by a limit.
    pub fn run(&self) -> Result<(), TokensError> {
        let template = match Template::new(&self.source, &self.special_tokens) {
            Ok(template) => template,
            Err(error @ TokensError::TemplateRefused { .. }) => return Err(error),
            Err(_) => return Ok(()),
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
                        let text = template.render(&messages, tools, prompt, &Map::new());
                        if let Err(error @ TokensError::TemplateStopped { .. }) = text {
                            return Err(refused(&error));
                        }
                    }
                }
            }
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn run(source: &str) -> Result<(), TokensError> {
        let source = source.to_owned();
        let special_tokens = vec![];
        TemplateTrial {
            source,
            special_tokens,
        }
        .run()
    }

    #[test]
    fn the_first_conversation_that_a_limit_stops_ends_the_trial() {
        let text = "{% for a in range(99999) %}{{ 'x' * 10000000 }}{% endfor %}";
        let long = format!("{{% if messages | length > 60 %}}{text}{{% endif %}}");
        for source in [text, &*long] {
            let error = run(source).unwrap_err().to_string();
            let expected = "the chat template can't be used: at a short conversation, the chat template was stopped: it writes more than 67108864 bytes";
            assert_eq!(error, expected);
        }
        // What it refuses, and what is no template at all, is told where it is used.
        assert_eq!(run("{{ raise_exception('no') }}"), Ok(()));
        assert_eq!(run("{% if %}"), Ok(()));
    }
}
