//! The calls of a sample as conversations: a call continues another when its messages begin with that
//! one's messages and reply.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::key::{Ids, beginnings};
use super::{CallFacts, Conversation, RecordedCall, Role, Turn, reply, request};

/// The calls of one sample so far, in the order in which they finished.
///
/// Holds the messages of the calls that none continues yet: what those before them said is in them.
#[derive(Debug, Default)]
pub struct ConversationTree {
    nodes: Vec<Node>,
    /// Where a conversation ended, with and without the ids of tool calls.
    ends: HashMap<u64, usize>,
    loose_ends: HashMap<u64, usize>,
    /// The messages that some call with a reply began with.
    answered: HashSet<u64>,
}

#[derive(Debug)]
struct Node {
    parent: Option<usize>,
    /// A later call was built on this one.
    continued: bool,
    /// Given up when it is continued.
    request: Vec<Turn>,
    /// How many turns the request has, and where those after the parent's reply begin.
    length: usize,
    new_from: usize,
    /// Empty when the call failed.
    reply: Vec<Turn>,
    tools: Vec<Value>,
    queued_at_ms: i64,
    error: Option<String>,
    /// Of all the messages of the request.
    asked: u64,
}

/// What no conversation has as the key of its beginning.
const NOTHING_SAID: u64 = 0;

impl ConversationTree {
    /// Adds a call. Calls of other samples, and of judges, belong to other trees.
    pub fn add(&mut self, call: &RecordedCall<'_>) {
        let request = request::read(call.dialect, call.request);
        let failed = call.error.is_some() || call.status >= 400;
        let reply = if failed {
            reply::Reply::default()
        } else {
            reply::read(call.dialect, call.response)
        };
        let keys = beginnings(NOTHING_SAID, &request.turns, Ids::Matter);
        let loose = beginnings(NOTHING_SAID, &request.turns, Ids::DoNotMatter);
        let parent = parent(&keys, &self.ends).or_else(|| parent(&loose, &self.loose_ends));
        let asked = keys.last().copied().unwrap_or(NOTHING_SAID);
        if let Some(parent) = parent {
            self.nodes[parent].continued = true;
            self.nodes[parent].request = Vec::new();
        }
        let new_from = parent.map_or(0, |parent| {
            let parent = &self.nodes[parent];
            parent.length + parent.reply.len()
        });
        let mut node = Node {
            parent,
            continued: false,
            length: request.turns.len(),
            new_from,
            request: request.turns,
            reply: Vec::new(),
            tools: request.tools,
            queued_at_ms: call.queued_at_ms,
            error: None,
            asked,
        };
        if reply.choices.is_empty() {
            let error = call.error.map_or_else(
                || format!("the reply has status {} and no message", call.status),
                str::to_owned,
            );
            node.error = Some(error);
            // Tried again in vain: once is enough.
            for earlier in &mut self.nodes {
                if earlier.error.is_some() && earlier.asked == asked {
                    earlier.continued = true;
                    earlier.request = Vec::new();
                }
            }
            self.nodes.push(node);
            return;
        }
        self.answered.extend(&keys);
        let choices = reply.choices.len();
        for (index, choice) in reply.choices.into_iter().enumerate() {
            let facts = CallFacts {
                call_id: call.call_id,
                reply_id: reply.id.clone(),
                model: call.model.to_owned(),
                // All choices were paid for together.
                usage: if index == 0 {
                    call.usage.or(reply.usage)
                } else {
                    super::Usage::default()
                },
                finish_reason: choice.finish_reason,
                queued_at_ms: call.queued_at_ms,
                first_byte_at_ms: call.first_byte_at_ms,
                done_at_ms: call.done_at_ms,
                tokens: call.tokens.get(index).cloned(),
            };
            let mut said = choice.turns;
            for turn in &mut said {
                turn.at_ms = Some(call.done_at_ms);
            }
            if let Some(first) = said.first_mut() {
                first.call = Some(Box::new(facts));
            }
            let place = self.nodes.len();
            let end = |ids, before: &[u64]| {
                let before = before.last().copied().unwrap_or(NOTHING_SAID);
                beginnings(before, &said, ids).last().copied()
            };
            if let Some(end) = end(Ids::Matter, &keys) {
                self.ends.insert(end, place);
            }
            if let Some(end) = end(Ids::DoNotMatter, &loose) {
                self.loose_ends.insert(end, place);
            }
            let beginning = if index + 1 == choices {
                std::mem::take(&mut node.request)
            } else {
                node.request.clone()
            };
            self.nodes.push(Node {
                request: beginning,
                reply: said,
                tools: node.tools.clone(),
                error: None,
                ..node
            });
        }
    }

    /// The conversations, from the first message to the last reply, in the order in which they ended.
    /// Without a call, the one that the framework's own messages tell, if they tell any.
    pub fn conversations(mut self, messages: &[Value]) -> Vec<Conversation> {
        let leaves: Vec<usize> = (0..self.nodes.len())
            .filter(|place| {
                let node = &self.nodes[*place];
                let answered_later = node.error.is_some() && self.answered.contains(&node.asked);
                !node.continued && !answered_later
            })
            .collect();
        if leaves.is_empty() && !messages.is_empty() {
            return vec![Conversation::of_messages(messages)];
        }
        let conversations = leaves.into_iter().map(|leaf| self.conversation(leaf));
        conversations.collect()
    }

    fn conversation(&mut self, leaf: usize) -> Conversation {
        let mut turns = std::mem::take(&mut self.nodes[leaf].request);
        let mut place = Some(leaf);
        // From the end to the beginning: each call brought what stands after its parent's reply.
        while let Some(at) = place {
            let node = &self.nodes[at];
            for turn in turns.iter_mut().take(node.length).skip(node.new_from) {
                turn.at_ms = Some(node.queued_at_ms);
            }
            if at == leaf {
                turns.extend(node.reply.iter().cloned());
            } else {
                // As it came from the model: agents leave out what the model thought.
                for (turn, said) in turns.iter_mut().skip(node.length).zip(&node.reply) {
                    *turn = said.clone();
                }
            }
            place = node.parent;
        }
        Conversation {
            tools: std::mem::take(&mut self.nodes[leaf].tools),
            turns,
            error: self.nodes[leaf].error.take(),
        }
    }
}

/// The call that ended with the longest beginning of these messages.
fn parent(keys: &[u64], ends: &HashMap<u64, usize>) -> Option<usize> {
    keys.iter().rev().find_map(|key| ends.get(key).copied())
}

impl Conversation {
    /// Which of a sample's conversations its own messages tell: the one that ends as they do, or the
    /// last.
    pub fn main_of(conversations: &[Self], messages: &[Value]) -> usize {
        let last_said = |turns: &[Turn]| {
            let said = turns.iter().rev();
            let mut said = said.filter(|turn| turn.role == Role::Assistant);
            said.next().map(|turn| turn.text().trim().to_owned())
        };
        let wanted = last_said(&Self::of_messages(messages).turns);
        let ends_so =
            |conversation: &Self| wanted.is_some() && last_said(&conversation.turns) == wanted;
        let found = conversations.iter().rposition(ends_so);
        found.unwrap_or_else(|| conversations.len().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conversation::{CallTokens, Usage};

    /// A call of Chat Completions that finished after `at` seconds.
    struct Call {
        at: i64,
        request: Value,
        reply: Result<Value, &'static str>,
    }

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    fn assistant(text: &str) -> Value {
        json!({"role": "assistant", "content": text})
    }

    fn calls_tool(id: &str) -> Value {
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function",
            "function": {"name": "f", "arguments": "{\"a\": 1}"}}]})
    }

    fn result(id: &str) -> Value {
        json!({"role": "tool", "tool_call_id": id, "content": "42"})
    }

    fn conversations(calls: &[Call], messages: &[Value]) -> Vec<Conversation> {
        let mut tree = ConversationTree::default();
        for (call, number) in calls.iter().zip(1..) {
            let (status, error) = match &call.reply {
                Ok(_) => (200, None),
                Err(error) => (500, Some(*error)),
            };
            let replies = match &call.reply {
                Ok(Value::Array(replies)) => replies.clone(),
                Ok(reply) => vec![reply.clone()],
                Err(_) => vec![],
            };
            let choices: Vec<Value> = replies.iter().map(|r| json!({"message": r})).collect();
            let request = json!({"messages": call.request, "tools": []}).to_string();
            let tokens = [CallTokens::default()];
            tree.add(&RecordedCall {
                call_id: number,
                dialect: "chat_completions",
                model: "m",
                status,
                error,
                request: request.as_bytes(),
                response: json!({"choices": choices}).to_string().as_bytes(),
                usage: Usage {
                    prompt_tokens: Some(number),
                    ..Usage::default()
                },
                queued_at_ms: call.at * 1000 - 500,
                first_byte_at_ms: None,
                done_at_ms: call.at * 1000,
                tokens: &tokens,
            });
        }
        tree.conversations(messages)
    }

    fn call(at: i64, request: &[Value], reply: &Value) -> Call {
        Call {
            at,
            request: json!(request),
            reply: Ok(reply.clone()),
        }
    }

    /// `(who, the call that said it, when)` of each turn.
    fn told(conversation: &Conversation) -> Vec<(Role, Option<u64>, Option<i64>)> {
        let turns = conversation.turns.iter();
        turns
            .map(|turn| {
                (
                    turn.role,
                    turn.call.as_ref().map(|call| call.call_id),
                    turn.at_ms,
                )
            })
            .collect()
    }

    #[test]
    fn calls_that_continue_one_another_are_one_conversation() {
        let first = [user("q")];
        // Sent back as frameworks do: without what was thought, with other spaces.
        let mut again = calls_tool("c");
        again["tool_calls"][0]["function"]["arguments"] = json!("{\"a\":1}");
        again["content"] = json!("");
        let mut thought = calls_tool("c");
        thought["reasoning_content"] = json!("hm");
        let second = [user("q"), again, result("c")];
        let found = conversations(
            &[
                call(1, &first, &thought),
                call(3, &second, &assistant("42")),
            ],
            &[],
        );
        assert_eq!(found.len(), 1);
        assert_eq!(
            told(&found[0]),
            [
                (Role::User, None, Some(500)),
                (Role::Assistant, Some(1), Some(1000)),
                (Role::Tool, None, Some(2500)),
                (Role::Assistant, Some(2), Some(3000)),
            ]
        );
        assert_eq!(found[0].turns[1].reasoning.as_deref(), Some("hm"));
    }

    #[test]
    fn a_call_that_goes_back_begins_a_branch() {
        let question = [user("q")];
        let one = [user("q"), calls_tool("a"), result("a")];
        let two = [user("q"), calls_tool("b"), result("b")];
        let found = conversations(
            &[
                call(1, &question, &calls_tool("a")),
                call(2, &question, &calls_tool("b")),
                call(3, &two, &assistant("from b")),
                call(4, &one, &assistant("from a")),
            ],
            &[],
        );
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0].calls().map(|c| c.call_id).collect::<Vec<_>>(),
            [2, 3]
        );
        assert_eq!(
            found[1].calls().map(|c| c.call_id).collect::<Vec<_>>(),
            [1, 4]
        );
        // Which is the sample's: the one its messages end as, or the last.
        assert_eq!(Conversation::main_of(&found, &[assistant("from b ")]), 0);
        assert_eq!(Conversation::main_of(&found, &[]), 1);
    }

    #[test]
    fn ids_that_a_framework_changed_do_not_tear_a_conversation() {
        let second = [user("q"), calls_tool("its own"), result("its own")];
        let found = conversations(
            &[
                call(1, &[user("q")], &calls_tool("c")),
                call(2, &second, &assistant("42")),
            ],
            &[],
        );
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].calls().count(), 2);
    }

    #[test]
    fn every_choice_that_nobody_continues_ends_a_conversation() {
        let replies = json!([assistant("a"), assistant("b")]);
        let next = [user("q"), assistant("b"), user("more")];
        let found = conversations(
            &[
                call(1, &[user("q")], &replies),
                call(2, &next, &assistant("c")),
            ],
            &[],
        );
        let last: Vec<String> = found
            .iter()
            .map(|c| c.turns.last().unwrap().text())
            .collect();
        assert_eq!(last, ["a", "c"]);
        // The tokens of a call count once.
        let prompts = found.iter().flat_map(Conversation::calls);
        assert_eq!(
            prompts
                .filter_map(|call| call.usage.prompt_tokens)
                .sum::<u64>(),
            3
        );
    }

    #[test]
    fn a_failed_call_shows_where_it_ended_unless_it_was_tried_again() {
        let next = [user("q"), assistant("a"), user("more")];
        let failed = |at: i64| Call {
            at,
            request: json!(next),
            reply: Err("upstream_error: boom"),
        };
        let begun = call(1, &[user("q")], &assistant("a"));
        let found = conversations(&[begun, failed(2), failed(3)], &[]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].turns.len(), 3);
        assert_eq!(found[0].error.as_deref(), Some("upstream_error: boom"));
        let begun = call(1, &[user("q")], &assistant("a"));
        let again = call(3, &next, &assistant("b"));
        let found = conversations(&[begun, failed(2), again], &[]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].turns.len(), 4);
        assert_eq!(found[0].error, None);
    }

    #[test]
    fn messages_tell_what_no_call_does() {
        let messages = [user("q"), assistant("a")];
        let found = conversations(&[], &messages);
        assert_eq!(found, [Conversation::of_messages(&messages)]);
        assert_eq!(conversations(&[], &[]), []);
    }
}
