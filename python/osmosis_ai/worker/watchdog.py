"""Reports an event loop that has stopped turning, and leaves when the engine is gone meanwhile.

While the loop stands still, the code that holds it may change: one turn can run many tasks. Each
report names whoever has it then, and there is one every second, so that the engine blames the right
one when a deadline passes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from osmosis_ai.rollout.failure import is_our_code
from osmosis_ai.worker.connection import Connection, DisconnectedError
from osmosis_ai.worker.frames import LoopBlocked, LoopUnblocked

LIMIT_VARIABLE = "OSMOSIS_LOOP_BLOCKED_SECS"
_DEFAULT_LIMIT = 1.0
_POLL_SECONDS = 0.2
_REPORT_SECONDS = 1.0
_MAX_STACK = 8_000


class Watchdog(threading.Thread):
    """Asks the loop to answer, again and again; tells the engine when it does not."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: Connection,
        running_task: Callable[[], int | None],
    ) -> None:
        super().__init__(name="osmosis-watchdog", daemon=True)
        self._loop = loop
        self._connection = connection
        self._running_task = running_task
        self._limit = _limit()
        self._watched = threading.main_thread().ident

    def run(self) -> None:
        """Runs until the process ends."""
        try:
            while True:
                self._watch_one_turn()
                time.sleep(self._limit / 4)
        except DisconnectedError:
            os._exit(1)
        except RuntimeError:
            # The loop is closed: the process is on its way out.
            return

    def _watch_one_turn(self) -> None:
        turned = threading.Event()
        asked = time.monotonic()
        self._loop.call_soon_threadsafe(turned.set)
        if turned.wait(self._limit):
            return
        holder = self._report(asked)
        reported = time.monotonic()
        while not turned.wait(_POLL_SECONDS):
            if self._connection.peer_is_gone():
                os._exit(1)
            # Old reports say nothing: whoever holds the interpreter's lock stops this thread too.
            if self._running_task() != holder or time.monotonic() > reported + _REPORT_SECONDS:
                holder = self._report(asked)
                reported = time.monotonic()
        self._connection.send_now(LoopUnblocked())

    def _report(self, since: float) -> int | None:
        """Tells the engine who holds the loop, and returns it."""
        holder = self._running_task()
        blocked_ms = int((time.monotonic() - since) * 1000)
        self._connection.send_now(LoopBlocked(blocked_ms, self._stack(), holder))
        return holder

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._watched or 0)
        if frame is None:
            return ""
        frames = [f for f in traceback.extract_stack(frame) if not is_our_code(f.filename)]
        return "".join(traceback.format_list(frames))[-_MAX_STACK:]


def _limit() -> float:
    try:
        return max(float(os.environ.get(LIMIT_VARIABLE, "")), 0.05)
    except ValueError:
        return _DEFAULT_LIMIT
