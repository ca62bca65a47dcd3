//! Conversations as readable transcripts.

use std::collections::HashMap;
use std::sync::Arc;

use osmosis_data::conversation::{CallFacts, Conversation, Role, Turn};
use osmosis_tokens::ChatFormat;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One thing that was said or done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    pub speaker: Speaker,
    pub text: String,
}

/// Who said or did it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    System,
    User,
    Assistant,
    Reasoning,
    #[serde(rename = "tool call")]
    ToolCall,
    #[serde(rename = "tool result")]
    ToolResult,
    /// A prompt in token ids.
    #[serde(rename = "tokens in")]
    TokensIn,
    /// A reply in token ids.
    #[serde(rename = "tokens out")]
    TokensOut,
    /// The call failed.
    Error,
    /// What the reply before it earned by itself.
    Reward,
    /// The reply before it ends at a limit of tokens.
    #[serde(rename = "cut off")]
    CutOff,
}

impl Speaker {
    /// As in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Reasoning => "reasoning",
            Self::ToolCall => "tool call",
            Self::ToolResult => "tool result",
            Self::TokensIn => "tokens in",
            Self::TokensOut => "tokens out",
            Self::Error => "error",
            Self::Reward => "reward",
            Self::CutOff => "cut off",
        }
    }

    fn of(role: Role) -> Self {
        match role {
            Role::System => Self::System,
            Role::User => Self::User,
            Role::Assistant => Self::Assistant,
            Role::Tool => Self::ToolResult,
        }
    }

    fn in_tokens(role: Role) -> Self {
        match role {
            Role::Assistant => Self::TokensOut,
            Role::System | Role::User | Role::Tool => Self::TokensIn,
        }
    }
}

/// What is known besides what was said.
#[derive(Debug, Default)]
pub struct Transcriber {
    /// Rewards of single calls, by the ids of their replies.
    pub rewards: HashMap<String, f64>,
    /// Reads what was said in token ids.
    pub tokenizer: Option<Arc<ChatFormat>>,
    /// What the model said in recorded calls, where messages tell nothing about their calls.
    pub replies: Vec<Turn>,
}

impl Transcriber {
    /// Every path once: what another one begins with is read there.
    pub fn paths(&self, conversations: &[Conversation]) -> Vec<Vec<Entry>> {
        let mut paths: Vec<Vec<Entry>> = vec![];
        for conversation in conversations {
            let path = self.entries(conversation);
            if paths.iter().any(|other| other.starts_with(&path)) {
                continue;
            }
            paths.retain(|other| !path.starts_with(other));
            paths.push(path);
        }
        paths
    }

    pub fn entries(&self, conversation: &Conversation) -> Vec<Entry> {
        let mut entries = vec![];
        for turn in &conversation.turns {
            self.push_turn(&mut entries, turn);
        }
        if let Some(error) = &conversation.error {
            push(&mut entries, Speaker::Error, error.clone());
        }
        entries
    }

    fn push_turn(&self, entries: &mut Vec<Entry>, turn: &Turn) {
        let before = entries.len();
        if let Some(thought) = &turn.reasoning {
            push(entries, Speaker::Reasoning, thought.clone());
        }
        if let Some(ids) = &turn.token_ids {
            push(entries, Speaker::in_tokens(turn.role), self.decoded(ids));
        }
        let text = turn.text();
        if !text.is_empty() {
            push(entries, Speaker::of(turn.role), text);
        }
        for call in &turn.tool_calls {
            let text = format!("{}({})", call.name, call.arguments);
            push(entries, Speaker::ToolCall, text);
        }
        if entries.len() == before {
            push(entries, Speaker::of(turn.role), String::new());
        }
        let reply_id = turn.call.as_ref().and_then(|call| call.reply_id.as_ref());
        if let Some(reward) = reply_id.and_then(|id| self.rewards.get(id)) {
            push(entries, Speaker::Reward, reward.to_string());
        }
        if let Some(call) = self.call_of(turn).filter(|call| call.reached_token_limit()) {
            push(entries, Speaker::CutOff, cut_off_text(call));
        }
    }

    /// The call that made a turn. A framework's own messages do not name it: then it is a call that said the same.
    fn call_of<'a>(&'a self, turn: &'a Turn) -> Option<&'a CallFacts> {
        if turn.call.is_some() || turn.role != Role::Assistant {
            return turn.call.as_deref();
        }
        let said = turn.text();
        let mut replies = self.replies.iter();
        let reply = replies
            .find(|reply| reply.text().trim() == said.trim() && have_same_tool_calls(reply, turn));
        reply.and_then(|reply| reply.call.as_deref())
    }

    /// The text, or how many ids it has.
    fn decoded(&self, ids: &[u32]) -> String {
        let tokenizer = self.tokenizer.as_ref();
        let text = tokenizer.and_then(|tokenizer| tokenizer.decode(ids, false).ok());
        text.unwrap_or_else(|| match ids.len() {
            1 => "1 id".to_owned(),
            count => format!("{count} ids"),
        })
    }
}

/// Frameworks write arguments anew, and give calls ids of their own.
fn have_same_tool_calls(one: &Turn, other: &Turn) -> bool {
    let said = |turn: &Turn| -> Vec<_> {
        let calls = turn.tool_calls.iter();
        calls
            .map(|call| (call.name.clone(), call.arguments_object()))
            .collect()
    };
    said(one) == said(other)
}

/// Why a reply ends where it does.
fn cut_off_text(call: &CallFacts) -> String {
    let reason = call.finish_reason.as_deref().unwrap_or("length");
    match call.usage.completion_tokens {
        Some(tokens) => {
            format!(
                "the reply reached its token limit after {tokens} tokens (finish reason `{reason}`)"
            )
        }
        None => format!("the reply reached its token limit (finish reason `{reason}`)"),
    }
}

fn push(entries: &mut Vec<Entry>, speaker: Speaker, text: String) {
    entries.push(Entry { speaker, text });
}

#[cfg(test)]
mod tests {
    use osmosis_data::conversation::{RecordedCall, Usage};
    use serde_json::{Value, json};

    use super::*;

    fn call(dialect: &str, request: &Value, response: &Value) -> (String, String, String) {
        (
            dialect.to_owned(),
            request.to_string(),
            response.to_string(),
        )
    }

    fn chat(messages: &Value, answer: &Value) -> (String, String, String) {
        let response = json!({"id": "c", "choices": [{"index": 0, "message": answer}]});
        call(
            "chat_completions",
            &json!({"messages": messages}),
            &response,
        )
    }

    fn conversations(calls: &[(String, String, String)]) -> Vec<Conversation> {
        let calls = calls.iter().map(|(dialect, request, response)| {
            let failed = response == "null";
            RecordedCall {
                call_id: 1,
                dialect,
                model: "m",
                status: if failed { 502 } else { 200 },
                error: failed.then_some("no such host"),
                request: request.as_bytes(),
                response: response.as_bytes(),
                usage: Usage::default(),
                queued_at_ms: 0,
                first_byte_at_ms: None,
                done_at_ms: 0,
                tokens: &[],
            }
        });
        Conversation::of_sample(calls, &[])
    }

    /// One line for each path.
    fn shown(calls: &[(String, String, String)], transcriber: &Transcriber) -> Vec<String> {
        let paths = transcriber.paths(&conversations(calls));
        paths.iter().map(|path| line(path)).collect()
    }

    fn texts(calls: &[(String, String, String)]) -> Vec<String> {
        shown(calls, &Transcriber::default())
    }

    fn line(entries: &[Entry]) -> String {
        let each: Vec<String> = entries
            .iter()
            .map(|entry| format!("{}: {}", entry.speaker.as_str(), entry.text))
            .collect();
        each.join(" | ")
    }

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    fn assistant(text: &str) -> Value {
        json!({"role": "assistant", "content": text})
    }

    #[track_caller]
    fn check(messages: &Value, expected: &str) {
        let conversation = Conversation::of_messages(messages.as_array().unwrap());
        let entries = Transcriber::default().entries(&conversation);
        assert_eq!(line(&entries), expected);
    }

    #[test]
    fn messages_are_readable_whatever_framework_made_them() {
        let expected = "user: 6 * 7? | assistant: let me see | tool call: f({\"a\":1}) | \
            tool result: 42";
        for messages in [
            json!([user("6 * 7?"),
                {"role": "assistant", "content": "let me see", "tool_calls": [{"id": "c",
                    "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
                {"role": "tool", "tool_call_id": "c", "content": "42"}]),
            json!([user("6 * 7?"),
                {"type": "message", "role": "assistant",
                    "content": [{"type": "output_text", "text": "let me see"}]},
                {"type": "function_call", "name": "f", "arguments": "{\"a\":1}", "call_id": "c"},
                {"type": "function_call_output", "call_id": "c", "output": "42"}]),
            json!([user("6 * 7?"),
                {"role": "assistant", "content": [{"text": "let me see"},
                    {"toolUse": {"name": "f", "input": {"a": 1}, "toolUseId": "c"}}]},
                {"role": "user", "content": [{"toolResult": {"toolUseId": "c",
                    "content": [{"text": "42"}]}}]}]),
        ] {
            check(&messages, expected);
        }
    }

    #[test]
    fn what_is_unknown_or_empty_is_shown_and_not_dropped() {
        check(
            &json!([{"type": "web_search_call", "id": "w"}]),
            "assistant: {\"type\":\"web_search_call\",\"id\":\"w\"}",
        );
        check(&json!([assistant("")]), "assistant: ");
    }

    #[test]
    fn turns_that_extend_each_other_are_one_path_and_branches_are_two() {
        let calls = [
            chat(&json!([user("a")]), &assistant("b")),
            chat(
                &json!([user("a"), assistant("b"), user("c")]),
                &assistant("d"),
            ),
            chat(
                &json!([user("a"), assistant("b"), user("e")]),
                &assistant("f"),
            ),
            chat(&json!([user("x")]), &assistant("y")),
            chat(&json!([user("x")]), &assistant("y")),
        ];
        assert_eq!(
            texts(&calls),
            [
                "user: a | assistant: b | user: c | assistant: d",
                "user: a | assistant: b | user: e | assistant: f",
                "user: x | assistant: y",
            ]
        );
    }

    #[test]
    fn every_choice_is_a_path_and_rewards_stand_by_their_answers() {
        let response = json!({"id": "c1", "choices": [
            {"index": 0, "message": assistant("b")}, {"index": 1, "message": assistant("c")}]});
        let calls = [call(
            "chat_completions",
            &json!({"messages": [user("a")]}),
            &response,
        )];
        let transcriber = Transcriber {
            rewards: HashMap::from([("c1".to_owned(), 0.5)]),
            ..Transcriber::default()
        };
        assert_eq!(
            shown(&calls, &transcriber),
            [
                "user: a | assistant: b | reward: 0.5",
                "user: a | assistant: c | reward: 0.5"
            ]
        );
    }

    #[test]
    fn a_reply_that_reached_its_token_limit_looks_cut_in_calls_and_in_messages() {
        let response = json!({"id": "c1", "usage": {"completion_tokens": 7}, "choices": [
            {"index": 0, "message": assistant("It is 4"), "finish_reason": "length"}]});
        let calls = [call(
            "chat_completions",
            &json!({"messages": [user("a")]}),
            &response,
        )];
        let expected = "user: a | assistant: It is 4 | cut off: the reply reached its token limit after 7 tokens \
            (finish reason `length`)";
        assert_eq!(texts(&calls), [expected]);
        let replies = conversations(&calls).remove(0).turns.split_off(1);
        let transcriber = Transcriber {
            replies,
            ..Transcriber::default()
        };
        let messages = Conversation::of_messages(&[user("a"), assistant("It is 4\n")]);
        let shown = line(&transcriber.entries(&messages));
        assert!(shown.contains("cut off: "), "{shown}");
        let messages = Conversation::of_messages(&[user("a"), assistant("It is 42")]);
        let shown = line(&transcriber.entries(&messages));
        assert!(!shown.contains("cut off: "), "{shown}");
    }

    #[test]
    fn tokens_without_a_tokenizer_are_counted() {
        let response = json!({"output_ids": [4], "stop_reason": "stop"});
        let calls = [call(
            "generate",
            &json!({"input_ids": [1, 2, 3]}),
            &response,
        )];
        assert_eq!(texts(&calls), ["tokens in: 3 ids | tokens out: 1 id"]);
    }

    #[test]
    fn a_failure_is_shown_unless_it_was_asked_again() {
        let refused = chat(&json!([user("a")]), &Value::Null);
        let refused = (refused.0, refused.1, "null".to_owned());
        assert_eq!(
            texts(std::slice::from_ref(&refused)),
            ["user: a | error: no such host"]
        );
        let calls = [refused, chat(&json!([user("a")]), &assistant("b"))];
        assert_eq!(texts(&calls), ["user: a | assistant: b"]);
        assert_eq!(texts(&[]), Vec::<String>::new());
    }
}
