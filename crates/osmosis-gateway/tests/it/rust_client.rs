//! Responses read with the types of `async-openai`, which are strict: what they can't hold is an error.

use async_openai::types::responses::{OutputItem, Response, ResponseStreamEvent, Status};
use osmosis_testkit::model_server::Behaviour;
use serde_json::{Value, json};

use crate::fixture::House;

/// The status and the body that a request is answered with.
async fn answer(house: &House, body: &Value) -> (u16, String) {
    let request = house
        .client
        .post(format!("{}/responses", house.gateway.url()))
        .bearer_auth(house.session.key())
        .header("content-type", "application/json")
        .body(body.to_string());
    let reply = request.send().await.unwrap();
    (reply.status().as_u16(), reply.text().await.unwrap())
}

async fn response(house: &House, body: &Value) -> Response {
    let (status, text) = answer(house, body).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn the_types_of_async_openai_hold_what_a_chat_server_answers() {
    let (house, _server) = House::upstream(Behaviour::Answers).await;
    let tools = json!([{"type": "function", "name": "multiply", "parameters": {"type": "object"}}]);
    let mut asked = json!({"model": "m", "input": "What is 6 times 7?", "tools": tools});
    let reply = response(&house, &asked).await;
    assert_eq!(reply.status, Status::Completed);
    let [OutputItem::FunctionCall(call)] = reply.output.as_slice() else {
        unreachable!("{:?}", reply.output)
    };
    assert_eq!(
        (call.call_id.as_str(), call.name.as_str()),
        ("call_6_7", "multiply")
    );
    assert_eq!(reply.usage.unwrap().total_tokens, 10);

    asked["stream"] = true.into();
    let (status, text) = answer(&house, &asked).await;
    assert_eq!(status, 200, "{text}");
    let mut arguments = String::new();
    let mut last = None;
    for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        match serde_json::from_str(data).unwrap() {
            ResponseStreamEvent::ResponseFunctionCallArgumentsDelta(event) => {
                arguments.push_str(&event.delta);
            }
            ResponseStreamEvent::ResponseCompleted(event) => last = Some(event.response),
            _ => {}
        }
    }
    assert_eq!(arguments, r#"{"a":6,"b":7}"#);
    assert_eq!(last.unwrap().output, reply.output);

    let reply = response(&house, &json!({"model": "m", "input": "hi"})).await;
    assert_eq!(reply.output_text().unwrap(), "Hello from the model server.");

    let asked = json!({"model": "m", "input": "hi", "previous_response_id": "resp_1"});
    let (status, text) = answer(&house, &asked).await;
    assert_eq!(status, 400, "{text}");
    let error: Value = serde_json::from_str(&text).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("previous_response_id"), "{message}");
}
