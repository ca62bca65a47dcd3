"""What AReaL-style code finds in the real worker process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.worker.frames import Fork, Forked
from tests.engine import loaded_worker
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


async def test_a_worker_that_was_not_forked_has_them_too(tmp_path: Path) -> None:
    async with loaded_worker(tmp_path, SOURCE) as (worker, _, _):
        message = await message_of(worker)
    assert message["length"] == 2
    for pid in message["processes"]:
        await asyncio.to_thread(wait_until_gone, pid)
