//! The other dialects through the clients that agents really use.

use std::process::Stdio;

use osmosis_testkit::model_server::Behaviour;
use osmosis_testkit::python_environment;
use tokio::process::Command;

use crate::fixture::House;

/// Runs a program with the session's key in the variables of every client.
async fn run(house: &House, program: &str) {
    let url = house.gateway.url();
    let output = Command::new(python_environment::python())
        .args(["-c", program])
        .env("OPENAI_BASE_URL", url)
        .env("OPENAI_API_KEY", house.session.key())
        .env("ANTHROPIC_BASE_URL", url)
        .env("ANTHROPIC_API_KEY", house.session.key())
        .env("OPENAI_AGENTS_DISABLE_TRACING", "1")
        // It would fetch a list of prices.
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .env("NO_PROXY", "*")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.trim(), "all is well", "{complained}");
}

/// The dialects of the recorded calls, each of which was answered.
fn answered(house: &House) -> Vec<String> {
    let calls = house.store.calls();
    for call in &calls {
        assert_eq!((call.status, &call.error), (200, &None));
        assert!(call.completion_tokens.is_some());
    }
    calls.into_iter().map(|call| call.dialect).collect()
}

const RESPONSES: &str = r#"
import asyncio, openai
from pydantic import BaseModel

client = openai.OpenAI(max_retries=0)
tool = {"type": "function", "name": "multiply", "parameters": {"type": "object"}, "strict": False}
items = [{"role": "user", "content": "What is 6 times 7?"}]

reply = client.responses.create(model="m", input=items, tools=[tool])
(call,) = reply.output
assert (call.type, call.name, call.call_id, call.arguments) == ("function_call", "multiply", "call_6_7", '{"a":6,"b":7}'), call
assert reply.status == "completed" and reply.usage.total_tokens == 10, reply
items += reply.output + [{"type": "function_call_output", "call_id": call.call_id, "output": "42"}]
reply = client.responses.create(model="m", input=items, tools=[tool], instructions="Be brief.")
assert reply.output_text == "The answer is 42.", reply

kinds, text = [], ""
for event in client.responses.create(model="m", input="hi", stream=True):
    kinds.append(event.type)
    text += event.delta if event.type == "response.output_text.delta" else ""
assert text == "Hello from the model server.", text
assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"], kinds
assert kinds[-1] == "response.completed", kinds

with client.responses.stream(model="m", input="What is 6 times 7?", tools=[tool]) as stream:
    final = stream.get_final_response()
assert final.output[0].arguments == '{"a":6,"b":7}', final
with client.responses.stream(model="m", input="hi") as stream:
    final = stream.get_final_response()
assert final.output_text == "Hello from the model server.", final

async def concurrently():
    async with openai.AsyncOpenAI(max_retries=0) as client:
        replies = await asyncio.gather(*(client.responses.create(model="m", input="hi") for _ in range(4)))
        assert {reply.output_text for reply in replies} == {"Hello from the model server."}
        stream = await client.responses.create(model="m", input="hi", stream=True)
        events = [event async for event in stream]
        assert [event.sequence_number for event in events] == list(range(len(events)))
asyncio.run(concurrently())

try:
    client.responses.create(model="m", input="hi", previous_response_id="resp_1")
except openai.BadRequestError as error:
    assert error.param == "previous_response_id", error
else:
    raise AssertionError("a response that nobody kept was gone on with")
print("all is well")
"#;

#[tokio::test]
async fn the_openai_client_speaks_responses_with_a_chat_server() {
    let (house, _server) = House::upstream(Behaviour::Answers).await;
    run(&house, RESPONSES).await;
    let calls = house.store.calls();
    assert_eq!(calls.len(), 11);
    assert!(calls.iter().all(|call| call.dialect == "responses"));
    assert_eq!(calls.iter().filter(|call| call.status == 200).count(), 10);
}

const STRUCTURED: &str = r#"
import asyncio, openai
from pydantic import BaseModel

class Product(BaseModel):
    a: int
    b: int

client = openai.OpenAI(max_retries=0)
reply = client.responses.parse(model="m", input="hi", text_format=Product)
assert reply.output_parsed == Product(a=6, b=7), reply
with client.responses.stream(model="m", input="hi", text_format=Product) as stream:
    assert stream.get_final_response().output_parsed == Product(a=6, b=7)
reply = client.chat.completions.parse(model="m", messages=[{"role": "user", "content": "hi"}], response_format=Product)
assert reply.choices[0].message.parsed == Product(a=6, b=7), reply
hi = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "response_format": Product}
with client.chat.completions.stream(**hi) as stream:
    assert stream.get_final_completion().choices[0].message.parsed == Product(a=6, b=7)

async def concurrently():
    async with openai.AsyncOpenAI(max_retries=0) as client:
        reply = await client.chat.completions.parse(**hi)
        assert reply.choices[0].message.parsed == Product(a=6, b=7), reply
asyncio.run(concurrently())
import anthropic
client = anthropic.Anthropic(max_retries=0)
reply = client.messages.parse(
    model="m", max_tokens=50, messages=[{"role": "user", "content": "hi"}], output_format=Product
)
assert reply.parsed_output == Product(a=6, b=7), reply
print("all is well")
"#;

#[tokio::test]
async fn structured_answers_are_parsed_by_the_clients() {
    let house = House::scripted("[[reply]]\ntext = '{{\"a\": 6, \"b\": 7}}'\n").await;
    run(&house, STRUCTURED).await;
    assert_eq!(
        answered(&house),
        [
            &["responses"; 2][..],
            &["chat_completions"; 3],
            &["messages"]
        ]
        .concat()
    );
}

const CHAT: &str = r#"
import asyncio, openai
from pydantic import BaseModel

tools = [{"type": "function", "function": {"name": "multiply", "parameters": {"type": "object"}}}]
ask = {"model": "m", "messages": [{"role": "user", "content": "What is 6 times 7?"}], "tools": tools}
hello = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

client = openai.OpenAI(max_retries=0)
reply = client.chat.completions.create(**hello)
assert reply.choices[0].message.content == "Hello from the model server.", reply
pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**hello, stream=True) if chunk.choices]
assert "".join(pieces) == "Hello from the model server." and len(pieces) > 2, pieces

async def main():
    async with openai.AsyncOpenAI(max_retries=0) as client:
        chat = client.chat.completions
        replies = await asyncio.gather(*(chat.create(**ask) for _ in range(8)))
        for reply in replies:
            (call,) = reply.choices[0].message.tool_calls
            assert (call.id, call.function.arguments) == ("call_6_7", '{"a":6,"b":7}'), reply
        streamed = await chat.create(**hello, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in streamed]
        assert chunks[-1].usage.completion_tokens == 5 and not chunks[-1].choices, chunks[-1]
        assert all(chunk.usage is None for chunk in chunks[:-1])
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        assert text == "Hello from the model server.", text
        async with chat.stream(**ask) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.tool_calls[0].function.name == "multiply", final
        async with client.chat.completions.with_streaming_response.create(**hello) as raw:
            assert raw.status_code == 200 and (await raw.json())["object"] == "chat.completion"
        stopped = await chat.create(**hello, stream=True)
        async for _ in stopped:
            break
        await stopped.close()
        try:
            await chat.create(model="m", messages="hi")
        except openai.BadRequestError as error:
            assert "`messages` is not an array" in str(error), error
        else:
            raise AssertionError("a text was taken for messages")
asyncio.run(main())
print("all is well")
"#;

#[tokio::test]
async fn the_openai_client_speaks_chat_plain_streamed_and_async() {
    let (house, _server) = House::upstream(Behaviour::Answers).await;
    run(&house, CHAT).await;
    let calls = house.store.calls();
    assert!(calls.iter().all(|call| call.dialect == "chat_completions"));
    let statuses = calls.iter().filter(|call| call.status == 200).count();
    assert_eq!((calls.len(), statuses), (15, 14));
}

const MESSAGES: &str = r#"
import asyncio, anthropic

client = anthropic.Anthropic(max_retries=0)
tool = {"name": "multiply", "input_schema": {"type": "object"}}
messages = [{"role": "user", "content": "What is 6 times 7?"}]

reply = client.messages.create(model="m", max_tokens=50, messages=messages, tools=[tool])
(use,) = reply.content
assert (use.type, use.id, use.name, use.input) == ("tool_use", "call_6_7", "multiply", {"a": 6, "b": 7}), use
assert reply.stop_reason == "tool_use" and reply.usage.output_tokens == 5, reply
messages += [
    {"role": "assistant", "content": reply.content},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "42"}]},
]
reply = client.messages.create(model="m", max_tokens=50, messages=messages, tools=[tool], system="Be brief.")
assert (reply.content[0].text, reply.stop_reason) == ("The answer is 42.", "end_turn"), reply

with client.messages.stream(model="m", max_tokens=50, messages=messages[:1], tools=[tool]) as stream:
    final = stream.get_final_message()
assert final.content[0].input == {"a": 6, "b": 7} and final.stop_reason == "tool_use", final
assert final.usage.input_tokens == 5, final
with client.messages.stream(model="m", max_tokens=50, messages=[{"role": "user", "content": "hi"}]) as stream:
    assert "".join(stream.text_stream) == "Hello from the model server."

async def streaming():
    async with anthropic.AsyncAnthropic(max_retries=0) as client:
        stream = await client.messages.create(
            model="m", max_tokens=50, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        kinds = [event.type async for event in stream]
        assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
asyncio.run(streaming())

assert [model.id for model in client.models.list()] == ["real-model"]
try:
    client.messages.count_tokens(model="m", messages=messages)
except anthropic.NotFoundError as error:
    assert error.body["error"]["type"] == "not_found_error", error.body
else:
    raise AssertionError("tokens were counted")
try:
    client.messages.create(model="m", max_tokens=5, messages=[{"role": "assistant", "content": "{"}])
except anthropic.BadRequestError as error:
    assert "the last message is the assistant's" in str(error), error
else:
    raise AssertionError("a message was gone on with")
try:
    anthropic.Anthropic(max_retries=0, api_key="wrong").messages.create(model="m", max_tokens=5, messages=messages)
except anthropic.AuthenticationError:
    pass
else:
    raise AssertionError("a wrong key was let in")
print("all is well")
"#;

#[tokio::test]
async fn the_anthropic_client_talks_with_a_chat_server() {
    let (house, _server) = House::upstream(Behaviour::Answers).await;
    run(&house, MESSAGES).await;
    let calls = house.store.calls();
    assert!(calls.iter().all(|call| call.dialect == "messages"));
    let statuses: Vec<u16> = calls.iter().map(|call| call.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 400]);
}

const LITELLM: &str = r#"
import os, litellm

litellm.num_retries = 0
litellm.suppress_debug_info = True
tools = [{"type": "function", "function": {"name": "multiply", "parameters": {"type": "object", "properties": {}}}}]
messages = [{"role": "user", "content": "What is 6 times 7?"}]
base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
for model, api_base in [("openai/m", base), ("anthropic/m", base.removesuffix("/v1"))]:
    where = {"model": model, "api_base": api_base, "api_key": key, "max_tokens": 50}
    reply = litellm.completion(messages=messages, tools=tools, **where)
    call = reply.choices[0].message.tool_calls[0]
    assert (call.id, call.function.name) == ("call_6_7", "multiply"), reply
    follow_up = messages + [
        reply.choices[0].message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "42"},
    ]
    reply = litellm.completion(messages=follow_up, tools=tools, **where)
    assert reply.choices[0].message.content == "The answer is 42.", reply
    assert reply.usage.completion_tokens == 5, reply
    pieces = litellm.completion(messages=[{"role": "user", "content": "hi"}], stream=True, **where)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == "Hello from the model server.", text
reply = litellm.responses(model="openai/m", input="hi", api_base=base, api_key=key)
assert reply.output[0].content[0].text == "Hello from the model server.", reply
print("all is well")
"#;

#[tokio::test]
async fn litellm_talks_in_three_dialects() {
    let (house, _server) = House::upstream(Behaviour::Answers).await;
    run(&house, LITELLM).await;
    let chat = ["chat_completions"; 3];
    assert_eq!(
        answered(&house),
        [&chat[..], &["messages"; 3], &["responses"]].concat()
    );
}

const AGENTS: &str = r#"
import asyncio
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI

@function_tool
def multiply(a: int, b: int) -> str:
    return str(a * b)

async def main():
    async with AsyncOpenAI(max_retries=0) as client:
        model = OpenAIResponsesModel(model="m", openai_client=client)
        agent = Agent(name="solver", instructions="Be brief.", model=model, tools=[multiply])
        result = await Runner.run(agent, "What is 6 times 7?")
        assert result.final_output == "The answer is 42.", result
        assert result.context_wrapper.usage.output_tokens == 10, result.context_wrapper.usage
        result = Runner.run_streamed(agent, "What is 6 times 7?")
        async for _ in result.stream_events():
            pass
        assert result.final_output == "The answer is 42.", result
asyncio.run(main())
print("all is well")
"#;

#[tokio::test]
async fn an_agent_of_the_agents_sdk_works_with_its_responses_model() {
    let (house, server) = House::upstream(Behaviour::Answers).await;
    run(&house, AGENTS).await;
    assert_eq!(answered(&house), ["responses"; 4]);
    let last = &server.requests()[3].body;
    assert_eq!(last["messages"][2]["tool_calls"][0]["id"], "call_6_7");
}
