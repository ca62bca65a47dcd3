//! What was said, as the recorded model calls have it: for samples that bring no messages of their own.
//!
//! A call that repeats what an earlier one asked and was told goes on from there. So the calls of a
//! sample are a tree, and every path from a root to a leaf is one conversation.

mod reading;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use osmosis_core::SampleId;
use osmosis_store::{CallBody, CallRecord};
use osmosis_tokens::ChatFormat;

use super::transcript::Entry;

/// A call with its bytes.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) call: CallRecord,
    pub(crate) body: CallBody,
}

/// What rewards single calls have, by the id that the caller was given.
pub(crate) type RewardsById = HashMap<String, f64>;

/// A place in the tree: what was said up to the end of one answer.
struct Node {
    said: Vec<Entry>,
    is_leaf: bool,
}

/// The conversations of a sample, each once, in the order in which they ended.
///
/// Calls that failed are left out, unless there is nothing else to show.
pub(crate) fn conversations(
    sample: &SampleId,
    calls: &[Recorded],
    rewards: &RewardsById,
    tokenizer: Option<&ChatFormat>,
) -> Vec<Vec<Entry>> {
    let of_sample = || calls.iter().filter(|one| one.call.sample_id == *sample);
    let mut nodes: Vec<Node> = vec![];
    let mut ends: HashMap<u64, usize> = HashMap::new();
    for recorded in of_sample().filter(|one| one.call.status == 200) {
        let asked = reading::asked(recorded, tokenizer);
        let chain = prefixes(&asked);
        // The longest beginning that an earlier call ended with.
        let parent = (1..=asked.len())
            .rev()
            .find_map(|length| Some((*ends.get(&chain[length])?, length)));
        let (mut before, repeated) = match parent {
            Some((node, length)) => {
                nodes[node].is_leaf = false;
                (nodes[node].said.clone(), length)
            }
            None => (vec![], 0),
        };
        before.extend_from_slice(&asked[repeated..]);
        for answer in reading::answers(recorded, tokenizer) {
            let mut end = chain[asked.len()];
            for entry in &answer.said {
                end = after(end, entry);
            }
            let mut said = before.clone();
            said.extend(answer.said);
            if let Some(reward) = answer.id.and_then(|id| rewards.get(&id)) {
                said.push(Entry::new("reward", reward.to_string()));
            }
            // The same question with the same answer is the same place.
            let next = nodes.len();
            let place = *ends.entry(end).or_insert(next);
            if place == next {
                nodes.push(Node {
                    said,
                    is_leaf: true,
                });
            }
        }
    }
    if nodes.is_empty() {
        return of_sample()
            .last()
            .map(|recorded| failed(recorded, tokenizer))
            .into_iter()
            .collect();
    }
    let leaves = nodes.into_iter().filter(|node| node.is_leaf);
    leaves.map(|node| node.said).collect()
}

/// The samples that calls were made for, in the order of the first call of each.
pub(crate) fn samples_of(calls: &[CallRecord]) -> Vec<SampleId> {
    let mut found: Vec<SampleId> = vec![];
    for call in calls {
        if !found.contains(&call.sample_id) {
            found.push(call.sample_id.clone());
        }
    }
    found
}

fn failed(recorded: &Recorded, tokenizer: Option<&ChatFormat>) -> Vec<Entry> {
    let mut said = reading::asked(recorded, tokenizer);
    let status = recorded.call.status;
    let why = recorded.call.error.as_deref().unwrap_or("no reason given");
    said.push(Entry::new("error", format!("status {status}: {why}")));
    said
}

/// A number for every beginning of what was said, the empty one included.
fn prefixes(said: &[Entry]) -> Vec<u64> {
    let mut chain = vec![0];
    for entry in said {
        chain.push(after(chain[chain.len() - 1], entry));
    }
    chain
}

/// Agents need not send reasoning back, so it makes no difference.
fn after(before: u64, entry: &Entry) -> u64 {
    if entry.speaker == "reasoning" {
        return before;
    }
    let mut hasher = DefaultHasher::new();
    (before, &entry.speaker, &entry.text).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use osmosis_core::{Attempt, PolicyVersion, RolloutId};
    use serde_json::{Value, json};

    use super::*;

    fn call(dialect: &str, streamed: bool, request: &Value, response: &str) -> Recorded {
        Recorded {
            call: CallRecord {
                call_id: 1,
                rollout_id: RolloutId::of(0, 0),
                attempt: Attempt(1),
                sample_id: SampleId::main(),
                dialect: dialect.to_owned(),
                model: String::new(),
                upstream: String::new(),
                policy_version: PolicyVersion(0),
                streamed,
                status: 200,
                error: None,
                prompt_tokens: None,
                completion_tokens: None,
                cached_tokens: None,
                reasoning_tokens: None,
                purpose: osmosis_store::CallPurpose::Policy,
                queued_at_ms: 0,
                sent_at_ms: None,
                first_byte_at_ms: None,
                done_at_ms: 0,
                token_records: 0,
            },
            body: CallBody {
                request: Bytes::from(request.to_string()),
                response: Bytes::copy_from_slice(response.as_bytes()),
                tokens: vec![],
            },
        }
    }

    fn chat(messages: &Value, answer: &Value) -> Recorded {
        let response = json!({"id": "c", "choices": [{"index": 0, "message": answer}]}).to_string();
        call(
            "chat_completions",
            false,
            &json!({ "messages": messages }),
            &response,
        )
    }

    fn sse(events: &[Value]) -> String {
        let lines: Vec<String> = events
            .iter()
            .map(|event| format!("data: {event}\n\n"))
            .collect();
        lines.concat()
    }

    fn texts(calls: &[Recorded]) -> Vec<String> {
        shown(calls, &RewardsById::new())
    }

    /// One line for each conversation.
    fn shown(calls: &[Recorded], rewards: &RewardsById) -> Vec<String> {
        conversations(&SampleId::main(), calls, rewards, None)
            .iter()
            .map(|said| {
                let each: Vec<String> = said
                    .iter()
                    .map(|entry| format!("{}: {}", entry.speaker, entry.text))
                    .collect();
                each.join(" | ")
            })
            .collect()
    }

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    fn assistant(text: &str) -> Value {
        json!({"role": "assistant", "content": text})
    }

    #[test]
    fn turns_that_extend_each_other_are_one_conversation_and_branches_are_two() {
        let calls = [
            chat(&json!([user("a")]), &assistant("b")),
            chat(
                &json!([user("a"), &assistant("b"), user("c")]),
                &assistant("d"),
            ),
            chat(
                &json!([user("a"), &assistant("b"), user("e")]),
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
    fn reasoning_that_is_not_sent_back_stays_in_the_conversation() {
        let mut thought = assistant("b");
        thought["reasoning_content"] = json!("hm");
        let calls = [
            chat(&json!([user("a")]), &thought),
            chat(
                &json!([user("a"), &assistant("b"), user("c")]),
                &assistant("d"),
            ),
        ];
        assert_eq!(
            texts(&calls),
            ["user: a | reasoning: hm | assistant: b | user: c | assistant: d"]
        );
    }

    #[test]
    fn a_streamed_answer_reads_like_a_whole_one() {
        let arguments = |text: &str| {
            json!({"choices": [{"index": 0, "delta": {"tool_calls": [
            {"index": 0, "function": {"arguments": text}}]}}]})
        };
        let chunks = sse(&[
            json!({"id": "c1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "let "}}]}),
            json!({"choices": [{"index": 0, "delta": {"content": "me"}}]}),
            json!({"choices": [{"index": 0, "delta": {"tool_calls": [
                {"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]}}]}),
            arguments("{\"a\":"),
            arguments("1}"),
        ]) + "data: [DONE]\n\n";
        let first = call(
            "chat_completions",
            true,
            &json!({"messages": [user("a")]}),
            &chunks,
        );
        assert_eq!(
            texts(&[first]),
            ["user: a | assistant: let me | tool call: f({\"a\":1})"]
        );
    }

    #[test]
    fn the_messages_dialect_is_read_whole_and_streamed() {
        let request = json!({"system": "brief", "messages": [user("a")]});
        let blocks = json!([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "b"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]);
        let whole = json!({"id": "msg_1", "role": "assistant", "content": blocks});
        let start = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
        let delta = |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
        let streamed = sse(&[
            json!({"type": "message_start", "message": {"id": "msg_1"}}),
            start(0, json!({"type": "thinking", "thinking": ""})),
            delta(0, json!({"type": "thinking_delta", "thinking": "hm"})),
            start(1, json!({"type": "text", "text": ""})),
            delta(1, json!({"type": "text_delta", "text": "b"})),
            start(
                2,
                json!({"type": "tool_use", "id": "t", "name": "f", "input": {}}),
            ),
            delta(
                2,
                json!({"type": "input_json_delta", "partial_json": "{\"a\":1}"}),
            ),
        ]);
        let expected =
            "system: brief | user: a | reasoning: hm | assistant: b | tool call: f({\"a\":1})";
        for (streamed, response) in [(false, whole.to_string()), (true, streamed)] {
            let next = json!({"system": "brief", "messages": [user("a"),
                {"role": "assistant", "content": blocks},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "6"}]}]});
            let last = json!({"id": "msg_2", "content": [{"type": "text", "text": "done"}]});
            let calls = [
                call("messages", streamed, &request, &response),
                call("messages", false, &next, &last.to_string()),
            ];
            assert_eq!(texts(&calls[..1]), [expected]);
            assert_eq!(
                texts(&calls),
                [format!("{expected} | tool result: 6 | assistant: done")]
            );
        }
    }

    #[test]
    fn the_responses_dialect_is_read_whole_and_streamed() {
        let request = json!({"instructions": "brief", "input": "a"});
        let item = json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]});
        let response = json!({"id": "resp_1", "output": [item]});
        let completed = sse(&[json!({"type": "response.completed", "response": response})]);
        let torn = sse(&[json!({"type": "response.output_item.done", "item": item})]);
        for (streamed, body) in [
            (false, response.to_string()),
            (true, completed),
            (true, torn),
        ] {
            let calls = [
                call("responses", streamed, &request, &body),
                call(
                    "responses",
                    false,
                    &json!({"instructions": "brief", "input": [user("a"), item,
                        {"type": "function_call_output", "call_id": "t", "output": "6"}]}),
                    &response.to_string(),
                ),
            ];
            assert_eq!(
                texts(&calls),
                ["system: brief | user: a | assistant: b | tool result: 6 | assistant: b"]
            );
        }
    }

    #[test]
    fn every_choice_is_a_branch_and_rewards_stand_by_their_answers() {
        let response = json!({"id": "c1", "choices": [
            {"index": 0, "message": assistant("b")}, {"index": 1, "message": assistant("c")}]});
        let calls = [call(
            "chat_completions",
            false,
            &json!({"messages": [user("a")]}),
            &response.to_string(),
        )];
        let rewards = RewardsById::from([("c1".to_owned(), 0.5)]);
        assert_eq!(
            shown(&calls, &rewards),
            [
                "user: a | assistant: b | reward: 0.5",
                "user: a | assistant: c | reward: 0.5"
            ]
        );
    }

    #[test]
    fn tokens_without_a_tokenizer_are_counted() {
        let request = json!({"input_ids": [1, 2, 3]});
        let calls = [call(
            "generate",
            false,
            &request,
            r#"{"output_ids": [4], "stop_reason": "stop"}"#,
        )];
        assert_eq!(texts(&calls), ["tokens in: 3 ids | tokens out: 1 id"]);
    }

    #[test]
    fn a_completion_of_text_is_shown() {
        let calls = [call(
            "completions",
            false,
            &json!({"prompt": "one, two"}),
            r#"{"choices": [{"text": ", three"}]}"#,
        )];
        assert_eq!(texts(&calls), ["prompt: one, two | completion: , three"]);
    }

    #[test]
    fn a_failure_is_shown_only_when_nothing_was_answered() {
        let mut refused = chat(&json!([user("a")]), &Value::Null);
        refused.call.status = 502;
        refused.call.error = Some("no such host".to_owned());
        refused.body.response = Bytes::from_static(b"{}");
        assert_eq!(
            texts(std::slice::from_ref(&refused)),
            ["user: a | error: status 502: no such host"]
        );
        let calls = [refused, chat(&json!([user("a")]), &assistant("b"))];
        assert_eq!(texts(&calls), ["user: a | assistant: b"]);
        assert_eq!(texts(&[]), Vec::<String>::new());
    }
}
