//! When a call continues an earlier one, and why not.

use osmosis_core::{PolicyVersion, SampleId};
use osmosis_testkit::published_models::PublishedTokenizer;
use osmosis_tokens::{CallTree, ChatFormat, Origin, PlannedPrompt, TokenRecord};
use serde_json::{Map, Value, json};

use crate::{published, toy};

/// One agent with its policy.
struct Agent<'a> {
    format: &'a ChatFormat,
    tree: CallTree,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    extra: Map<String, Value>,
    records: Vec<TokenRecord>,
}

impl<'a> Agent<'a> {
    fn new(format: &'a ChatFormat) -> Self {
        Self {
            format,
            tree: CallTree::default(),
            messages: Vec::new(),
            tools: None,
            extra: Map::new(),
            records: Vec::new(),
        }
    }

    fn says(&mut self, role: &str, content: &str) -> &mut Self {
        self.messages
            .push(json!({"role": role, "content": content}));
        self
    }

    fn plan(&mut self) -> PlannedPrompt {
        let tools = self.tools.as_deref();
        self.tree
            .plan(self.format, &self.messages, tools, &self.extra)
            .unwrap()
    }

    /// The policy samples this text; the agent takes the reply into its messages.
    fn answered(&mut self, prompt: PlannedPrompt, text: &str) -> Vec<u32> {
        let seen = prompt.ids.clone();
        let sampled = self.format.encode(text).unwrap();
        let said = text.strip_suffix("<|im_end|>").unwrap_or(text);
        let parsed = self.format.parse_reply(said);
        let mut reply = json!({"role": "assistant", "content": parsed.content});
        if let Some(reasoning) = parsed.reasoning {
            reply["reasoning_content"] = json!(reasoning);
        }
        if !parsed.tool_calls.is_empty() {
            reply["tool_calls"] = parsed
                .tool_calls
                .iter()
                .enumerate()
                .map(|(n, call)| {
                    json!({"id": format!("call{n}"), "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments}})
                })
                .collect();
        }
        self.finish(prompt, sampled.clone(), Some(&reply));
        self.messages.push(reply);
        [seen, sampled].concat()
    }

    fn finish(&mut self, prompt: PlannedPrompt, sampled: Vec<u32>, reply: Option<&Value>) {
        let logprobs = vec![-0.25; sampled.len()];
        let versions = vec![PolicyVersion(1); sampled.len()];
        let record = self
            .tree
            .finished(prompt, sampled, logprobs, versions, 1.0, reply);
        self.records.push(record);
    }

    fn full_rendering(&self) -> String {
        self.format
            .render(&self.messages, self.tools.as_deref(), true, &self.extra)
            .unwrap()
    }
}

fn reason(prompt: &PlannedPrompt) -> &str {
    match &prompt.origin {
        Origin::Root {
            reason: Some(reason),
        } => reason,
        other => panic!("no reason: {other:?}"),
    }
}

fn continues(prompt: &PlannedPrompt) -> u32 {
    match prompt.origin {
        Origin::Continues { call, .. } => call,
        Origin::Root { ref reason } => panic!("a root: {reason:?}"),
    }
}

fn multiply() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "multiply", "description": "Multiplies.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}),
    ]
}

#[test]
fn qwen2_5_continues_through_tool_calls_with_the_sampled_ids_verbatim() {
    let format = published::format(PublishedTokenizer::Qwen25);
    let mut agent = Agent::new(&format);
    agent.tools = Some(multiply());
    agent
        .says("system", "Use tools.")
        .says("user", "6 times 7?");
    let prompt = agent.plan();
    assert_eq!(prompt.origin, Origin::Root { reason: None });
    assert_eq!(prompt.ids, format.encode(&agent.full_rendering()).unwrap());

    // Written as the template would not: no spaces, keys the other way round.
    let first = agent.answered(
        prompt,
        "<tool_call>\n{\"arguments\":{\"b\":7,\"a\":6},\"name\":\"multiply\"}\n</tool_call><|im_end|>",
    );
    agent.says("tool", "42");
    agent.messages[3]["tool_call_id"] = json!("call0");
    let prompt = agent.plan();
    assert_eq!(continues(&prompt), 0);
    assert!(prompt.ids.starts_with(&first));
    assert_eq!(
        format.decode(&prompt.ids[first.len()..], false).unwrap(),
        "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    );

    let second = agent.answered(prompt, "It is 42.<|im_end|>");
    agent.says("user", "And 7 times 8?");
    let prompt = agent.plan();
    assert_eq!(continues(&prompt), 1);
    assert!(prompt.ids.starts_with(&second));
    agent.answered(prompt, "56<|im_end|>");

    let rows = CallTree::rows(&SampleId::new("main").unwrap(), &agent.records).unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].calls, [0, 1, 2]);
}

#[test]
fn a_continuation_of_canonical_text_equals_a_full_rendering() {
    let format = published::format(PublishedTokenizer::Qwen25);
    let mut agent = Agent::new(&format);
    agent.tools = Some(multiply());
    agent.says("user", "6 times 7? Grüße 🙂");
    for turn in [
        "<tool_call>\n{\"name\": \"multiply\", \"arguments\": {\"a\": 6, \"b\": 7}}\n</tool_call><|im_end|>",
        "Well,\n\n  that is\t42 …\n<|im_end|>",
        "cut off by its len",
        "Done.<|im_end|>",
    ] {
        let prompt = agent.plan();
        assert_eq!(
            format.decode(&prompt.ids, false).unwrap(),
            agent.full_rendering()
        );
        assert_eq!(prompt.ids, format.encode(&agent.full_rendering()).unwrap());
        agent.answered(prompt, turn);
        agent.says("user", "go on");
    }
    assert!(
        agent.records[1..]
            .iter()
            .all(|record| matches!(record.origin, Origin::Continues { .. }))
    );
    // The turn that its length ended was closed by us, not by the policy.
    let end = format.end_of_turn()[0];
    assert_eq!(agent.records[3].prompt_suffix[0], end);
    assert_ne!(agent.records[2].prompt_suffix[0], end);
}

#[test]
fn qwen3_continues_tool_steps_with_thoughts_and_begins_anew_when_it_drops_them() {
    let format = published::format(PublishedTokenizer::Qwen3);
    let thinking_call = "<think>\nEasy.\n</think>\n\n<tool_call>\n{\"name\": \"multiply\", \"arguments\": {\"a\": 6}}\n</tool_call><|im_end|>";

    let mut agent = Agent::new(&format);
    agent.tools = Some(multiply());
    agent.says("user", "6 times 7?");
    let prompt = agent.plan();
    agent.answered(prompt, thinking_call);
    agent.says("tool", "42");
    let prompt = agent.plan();
    assert_eq!(continues(&prompt), 0);
    assert_eq!(
        format.decode(&prompt.ids, false).unwrap(),
        agent.full_rendering()
    );
    agent.answered(prompt, "<think>\nSo.\n</think>\n\n42<|im_end|>");
    agent.says("user", "Thanks");
    let prompt = agent.plan();
    assert_eq!(
        reason(&prompt),
        "the template renders earlier turns differently: the text up to message 3 changes when more follows"
    );
    assert_eq!(prompt.ids, format.encode(&agent.full_rendering()).unwrap());

    // A client that does not send the thoughts back.
    let mut agent = Agent::new(&format);
    agent.tools = Some(multiply());
    agent.says("user", "6 times 7?");
    let prompt = agent.plan();
    agent.answered(prompt, thinking_call);
    agent.messages[1]
        .as_object_mut()
        .unwrap()
        .remove("reasoning_content");
    agent.says("tool", "42");
    assert!(reason(&agent.plan()).starts_with("the template renders earlier turns differently"));
}

#[test]
fn a_rewritten_history_begins_anew_and_says_where() {
    let format = toy::format(toy::CHATML);
    let mut agent = Agent::new(&format);
    agent.says("system", "s").says("user", "one");
    let prompt = agent.plan();
    agent.answered(prompt, "abc<|im_end|>");
    agent.says("user", "two");
    let prompt = agent.plan();
    assert_eq!(continues(&prompt), 0);
    agent.answered(prompt, "def<|im_end|>");

    let original = agent.messages.clone();
    agent.says("user", "three");
    agent.messages[2] = json!({"role": "assistant", "content": "other"});
    assert_eq!(
        reason(&agent.plan()),
        "history rewritten: message 2 is not the reply of call 0"
    );

    agent.messages = original[..2].to_vec();
    assert_eq!(reason(&agent.plan()), "the same request as call 0");
    agent.says("user", "more");
    assert_eq!(
        reason(&agent.plan()),
        "history rewritten: message 2 is not the reply of call 0"
    );

    agent.messages = original.clone();
    agent.messages[1] = json!({"role": "user", "content": "1"});
    assert_eq!(agent.plan().origin, Origin::Root { reason: None });

    // Only the last turn is another: what came before it is kept.
    agent.messages = original.clone();
    agent.messages[4] = json!({"role": "assistant", "content": "changed"});
    agent.says("user", "three");
    assert_eq!(continues(&agent.plan()), 0);

    agent.messages = original;
    agent.says("user", "three");
    agent.tools = Some(multiply());
    assert_eq!(reason(&agent.plan()), "tools changed");
    agent.tools = None;
    agent
        .extra
        .insert("enable_thinking".to_owned(), json!(false));
    assert_eq!(reason(&agent.plan()), "template variables changed");
    agent.extra.clear();
    assert_eq!(continues(&agent.plan()), 1);
}

#[test]
fn a_message_changed_in_the_middle_of_a_request_is_named() {
    let format = toy::format(toy::CHATML);
    let mut agent = Agent::new(&format);
    agent
        .says("user", "one")
        .says("assistant", "an example")
        .says("user", "two");
    let prompt = agent.plan();
    agent.answered(prompt, "abc<|im_end|>");
    agent.messages[1] = json!({"role": "assistant", "content": "another example"});
    agent.says("user", "three");
    assert_eq!(
        reason(&agent.plan()),
        "history rewritten: message 1 differs from call 0"
    );
    agent.messages.truncate(1);
    assert_eq!(
        reason(&agent.plan()),
        "the beginning of the request of call 0"
    );
}

#[test]
fn templates_that_prove_nothing_are_rendered_anew() {
    for (template, expected) in [
        (
            toy::OPEN_TURNS,
            "the template does not end turns with a special token",
        ),
        (
            toy::REWRITING,
            "the template renders earlier turns differently: the text up to message 1 changes when more follows",
        ),
    ] {
        let format = toy::format(template);
        let mut agent = Agent::new(&format);
        agent.says("user", "one");
        let prompt = agent.plan();
        agent.answered(prompt, "abc<|im_end|>");
        agent.says("user", "two");
        let prompt = agent.plan();
        assert_eq!(reason(&prompt), expected);
        assert_eq!(prompt.ids, format.encode(&agent.full_rendering()).unwrap());
    }
}

#[test]
fn a_turn_whose_end_is_part_of_a_longer_token_is_not_continued() {
    let format = toy::format_with(toy::CHATML, &["<|im_end|>\n<|im_start|>"]);
    let mut agent = Agent::new(&format);
    agent.says("user", "one");
    let prompt = agent.plan();
    agent.answered(prompt, "abc<|im_end|>");
    agent.says("user", "two");
    let prompt = agent.plan();
    assert_eq!(
        reason(&prompt),
        "the tokenizer does not keep `<|im_end|>` apart"
    );
    assert_eq!(prompt.ids, format.encode(&agent.full_rendering()).unwrap());
}

#[test]
fn a_turn_that_another_token_ended_is_not_continued() {
    let format = toy::format(toy::CHATML);
    let mut agent = Agent::new(&format);
    agent.says("user", "one");
    let prompt = agent.plan();
    let sampled = format.encode("abc<|endoftext|>").unwrap();
    let reply = json!({"role": "assistant", "content": "abc"});
    agent.finish(prompt, sampled, Some(&reply));
    agent.messages.push(reply);
    agent.says("user", "two");
    assert_eq!(
        reason(&agent.plan()),
        "call 0 ended with another token than `<|im_end|>`"
    );
}

#[test]
fn reasoning_that_comes_back_changed_is_a_rewritten_history() {
    let format = toy::format(toy::CHATML);
    let mut agent = Agent::new(&format);
    agent.says("user", "one");
    let prompt = agent.plan();
    agent.answered(prompt, "<think>hm</think>abc<|im_end|>");
    agent.says("user", "two");
    assert_eq!(continues(&agent.plan()), 0);
    agent.messages[1]["reasoning_content"] = json!("something else");
    assert_eq!(
        reason(&agent.plan()),
        "history rewritten: the reasoning of call 0 differs"
    );
    agent.messages[1]["reasoning_content"] = Value::Null;
    assert_eq!(continues(&agent.plan()), 0);
}

#[test]
fn a_call_that_was_cut_off_is_never_continued() {
    let format = toy::format(toy::CHATML);
    let mut agent = Agent::new(&format);
    agent.says("user", "one");
    let prompt = agent.plan();
    agent.finish(prompt, format.encode("abc<|im_end|>").unwrap(), None);
    assert!(!agent.records[0].complete);
    agent.says("assistant", "abc").says("user", "two");
    assert_eq!(agent.plan().origin, Origin::Root { reason: None });
    let rows = CallTree::rows(&SampleId::new("main").unwrap(), &agent.records).unwrap();
    assert!(rows.is_empty());
}

#[test]
fn a_call_whose_ids_nobody_knows_has_a_number_too() {
    let format = toy::format(toy::CHATML);
    let mut agent = Agent::new(&format);
    agent.says("user", "one");
    assert_eq!(agent.plan().call, 0);
    assert_eq!(agent.tree.skip(), 1);
    assert_eq!(agent.tree.skip(), 2);
    assert_eq!(agent.plan().call, 3);
}

#[test]
fn retries_become_siblings_and_each_is_continued_once() {
    let format = toy::format(toy::CHATML);
    let mut agent = Agent::new(&format);
    agent.says("user", "one");
    let (first, second) = (agent.plan(), agent.plan());
    assert_eq!(first.ids, second.ids);
    let sampled = format.encode("abc<|im_end|>").unwrap();
    let reply = json!({"role": "assistant", "content": "abc"});
    agent.finish(second, sampled.clone(), Some(&reply));
    agent.finish(first, sampled, Some(&reply));
    agent.messages.push(reply);
    agent.says("user", "two");
    let mut origins = [continues(&agent.plan()), continues(&agent.plan())];
    origins.sort_unstable();
    assert_eq!(origins, [0, 1]);
}
