"""One reward process as its owner sees it: the socket to it, and the calls it was given."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import signal
import socket
import time
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Any

from osmosis_ai.areal.reward_process import (
    CALL,
    CLAIM,
    FIRST_CALL,
    HEADER,
    HELLO,
    OFFER,
    PROTOCOL,
    SETUP,
    STARTED,
)

# Importing the function's module, and moving a large argument or result, are not the function's
# time; this is their own limit.
TRANSFER_SECONDS = 120.0
# A call that waits behind another one this long is taken back, for any process that is free.
HOLD_SECONDS = 0.02
# As much work, and no more calls than that, is sent ahead.
_AHEAD_SECONDS = 0.01
_MOST_AHEAD = 64
_CHUNK = 256 * 1024
# Sending more than that takes a while: not sent ahead, and the process tells when it has it.
_LARGE = 64 * 1024
_BUFFERS = 64

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Replied:
    """The process answered: what kind of message, and its content."""

    kind: int
    payload: bytes


@dataclass(frozen=True)
class TimedOut:
    """The process was killed: over the deadline of the function, or of the way to it."""

    loading: bool


@dataclass(frozen=True)
class Crashed:
    """The process ended by itself, at every attempt; `code` is negative for a signal."""

    code: int | None
    attempts: int
    reason: str | None = None


Outcome = Replied | TimedOut | Crashed


@dataclass(eq=False)
class Call:
    """One call of a reward function, from the queue to its outcome."""

    payload: bytes
    module: str
    timeout: float
    retries: int
    loop: asyncio.AbstractEventLoop
    reply: asyncio.Future[Outcome]
    number: int = 0
    attempts: int = 0
    settled: bool = False
    slot: Slot | None = None


class Phase(Enum):
    """What the process of a slot is doing."""

    IDLE = "idle"
    LOADING = "loading"
    RUNNING = "running"
    REPLYING = "replying"


class Slot:
    """A process of the pool. It runs one call at a time, so a kill concerns that call only.

    While calls are short the next ones are sent ahead, so that the process does not wait for us.
    """

    def __init__(self, connection: socket.socket, claims: tuple[int, int]) -> None:
        self.connection = connection
        self.pid: int | None = None
        self.calls: deque[Call] = deque()
        self.phase = Phase.IDLE
        self.deadline: float | None = None
        self.outgoing: list[memoryview] = []
        self.setup: dict[str, Any] | None = None
        self._claims: tuple[int, ...] = claims
        self._known: set[str] = set()
        self._began = 0.0
        self._pace = 1.0
        self._head = b""
        self._body: bytearray | None = None
        self._filled = 0
        self._kind = 0

    def fileno(self) -> int:
        """For selectors."""
        return self.connection.fileno()

    @property
    def running(self) -> Call | None:
        """The call that the process is busy with; what follows was sent ahead."""
        return self.calls[0] if self.calls else None

    def prepare(self, setup: dict[str, Any]) -> None:
        """Tells the process where modules come from, ahead of its next call."""
        self.setup = setup
        payload = pickle.dumps(setup, PROTOCOL)
        self._queue(SETUP, 0, payload)

    def begin(self, call: Call) -> None:
        """Gives the call to the process, which is idle. Raises `OSError` when it is gone."""
        tell = call.module not in self._known or len(call.payload) > _LARGE
        self._queue(FIRST_CALL if tell else CALL, 0, call.payload)
        self.flush()
        self.calls.append(call)
        call.slot = self
        self._enter(Phase.LOADING if tell else Phase.RUNNING)

    def room(self) -> int:
        """How many more calls may be sent ahead now: none before half of them are done."""
        wanted = min(int(_AHEAD_SECONDS / self._pace), _MOST_AHEAD)
        ahead = len(self.calls) - 1
        return wanted - ahead if ahead <= wanted // 2 else 0

    def may_offer(self, call: Call) -> bool:
        """Whether the call would be a short one, as far as one can tell."""
        return call.module in self._known and len(call.payload) <= _LARGE

    def offer(self, calls: list[Call]) -> None:
        """Sends calls ahead."""
        for call in calls:
            call.number = next(_numbers)
            call.slot = self
            self._queue(OFFER, call.number, call.payload)
        self.calls += calls
        # The claims first: an offer without one is passed over.
        os.write(self._claims[1], b"".join(CLAIM.pack(call.number) for call in calls))
        # A process that is gone shows at the next read.
        with contextlib.suppress(OSError):
            self.flush()

    def take_back(self) -> list[Call]:
        """The calls that were sent ahead and that the process will not run any more."""
        numbers: set[int] = set()
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._claims[0], 4096):
                numbers.update(number for (number,) in CLAIM.iter_unpack(data))
        back = [call for call in self.calls if call.number in numbers]
        if back:
            self.calls = deque(call for call in self.calls if call.number not in numbers)
            for call in back:
                call.slot, call.number = None, 0
            if not self.calls:
                self._enter(Phase.IDLE)
        return back

    def next_check(self) -> float | None:
        """When this slot needs attention, if it stays silent."""
        if self.deadline is None or len(self.calls) < 2:
            return self.deadline
        return min(self.deadline, self._began + HOLD_SECONDS)

    def holds_up(self, now: float) -> bool:
        """Whether calls that were sent ahead have waited for too long."""
        return len(self.calls) > 1 and now >= self._began + HOLD_SECONDS

    def started(self) -> None:
        """The function begins now, and so does its time."""
        if self.calls:
            self._known.add(self.calls[0].module)
            self._enter(Phase.RUNNING)

    def finish(self) -> Call | None:
        """The process has replied and begins what was sent ahead, if anything."""
        if not self.calls:
            return None
        call = self.calls.popleft()
        call.slot, call.number = None, 0
        self._pace += (max(time.monotonic() - self._began, 1e-6) - self._pace) * 0.2
        self._enter(Phase.RUNNING if self.calls else Phase.IDLE)
        return call

    def flush(self) -> None:
        """Sends what the socket takes now."""
        while self.outgoing:
            try:
                sent = self.connection.sendmsg(self.outgoing[:_BUFFERS])
            except BlockingIOError:
                return
            done = 0
            while done < len(self.outgoing) and sent >= len(self.outgoing[done]):
                sent -= len(self.outgoing[done])
                done += 1
            del self.outgoing[:done]
            if sent:
                self.outgoing[0] = self.outgoing[0][sent:]

    def receive(self) -> list[tuple[int, bytes]]:
        """The messages that have arrived; `EOFError` or `OSError` when the process is gone."""
        if self._body is not None:
            return self._receive_body()
        try:
            data = self.connection.recv(_CHUNK)
        except BlockingIOError:
            return []
        if not data:
            raise EOFError
        if self._head:
            data = self._head + data
            self._head = b""
        messages = []
        at = 0
        while at < len(data):
            if len(data) - at < HEADER.size:
                self._head = data[at:]
                break
            kind, _, size = HEADER.unpack_from(data, at)
            at += HEADER.size
            if len(data) - at < size:
                self._begin_body(kind, size, data[at:])
                break
            messages.append((kind, data[at : at + size]))
            at += size
        return messages

    def kill(self) -> None:
        """Ends the process with all that it has started.

        Its number is still its own: the template keeps it until `END`.
        """
        self.close()
        if self.pid is not None:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Closes our ends."""
        self.connection.close()
        for fd in self._claims:
            os.close(fd)
        self._claims = ()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._began = time.monotonic()
        if phase is Phase.IDLE:
            self.deadline = None
        else:
            limit = self.calls[0].timeout if phase is Phase.RUNNING else TRANSFER_SECONDS
            self.deadline = self._began + limit

    def _begin_body(self, kind: int, size: int, first: bytes) -> None:
        self._body = bytearray(size)
        self._body[: len(first)] = first
        self._filled = len(first)
        self._kind = kind
        if kind not in (HELLO, STARTED):
            # It is done with the function: only the way back is left.
            self._enter(Phase.REPLYING)

    def _receive_body(self) -> list[tuple[int, bytes]]:
        body = self._body
        assert body is not None
        while self._filled < len(body):
            try:
                count = self.connection.recv_into(memoryview(body)[self._filled :])
            except BlockingIOError:
                return []
            if not count:
                raise EOFError
            self._filled += count
        self._body = None
        return [(self._kind, bytes(body))]

    def _queue(self, kind: int, number: int, payload: bytes) -> None:
        head = HEADER.pack(kind, number, len(payload))
        if len(payload) < _LARGE:
            self.outgoing.append(memoryview(head + payload))
        else:
            self.outgoing += [memoryview(head), memoryview(payload)]
