"""The real OpenAI Agents SDK with our session and model, against a server that keeps requests."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

import openai
from agents import Agent, ModelSettings, RunConfig, Runner, SQLiteSession, function_tool
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    RolloutContext,
)
from osmosis_ai.rollout.errors import (
    ForeignSessionError,
    NoModelError,
    NoRolloutContextError,
    NoSessionError,
)
from osmosis_ai.rollout.execution import WorkflowRunner
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisLitellmModel,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)
from tests.model_server import Call, ModelServer, cut_off, text, tool_call

PROMPT: Any = [{"role": "user", "content": "6 times 7?"}]


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


def agent(name: str = "solver", **fields: Any) -> OsmosisAgent:
    return OsmosisAgent(name=name, model=OsmosisRolloutModel(), **fields)


async def multiplying(call: Call) -> dict[str, Any]:
    if call.last["role"] == "tool":
        return text(f"The answer is {call.last['content']}")
    return tool_call("multiply", a=6, b=7)


async def echo(call: Call) -> dict[str, Any]:
    # Answers that take turns, so that concurrent runs really mix.
    await asyncio.sleep(0.01)
    return text(f"echo {call.last['content']}")


async def drain(streamed: Any) -> None:
    async for _ in streamed.stream_events():
        pass


def rollout(server: ModelServer, rollout_id: str = "r1-0") -> RolloutContext:
    return RolloutContext(server.url, f"key-{rollout_id}", rollout_id)


async def test_a_tool_using_agent_becomes_a_sample():
    async with ModelServer(multiplying) as server:
        with rollout(server) as context:
            settings = ModelSettings(temperature=0.5, max_tokens=99)
            session = OsmosisMemorySession(name="solver")
            solver = agent(tools=[multiply], model_settings=settings, instructions="Use the tool.")
            result = await Runner.run(solver, PROMPT, session=session)
            samples = await context.get_samples()
    assert result.final_output == "The answer is 42"
    first, second = server.calls
    assert first.path == "/v1/chat/completions"
    assert first.headers["authorization"] == "Bearer key-r1-0"
    assert first.headers["x-rollout-id"] == "r1-0"
    assert server.samples() == ["solver", "solver"]
    assert first.body["model"] == "openai/osmosis-rollout"
    assert (first.body["temperature"], first.body["max_tokens"]) == (0.5, 99)
    assert first.body["tools"][0]["function"]["name"] == "multiply"
    assert [message["role"] for message in second.body["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    (sample,) = samples.values()
    assert sample.id == "solver"
    assert sample.messages[0] == PROMPT[0]
    kinds = [item.get("type") for item in sample.messages[1:]]
    assert kinds == ["function_call", "function_call_output", "message"]
    assert sample.messages[-1]["content"][0]["text"] == "The answer is 42"


async def test_one_connection_serves_many_rollouts_each_with_its_own_key():
    async with ModelServer(echo) as server:
        for number in range(3):
            with rollout(server, f"r{number}-0"):
                await Runner.run(agent(), PROMPT, session=OsmosisMemorySession("s"))
        assert [call.headers["authorization"] for call in server.calls] == [
            "Bearer key-r0-0",
            "Bearer key-r1-0",
            "Bearer key-r2-0",
        ]
        assert server.connections == 1


async def test_rollouts_side_by_side_never_mix():
    async with ModelServer(echo) as server:

        async def one(number: int) -> None:
            with rollout(server, f"r{number}-0") as context:

                async def speak(name: str) -> None:
                    session = OsmosisMemorySession(name=f"{name}-{number}")
                    for turn in range(2):
                        await Runner.run(agent(), f"{name}-{number}-{turn}", session=session)

                await asyncio.gather(speak("a"), speak("b"), speak("c"))
                for name, sample in (await context.get_samples()).items():
                    assert [item["content"] for item in sample.messages[::2]] == [
                        f"{name}-0",
                        f"{name}-1",
                    ]

        await asyncio.gather(*(one(number) for number in range(8)))
        assert len(server.calls) == 8 * 3 * 2
        for call in server.calls:
            name, number, _ = call.last["content"].split("-")
            assert call.headers["x-sample-id"] == f"{name}-{number}"
            assert call.headers["x-rollout-id"] == f"r{number}-0"
            assert call.headers["authorization"] == f"Bearer key-r{number}-0"


async def test_sequential_sessions_each_get_their_own_calls():
    async with ModelServer(echo) as server:
        with rollout(server):
            planner, executor = OsmosisMemorySession("planner"), OsmosisMemorySession("executor")
            await Runner.run(agent(), "plan", session=planner)
            await Runner.run(agent(), "execute", session=executor)
            await Runner.run(agent(), "plan again", session=planner)
        assert server.samples() == ["planner", "executor", "planner"]


async def test_a_streamed_run_is_attributed_while_another_run_goes_on():
    async with ModelServer(multiplying) as server:
        with rollout(server) as context:
            streamed = Runner.run_streamed(
                agent(tools=[multiply]), PROMPT, session=OsmosisMemorySession("streamed")
            )
            plain = asyncio.create_task(
                Runner.run(agent(tools=[multiply]), PROMPT, session=OsmosisMemorySession("plain"))
            )
            await drain(streamed)
            await plain
            samples = await context.get_samples()
    assert streamed.final_output == "The answer is 42"
    assert {call.headers["x-sample-id"] for call in server.calls if call.body.get("stream")} == {
        "streamed"
    }
    assert sorted(server.samples()) == ["plain", "plain", "streamed", "streamed"]
    assert len(samples["streamed"].messages) == len(samples["plain"].messages) == 4


async def handing_over(call: Call) -> dict[str, Any]:
    tools = [tool["function"]["name"] for tool in call.body.get("tools") or []]
    return tool_call(next(name for name in tools if name.startswith("transfer")))


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_handoff_target_without_a_model_is_named_with_what_to_give_it(
    streamed: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with ModelServer(handing_over) as server:
        with rollout(server):
            target = Agent(name="expert")
            front = agent("front", handoffs=[target])
            session = OsmosisMemorySession(name="front")

            async def run() -> None:
                if streamed:
                    await drain(Runner.run_streamed(front, PROMPT, session=session))
                else:
                    await Runner.run(front, PROMPT, session=session)

            with pytest.raises(NoModelError) as caught:
                await run()
    message = str(caught.value)
    assert "agent `expert` has no policy model" in message
    assert "model=OsmosisRolloutModel()" in message
    assert "front" not in message.partition("has no")[0]


def test_arguments_of_the_model_are_refused_with_where_they_go():
    with pytest.raises(TypeError) as caught:
        OsmosisRolloutModel(params={"temperature": 0.5, "max_tokens": 9})
    assert "model_settings=ModelSettings(temperature=0.5, max_tokens=9)" in str(caught.value)
    with pytest.raises(TypeError, match="ModelSettings"):
        OsmosisRolloutModel("gpt")


async def test_a_handoff_stays_in_the_session_of_its_run():
    async def answer(call: Call) -> dict[str, Any]:
        if any(
            tool["function"]["name"].startswith("transfer") for tool in call.body.get("tools", [])
        ):
            return tool_call("transfer_to_expert")
        return text("expert here")

    async with ModelServer(answer) as server:
        expert = agent("expert")
        with rollout(server) as context:
            front = agent("front", handoffs=[expert])
            result = await Runner.run(front, PROMPT, session=OsmosisMemorySession("talk"))
            assert list(await context.get_samples()) == ["talk"]
    assert result.final_output == "expert here"
    assert server.samples() == ["talk", "talk"]


@pytest.mark.parametrize(("with_session", "inner"), [(True, "inner"), (False, "outer")])
async def test_an_agent_used_as_a_tool(with_session: bool, inner: str):
    async def answer(call: Call) -> dict[str, Any]:
        if call.body.get("tools"):
            if call.last["role"] == "tool":
                return text("done")
            return tool_call("ask", input="inner question")
        return text("inner answer")

    async with ModelServer(answer) as server:
        with rollout(server):
            session = OsmosisMemorySession("inner") if with_session else None
            tool = agent("helper").as_tool("ask", "Ask the helper.", session=session)
            result = await Runner.run(
                agent("main", tools=[tool]), PROMPT, session=OsmosisMemorySession("outer")
            )
    assert result.final_output == "done"
    assert server.samples() == ["outer", inner, "outer"]


async def test_an_agent_made_outside_binds_where_it_runs():
    made_outside = agent()
    assert isinstance(made_outside.model, OsmosisRolloutModel)
    async with ModelServer(echo) as server:
        for number in range(2):
            with rollout(server, f"r{number}-0"):
                await Runner.run(made_outside, PROMPT, session=OsmosisMemorySession("s"))
                await Runner.run(
                    Agent(name="plain", model=OsmosisRolloutModel()),
                    PROMPT,
                    session=OsmosisMemorySession("t"),
                )
        assert [call.headers["x-rollout-id"] for call in server.calls] == [
            "r0-0",
            "r0-0",
            "r1-0",
            "r1-0",
        ]


async def test_an_agent_kept_from_an_earlier_rollout_speaks_for_the_current_one():
    async with ModelServer(echo) as server:
        with rollout(server, "r0-0"):
            kept = agent().clone(name="kept")
            assert isinstance(kept, OsmosisAgent)
            assert isinstance(kept.model, OsmosisLitellmModel)
        with rollout(server, "r1-0"):
            await Runner.run(kept, PROMPT, session=OsmosisMemorySession("s"))
        assert server.calls[0].headers["authorization"] == "Bearer key-r1-0"
        assert server.calls[0].headers["x-rollout-id"] == "r1-0"


async def test_the_placeholder_in_a_run_config_is_the_policy():
    async with ModelServer(echo) as server:
        with rollout(server):
            await Runner.run(
                Agent(name="any", model="gpt-x"),
                PROMPT,
                session=OsmosisMemorySession("s"),
                run_config=RunConfig(model=OsmosisRolloutModel()),
            )
        assert server.samples() == ["s"]


async def test_the_bound_model_may_be_used_by_its_name():
    async with ModelServer(echo) as server:
        with rollout(server):
            # Also where no loop runs, as in a thread.
            model = await asyncio.to_thread(OsmosisLitellmModel)
            await Runner.run(
                Agent(name="any", model=model), PROMPT, session=OsmosisMemorySession("s")
            )
        assert server.samples() == ["s"]
    with pytest.raises(NoRolloutContextError):
        OsmosisLitellmModel()


async def test_a_sync_tool_may_run_an_agent_in_its_thread():
    async def answer(call: Call) -> dict[str, Any]:
        if call.body.get("tools") and call.last["role"] != "tool":
            return tool_call("think")
        return text("ok")

    @function_tool
    def think() -> str:
        """Think."""
        session = OsmosisMemorySession("thought")
        return str(asyncio.run(Runner.run(agent("thinker"), "hm", session=session)).final_output)

    async with ModelServer(answer) as server:
        with rollout(server):
            await Runner.run(agent(tools=[think]), PROMPT, session=OsmosisMemorySession("main"))
        assert server.samples() == ["main", "thought", "main"]


async def test_run_sync_from_a_thread_speaks_for_its_own_session():
    async with ModelServer(echo) as server:
        with rollout(server) as context:

            def one(name: str) -> str:
                session = OsmosisMemorySession(name)
                for turn in range(2):
                    result = Runner.run_sync(agent(), f"{name} {turn}", session=session)
                return str(result.final_output)

            names = [f"s{number}" for number in range(4)]
            answers = await asyncio.gather(*(asyncio.to_thread(one, name) for name in names))
            assert answers == [f"echo {name} 1" for name in names]
            assert sorted(await context.get_samples()) == names
        for call in server.calls:
            assert call.last["content"].startswith(call.headers["x-sample-id"])


async def test_planner_and_executor_side_by_side_in_one_workflow():
    async with ModelServer(multiplying) as server:
        with rollout(server) as context:

            async def work(name: str, streamed: bool) -> None:
                worker = agent(name, tools=[multiply])
                session = OsmosisMemorySession(name)
                if streamed:
                    await drain(Runner.run_streamed(worker, PROMPT, session=session))
                else:
                    await Runner.run(worker, PROMPT, session=session)

            await asyncio.gather(work("planner", True), work("executor", False))
            samples = await context.get_samples()
    assert sorted(server.samples()) == ["executor"] * 2 + ["planner"] * 2
    assert {len(sample.messages) for sample in samples.values()} == {4}


async def test_items_of_hosted_tools_are_kept_as_they_are():
    from agents import ModelResponse, Usage
    from openai.types.responses import ResponseFunctionWebSearch, ResponseOutputMessage

    search = {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "six times seven"},
    }
    message = {
        "id": "m_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "42", "annotations": []}],
    }

    class Searching(OsmosisRolloutModel):
        async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
            output: Any = [
                ResponseFunctionWebSearch.model_validate(search),
                ResponseOutputMessage.model_validate(message),
            ]
            return ModelResponse(output=output, usage=Usage(), response_id=None)

    with RolloutContext("http://h/v1", "k", "r1-0") as context:
        session = OsmosisMemorySession("s")
        await Runner.run(Agent(name="a", model=Searching()), PROMPT, session=session)
        (sample,) = (await context.get_samples()).values()
    assert sample.messages[0] == PROMPT[0]
    kept = [{k: v for k, v in item.items() if v is not None} for item in sample.messages[1:]]
    assert kept[0] == search
    assert kept[1] == message


async def test_a_config_may_carry_agents_models_and_tools():
    class Config(AgentWorkflowConfig):
        name: str = "c"
        model: Any = OsmosisRolloutModel()
        tools: Any = [multiply]
        solver: Any = None

    class Flow(AgentWorkflow[Config]):
        async def run(self, ctx: AgentWorkflowContext[Config]) -> None:
            assert ctx.config is not None
            made = OsmosisAgent(name="made", model=ctx.config.model, tools=ctx.config.tools)
            for number, each in enumerate((made, ctx.config.solver)):
                session = OsmosisMemorySession(str(number))
                await Runner.run(each, ctx.prompt, session=session)

    runner = WorkflowRunner(Flow, Config(solver=agent(tools=[multiply])))
    async with ModelServer(multiplying) as server:
        for number in range(2):
            result = await runner.run(rollout(server, f"r{number}-0"), PROMPT, None, None)
            assert [sample.id for sample in result.samples] == ["0", "1"]
        ids = [call.headers["x-rollout-id"] for call in server.calls]
        assert ids == ["r0-0"] * 4 + ["r1-0"] * 4


async def test_a_reply_that_leaves_things_out_is_good_enough():
    async with LooseServer(b'{"choices":[{"message":{"content":"ok"}}]}') as url:
        with RolloutContext(url, "k", "r1-0"):
            result = await Runner.run(agent(), PROMPT, session=OsmosisMemorySession("s"))
            assert result.final_output == "ok"
    async with LooseServer(b"<html>") as url:
        with (
            RolloutContext(url, "k", "r1-0"),
            pytest.raises(openai.APIResponseValidationError, match="not a chat completion"),
        ):
            await Runner.run(agent(), PROMPT, session=OsmosisMemorySession("s"))
    async with LooseServer(None) as url:
        with (
            RolloutContext(url, "k", "r1-0"),
            pytest.raises(openai.APIConnectionError, match="Connection error"),
        ):
            await Runner.run(agent(), PROMPT, session=OsmosisMemorySession("s"))


class LooseServer:
    """Says what it is given to everybody, or hangs up."""

    def __init__(self, body: bytes | None) -> None:
        self._body = body

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def __aexit__(self, *_: Any) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if self._body is not None:
            length = len(self._body)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length + self._body)
            await writer.drain()
        writer.close()


async def test_a_tool_that_raises_is_told_to_the_model_and_the_run_goes_on():
    @function_tool
    def multiply(a: int, b: int) -> int:
        """Multiply."""
        raise RuntimeError("tool is broken")

    async with ModelServer(multiplying) as server:
        with rollout(server):
            session = OsmosisMemorySession("s")
            result = await Runner.run(agent(tools=[multiply]), PROMPT, session=session)
        assert "An error occurred while running the tool" in result.final_output


async def test_the_policy_outside_of_a_rollout_is_an_error():
    with pytest.raises(NoRolloutContextError, match="outside of a rollout"):
        await Runner.run(agent(), PROMPT, session=OsmosisMemorySession("s"))
    streamed = Runner.run_streamed(agent(), PROMPT)
    with pytest.raises(NoRolloutContextError, match="outside of a rollout"):
        await drain(streamed)


async def test_a_run_without_a_session_is_an_error_also_after_one_with():
    async with ModelServer(echo) as server:
        with rollout(server):
            with pytest.raises(NoSessionError, match="OsmosisMemorySession"):
                await Runner.run(agent(), PROMPT)
            session = OsmosisMemorySession("s")
            await Runner.run(agent(), PROMPT, session=session)
            await session.get_items()
            with pytest.raises(NoSessionError):
                await Runner.run(agent(), PROMPT)
            with pytest.raises(NoSessionError, match="SQLiteSession"):
                await Runner.run(agent(), PROMPT, session=SQLiteSession("other"))
        assert len(server.calls) == 1


async def test_a_session_of_elsewhere_is_an_error():
    outside = OsmosisMemorySession("outside")
    async with ModelServer(echo) as server:
        with rollout(server, "r0-0"):
            other = OsmosisMemorySession("other")
        with rollout(server, "r1-0"):
            with pytest.raises(ForeignSessionError, match="made outside of a rollout"):
                await Runner.run(agent(), PROMPT, session=outside)
            with pytest.raises(ForeignSessionError, match="belongs to rollout `r0-0`"):
                await Runner.run(agent(), PROMPT, session=other)
        assert not server.calls


async def test_two_sessions_of_one_name_are_an_error_and_unnamed_ones_are_numbered():
    with RolloutContext("http://h/v1", "k", "r1-0") as context:
        OsmosisMemorySession("a")
        with pytest.raises(ValueError, match="`a` is already registered"):
            OsmosisMemorySession("a")
        assert [OsmosisMemorySession().name for _ in range(3)] == ["main", "main-2", "main-3"]
        assert context.sample_names == ["a", "main", "main-2", "main-3"]


async def test_names_beyond_ascii_are_percent_encoded_in_headers():
    async with ModelServer(echo) as server:
        with rollout(server):
            for name in ("multiply agent ✓", "100%", "a,b"):
                await Runner.run(agent(), PROMPT, session=OsmosisMemorySession(name))
        assert server.samples() == ["multiply%20agent%20%E2%9C%93", "100%25", "a%2Cb"]


async def test_outside_of_a_rollout_a_session_is_a_plain_session():
    session = OsmosisMemorySession()
    items: Any = [{"role": "user", "content": str(n)} for n in range(4)]
    await session.add_items(items)
    items[0]["content"] = "changed"
    got = await session.get_items()
    assert [item["content"] for item in got] == ["0", "1", "2", "3"]  # type: ignore[typeddict-item]
    assert await session.get_items(limit=2) == got[-2:]
    assert await session.get_items(limit=0) == []
    assert await session.pop_item() == got[-1]
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None


async def test_a_runner_that_somebody_else_installed_still_works():
    before = get_default_agent_runner()
    try:
        set_default_agent_runner(AgentRunner())
        async with ModelServer(echo) as server:
            with rollout(server):
                await Runner.run(agent(), PROMPT, session=OsmosisMemorySession("s"))
                await AgentRunner().run(agent(), PROMPT, session=OsmosisMemorySession("t"))
            assert server.samples() == ["s", "t"]
    finally:
        set_default_agent_runner(before)


async def test_a_session_inside_a_wrapper_is_found():
    class Wrapped:
        session_id = "wrapped"
        session_settings = None

        def __init__(self) -> None:
            self.inner = OsmosisMemorySession("inner")

        async def get_items(self, limit: int | None = None) -> Any:
            return await self.inner.get_items(limit)

        async def add_items(self, items: Any) -> None:
            await self.inner.add_items(items)

        async def pop_item(self) -> Any:
            return await self.inner.pop_item()

        async def clear_session(self) -> None:
            await self.inner.clear_session()

    async with ModelServer(echo) as server:
        with rollout(server):
            await Runner.run(agent(), PROMPT, session=Wrapped())
        assert server.samples() == ["inner"]


async def test_an_upstream_error_is_raised_once_and_not_retried():
    async def broken(call: Call) -> dict[str, Any]:
        return {"status": 500, "message": "gateway says no"}

    async with ModelServer(broken) as server:
        with rollout(server), pytest.raises(openai.InternalServerError, match="gateway says no"):
            await Runner.run(agent(), PROMPT, session=OsmosisMemorySession("s"))
        assert len(server.calls) == 1


async def test_a_proxy_of_the_environment_is_not_asked_for_loopback(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with ModelServer(echo) as server:
        with rollout(server):
            await Runner.run(agent(), PROMPT, session=OsmosisMemorySession("s"))
        assert len(server.calls) == 1


async def test_a_context_without_a_url_says_so():
    with (
        RolloutContext(api_key="k", rollout_id="r1-0"),
        pytest.raises(NoRolloutContextError, match="chat_completions_url"),
    ):
        agent()


def test_the_placeholder_takes_no_params():
    with pytest.raises(TypeError):
        OsmosisRolloutModel(params={"temperature": 1.0})


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_aiohttp_the_integration_uses_httpx():
    code = """
import sys
sys.modules["aiohttp"] = None
import asyncio
from agents import Runner, set_tracing_disabled
from tests.model_server import ModelServer, text
from osmosis_ai.rollout import RolloutContext
from osmosis_ai.rollout.integrations.agents.openai_agents import *
from osmosis_ai.rollout.integrations.agents import openai_client
set_tracing_disabled(True)

async def answer(call):
    return text(call.headers["authorization"] + call.headers["x-sample-id"])

async def main():
    async with ModelServer(answer) as server:
        for key in ("a", "b"):
            with RolloutContext(server.url, key, "r"):
                agent = OsmosisAgent(name="a", model=OsmosisRolloutModel())
                result = await Runner.run(agent, "hi", session=OsmosisMemorySession("s"))
                print(result.final_output, server.connections)

asyncio.run(main())
"""
    assert run_python(code) == "Bearer as 1\nBearer bs 1"


def test_a_process_that_ends_its_loop_leaves_no_connection_behind():
    code = """
import asyncio
from agents import Runner, set_tracing_disabled
from tests.model_server import ModelServer, text
from osmosis_ai.rollout import RolloutContext
from osmosis_ai.rollout.integrations.agents.openai_agents import *
set_tracing_disabled(True)

async def answer(call):
    return text("ok")

async def main():
    async with ModelServer(answer) as server:
        with RolloutContext(server.url, "k", "r"):
            agent = OsmosisAgent(name="a", model=OsmosisRolloutModel())
            await Runner.run(agent, "hi", session=OsmosisMemorySession("s"))
            def in_thread():
                session = OsmosisMemorySession("t")
                return asyncio.run(Runner.run(agent, "hi", session=session))
            await asyncio.to_thread(in_thread)

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


def test_in_a_worker_no_trace_leaves_the_process():
    code = """
from osmosis_ai.rollout import runtime
runtime.enter_worker()
import osmosis_ai.rollout.integrations.agents.openai_agents
from agents import set_tracing_disabled, trace
from agents.tracing import processors
sent = []
processors.BackendSpanExporter.export = lambda self, items: sent.append(items)
set_tracing_disabled(False)
with trace("t"):
    pass
processors.default_processor().force_flush()
print(sent, __import__("threading").active_count())
"""
    assert run_python(code, OPENAI_API_KEY="x") == "[] 1"


async def test_an_answer_cut_at_the_token_limit_is_a_sample_that_ends_there_and_is_marked():
    async def cut(call: Call) -> dict[str, Any]:
        return cut_off(text("The answer is 4"))

    async with ModelServer(cut) as server:
        with rollout(server) as context:
            session = OsmosisMemorySession(name="a b")
            result = await Runner.run(agent(), PROMPT, session=session)
            (sample,) = (await context.get_samples()).values()
    assert result.final_output == "The answer is 4"
    assert sample.extra_fields == {"finish_reason": "length"}
    assert sample.truncated
