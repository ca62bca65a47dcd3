//! A conversation that somebody wrote down as rows to learn from: what the assistant said, in the tokens and in the
//! context in which a policy would have sampled it.
//!
//! Each turn of the assistant is taken for a call: its prompt is what a request with the messages before it renders to,
//! and its reply is what the template writes after that, up to and with the end-of-turn token. Where a turn continues an
//! earlier one, both are one row, just as with recorded calls ([`CallTree`]).

use osmosis_core::{PolicyVersion, SampleId};
use serde_json::{Map, Value};

use crate::{CallTree, ChatFormat, TokensError, ToolSupport, TrainingRow};

/// Why a conversation can't be learned from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SupervisedError {
    #[error("the conversation has no message of the assistant")]
    NoAnswer,
    #[error("it has tools, and the chat template {0}")]
    Tools(String),
    #[error("message {message}: {why}")]
    NoSpan { message: usize, why: String },
    #[error(transparent)]
    Tokens(#[from] TokensError),
}

impl SupervisedError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoAnswer => {
                Some("add a message with the role `assistant`, or remove the row".to_owned())
            }
            Self::Tools(_) => Some(
                "set `tool_format = \"hermes\"` or another `chat_template` in [experiment]".to_owned(),
            ),
            Self::NoSpan { .. } => Some(
                "set a `chat_template` in [experiment] that writes the turns of the assistant as it asks for them"
                    .to_owned(),
            ),
            Self::Tokens(error) => error.hint(),
        }
    }
}

/// The rows of a conversation, with a loss on the assistant's tokens alone. Messages and tools are those of a Chat
/// Completions request.
pub fn supervised_rows(
    format: &ChatFormat,
    messages: &[Value],
    tools: Option<&[Value]>,
) -> Result<Vec<TrainingRow>, SupervisedError> {
    let tools = tools.filter(|tools| !tools.is_empty());
    refuse_lost_tools(format, messages, tools)?;
    let mut tree = CallTree::default();
    let mut records = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if role(message) != Some("assistant") {
            continue;
        }
        let before = &messages[..index];
        let reply = reply_ids(format, messages, tools, index)?;
        let prompt = tree.plan(format, before, tools, &Map::new())?;
        let count = reply.len();
        let (logprobs, versions) = (vec![0.0; count], vec![PolicyVersion(0); count]);
        records.push(tree.finished(prompt, reply, logprobs, versions, 1.0, Some(message)));
    }
    if records.is_empty() {
        return Err(SupervisedError::NoAnswer);
    }
    Ok(CallTree::rows(&SampleId::main(), &records)?)
}

fn role(message: &Value) -> Option<&str> {
    message.get("role")?.as_str()
}

/// The ids of the assistant's message `index`, end-of-turn token included, after the prompt that asks for it.
fn reply_ids(
    format: &ChatFormat,
    messages: &[Value],
    tools: Option<&[Value]>,
    index: usize,
) -> Result<Vec<u32>, SupervisedError> {
    let no_span = |why: String| SupervisedError::NoSpan {
        message: index,
        why,
    };
    let end = format.turn_end().ok_or_else(|| {
        no_span("the template does not end turns with a special token".to_owned())
    })?;
    let prompt = format.render(&messages[..index], tools, true, &Map::new())?;
    let turn = format.render(&messages[..=index], tools, false, &Map::new())?;
    let reply = turn.strip_prefix(prompt.as_str()).ok_or_else(|| {
        no_span(
            "the template writes this turn differently from the prompt that asks for it".to_owned(),
        )
    })?;
    let reply = reply
        .strip_suffix(end.tail.as_str())
        .filter(|text| text.ends_with(&end.token))
        .ok_or_else(|| {
            no_span(format!(
                "the template does not end this turn with `{}`",
                end.token
            ))
        })?;
    for name in called(&messages[index]) {
        if !reply.contains(name) {
            let why = format!("leaves out the call of `{name}` in message {index}");
            return Err(SupervisedError::Tools(why));
        }
    }
    let (prompt_ids, reply_ids) = (format.encode(&prompt)?, format.encode(reply)?);
    if reply_ids.last() != Some(&end.id) {
        let why = format!("the tokenizer does not keep `{}` apart", end.token);
        return Err(no_span(why));
    }
    // A tokenizer may write a text otherwise at its beginning than after another one.
    let together = [prompt_ids, reply_ids.clone()].concat();
    let whole = format!("{prompt}{reply}");
    if together != format.encode(&whole)? && format.decode(&together, false)? != whole {
        let why = "the tokenizer does not write the reply after the prompt as it writes it alone";
        return Err(no_span(why.to_owned()));
    }
    Ok(reply_ids)
}

/// The names of the tools that a message calls.
fn called(message: &Value) -> impl Iterator<Item = &str> {
    let calls = message.get("tool_calls").and_then(Value::as_array);
    let calls = calls.into_iter().flatten();
    calls.filter_map(|call| call.get("function")?.get("name")?.as_str())
}

/// Refuses tools, and results of tools, that the prompt would not show.
fn refuse_lost_tools(
    format: &ChatFormat,
    messages: &[Value],
    tools: Option<&[Value]>,
) -> Result<(), SupervisedError> {
    let lost = |why: &str| Err(SupervisedError::Tools(why.to_owned()));
    if tools.is_some() {
        match format.tool_support() {
            ToolSupport::Rendered => {}
            ToolSupport::Ignored => return lost("ignores tools"),
            ToolSupport::Refused { message } => {
                return lost(&format!("fails with tools: {message}"));
            }
        }
    }
    let results = messages.iter().enumerate();
    let results = results.filter(|(_, message)| role(message) == Some("tool"));
    for (index, _) in results {
        let whole = format.render(messages, tools, false, &Map::new())?;
        let mut without = messages.to_vec();
        without.remove(index);
        // A template that fails without it has read it.
        let rendered = format.render(&without, tools, false, &Map::new());
        if rendered.is_ok_and(|text| text == whole) {
            return lost(&format!(
                "leaves out the result of a tool in message {index}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ChatFormatParts;

    /// Words and the marks of turns; a byte-level tokenizer of single letters.
    fn format(template: &str) -> ChatFormat {
        let letters: Vec<char> = ('a'..='z').chain("{}\":[]_/<>ĠĊ".chars()).collect();
        let vocabulary: Map<String, Value> = letters
            .iter()
            .enumerate()
            .map(|(id, letter)| (letter.to_string(), id.into()))
            .collect();
        let special = |id: usize, content: &str| {
            json!({"id": id, "content": content, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false})
        };
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false});
        let (start, end) = (letters.len(), letters.len() + 1);
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": [special(start, "<|im_start|>"), special(end, "<|im_end|>")],
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        });
        ChatFormat::from_parts(ChatFormatParts {
            tokenizer: tokenizer.to_string(),
            tokenizer_config: json!({"eos_token": "<|im_end|>", "chat_template": template})
                .to_string(),
            chat_template: None,
            generation_config: None,
        })
        .unwrap()
    }

    const PLAIN: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
        {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    fn conversation() -> Vec<Value> {
        [
            ("user", "one"),
            ("assistant", "two"),
            ("user", "three"),
            ("assistant", "four"),
        ]
        .map(|(role, content)| json!({"role": role, "content": content}))
        .to_vec()
    }

    /// The text under the loss, with a bar between rows.
    fn trained(format: &ChatFormat, rows: &[TrainingRow]) -> String {
        let text = |row: &TrainingRow| {
            let ids = row.ids.iter().zip(&row.loss_mask);
            let ids: Vec<u32> = ids.filter(|(_, on)| **on).map(|(id, _)| *id).collect();
            format.decode(&ids, false).unwrap()
        };
        let texts: Vec<String> = rows.iter().map(text).collect();
        texts.join("|")
    }

    #[test]
    fn a_conversation_is_one_row_with_a_loss_on_what_the_assistant_said() {
        let format = format(PLAIN);
        let rows = supervised_rows(&format, &conversation(), None).unwrap();
        assert_eq!(trained(&format, &rows), "two<|im_end|>four<|im_end|>");
        let whole = format.decode(&rows[0].ids, false).unwrap();
        let rendered = format
            .render(&conversation(), None, false, &Map::new())
            .unwrap();
        assert_eq!(whole, rendered.trim_end_matches('\n'));
    }

    #[test]
    fn a_template_that_rewrites_earlier_turns_gives_a_row_for_each() {
        // As those do that leave out the reasoning of earlier turns.
        let format = format(
            "{% for message in messages %}<|im_start|>{{ message.role }}\n\
             {% if loop.last %}{{ message.content }}{% else %}{{ message.content[:1] }}{% endif %}<|im_end|>\n\
             {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        );
        let messages = [
            json!({"role": "user", "content": "a"}),
            json!({"role": "assistant", "content": "bc"}),
            json!({"role": "user", "content": "d"}),
            json!({"role": "assistant", "content": "ef"}),
        ];
        let rows = supervised_rows(&format, &messages, None).unwrap();
        assert_eq!(trained(&format, &rows), "bc<|im_end|>|ef<|im_end|>");
    }

    #[test]
    fn a_turn_that_is_not_written_as_it_is_asked_for_is_refused() {
        let format = format(
            "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
             {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\nthink{% endif %}",
        );
        let error = supervised_rows(&format, &conversation(), None).unwrap_err();
        assert!(
            matches!(error, SupervisedError::NoSpan { message: 1, .. }),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("chat_template"));
    }

    #[test]
    fn tools_that_the_template_does_not_show_are_refused_and_never_dropped() {
        let plain = format(PLAIN);
        let tool = json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}});
        let tools = [tool];
        let error = supervised_rows(&plain, &conversation(), Some(&tools)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "it has tools, and the chat template ignores tools"
        );
        assert!(error.hint().unwrap().contains("tool_format"));

        let call = json!({"role": "assistant", "content": "so", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}]});
        let messages = [json!({"role": "user", "content": "one"}), call];
        let error = supervised_rows(&plain, &messages, None).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("leaves out the call of `add` in message 1"),
            "{error}"
        );

        let deaf = format(
            "{% for message in messages if message.role != 'tool' %}<|im_start|>{{ message.role }}\n\
             {{ message.content }}<|im_end|>\n{% endfor %}\
             {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        );
        let mut messages = conversation();
        messages.insert(
            2,
            json!({"role": "tool", "content": "five", "tool_call_id": "a"}),
        );
        let error = supervised_rows(&deaf, &messages, None).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("the result of a tool in message 2"),
            "{error}"
        );
    }

    #[test]
    fn a_conversation_without_an_answer_is_refused() {
        let error = supervised_rows(&format(PLAIN), &conversation()[..1], None).unwrap_err();
        assert_eq!(error, SupervisedError::NoAnswer);
    }
}
