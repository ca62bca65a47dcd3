"""Strands workflows in the real worker process, against a model server."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("strands")

from osmosis_ai.worker.frames import Fork, GradeDone, RunDone, Shutdown
from tests.engine import grade_task, loaded_worker, run_task
from tests.model_server import Call, ModelServer, text, tool_call

SOLVER = '''
from typing import Any
from strands import tool
from osmosis_ai.rollout import (
    AgentWorkflow, AgentWorkflowConfig, Grader, LocalBackend, OsmosisRolloutModel,
    OsmosisStrandsAgent, create_rollout_server,
)

@tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    print("multiplying", a, b)
    return a * b

class SolveConfig(AgentWorkflowConfig):
    name: str = "solve"
    model: Any = OsmosisRolloutModel(params={"temperature": 1.0})
    tools: Any = [multiply]
    turns: int = 8

class Solve(AgentWorkflow[SolveConfig]):
    async def run(self, ctx):
        config = ctx.config or SolveConfig()
        agent = OsmosisStrandsAgent(
            name="solver", model=config.model, tools=config.tools, messages=ctx.prompt,
            callback_handler=None,
        )
        for _ in range(config.turns):
            result = await agent.invoke_async()
            if not any("toolUse" in block for block in result.message.get("content", [])):
                break

class Check(Grader):
    async def grade(self, ctx):
        said = ctx.sample.messages[-1]["content"][0]["text"]
        ctx.set_reward(float(ctx.label in said))

app = create_rollout_server(
    backend=LocalBackend(workflow=Solve, workflow_config=SolveConfig(turns=2), grader=Check)
)
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
        loaded = await worker.load(tmp_path / "project")
        assert loaded.manifest.warnings == []
        assert loaded.manifest.workflow.config == "solve"
        done = await worker.run(ask(6, 7), url=server.url, rollout_id="r1-0", api_key="key-1")
        assert isinstance(done, RunDone), done
        assert [sample.id for sample in done.samples] == ["solver"]
        for call in server.calls:
            assert call.headers["authorization"] == "Bearer key-1"
            assert (call.headers["x-rollout-id"], call.headers["x-sample-id"]) == ("r1-0", "solver")
        await worker.printed("\x1er1-0\x1fmultiplying 6 7")
        graded = await worker.answer(grade_task(done.samples, label="42"))
        assert isinstance(graded, GradeDone), graded
        assert graded.samples[0].reward == 1.0
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
            messages = json.loads(done.samples[0].messages)
            assert messages[0]["content"] == [{"text": f"{number} times 3"}]
            assert messages[-1]["content"] == [{"text": f"The answer is {number * 3}"}]
        for call in server.calls:
            number = call.headers["x-rollout-id"][1:-2]
            assert call.headers["authorization"] == f"Bearer k{number}"
            assert call.body["messages"][0]["content"] == f"{number} times 3"


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
            assert isinstance(done, RunDone), done
            await child.printed(f"\x1er-{token}\x1fmultiplying 6 7")


async def test_a_tool_may_return_50_mb(tmp_path: Path):
    big = SOLVER.replace("return a * b", "return 'x' * (a * b)").replace("-> int:", "-> str:")

    async def answer(call: Call) -> dict[str, Any]:
        if call.last["role"] == "tool":
            return text(str(len(call.last["content"])))
        return await multiplying(call)

    async with (
        ModelServer(answer) as server,
        loaded_worker(tmp_path, big) as (worker, _, _engine),
    ):
        done = await worker.run(ask(50, 1_000_000), url=server.url)
        assert isinstance(done, RunDone), done
        assert json.loads(done.samples[0].messages)[-1]["content"] == [{"text": "50000000"}]
