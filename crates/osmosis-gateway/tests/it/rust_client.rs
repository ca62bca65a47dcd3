//! Responses through a client whose types are strict: what it can't read is an error.

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::types::responses::{CreateResponse, OutputItem, ResponseStreamEvent, Status};
use futures_util::StreamExt;
use osmosis_testkit::model_server::Behaviour;
use serde_json::{Value, json};

use crate::fixture::House;

fn client(house: &House) -> Client<OpenAIConfig> {
    let config = OpenAIConfig::new()
        .with_api_base(house.gateway.url())
        .with_api_key(house.session.key());
    Client::build(house.client.clone(), config)
}

fn request(body: Value) -> CreateResponse {
    serde_json::from_value(body).unwrap()
}

#[tokio::test]
async fn async_openai_speaks_responses_with_a_chat_server() {
    let (house, _server) = House::upstream(Behaviour::Answers).await;
    let client = client(&house);
    let tools = json!([{"type": "function", "name": "multiply", "parameters": {"type": "object"}}]);
    let asked = json!({"model": "m", "input": "What is 6 times 7?", "tools": tools});
    let reply = client
        .responses()
        .create(request(asked.clone()))
        .await
        .unwrap();
    assert_eq!(reply.status, Status::Completed);
    let [OutputItem::FunctionCall(call)] = reply.output.as_slice() else {
        unreachable!("{:?}", reply.output)
    };
    assert_eq!(
        (call.call_id.as_str(), call.name.as_str()),
        ("call_6_7", "multiply")
    );
    assert_eq!(reply.usage.unwrap().total_tokens, 10);

    let mut stream = client
        .responses()
        .create_stream(request(asked))
        .await
        .unwrap();
    let mut arguments = String::new();
    let mut last = None;
    while let Some(event) = stream.next().await {
        match event.unwrap() {
            ResponseStreamEvent::ResponseFunctionCallArgumentsDelta(event) => {
                arguments.push_str(&event.delta);
            }
            ResponseStreamEvent::ResponseCompleted(event) => last = Some(event.response),
            _ => {}
        }
    }
    assert_eq!(arguments, r#"{"a":6,"b":7}"#);
    assert_eq!(last.unwrap().output, reply.output);

    let asked = json!({"model": "m", "input": "hi"});
    let reply = client.responses().create(request(asked)).await.unwrap();
    assert_eq!(reply.output_text().unwrap(), "Hello from the model server.");

    let asked = json!({"model": "m", "input": "hi", "previous_response_id": "resp_1"});
    let refused = client.responses().create(request(asked)).await.unwrap_err();
    let OpenAIError::ApiError(error) = refused else {
        unreachable!("{refused:?}")
    };
    assert!(
        error.to_string().contains("previous_response_id"),
        "{error}"
    );
}
