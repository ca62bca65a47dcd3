"""Things that rollouts share, one per event loop, and that close when the loop or process ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_MOST_KEYS = 64

_all: list[PerLoop[Any]] = []


class PerLoop(Generic[T]):
    """One value per event loop and key, made when it is first asked for.

    Connections belong to the loop they were made in; a tool that runs an agent in a thread has a
    loop of its own. A value closes when its loop shuts down (as `asyncio.run` does at its end), or
    in `close_all`. Beyond a number of keys the oldest is forgotten; whoever has it keeps it.
    """

    def __init__(
        self, make: Callable[[Hashable], T], close: Callable[[T], Awaitable[None]]
    ) -> None:
        self._make = make
        self._close = close
        self._values: dict[tuple[asyncio.AbstractEventLoop, Hashable], T] = {}
        self._holders: dict[tuple[asyncio.AbstractEventLoop, Hashable], Any] = {}
        _all.append(self)

    def get(self, key: Hashable = None) -> T:
        """The value of the running loop."""
        place = (asyncio.get_running_loop(), key)
        value = self._values.get(place)
        if value is None:
            self._forget_some()
            value = self._values[place] = self._make(key)
            self._holders[place] = _start(self._holding(place, value))
        return value

    async def close_here(self) -> None:
        """Closes the values of the running loop."""
        here = asyncio.get_running_loop()
        for place in [place for place in self._values if place[0] is here]:
            with contextlib.suppress(Exception):
                await self._holders[place].aclose()

    def _forget_some(self) -> None:
        known = list(self._values)
        gone = [place for place in known if place[0].is_closed()]
        for place in gone or known[: max(len(known) - _MOST_KEYS + 1, 0)]:
            self._values.pop(place, None)
            self._holders.pop(place, None)

    async def _holding(
        self, place: tuple[asyncio.AbstractEventLoop, Hashable], value: T
    ) -> AsyncGenerator[None, None]:
        # A loop that shuts down closes the generators that were started in it: the one hook that
        # every loop has.
        try:
            yield
        finally:
            if self._values.get(place) is value:
                del self._values[place]
                self._holders.pop(place, None)
                await self._close(value)


async def close_all() -> None:
    """Closes what the running loop holds; one that fails does not keep the others open."""
    for shared in list(_all):
        with contextlib.suppress(Exception):
            await shared.close_here()


def _start(generator: AsyncGenerator[None, None]) -> AsyncGenerator[None, None]:
    """Runs it to its first `yield`, before which it awaits nothing."""
    with contextlib.suppress(StopIteration):
        generator.__anext__().__await__().send(None)
    return generator
