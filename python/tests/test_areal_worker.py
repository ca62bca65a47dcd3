"""What AReaL-style code finds in the real worker process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.worker.frames import (
    Cancel,
    Fork,
    Forked,
    Loaded,
    RunDone,
    TaskCancelled,
    TaskFailed,
)
from tests.engine import Engine, loaded_worker, run_task
from tests.test_areal_rewards import wait_until_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers fork on Linux")

SOURCE = """
import os
from osmosis_ai.rollout import *
from areal.api.reward_api import AsyncRewardWrapper
from areal.infra import workflow_context

def score(text):
    return len(text), os.getpid(), os.getppid()

scored = AsyncRewardWrapper(score, max_workers=1)

class W(AgentWorkflow):
    async def run(self, ctx):
        length, process, template = await scored(ctx.prompt[0]["content"])
        return [{"length": length, "processes": [process, template], "own": os.getpid()}]

class G(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1)
"""


async def message_of(worker: Any) -> dict[str, Any]:
    done = await worker.run()
    message: dict[str, Any] = json.loads(done.samples[0].messages)[0]
    return message


async def test_forked_workers_have_reward_processes_of_their_own_that_end_with_them(
    tmp_path: Path,
) -> None:
    seen: list[dict[str, Any]] = []
    async with loaded_worker(tmp_path, SOURCE) as (template, process, engine):
        for token in ("one", "two"):
            arrival = engine.expect_worker(token)
            template.send(Fork(token))
            await template.expect(Forked, token=token)
            child = await asyncio.wait_for(arrival, 30)
            seen += [await message_of(child), await message_of(child)]
        assert [message["length"] for message in seen] == [2, 2, 2, 2]
        assert seen[0] == seen[1]
        assert seen[2] == seen[3]
        processes = {pid for message in seen for pid in message["processes"]}
        assert len(processes) == 4
        os.kill(seen[0]["own"], 9)
        for pid in seen[0]["processes"]:
            await asyncio.to_thread(wait_until_gone, pid)
        process.kill()
        for pid in seen[2]["processes"]:
            await asyncio.to_thread(wait_until_gone, pid)


WARM = """
import asyncio, os, time
from areal.api.reward_api import AsyncRewardWrapper, pool_status

def score(text):
    return len(text)

scored = AsyncRewardWrapper(score, max_workers=1)

class Agent:
    async def run(self, data, **extra_kwargs):
        # Nothing was scored so far: only the start of the worker can have started a process.
        while not pool_status().processes:
            await asyncio.sleep(0.01)
        return float(await scored(data["text"]))
"""


async def test_the_reward_process_of_an_areal_workflow_starts_with_the_worker(
    tmp_path: Path,
) -> None:
    async with loaded_worker(tmp_path, WARM) as (template, _, engine):
        arrival = engine.expect_worker("one")
        template.send(Fork("one"))
        await template.expect(Forked, token="one")
        child = await asyncio.wait_for(arrival, 30)
        done = await child.run(row='{"text": "four"}')
        assert isinstance(done, RunDone), done
        assert done.samples[0].reward == 4.0


SUBPROCESS = """
import asyncio, os, subprocess, time

class Agent:
    async def run(self, data, **extra_kwargs):
        child = subprocess.Popen(["sleep", "1000"])
        with open(data["pids"] + ".new", "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        os.rename(data["pids"] + ".new", data["pids"])
        match data["do"]:
            case "wait": await asyncio.sleep(1000)
            case "block": time.sleep(1000)
            case "crash": os.abort()
        return 1.0
"""


@contextlib.asynccontextmanager
async def subprocess_worker(folder: Path) -> AsyncIterator[tuple[Any, Any]]:
    (folder / "main.py").write_text(SUBPROCESS)
    async with Engine(folder) as engine:
        worker, process = await engine.start(folder)
        answer = await worker.load(folder, workflow={"mode": "subproc"})
        assert isinstance(answer, Loaded), answer
        yield worker, process


async def processes_in(path: Path) -> list[int]:
    while not path.exists():
        await asyncio.sleep(0.01)
    return [int(pid) for pid in path.read_text().split()]


@pytest.mark.parametrize("do", ["wait", "block"])
async def test_a_cancelled_rollout_ends_its_process_and_what_that_started(
    tmp_path: Path, do: str
) -> None:
    pids = tmp_path / "pids"
    async with subprocess_worker(tmp_path) as (worker, _):
        worker.send(run_task(task=1, row=json.dumps({"do": do, "pids": str(pids)})))
        found = await asyncio.wait_for(processes_in(pids), 30)
        worker.send(Cancel(1))
        await worker.expect(TaskCancelled, task=1)
        for pid in found:
            await asyncio.to_thread(wait_until_gone, pid)
        # The others are not concerned.
        again = tmp_path / "again"
        row = json.dumps({"do": "return", "pids": str(again)})
        done = await worker.answer(run_task(task=2, row=row))
        assert isinstance(done, RunDone), done
        assert done.samples[0].reward == 1.0
        # What it left behind has ended with it.
        for pid in await processes_in(again):
            await asyncio.to_thread(wait_until_gone, pid)


async def test_a_killed_worker_takes_the_processes_of_its_rollouts_along(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with subprocess_worker(tmp_path) as (worker, process):
        worker.send(run_task(task=1, row=json.dumps({"do": "block", "pids": str(pids)})))
        found = await asyncio.wait_for(processes_in(pids), 30)
        process.kill()
        for pid in found:
            await asyncio.to_thread(wait_until_gone, pid)


async def test_a_crashed_process_is_a_failure_that_says_how(tmp_path: Path) -> None:
    async with subprocess_worker(tmp_path) as (worker, _):
        row = json.dumps({"do": "crash", "pids": str(tmp_path / "pids")})
        failed = await worker.answer(run_task(task=1, row=row))
        assert isinstance(failed, TaskFailed), failed
        assert "ended with code -6" in failed.failure.message
        for pid in await processes_in(tmp_path / "pids"):
            await asyncio.to_thread(wait_until_gone, pid)


async def test_a_worker_that_was_not_forked_has_them_too(tmp_path: Path) -> None:
    async with loaded_worker(tmp_path, SOURCE) as (worker, _, _):
        message = await message_of(worker)
    assert message["length"] == 2
    for pid in message["processes"]:
        await asyncio.to_thread(wait_until_gone, pid)
