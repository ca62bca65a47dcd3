"""Real Strands agents with our model, against a server that keeps requests."""

import asyncio
import base64
import copy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("strands")

import openai
from pydantic import BaseModel
from strands import Agent, tool
from strands.types.exceptions import MaxTokensReachedException, ModelThrottledException

import osmosis_ai.rollout as sdk
from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    RolloutContext,
    RolloutErrorCategory,
)
from osmosis_ai.rollout.config import ConfigCopies
from osmosis_ai.rollout.errors import ForeignSessionError, NoRolloutContextError, NoSessionError
from osmosis_ai.rollout.execution import WorkflowRunner
from osmosis_ai.rollout.failure import failure_of
from osmosis_ai.rollout.integrations.agents.strands import (
    OsmosisRolloutModel,
    OsmosisStrandsAgent,
)
from osmosis_ai.rollout.integrations.agents.strands_model import RETRIES_CAN_BE_OFF
from tests.model_server import Call, ModelServer, cut_off, text, tool_call

PROMPT: Any = [
    {"role": "system", "content": "Use the tool."},
    {"role": "user", "content": "6 times 7?"},
]


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


def agent(name: str | None = "solver", **fields: Any) -> OsmosisStrandsAgent:
    fields.setdefault("model", OsmosisRolloutModel(params={"temperature": 0.5}))
    return OsmosisStrandsAgent(name=name, callback_handler=None, **fields)


def rollout(server: ModelServer, rollout_id: str = "r1-0") -> RolloutContext:
    return RolloutContext(server.url, f"key-{rollout_id}", rollout_id)


async def multiplying(call: Call) -> dict[str, Any]:
    if call.last["role"] == "tool":
        return text(f"The answer is {call.last['content']}")
    return tool_call("multiply", a=6, b=7)


async def echo(call: Call) -> dict[str, Any]:
    # Answers that take turns, so that concurrent runs really mix.
    await asyncio.sleep(0.01)
    return text(f"echo {call.last['content']}")


def said(result: Any) -> str:
    return str(result).strip()


async def test_a_tool_using_agent_becomes_a_sample():
    async with ModelServer(multiplying) as server:
        with rollout(server) as context:
            solver = agent(tools=[multiply], messages=PROMPT)
            result = await solver.invoke_async()
            samples = await context.get_samples()
    assert said(result) == "The answer is 42"
    first, second = server.calls
    assert first.path == "/v1/chat/completions"
    assert first.headers["authorization"] == "Bearer key-r1-0"
    assert first.headers["x-rollout-id"] == "r1-0"
    assert server.samples() == ["solver", "solver"]
    assert first.body["model"] == "openai/osmosis-rollout"
    assert first.body["temperature"] == 0.5
    assert "stream" not in first.body
    assert first.body["messages"] == PROMPT
    assert first.body["tools"][0]["function"]["name"] == "multiply"
    roles = [message["role"] for message in second.body["messages"]]
    assert roles == ["system", "user", "assistant", "tool"]
    (sample,) = samples.values()
    assert sample.id == "solver"
    assert sample.messages[1]["content"] == [{"text": "6 times 7?"}]
    assert sample.messages[2]["content"][0]["toolUse"]["input"] == {"a": 6, "b": 7}
    assert sample.messages[3]["content"][0]["toolResult"]["content"] == [{"text": "42"}]
    assert sample.messages[-1]["content"] == [{"text": "The answer is 42"}]
    assert PROMPT[1] == {"role": "user", "content": "6 times 7?"}


async def test_repeated_invocations_go_on_with_the_conversation():
    async with ModelServer(multiplying) as server:
        with rollout(server) as context:
            solver = agent(tools=[multiply], messages=PROMPT)
            for _ in range(8):
                result = await solver.invoke_async()
                if not any("toolUse" in block for block in result.message["content"]):
                    break
            await solver.invoke_async("And now?")
            await solver.invoke_async([{"text": "Block"}, {"text": "wise?"}])
            await solver.invoke_async([{"role": "user", "content": "As messages?"}])
            (sample,) = (await context.get_samples()).values()
        asked = [call.body["messages"][-1] for call in server.calls[2:]]
    texts = [m["content"] for m in asked if m["role"] == "user"]
    assert texts == [
        "And now?",
        [{"text": "Block", "type": "text"}, {"text": "wise?", "type": "text"}],
        "As messages?",
    ]
    assert [m["role"] for m in sample.messages][:3] == ["system", "user", "assistant"]


async def test_prompts_in_parts_and_with_tool_calls_become_blocks():
    pixel = base64.b64encode(b"png").decode()
    prompt = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixel}"}},
            ],
        },
        {**tool_call("multiply", a=1, b=2), "content": "let me see"},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
        {"role": "user", "content": [{"text": "and in Strands' own blocks"}]},
    ]
    before = copy.deepcopy(prompt)
    async with ModelServer(echo) as server:
        with rollout(server) as context:
            await agent(messages=prompt).invoke_async()
            (sample,) = (await context.get_samples()).values()
        sent = server.calls[0].body["messages"]
    assert prompt == before
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "user"]
    assert sent[1]["tool_calls"][0]["function"]["name"] == "multiply"
    assert sample.messages[0]["content"][1]["image"]["source"]["bytes"] == pixel
    with pytest.raises(ValueError, match="not by address"):
        agent(
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": "http://x"}]}]
        )
    with pytest.raises(ValueError, match="`input_audio`"):
        agent(messages=[{"role": "user", "content": [{"type": "input_audio"}]}])
    with pytest.raises(TypeError, match="dict with a `role`"):
        agent(messages=["hello"])


async def test_one_connection_serves_many_rollouts_each_with_its_own_key():
    async with ModelServer(echo) as server:
        for number in range(3):
            with rollout(server, f"r{number}-0"):
                await agent().invoke_async("hi")
        keys = [call.headers["authorization"] for call in server.calls]
        assert keys == [f"Bearer key-r{number}-0" for number in range(3)]
        assert server.connections == 1


async def test_agents_and_rollouts_side_by_side_never_mix():
    async with ModelServer(echo) as server:

        async def one(number: int) -> None:
            with rollout(server, f"r{number}-0") as context:

                async def speak(name: str) -> None:
                    speaker = agent(f"{name}-{number}")
                    for turn in range(2):
                        await speaker.invoke_async(f"{name}-{number}-{turn}")

                await asyncio.gather(speak("a"), speak("b"), asyncio.create_task(speak("c")))
                for name, sample in (await context.get_samples()).items():
                    asked = [m["content"][0]["text"] for m in sample.messages[::2]]
                    assert asked == [f"{name}-0", f"{name}-1"]

        await asyncio.gather(*(one(number) for number in range(8)))
        assert len(server.calls) == 8 * 3 * 2
        for call in server.calls:
            name, number, _ = call.last["content"].split("-")
            assert call.headers["x-sample-id"] == f"{name}-{number}"
            assert call.headers["x-rollout-id"] == f"r{number}-0"
            assert call.headers["authorization"] == f"Bearer key-r{number}-0"


async def test_two_streams_read_in_turns_never_mix():
    async def answer(call: Call) -> dict[str, Any]:
        return await multiplying(call) if call.body.get("tools") else text("42")

    async with ModelServer(answer) as server:
        with rollout(server):

            @tool
            async def multiply(a: int, b: int) -> str:
                """Multiply by asking a plain agent, which speaks for the agent around it."""
                inner = Agent(model=OsmosisRolloutModel(), callback_handler=None)
                return said(await inner.invoke_async("inner"))

            streams = [
                agent(name, tools=[multiply]).stream_async("go") for name in ("left", "right")
            ]
            while streams:
                for stream in list(streams):
                    try:
                        await stream.__anext__()
                    except StopAsyncIteration:
                        streams.remove(stream)
        assert sorted(server.samples()) == ["left"] * 3 + ["right"] * 3


@pytest.mark.parametrize("own_name", [True, False])
async def test_an_agent_inside_a_tool(own_name: bool):
    async def answer(call: Call) -> dict[str, Any]:
        if call.body.get("tools"):
            return text("done") if call.last["role"] == "tool" else tool_call("ask")
        return text("inner answer")

    @tool
    def ask() -> str:
        """Ask another agent, from the thread of a sync tool."""
        inner: Any = (
            agent("inner")
            if own_name
            else Agent(model=OsmosisRolloutModel(), callback_handler=None)
        )
        return said(inner("inner question"))

    async with ModelServer(answer) as server:
        with rollout(server) as context:
            await agent("outer", tools=[ask]).invoke_async("go")
            assert list(await context.get_samples()) == ["outer", "inner"][: 1 + own_name]
        assert server.samples() == ["outer", "inner" if own_name else "outer", "outer"]


async def test_an_agent_called_from_a_thread():
    async with ModelServer(echo) as server:
        with rollout(server):
            solver = agent()
            results = [await asyncio.to_thread(solver, f"turn {n}") for n in range(2)]
        assert [said(result) for result in results] == ["echo turn 0", "echo turn 1"]
        assert server.samples() == ["solver", "solver"]


async def test_an_agent_made_outside_becomes_a_sample_where_it_first_runs():
    made_outside = agent()
    async with ModelServer(echo) as server:
        with rollout(server, "r0-0") as context:
            await made_outside.invoke_async("hi")
            assert list(await context.get_samples()) == ["solver"]
        with (
            rollout(server, "r1-0"),
            pytest.raises(ForeignSessionError, match="`solver` belongs to rollout `r0-0`"),
        ):
            await made_outside.invoke_async("hi")
        assert len(server.calls) == 1


async def test_the_placeholder_needs_a_rollout_and_an_agent_of_it():
    with pytest.raises(Exception, match="outside of a rollout") as caught:
        await agent().invoke_async("hi")
    assert failure_of(caught.value).kind == NoRolloutContextError.__name__
    async with ModelServer(echo) as server:
        with (
            rollout(server),
            pytest.raises(Exception, match="OsmosisStrandsAgent, made inside `run`") as caught,
        ):
            await Agent(model=OsmosisRolloutModel(), callback_handler=None).invoke_async("hi")
        assert failure_of(caught.value).kind == NoSessionError.__name__
        assert not server.calls
    with pytest.raises(TypeError, match="model_id"):
        OsmosisRolloutModel(model_id="gpt-x")


async def test_two_agents_of_one_name_are_an_error_and_unnamed_ones_are_numbered():
    with RolloutContext("http://h/v1", "k", "r1-0") as context:
        agent("a")
        with pytest.raises(ValueError, match="`a` is already registered"):
            agent("a")
        agent(None)
        agent(None)
        assert context.sample_names == ["a", "main", "main-2"]


async def test_with_another_model_it_is_the_plain_agent():
    from strands.models.openai import OpenAIModel

    async with ModelServer(echo) as server:
        with rollout(server) as context:
            judge = agent(
                "judge",
                model=OpenAIModel(
                    client_args={"base_url": server.url, "api_key": "judge"}, model_id="gpt-x"
                ),
            )
            assert said(await judge.invoke_async("hm")) == "echo [{'text': 'hm', 'type': 'text'}]"
            assert context.sample_names == []
        assert "x-sample-id" not in server.calls[0].headers


class Answer(BaseModel):
    number: int


async def test_structured_output_comes_from_the_policy():
    async def answer(call: Call) -> dict[str, Any]:
        if call.body.get("tools"):
            return tool_call(call.body["tools"][0]["function"]["name"], number=42)
        return text('{"number": 42}')

    async with ModelServer(answer) as server:
        with rollout(server):
            solver = agent()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                got = await solver.structured_output_async(Answer, "6 times 7?")
            assert got == Answer(number=42)
            result = await solver.invoke_async("again", structured_output_model=Answer)
            assert result.structured_output == Answer(number=42)
        assert set(server.samples()) == {"solver"}


async def test_a_refusing_gateway_is_asked_once():
    async def refusing(call: Call) -> dict[str, Any]:
        status = 429 if "slow" in call.last["content"] else 500
        return {"status": status, "message": "gateway says no"}

    async with ModelServer(refusing) as server:
        with rollout(server):
            throttled = ModelThrottledException if RETRIES_CAN_BE_OFF else openai.RateLimitError
            for prompt, kind in (("slow", throttled), ("x", openai.APIStatusError)):
                with pytest.raises(Exception, match="gateway says no") as caught:
                    await agent(prompt).invoke_async(prompt)
                failure = failure_of(caught.value)
                assert failure.category is RolloutErrorCategory.HTTP_ERROR
                original = getattr(caught.value, "original_exception", caught.value)
                assert isinstance(original, kind)
        assert len(server.calls) == 2


async def test_a_tool_that_raises_is_told_to_the_model_and_the_run_goes_on():
    @tool
    def multiply(a: int, b: int) -> int:
        """Multiply."""
        raise RuntimeError("tool is broken")

    async with ModelServer(multiplying) as server:
        with rollout(server):
            result = await agent(tools=[multiply]).invoke_async("6 times 7?")
        assert "tool is broken" in said(result)


class ToolConfig(AgentWorkflowConfig):
    name: str = "tools"
    model: Any = OsmosisRolloutModel(params={"temperature": 1.0})
    tools: Any = [multiply]


async def test_a_config_may_carry_model_and_tools():
    class Flow(AgentWorkflow[ToolConfig]):
        async def run(self, ctx: AgentWorkflowContext[ToolConfig]) -> None:
            assert ctx.config is not None
            ctx.config.model.params["temperature"] += 1
            solver = agent(model=ctx.config.model, tools=ctx.config.tools, messages=ctx.prompt)
            await solver.invoke_async()

    runner = WorkflowRunner(Flow, ToolConfig())
    async with ModelServer(multiplying) as server:
        for number in range(2):
            context = rollout(server, f"r{number}-0")
            result = await runner.run(context, PROMPT, None, None)
            assert result.samples[0].messages[-1]["content"] == [{"text": "The answer is 42"}]
        # Each execution had a copy of its own.
        assert {call.body["temperature"] for call in server.calls} == {2.0}
    assert ConfigCopies(ToolConfig()).make().model.params == {"temperature": 1.0}


def test_the_names_are_also_in_the_root():
    assert sdk.OsmosisStrandsAgent is OsmosisStrandsAgent
    assert sdk.OsmosisRolloutModel is OsmosisRolloutModel
    assert "OsmosisStrandsAgent" in dir(sdk)


def test_a_process_that_ends_its_loop_leaves_no_connection_behind():
    code = """
import asyncio
from tests.model_server import ModelServer, text
from osmosis_ai.rollout import RolloutContext
from osmosis_ai.rollout.integrations.agents.strands import *

async def answer(call):
    return text("ok")

async def main():
    async with ModelServer(answer) as server:
        with RolloutContext(server.url, "k", "r"):
            agent = OsmosisStrandsAgent(model=OsmosisRolloutModel(), callback_handler=None)
            await agent.invoke_async("hi")
            await asyncio.to_thread(agent, "hi from a thread")

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr
    assert "nclosed" not in done.stderr


async def cut(call: Call) -> dict[str, Any]:
    return cut_off(text("The answer is 4"))


async def test_an_answer_cut_at_the_token_limit_is_a_sample_that_ends_there_and_is_marked():
    async with ModelServer(cut) as server:
        with rollout(server) as context:
            solver = agent(tools=[multiply], messages=PROMPT)
            result = await solver.invoke_async()
            (sample,) = (await context.get_samples()).values()
    assert result.stop_reason == "max_tokens"
    assert said(result) == "The answer is 4"
    assert sample.messages[-1]["role"] == "assistant"
    assert sample.messages[-1]["content"] == [{"text": "The answer is 4"}]
    assert sample.extra_fields == {"finish_reason": "length"}
    assert sample.truncated


async def test_a_tool_call_that_was_cut_off_is_not_run():
    calls: list[int] = []

    @tool
    def count(a: int) -> int:
        """Counts."""
        calls.append(a)
        return a

    async def cut_call(call: Call) -> dict[str, Any]:
        return cut_off(tool_call("count", a=6))

    async with ModelServer(cut_call) as server:
        with rollout(server) as context:
            result = await agent(tools=[count], messages=PROMPT).invoke_async()
            (sample,) = (await context.get_samples()).values()
    assert (result.stop_reason, calls, len(server.calls)) == ("max_tokens", [], 1)
    assert sample.truncated


async def test_only_the_last_answer_of_a_sample_decides_whether_it_was_cut():
    async def first_cut(call: Call) -> dict[str, Any]:
        return await (cut(call) if call.last["content"] != "And now?" else echo(call))

    async with ModelServer(first_cut) as server:
        with rollout(server) as context:
            solver = agent(messages=PROMPT)
            await solver.invoke_async()
            await solver.invoke_async("And now?")
            (sample,) = (await context.get_samples()).values()
    assert not sample.truncated
    assert "finish_reason" not in sample.extra_fields


async def test_a_plain_agent_still_raises_when_its_answer_is_cut():
    async with ModelServer(cut) as server:
        with rollout(server):
            solver = agent(messages=PROMPT)
            assert solver.sample_name is not None
            plain = Agent(model=solver.model, callback_handler=None)
            with pytest.raises(MaxTokensReachedException):
                await plain.invoke_async("hello")


async def test_a_cut_answer_reaches_the_grader_as_a_sample():
    class Cut(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None:
            await agent(messages=ctx.prompt).invoke_async()

    async with ModelServer(cut) as server:
        with rollout(server) as context:
            await Cut().run(AgentWorkflowContext(prompt=PROMPT))
            samples = await context.get_samples()
    assert [sample.truncated for sample in samples.values()] == [True]
