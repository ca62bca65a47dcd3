//! One answer of everything a chat server says, in each dialect.

use serde_json::{Value, json};

use crate::sse::{data_of, each_event};
use crate::{Dialect, OutputLimit, ReplyStamp, to_chat};

fn translated(dialect: Dialect, chunks: &[Value]) -> Vec<Value> {
    let body =
        json!({"model": "asked", "input": "hi", "messages": [{"role": "user", "content": "hi"}]});
    let mut translator = to_chat(
        dialect,
        &body.to_string(),
        OutputLimit::default(),
        ReplyStamp::default(),
    )
    .unwrap()
    .translator;
    let mut told = Vec::new();
    for chunk in chunks {
        let event = format!("data: {chunk}\n\n");
        told.extend_from_slice(&translator.push(event.as_bytes()).unwrap());
    }
    told.extend_from_slice(&translator.push(b"data: [DONE]\n\n").unwrap());
    told.extend_from_slice(&translator.finish());
    each_event(&told)
        .map(|event| serde_json::from_slice(data_of(event).unwrap()).unwrap())
        .collect()
}

/// A chunk of the first choice.
fn chunk(delta: &Value, finish: Option<&str>) -> Value {
    json!({"id": "chatcmpl-1", "created": 5, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

fn everything() -> Vec<Value> {
    let call = |index: u64, arguments: &str| {
        json!({"tool_calls": [
        {"index": index, "function": {"arguments": arguments}}]})
    };
    let begun = |index: u64| {
        json!({"tool_calls": [
        {"index": index, "id": format!("call_{index}"), "type": "function",
            "function": {"name": format!("f{index}"), "arguments": ""}}]})
    };
    let mut said = chunk(&json!({"content": "Hi."}), None);
    said["choices"][0]["logprobs"] = json!({"content": [
        {"token": "Hi.", "logprob": -0.5, "bytes": [72, 105, 46], "top_logprobs": []}]});
    vec![
        chunk(&json!({"role": "assistant", "content": ""}), None),
        chunk(&json!({"reasoning_content": "Let me "}), None),
        chunk(&json!({"reasoning": "think."}), None),
        said,
        chunk(&begun(0), None),
        chunk(&begun(1), None),
        // Mixed, as servers do that sample calls side by side.
        chunk(&call(0, "{\"a\":"), None),
        chunk(&call(1, "{}"), None),
        chunk(&call(0, "1}"), None),
        chunk(&json!({}), Some("tool_calls")),
        json!({"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 2}}}),
    ]
}

#[test]
fn everything_a_chat_server_says_is_in_the_response() {
    let mut events = translated(Dialect::Responses, &everything());
    let response = events.pop().unwrap()["response"].take();
    insta::assert_json_snapshot!("the_events_of_a_response", events[2..]);
    insta::assert_json_snapshot!("the_response_with_everything", response);
}

#[test]
fn everything_a_chat_server_says_is_in_the_message() {
    insta::assert_json_snapshot!(translated(Dialect::Messages, &everything()));
}

#[test]
fn why_an_answer_ended_is_told() {
    let ended = |reason: &str, stop: Value| {
        let mut last = chunk(&json!({"content": "x"}), Some(reason));
        last["choices"][0]["stop_reason"] = stop;
        let response = translated(Dialect::Responses, &[last.clone()])
            .pop()
            .unwrap();
        let told = translated(Dialect::Messages, &[last]);
        let details = &response["response"]["incomplete_details"]["reason"];
        let delta = &told[told.len() - 2]["delta"];
        json!([
            response["type"],
            details,
            delta["stop_reason"],
            delta["stop_sequence"]
        ])
    };
    for (reason, stop, expected) in [
        (
            "stop",
            Value::Null,
            json!(["response.completed", null, "end_turn", null]),
        ),
        // vLLM tells the id of a stop token as a number, and a stop text as it is.
        (
            "stop",
            json!(151_645),
            json!(["response.completed", null, "end_turn", null]),
        ),
        (
            "stop",
            json!("END"),
            json!(["response.completed", null, "stop_sequence", "END"]),
        ),
        (
            "length",
            Value::Null,
            json!([
                "response.incomplete",
                "max_output_tokens",
                "max_tokens",
                null
            ]),
        ),
        (
            "content_filter",
            Value::Null,
            json!(["response.incomplete", "content_filter", "refusal", null]),
        ),
        (
            "tool_calls",
            Value::Null,
            json!(["response.completed", null, "tool_use", null]),
        ),
        (
            "abort",
            Value::Null,
            json!(["response.completed", null, "end_turn", null]),
        ),
    ] {
        assert_eq!(ended(reason, stop), expected, "{reason}");
    }
}

#[test]
fn a_refusal_is_a_part_of_its_own() {
    let refused = [
        chunk(&json!({"refusal": "I can't "}), None),
        chunk(&json!({"refusal": "do that."}), Some("stop")),
    ];
    let response = translated(Dialect::Responses, &refused).pop().unwrap();
    assert_eq!(
        response["response"]["output"][0]["content"],
        json!([{"type": "refusal", "refusal": "I can't do that."}])
    );
    let told = translated(Dialect::Messages, &refused);
    assert_eq!(told[told.len() - 2]["delta"]["stop_reason"], "refusal");
}

#[test]
fn a_stream_without_ids_gets_some() {
    let events = translated(
        Dialect::Responses,
        &[json!({"choices": [{"delta": {"tool_calls": [
        {"index": 0, "function": {"name": "f", "arguments": "{}"}}]}}]})],
    );
    let response = &events.last().unwrap()["response"];
    assert!(response["id"].as_str().unwrap().len() > 20);
    assert_eq!(response["model"], "asked");
    assert!(
        response["output"][0]["call_id"]
            .as_str()
            .unwrap()
            .starts_with("call_")
    );
}
