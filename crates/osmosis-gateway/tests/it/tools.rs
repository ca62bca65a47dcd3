//! Tools that a chat template does not show to the model.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use osmosis_core::config::ToolFormat;
use osmosis_gateway::{FaultKind, GatewayOptions, TokenPolicy};
use serde_json::{Value, json};

use crate::embedded::{CALL_TEXT, records, with_tools};
use crate::fixture::{Answer, House, streamed, user};
use crate::memory_store::MemoryStore;
use crate::toy::{self, Engine};

/// Knows nothing of tools.
const PLAIN: &str = "{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}";

async fn house(engine: Engine, tool_format: Option<ToolFormat>) -> (House, Arc<toy::Log>) {
    house_of(PLAIN, engine, tool_format).await
}

async fn house_of(
    template: &str,
    engine: Engine,
    tool_format: Option<ToolFormat>,
) -> (House, Arc<toy::Log>) {
    let log = Arc::clone(&engine.log);
    let chat = toy::format_of(template, tool_format);
    let policy = TokenPolicy::new(Arc::new(engine), Arc::new(chat), toy::options());
    let house = House::with(policy, GatewayOptions::default(), MemoryStore::default()).await;
    (house, log)
}

async fn post(house: &House, path: &str, body: &Value) -> Answer {
    let url = format!("{}/{path}", house.gateway.url());
    let call = house.client.post(url).bearer_auth(house.session.key());
    Answer::of(call.body(body.to_string()).send().await.unwrap()).await
}

#[tokio::test]
async fn a_call_with_tools_that_the_template_ignores_is_a_clear_400_in_every_dialect() {
    let (house, log) = house(Engine::saying(&["Hi"]), None).await;
    let schema = json!({"type": "object", "properties": {}});
    for (path, body) in [
        ("chat/completions", with_tools(user("6 * 7?"))),
        ("chat/completions", with_tools(streamed("6 * 7?"))),
        (
            "responses",
            json!({"input": "6 * 7?", "tools": [{"type": "function", "name": "multiply", "parameters": schema}]}),
        ),
        (
            "messages",
            json!({"max_tokens": 9, "messages": [{"role": "user", "content": "6 * 7?"}],
                "tools": [{"name": "multiply", "input_schema": schema}]}),
        ),
    ] {
        let answer = post(&house, path, &body).await;
        assert_eq!(answer.status, 400, "{path}");
        let error = answer.json()["error"].clone();
        let message = error["message"].as_str().unwrap();
        assert!(
            message.starts_with("the chat template of `toy` ignores `tools`: multiply. "),
            "{message}"
        );
        assert!(message.contains("tool_format = \"hermes\""), "{message}");
        assert!(message.contains("--chat-template FILE"), "{message}");
        assert_eq!(error["type"], "invalid_request_error", "{path}");
        if path == "chat/completions" {
            assert_eq!(
                (&error["param"], &error["code"]),
                (&json!("tools"), &json!("tools_ignored"))
            );
        }
    }
    assert_eq!(log.requests.lock().len(), 0, "the engine was asked");
    let fault = tokio::time::timeout(Duration::from_secs(5), house.gateway.run_fault());
    let fault = fault.await.unwrap();
    assert_eq!(fault.kind, FaultKind::ToolsIgnored);
    assert_eq!(
        fault.message,
        "the chat template of `toy` ignores `tools`: multiply"
    );
}

#[tokio::test]
async fn agents_without_tools_still_run() {
    let (house, _log) = house(Engine::saying(&["Hi", "Ho"]), None).await;
    assert_eq!(house.send(&user("hello")).await.status, 200);
    let mut unwanted = with_tools(user("hello"));
    unwanted["tool_choice"] = json!("none");
    assert_eq!(house.send(&unwanted).await.status, 200);
    assert_eq!(house.gateway.run_fault().now_or_never(), None);
}

#[tokio::test]
async fn with_the_hermes_format_tools_are_in_the_prompt_and_calls_are_read_whole_and_streamed() {
    for stream in [false, true] {
        let (house, log) = house(
            Engine::saying(&[CALL_TEXT, "It is 42."]),
            Some(ToolFormat::Hermes),
        )
        .await;
        let first = if stream {
            streamed("6 * 7?")
        } else {
            user("6 * 7?")
        };
        let answer = house.send(&with_tools(first)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let call = if stream {
            assert!(answer.text.contains("\"finish_reason\":\"tool_calls\""));
            let events = answer.events();
            let call = events.iter().find_map(|event| {
                let chunk: Value = serde_json::from_str(event).ok()?;
                chunk.pointer("/choices/0/delta/tool_calls/0").cloned()
            });
            let mut call = call.unwrap();
            call.as_object_mut().unwrap().remove("index");
            call
        } else {
            let choice = answer.json()["choices"][0].clone();
            assert_eq!(choice["finish_reason"], "tool_calls");
            choice["message"]["tool_calls"][0].clone()
        };
        assert_eq!(call["function"]["name"], "multiply");
        assert_eq!(call["function"]["arguments"], "{\"a\": 6, \"b\": 7}");
        let prompt = toy::chat_format()
            .decode(&log.requests.lock()[0].prompt, false)
            .unwrap();
        assert!(
            prompt.contains(
                "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"multiply\""
            ),
            "{prompt}"
        );

        let mut second = with_tools(user("6 * 7?"));
        let messages = second["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "42"}));
        let answer = house.send(&second).await;
        assert_eq!(
            answer.json()["choices"][0]["message"]["content"],
            "It is 42."
        );
        let requests = log.requests.lock();
        let sampled = records(&house.store.calls()[0]).remove(0).sampled;
        let kept = [requests[0].prompt.clone(), sampled].concat();
        assert!(
            requests[1].prompt.starts_with(&kept),
            "the sampled ids are kept"
        );
        let new = toy::chat_format()
            .decode(&requests[1].prompt[kept.len()..], false)
            .unwrap();
        assert_eq!(
            new,
            "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        );
    }
}

/// Writes calls as the templates of Llama 3 do.
const LLAMA: &str = "{%- if tools %}{{ tools | tojson }}{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.tool_calls %}{% set call = message.tool_calls[0].function -%}
{\"name\": \"{{ call.name }}\", \"parameters\": {{ call.arguments | tojson }}}
{%- else %}{{ message.content }}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}";

#[tokio::test]
async fn a_bare_object_of_a_llama_is_a_tool_call_streamed_or_not_and_other_json_is_an_answer() {
    let call = "{\"name\": \"multiply\", \"parameters\": {\"a\": 6, \"b\": 7}}";
    let answer = "{\"answer\": 42}";
    for stream in [false, true] {
        let body = if stream { streamed } else { user };
        let engine = Engine::saying(&[call, answer, call, "It is 42."]);
        let (house, _) = house_of(LLAMA, engine, None).await;
        let mut said = vec![];
        for body in [
            with_tools(body("6 * 7?")),
            with_tools(body("6 * 7?")),
            // Nothing is a call where no tools are on offer.
            body("6 * 7?"),
            with_tools(body("6 * 7?")),
        ] {
            let answer = house.send(&body).await;
            assert_eq!(answer.status, 200);
            said.push(if stream {
                joined(&answer.events())
            } else {
                whole(&answer.json())
            });
        }
        let calls = "multiply({\"a\": 6, \"b\": 7}) tool_calls";
        let expected = [
            calls.to_owned(),
            format!("{answer} stop"),
            format!("{call} stop"),
            "It is 42. stop".to_owned(),
        ];
        assert_eq!(said, expected, "streamed: {stream}");
    }
}

/// Content, calls and the finish reason of a reply.
fn whole(reply: &Value) -> String {
    let choice = &reply["choices"][0];
    said(&choice["message"], &choice["finish_reason"])
}

fn said(message: &Value, finish_reason: &Value) -> String {
    let mut text = message["content"].as_str().unwrap_or_default().to_owned();
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        text.push_str(function["name"].as_str().unwrap_or_default());
        let arguments = function["arguments"].as_str().unwrap();
        text.push('(');
        text.push_str(arguments);
        text.push(')');
    }
    if let Some(reason) = finish_reason.as_str() {
        text.push(' ');
        text.push_str(reason);
    }
    text
}

/// The same of a streamed one.
fn joined(events: &[String]) -> String {
    let chunks = events
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let choices = chunks.flat_map(|chunk| chunk["choices"].as_array().cloned().unwrap_or_default());
    choices
        .map(|choice| said(&choice["delta"], &choice["finish_reason"]))
        .collect()
}
