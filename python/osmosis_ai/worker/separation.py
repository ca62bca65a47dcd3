"""Keeps rollouts of one worker out of each other's way, as far as one process allows.

A rollout's key, samples and judge are in context variables of its own task: no name of this package
leads to those of another. `asyncio.all_tasks()` would, and code that cleans up after itself cancels
what it finds there, so in a worker it returns the tasks of the calling rollout alone.

This is order, not a wall: whoever walks frames, `gc.get_objects()` or the loop's own queues finds
everything that the process holds. `[workers] isolation = "process"` is the wall.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

current_task: ContextVar[int | None] = ContextVar("osmosis_current_task", default=None)

# Since Python 3.12. Before, only the outermost tasks of other rollouts are left out.
_KNOWS_CONTEXTS = hasattr(asyncio.Task, "get_context")


def hide(task: asyncio.Task[Any]) -> None:
    """Takes a rollout's outermost task off asyncio's list, where tasks can't be told apart."""
    if not _KNOWS_CONTEXTS:
        asyncio._unregister_task(task)


def separate_tasks(ours: asyncio.AbstractEventLoop) -> None:
    """Makes `asyncio.all_tasks()` return the caller's own, in a loop that rollouts share."""
    everything = asyncio.all_tasks

    def all_tasks(loop: asyncio.AbstractEventLoop | None = None) -> set[asyncio.Task[Any]]:
        if loop is None:
            loop = asyncio.get_running_loop()
        tasks = everything(loop)
        if loop is not ours:
            return tasks
        if not _KNOWS_CONTEXTS:
            running = asyncio.current_task(loop)
            return tasks if running is None else tasks | {running}
        mine = current_task.get()
        return {task for task in tasks if _rollout_of(task) == mine}

    all_tasks.__doc__ = everything.__doc__
    for module in (asyncio, asyncio.tasks):
        vars(module)["all_tasks"] = all_tasks


def _rollout_of(task: Any) -> int | None:
    number: int | None = task.get_context().get(current_task)
    return number
