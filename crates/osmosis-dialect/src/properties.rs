//! What holds for every answer and every request, however odd: nothing panics, a stream says what the
//! whole reply says wherever the network cuts it, and what comes back is what was said.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::completion::completion_to_sse;
use crate::sse::{SseWatch, StreamEnd, data_of, each_event};
use crate::{Dialect, OutputLimit, ReplyStamp, Translator, to_chat};

const TRANSLATED: [Dialect; 2] = [Dialect::Responses, Dialect::Messages];

/// Names and texts that mean something somewhere.
const WORDS: &[&str] = &[
    "input",
    "messages",
    "content",
    "role",
    "type",
    "text",
    "user",
    "assistant",
    "system",
    "message",
    "tool_calls",
    "function",
    "function_call",
    "function_call_output",
    "call_id",
    "output",
    "name",
    "arguments",
    "tools",
    "tool_choice",
    "tool_use",
    "tool_result",
    "tool_use_id",
    "id",
    "input_schema",
    "thinking",
    "reasoning",
    "summary",
    "image",
    "source",
    "base64",
    "media_type",
    "data",
    "url",
    "input_image",
    "image_url",
    "input_text",
    "output_text",
    "refusal",
    "format",
    "json_schema",
    "output_config",
    "document",
    "stop_sequences",
    "metadata",
    "include",
    "n",
    "stream",
    "choices",
    "delta",
    "index",
    "finish_reason",
    "length",
    "logprobs",
    "usage",
    "prompt_tokens",
    "error",
    "reasoning_content",
    "store",
    "instructions",
    "document",
    "title",
    "raw_arguments",
];

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        9 => prop::sample::select(WORDS).prop_map(str::to_owned),
        1 => ".{0,6}",
    ]
}

/// JSON that uses the words of the dialects, mostly in the wrong places.
fn odd_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => word().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<u64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((word(), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// An answer of a chat policy.
#[derive(Debug, Clone)]
struct Answer {
    reasoning: String,
    content: String,
    /// Names and arguments.
    calls: Vec<(String, Value)>,
    finish: &'static str,
    cached: u64,
}

fn answer() -> impl Strategy<Value = Answer> {
    let arguments = prop::collection::vec(("[a-z]{1,4}", any::<i32>().prop_map(Value::from)), 0..3)
        .prop_map(|pairs| Value::Object(pairs.into_iter().collect()));
    (
        "(\\PC{1,20} ){0,3}",
        "(\\PC{1,20}[ \n]){0,3}",
        prop::collection::vec(("[a-z_]{1,8}", arguments), 0..4),
        prop::sample::select(&["stop", "length"][..]),
        0..9_u64,
    )
        .prop_map(|(reasoning, content, calls, finish, cached)| Answer {
            reasoning,
            content,
            finish: if calls.is_empty() {
                finish
            } else {
                "tool_calls"
            },
            calls,
            cached,
        })
}

impl Answer {
    fn message(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(self.reasoning);
        }
        if !self.calls.is_empty() {
            let calls = self
                .calls
                .iter()
                .enumerate()
                .map(|(index, (name, arguments))| {
                    json!({"id": format!("call_{index}"), "type": "function",
                    "function": {"name": name, "arguments": arguments.to_string()}})
                });
            message["tool_calls"] = calls.collect();
            if self.content.is_empty() {
                message["content"] = Value::Null;
            }
        }
        message
    }

    fn completion(&self) -> Value {
        json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 5, "model": "m",
            "choices": [{"index": 0, "message": self.message(), "finish_reason": self.finish}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13,
                "prompt_tokens_details": {"cached_tokens": self.cached}},
        })
    }
}

fn translator(dialect: Dialect) -> Translator {
    let body = match dialect {
        Dialect::Responses => r#"{"model":"m","input":"hi"}"#,
        _ => r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#,
    };
    to_chat(dialect, body, OutputLimit::default(), ReplyStamp::default())
        .unwrap()
        .translator
}

fn whole(dialect: Dialect, completion: &Value) -> Value {
    let reply = translator(dialect).whole(completion.to_string().as_bytes());
    serde_json::from_slice(&reply.unwrap()).unwrap()
}

/// What a caller gets of a stream that comes in these pieces.
fn streamed(dialect: Dialect, pieces: &[&[u8]]) -> (Vec<u8>, StreamEnd) {
    let mut watch = SseWatch::new(Dialect::ChatCompletions, false);
    let mut translator = translator(dialect);
    let mut told = Vec::new();
    for piece in pieces {
        let passed = watch.push(&Bytes::copy_from_slice(piece)).unwrap();
        told.extend_from_slice(&translator.push(&passed).unwrap());
    }
    let (last, end) = watch.finish();
    told.extend_from_slice(&translator.push(&last).unwrap());
    told.extend_from_slice(&translator.finish());
    (told, end)
}

fn events(told: &[u8]) -> Vec<Value> {
    each_event(told)
        .map(|event| serde_json::from_slice(data_of(event).unwrap()).unwrap())
        .collect()
}

/// The message of a stream of Anthropic's, put together as its clients do.
fn assembled_message(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut blocks: BTreeMap<u64, (Value, String)> = BTreeMap::new();
    let mut stopped = 0;
    for event in events {
        let index = event["index"].as_u64().unwrap_or_default();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(usize::try_from(index).unwrap(), blocks.len());
                blocks.insert(index, (event["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                let text = &mut blocks.get_mut(&index).unwrap().1;
                for name in ["text", "thinking", "partial_json"] {
                    text.push_str(event["delta"][name].as_str().unwrap_or_default());
                }
            }
            "content_block_stop" => stopped += 1,
            "message_delta" => {
                for name in ["stop_reason", "stop_sequence"] {
                    message[name] = event["delta"][name].clone();
                }
                message["usage"] = event["usage"].clone();
            }
            "message_start" | "message_stop" => {}
            other => panic!("no event is called {other}"),
        }
    }
    assert_eq!(stopped, blocks.len());
    message["content"] = blocks
        .into_values()
        .map(|(mut block, text)| {
            match block["type"].as_str().unwrap().to_owned().as_str() {
                "tool_use" if text.is_empty() => {}
                "tool_use" => block["input"] = serde_json::from_str(&text).unwrap(),
                kind => block[kind] = json!(text),
            }
            block
        })
        .collect();
    message
}

/// The response of a stream, put together from its events and compared with what its end says.
fn assembled_response(events: &[Value]) -> Value {
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let mut texts: BTreeMap<(u64, u64), String> = BTreeMap::new();
    let mut items = BTreeMap::new();
    for event in events {
        let item = event["output_index"].as_u64().unwrap_or_default();
        let part = event["content_index"].as_u64().unwrap_or_default();
        match event["type"].as_str().unwrap() {
            "response.output_text.delta"
            | "response.reasoning_text.delta"
            | "response.function_call_arguments.delta" => texts
                .entry((item, part))
                .or_default()
                .push_str(event["delta"].as_str().unwrap()),
            "response.output_item.done" => {
                items.insert(item, event["item"].clone());
            }
            _ => {}
        }
    }
    for ((item, part), text) in texts {
        let item = &items[&item];
        let said = match item["type"].as_str().unwrap() {
            "function_call" => &item["arguments"],
            _ => &item["content"][usize::try_from(part).unwrap()]["text"],
        };
        assert_eq!(*said, json!(text));
    }
    let last = events.last().unwrap()["response"].clone();
    assert_eq!(last["output"], items.into_values().collect::<Value>());
    last
}

/// The next call of a conversation, as a client makes it from the reply it got.
fn next_call(dialect: Dialect, reply: &Value) -> Value {
    match dialect {
        Dialect::Responses => {
            let mut input = vec![json!({"role": "user", "content": "hi"})];
            input.extend(reply["output"].as_array().unwrap().iter().cloned());
            input.push(json!({"role": "user", "content": "more"}));
            json!({"model": "m", "input": input})
        }
        _ => json!({"model": "m", "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": reply["content"]},
            {"role": "user", "content": "more"},
        ]}),
    }
}

proptest! {
    #[test]
    fn no_request_makes_a_translator_panic(body in odd_json(), key in word(), value in odd_json()) {
        for dialect in TRANSLATED {
            let _ = to_chat(dialect, &body.to_string(), OutputLimit::default(), ReplyStamp::default());
            let mut nearly = json!({"input": "hi", "messages": [{"role": "user", "content": "hi"}]});
            nearly[&key] = value.clone();
            if let Ok(translated) = to_chat(dialect, &nearly.to_string(), OutputLimit::default(), ReplyStamp::default()) {
                let chat: Value = serde_json::from_slice(&translated.request).unwrap();
                prop_assert!(chat["messages"].as_array().is_some_and(|messages| !messages.is_empty()));
            }
        }
    }

    #[test]
    fn no_reply_makes_a_translator_panic(replies in prop::collection::vec(odd_json(), 0..5)) {
        for dialect in TRANSLATED {
            let mut stream = translator(dialect);
            for reply in &replies {
                let _ = translator(dialect).whole(reply.to_string().as_bytes());
                let chunk = json!({"choices": [{"index": 0, "delta": reply, "message": reply, "logprobs": reply}]});
                let _ = translator(dialect).whole(chunk.to_string().as_bytes());
                for data in [reply, &chunk] {
                    let _ = stream.push(format!("data: {data}\n\n").as_bytes());
                }
            }
            stream.finish();
        }
    }

    #[test]
    fn a_stream_says_what_the_whole_reply_says_wherever_it_is_cut(
        answer in answer(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let completion = answer.completion();
        let stream = completion_to_sse(&completion, true).concat();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        places.extend([0, stream.len()]);
        places.sort_unstable();
        let pieces: Vec<&[u8]> = places.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
        for dialect in TRANSLATED {
            let (uncut, end) = streamed(dialect, &[&stream]);
            prop_assert_eq!(end, StreamEnd::Whole);
            prop_assert_eq!(&streamed(dialect, &pieces).0, &uncut);
            let events = events(&uncut);
            let assembled = match dialect {
                Dialect::Responses => assembled_response(&events),
                _ => assembled_message(&events),
            };
            prop_assert_eq!(assembled, whole(dialect, &completion));
        }
    }

    #[test]
    fn what_a_client_sends_back_is_the_message_that_the_policy_gave(answer in answer()) {
        for dialect in TRANSLATED {
            let reply = whole(dialect, &answer.completion());
            let next = next_call(dialect, &reply).to_string();
            let chat: Value = serde_json::from_slice(&to_chat(dialect, &next, OutputLimit::default(), ReplyStamp::default()).unwrap().request).unwrap();
            prop_assert_eq!(&chat["messages"][1], &answer.message(), "{}", dialect.as_str());
            prop_assert_eq!(&chat["messages"].as_array().unwrap().len(), &3);
        }
    }

    #[test]
    fn arguments_that_are_no_object_survive(text in "\\PC{1,20}") {
        prop_assume!(!text.trim().is_empty() && !serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_object()));
        let completion = json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}]}}]});
        for dialect in TRANSLATED {
            let next = next_call(dialect, &whole(dialect, &completion)).to_string();
            let chat: Value = serde_json::from_slice(&to_chat(dialect, &next, OutputLimit::default(), ReplyStamp::default()).unwrap().request).unwrap();
            prop_assert_eq!(&chat["messages"][1]["tool_calls"][0]["function"]["arguments"], &json!(text));
        }
    }
}
