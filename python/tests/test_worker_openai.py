"""OpenAI Agents workflows in the real worker process, against a model server."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

from osmosis_ai.worker.frames import (
    Fork,
    GradeDone,
    LoopBlocked,
    RunDone,
    Shutdown,
    TaskFailed,
)
from tests.engine import grade_task, loaded_worker, run_task
from tests.model_server import Call, ModelServer, text, tool_call

SOLVER = '''
from agents import ModelSettings, Runner, function_tool
from osmosis_ai.rollout import AgentWorkflow, Grader
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel,
)

@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    print("multiplying", a, b)
    return a * b

class Solve(AgentWorkflow):
    async def run(self, ctx):
        agent = OsmosisAgent(
            name="solver",
            instructions="Use the tool.",
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(temperature=1.0),
            tools=[multiply],
        )
        await Runner.run(agent, ctx.prompt, session=OsmosisMemorySession(name="solver"))

class Check(Grader):
    async def grade(self, ctx):
        for name, sample in ctx.samples.items():
            said = sample.messages[-1]["content"][0]["text"]
            ctx.set_sample_reward(name, float(ctx.label in said))
'''


async def multiplying(call: Call) -> dict[str, Any]:
    if call.last["role"] == "tool":
        return text(f"The answer is {call.last['content']}")
    a, b = (int(word) for word in call.last["content"].split(" times "))
    return tool_call("multiply", a=a, b=b)


def ask(a: int, b: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{a} times {b}"}]


async def test_a_row_goes_through_agent_tool_and_grader(tmp_path: Path):
    async with (
        ModelServer(multiplying) as server,
        loaded_worker(tmp_path, SOLVER) as (worker, process, _engine),
    ):
        done = await worker.run(ask(6, 7), url=server.url, rollout_id="r1-0", api_key="key-1")
        assert isinstance(done, RunDone), done
        assert [sample.id for sample in done.samples] == ["solver"]
        items = json.loads(done.samples[0].messages)
        assert items[0] == ask(6, 7)[0]
        assert items[2]["output"] == "42"
        for call in server.calls:
            assert call.headers["authorization"] == "Bearer key-1"
            assert (call.headers["x-rollout-id"], call.headers["x-sample-id"]) == ("r1-0", "solver")
        await worker.printed("\x1er1-0\x1fmultiplying 6 7")
        for label, reward in (("42", 1.0), ("43", 0.0)):
            graded = await worker.answer(grade_task(done.samples, label=label))
            assert isinstance(graded, GradeDone)
            assert graded.samples[0].reward == reward
            assert graded.samples[0].messages == done.samples[0].messages
        worker.send(Shutdown())
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def test_many_rollouts_at_once_keep_their_identities(tmp_path: Path):
    async with (
        ModelServer(multiplying) as server,
        loaded_worker(tmp_path, SOLVER) as (worker, _, _engine),
    ):
        tasks = {}
        for number in range(40):
            task = run_task(
                ask(number, 3), url=server.url, rollout_id=f"r{number}-0", api_key=f"k{number}"
            )
            tasks[task.task] = number
            worker.send(task)
        for _ in tasks:
            done = await worker.expect(RunDone)
            number = tasks[done.task]
            items = json.loads(done.samples[0].messages)
            assert items[0] == ask(number, 3)[0]
            assert items[-1]["content"][0]["text"] == f"The answer is {number * 3}"
        for call in server.calls:
            number = call.headers["x-rollout-id"][1:-2]
            assert call.headers["authorization"] == f"Bearer k{number}"
            assert call.body["messages"][1]["content"] == f"{number} times 3"


async def test_a_model_that_is_down_fails_the_task_as_an_http_error(tmp_path: Path):
    async def refusing(call: Call) -> dict[str, Any]:
        return {"status": 429, "message": "slow down"}

    async with (
        ModelServer(refusing) as server,
        loaded_worker(tmp_path, SOLVER) as (worker, _, _engine),
    ):
        for url, kind in (
            ("http://127.0.0.1:1/v1", "APIConnectionError"),
            (server.url, "RateLimitError"),
        ):
            failed = await worker.run(ask(1, 2), url=url)
            assert isinstance(failed, TaskFailed)
            assert (failed.failure.category, failed.failure.kind) == ("http_error", kind)
        assert len(server.calls) == 1


async def test_malformed_arguments_of_a_tool_call_do_not_end_the_worker(tmp_path: Path):
    async def malformed(call: Call) -> dict[str, Any]:
        answer = tool_call("multiply")
        answer["tool_calls"][0]["function"]["arguments"] = '{"a": 6, '
        return text("sorry") if call.last["role"] == "tool" else answer

    async with (
        ModelServer(malformed) as server,
        loaded_worker(tmp_path, SOLVER) as (worker, _, _engine),
    ):
        for _ in range(2):
            answer = await worker.run(ask(6, 7), url=server.url)
            assert isinstance(answer, RunDone | TaskFailed)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks on Linux only")
async def test_the_framework_is_imported_once_and_forked(tmp_path: Path):
    async with (
        ModelServer(multiplying) as server,
        loaded_worker(tmp_path, SOLVER) as (template, _, engine),
    ):
        for token in ("one", "two"):
            arrival = engine.expect_worker(token)
            template.send(Fork(token))
            child = await asyncio.wait_for(arrival, 30)
            done = await child.run(ask(6, 7), url=server.url, rollout_id=f"r-{token}")
            assert json.loads(done.samples[0].messages)[2]["output"] == "42"
            await child.printed(f"\x1er-{token}\x1fmultiplying 6 7")


BIG = """
from agents import Runner, function_tool
from osmosis_ai.rollout import AgentWorkflow, Grader
from osmosis_ai.rollout.integrations.agents.openai_agents import *

@function_tool
def fetch(size: int) -> str:
    "Fetch a lot."
    return "x" * size

class Fetch(AgentWorkflow):
    async def run(self, ctx):
        agent = OsmosisAgent(name="a", model=OsmosisRolloutModel(), tools=[fetch])
        await Runner.run(agent, ctx.prompt, session=OsmosisMemorySession("a"))

class Fine(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1)
"""


async def test_a_tool_may_return_50_mb_and_beyond_the_frame_limit_only_its_rollout_fails(
    tmp_path: Path,
):
    async def answer(call: Call) -> dict[str, Any]:
        if call.last["role"] == "tool":
            return text(str(len(call.last["content"])))
        return tool_call("fetch", size=int(call.last["content"]))

    async with (
        ModelServer(answer) as server,
        loaded_worker(tmp_path, BIG) as (worker, _, _engine),
    ):
        for size in (50_000_000, 70_000_000, 10):
            prompt = [{"role": "user", "content": str(size)}]
            done = await worker.run(prompt, url=server.url)
            if size == 70_000_000:
                assert isinstance(done, TaskFailed), type(done)
                assert done.failure.kind == "result_too_large"
                assert "over the limit of 67108864" in done.failure.message
            else:
                assert isinstance(done, RunDone), done
                said = json.loads(done.samples[0].messages)[-1]["content"][0]["text"]
                assert said == str(size)


STUCK = """
import asyncio, time
from agents import Runner, function_tool
from osmosis_ai.rollout import AgentWorkflow, Grader
from osmosis_ai.rollout.integrations.agents.openai_agents import *

@function_tool
async def look_up() -> str:
    "Look something up, and forget about the event loop."
    await asyncio.sleep(0)
    time.sleep(1.0)  # in the tool
    return "found"

class Look(AgentWorkflow):
    async def run(self, ctx):
        agent = OsmosisAgent(name="a", model=OsmosisRolloutModel(), tools=[look_up])
        await Runner.run(agent, ctx.prompt, session=OsmosisMemorySession("a"))

class Fine(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1)
"""


async def test_a_tool_that_blocks_the_loop_is_named_and_the_rollouts_beside_it_finish(
    tmp_path: Path,
):
    async def answer(call: Call) -> dict[str, Any]:
        if call.last["role"] == "user" and call.last["content"] == "look":
            return tool_call("look_up")
        return text("done")

    options = {"OSMOSIS_LOOP_BLOCKED_SECS": "0.2"}
    async with (
        ModelServer(answer) as server,
        loaded_worker(tmp_path, STUCK, **options) as (worker, _, _engine),
    ):
        tasks = {
            word: run_task([{"role": "user", "content": word}], url=server.url, rollout_id=word)
            for word in ("look", "wait")
        }
        for task in tasks.values():
            worker.send(task)
        # The framework's own first steps may take a while too; the tool is what is looked for.
        while "# in the tool" not in (await worker.expect(LoopBlocked)).stack:
            pass
        for task in tasks.values():
            done = await worker.expect(RunDone, task=task.task)
            assert json.loads(done.samples[0].messages)[-1]["content"][0]["text"] == "done"
