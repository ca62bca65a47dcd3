"""What rollouts of one worker can do to each other, and who is named when one holds the loop."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from osmosis_ai.worker.frames import (
    Cancel,
    LoopBlocked,
    LoopUnblocked,
    RunDone,
    TaskCancelled,
    encode,
)
from tests.engine import loaded_worker, run_task
from tests.test_worker import workflow

TIDY = """
import asyncio
word = ctx.prompt[-1]["content"]
if word == "wait":
    print("waiting", flush=True)
    await asyncio.sleep(0.3)
    return ctx.prompt
helper = asyncio.ensure_future(asyncio.sleep(1000))
await asyncio.sleep(0)
tasks = asyncio.all_tasks()
tasks.remove(asyncio.current_task())
for task in tasks:
    task.cancel()
return [*ctx.prompt, {"role": "assistant", "content": str(len(tasks))}]
"""

# Everything that a name of this package leads to, without `gc` and frames.
NOSY = """
import asyncio, sys
from osmosis_ai.rollout import get_rollout_context
own = get_rollout_context().api_key
if own == "key-of-the-neighbour":
    print("there", flush=True)
    await asyncio.sleep(1.0)
    return ctx.prompt

found, seen = set(), set()
def look(value, depth):
    if isinstance(value, str):
        if value.startswith("key-of-"):
            found.add(value)
        return
    if depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        inside = list(value.values()) + list(value.keys())
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside = list(value)
    else:
        try:
            inside = list(vars(value).values())
        except Exception:
            return
    for one in inside:
        look(one, depth - 1)

for name, module in list(sys.modules.items()):
    if name.startswith("osmosis_ai"):
        look(vars(module), 5)
for task in asyncio.all_tasks():
    if hasattr(task, "get_context"):
        for value in task.get_context().values():
            look(value, 3)
return [*ctx.prompt, {"role": "assistant", "content": " ".join(sorted(found))}]
"""


def said(done: RunDone) -> str:
    text: str = json.loads(done.samples[0].messages)[-1]["content"]
    return text


async def test_code_that_cancels_all_tasks_cancels_its_own_rollouts_only(tmp_path: Path):
    async with loaded_worker(tmp_path, workflow(TIDY)) as (worker, _, _engine):
        waiting = run_task([{"role": "user", "content": "wait"}], rollout_id="w")
        worker.send(waiting)
        await worker.printed("\x1ew\x1fwaiting")
        tidied = await worker.run([{"role": "user", "content": "tidy"}])
        assert isinstance(tidied, RunDone), tidied
        assert said(tidied) == "1"
        await worker.expect(RunDone, task=waiting.task)


async def test_no_name_of_the_package_leads_to_the_key_of_a_neighbour(tmp_path: Path):
    async with loaded_worker(tmp_path, workflow(NOSY)) as (worker, _, _engine):
        neighbour = run_task(rollout_id="n", api_key="key-of-the-neighbour")
        worker.send(neighbour)
        await worker.printed("\x1en\x1fthere")
        done = await worker.run(api_key="key-of-mine")
        assert isinstance(done, RunDone), done
        own = "key-of-mine" if sys.version_info >= (3, 12) else ""
        assert said(done) == own
        await worker.expect(RunDone, task=neighbour.task)


async def test_a_blocked_loop_is_reported_again_when_another_task_holds_it(tmp_path: Path):
    source = workflow("import time\ntime.sleep(float(ctx.prompt[0]['content']))\nreturn ctx.prompt")
    options = {"OSMOSIS_LOOP_BLOCKED_SECS": "0.2"}
    async with loaded_worker(tmp_path, source, **options) as (worker, _, _engine):
        first, second = (
            run_task([{"role": "user", "content": seconds}]) for seconds in ("0.6", "1.5")
        )
        # In one turn of the loop.
        worker.writer.write(encode(first) + encode(second))
        await worker.expect(LoopBlocked, task=first.task)
        await worker.expect(LoopBlocked, task=second.task)
        await worker.expect(LoopUnblocked)


@pytest.mark.parametrize("stops", [True, False])
async def test_a_cancel_is_answered_by_the_loop_whether_the_task_stops_or_not(
    tmp_path: Path, stops: bool
):
    deaf = """
import asyncio
print("running", flush=True)
while True:
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        if {stops}:
            raise
"""
    source = workflow(deaf.format(stops=stops))
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        task = run_task(rollout_id="d")
        worker.send(task)
        await worker.printed("\x1ed\x1frunning")
        worker.send(Cancel(task.task))
        await worker.expect(LoopUnblocked)
        if stops:
            await worker.expect(TaskCancelled, task=task.task)
