//! The embedded policy through the client that agents really use.

use std::process::Stdio;

use osmosis_testkit::python_environment;
use tokio::process::Command;

use crate::embedded::{CALL_TEXT, house};
use crate::toy::Engine;

const PROGRAM: &str = r#"
import openai

client = openai.OpenAI(max_retries=0)
tools = [{"type": "function", "function": {"name": "multiply", "parameters": {"type": "object"}}}]
messages = [{"role": "user", "content": "6 times 7?"}]

reply = client.chat.completions.create(model="osmosis-rollout", messages=messages, tools=tools)
choice = reply.choices[0]
assert choice.finish_reason == "tool_calls", choice
call = choice.message.tool_calls[0]
assert (call.function.name, call.function.arguments) == ("multiply", '{"a": 6, "b": 7}'), call
assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens

messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "42"}]
pieces, calls, usage, logprobs = [], [], None, []
for chunk in client.chat.completions.create(
    model="osmosis-rollout", messages=messages, tools=tools, stream=True, logprobs=True,
    stream_options={"include_usage": True},
):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        pieces.append(choice.delta.content or "")
        calls += choice.delta.tool_calls or []
        logprobs += choice.logprobs.content if choice.logprobs else []
assert "".join(pieces) == "It is 42.", pieces
assert [call.function.name for call in calls] == ["multiply"], calls
assert usage.completion_tokens == len(logprobs) > 0, usage
assert logprobs[0].token == "I" and logprobs[0].logprob < 0

with client.chat.completions.stream(model="osmosis-rollout", messages=messages, tools=tools) as stream:
    final = stream.get_final_completion()
assert final.choices[0].message.content == "Done.", final
assert final.choices[0].finish_reason == "stop"

try:
    client.chat.completions.create(model="osmosis-rollout", messages=[{"role": "user", "content": "x" * 3000}])
except openai.BadRequestError as error:
    assert error.code == "context_length_exceeded" and "3019 tokens" in str(error), error
else:
    raise AssertionError("a prompt that is too long was answered")
assert [model.id for model in client.models.list()] == ["toy"]
print("all is well")
"#;

#[tokio::test]
async fn the_openai_client_talks_with_the_embedded_policy() {
    let second = format!("It is 42.\n{CALL_TEXT}");
    let (house, _) = house(Engine::saying(&[CALL_TEXT, &second, "Done."])).await;
    let output = Command::new(python_environment::python())
        .args(["-c", PROGRAM])
        .env("OPENAI_BASE_URL", house.gateway.url())
        .env("OPENAI_API_KEY", house.session.key())
        .env("NO_PROXY", "*")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.trim(), "all is well", "{complained}");
    assert_eq!(house.store.calls().len(), 4);
}
