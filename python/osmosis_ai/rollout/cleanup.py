"""Things that a worker process shares between rollouts and closes when it leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

_closers: list[Callable[[], Awaitable[None]]] = []


def close_at_exit(closer: Callable[[], Awaitable[None]]) -> None:
    """Remembers what to await before the process ends."""
    _closers.append(closer)


async def close_all() -> None:
    """Awaits every closer once; one that fails does not keep the others open."""
    while _closers:
        with contextlib.suppress(Exception):
            await _closers.pop()()
