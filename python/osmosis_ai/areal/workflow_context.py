"""What a workflow can ask about its rollout, and the HTTP clients it shares with the others.

Also importable as `areal.infra.workflow_context`. The clients belong to the running event loop, and
close with it, or when the worker calls `close`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osmosis_ai.areal import http_clients, stats_tracker

if TYPE_CHECKING:
    import aiohttp
    import httpx


@dataclass(frozen=True)
class WorkflowContext:
    """The rollout that the running code belongs to."""

    is_eval: bool = False
    task_id: int | None = None


_current: ContextVar[WorkflowContext | None] = ContextVar("osmosis_workflow_context", default=None)
_OUTSIDE = WorkflowContext()


def get() -> WorkflowContext:
    """The running rollout's context; outside of one, that of a training rollout without a task."""
    return _current.get() or _OUTSIDE


def set(ctx: WorkflowContext) -> None:
    """Makes the context the running task's."""
    _current.set(ctx)


def stat_scope() -> str:
    """The name under which numbers of this rollout are tracked."""
    return "eval-rollout" if get().is_eval else "rollout"


@contextlib.contextmanager
def entered(ctx: WorkflowContext) -> Iterator[stats_tracker.Collected]:
    """Around one rollout: its context, and the numbers that it tracks."""
    token = _current.set(ctx)
    _tell_installed(ctx)
    try:
        with stats_tracker.collecting() as collected:
            yield collected
    finally:
        _current.reset(token)
        _tell_installed(_OUTSIDE)


def _tell_installed(ctx: WorkflowContext) -> None:
    """Code that imports an `areal` that is installed asks that one."""
    installed: Any = sys.modules.get("areal.infra.workflow_context")
    if installed is not None and installed is not sys.modules[__name__]:
        installed.set(installed.WorkflowContext(is_eval=ctx.is_eval, task_id=ctx.task_id))


async def get_aiohttp_session() -> aiohttp.ClientSession:
    """The running loop's aiohttp session. Not to be closed by its users."""
    return http_clients.aiohttp_session()


async def get_httpx_client() -> httpx.AsyncClient:
    """The running loop's httpx client, of the kind that `openai` takes. Not to be closed."""
    client: Any = http_clients.httpx_client()
    return client  # type: ignore[no-any-return]


async def close() -> None:
    """Closes the running loop's clients; the next request for one makes a new one."""
    await http_clients.close()
