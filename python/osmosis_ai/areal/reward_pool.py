"""The reward processes of this process: one pool, whatever the number of wrappers.

One thread supervises: it takes replies, keeps deadlines, kills and replaces. It needs no event
loop to turn, and callers of several loops and threads share it. A process runs one call at a time,
so what one function does to its process concerns no other call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass

from osmosis_ai.areal import reward_setup
from osmosis_ai.areal.reward_process import HELLO, STARTED, UNLOADABLE
from osmosis_ai.areal.reward_slot import Call, Crashed, Outcome, Phase, Replied, Slot, TimedOut
from osmosis_ai.areal.reward_starter import ProcessStarter
from osmosis_ai.areal.reward_template import Template

_CLOSE_SECONDS = 2.0
_NEVER = float("inf")


@dataclass(frozen=True)
class PoolStatus:
    """What the pool of this process consists of, and what it went through."""

    processes: tuple[int, ...]
    limit: int
    started: int
    timeouts: int
    crashes: int
    waiting: int


class RewardPool:
    """Runs calls in processes of their own. Everything is made at the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limit = 0
        self._queue: deque[Call] = deque()
        self._slots: set[Slot] = set()
        self._idle: list[Slot] = []
        self._largest = 0
        self._unwanted: list[Call] = []
        self._outcomes: list[tuple[Call, Outcome]] = []
        self._starter = ProcessStarter(self._settle)
        self._selector: selectors.BaseSelector | None = None
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._woken = False
        self._next_check = _NEVER
        self._thread: threading.Thread | None = None
        self._closed = False
        self._started = self._timeouts = self._crashes = 0

    def submit(self, call: Call, limit: int) -> bool:
        """Queues the call, in a pool of at least so many processes; `False` when it is closed."""
        with self._lock:
            if self._closed:
                return False
            if limit > self._limit:
                self._limit = limit
            if self._thread is None:
                self._start()
            if self._idle and not self._queue:
                check = self._next_check
                slot = self._idle.pop()
                self._give(slot, call)
                if self._next_check < check:
                    self._wake()
            else:
                self._queue.append(call)
                if self._idle or len(self._slots) < self._limit:
                    self._wake()
        return True

    def cancel(self, call: Call) -> None:
        """Nobody waits for the call any more: its process is free for others, or killed."""
        with self._lock:
            call.settled = True
            if call.slot is not None:
                self._unwanted.append(call)
                self._wake()

    def status(self) -> PoolStatus:
        """A picture of this moment."""
        with self._lock:
            return PoolStatus(
                processes=tuple(sorted(slot.pid for slot in self._slots if slot.pid is not None)),
                limit=self._limit,
                started=self._started,
                timeouts=self._timeouts,
                crashes=self._crashes,
                waiting=sum(not call.settled for call in self._queue),
            )

    def close(self) -> None:
        """Ends all processes, and fails what still waits."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_SECONDS)

    def abandon(self) -> None:
        """In a forked child: the processes are the parent's, only our copies of sockets go."""
        self._closed = True
        for slot in self._slots:
            slot.close()
        if self._selector is not None:
            self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()
        self._starter.abandon()

    # From here on everything happens with the lock held, most of it in the supervisor's thread.

    def _start(self) -> None:
        self._wake_reader.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        self._starter.open(self._selector)
        self._thread = threading.Thread(target=self._run, name="osmosis-rewards", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        problem = "the pool was closed"
        try:
            while not self._closed:
                self._turn()
        except Exception as error:
            problem = f"the pool failed: {type(error).__name__}: {error}"
        with self._lock:
            self._closed = True
            waiting = [*self._queue, *(call for slot in self._slots for call in slot.calls)]
            waiting += self._starter.ending
            for slot in self._slots:
                slot.kill()
            self._slots.clear()
            for call in waiting:
                self._settle(call, Crashed(None, call.attempts, problem))
        self._deliver()
        self._starter.close()
        if self._selector is not None:
            self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _turn(self) -> None:
        assert self._selector is not None
        wait = None if self._next_check == _NEVER else self._next_check - time.monotonic()
        events = self._selector.select(None if wait is None else max(wait, 0))
        with self._lock:
            for key, mask in events:
                if isinstance(key.data, Slot):
                    self._attend(key.data, mask)
                elif isinstance(key.data, Template):
                    self._starter.receive(key.data)
                else:
                    self._woken = False
                    with contextlib.suppress(BlockingIOError):
                        self._wake_reader.recv(64)
                    self._watch_writers()
            while self._unwanted:
                self._drop(self._unwanted.pop())
            if time.monotonic() >= self._next_check:
                self._expire()
            self._fill()
        self._deliver()

    def _deliver(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Call, Outcome]]] = {}
        for call, outcome in outcomes:
            by_loop.setdefault(call.loop, []).append((call, outcome))
        for loop, delivered in by_loop.items():
            # A loop that is closed has nobody waiting.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, delivered)

    def _attend(self, slot: Slot, mask: int) -> None:
        if slot not in self._slots:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                slot.flush()
                if not slot.outgoing:
                    self._watch(slot, selectors.EVENT_READ)
            messages = slot.receive() if mask & selectors.EVENT_READ else []
        except (OSError, EOFError):
            self._lost(slot)
            return
        for kind, payload in messages:
            self._heard(slot, kind, payload)
        if slot.running is None:
            return
        if slot.running.settled:
            # Cancelled after it was sent ahead, and too late to take it back.
            self._remove(slot)
            return
        self._send_ahead(slot)
        self._check_at(slot.next_check())

    def _heard(self, slot: Slot, kind: int, payload: bytes) -> None:
        if kind == HELLO:
            slot.pid = int.from_bytes(payload, "little")
        elif kind == STARTED:
            slot.started()
            if slot.running is not None and not payload[0]:
                self._starter.preload(slot.running.module)
        elif kind == UNLOADABLE and self._outdated(slot):
            # This process has learnt to import more since that one was prepared.
            call = slot.finish()
            slot.prepare(reward_setup.setup())
            if call is not None:
                call.attempts -= 1
                self._requeue([call])
            self._after_reply(slot)
        else:
            call = slot.finish()
            if call is not None:
                self._settle(call, Replied(kind, payload))
            self._after_reply(slot)

    def _after_reply(self, slot: Slot) -> None:
        if slot.running is None:
            self._next(slot)
        else:
            slot.running.attempts += 1

    def _next(self, slot: Slot) -> None:
        while self._queue:
            call = self._queue.popleft()
            if not call.settled:
                self._give(slot, call)
                return
        self._idle.append(slot)

    def _give(self, slot: Slot, call: Call) -> None:
        try:
            slot.begin(call)
        except OSError:
            # It ended while idle; the supervisor is about to see that. The call was not tried.
            self._queue.appendleft(call)
            return
        call.attempts += 1
        self._check_at(slot.deadline)
        if slot.outgoing:
            # The rest goes out as the process reads.
            self._wake()

    def _send_ahead(self, slot: Slot) -> None:
        """Keeps a process busy without waiting for us, while calls are short and many wait."""
        room = min(slot.room(), len(self._queue) // (2 * len(self._slots)))
        calls: list[Call] = []
        while len(calls) < room and self._queue and slot.may_offer(self._queue[0]):
            call = self._queue.popleft()
            if not call.settled:
                calls.append(call)
        if calls:
            slot.offer(calls)
            self._watch_writer(slot)

    def _drop(self, call: Call) -> None:
        """Nobody waits for a call that was given to a process."""
        slot = call.slot
        if slot is None:
            return
        if slot.running is call:
            self._remove(slot)
        else:
            self._take_back(slot)

    def _take_back(self, slot: Slot) -> None:
        """Calls that wait behind another one go to whoever is free first."""
        running = slot.running
        back = slot.take_back()
        if running is not None and running in back:
            # The process had not got to it.
            running.attempts -= 1
        self._requeue(back)
        if running is not None and slot.running is None:
            self._next(slot)

    def _requeue(self, calls: list[Call]) -> None:
        """Calls that did not begin: they are the next."""
        self._queue.extendleft(call for call in reversed(calls) if not call.settled)

    def _check_at(self, moment: float | None) -> None:
        if moment is not None and moment < self._next_check:
            self._next_check = moment

    def _expire(self) -> None:
        now = time.monotonic()
        self._next_check = _NEVER
        for slot in list(self._slots):
            if slot.holds_up(now):
                self._take_back(slot)
            call = slot.running
            if slot.deadline is None or slot.deadline > now:
                self._check_at(slot.next_check())
                continue
            loading = slot.phase is not Phase.RUNNING
            self._remove(slot)
            self._timeouts += 1
            if call is not None:
                self._settle(call, TimedOut(loading))

    def _lost(self, slot: Slot) -> None:
        """The process ended by itself, or somebody else killed it."""
        self._crashes += 1
        self._remove(slot, slot.running)
        if slot.pid is None:
            # It never came to life: tried again for a call that needs it, not for its own sake.
            self._largest = len(self._slots)

    def _remove(self, slot: Slot, lost: Call | None = None) -> None:
        """Ends the process for good. A call that was `lost` with it is tried again, if it may."""
        self._requeue(list(slot.calls)[1:])
        for call in slot.calls:
            call.slot = None
        slot.calls.clear()
        self._slots.discard(slot)
        if slot in self._idle:
            self._idle.remove(slot)
        if self._selector is not None:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._selector.unregister(slot)
        slot.kill()
        if lost is not None and not lost.settled and lost.attempts <= lost.retries:
            self._queue.appendleft(lost)
            lost = None
        if slot.pid is None:
            if lost is not None:
                self._settle(lost, Crashed(None, lost.attempts, "it did not start"))
            return
        # How it ended is known once the template has collected it.
        self._starter.end(slot.pid, lost)

    def _settle(self, call: Call, outcome: Outcome) -> None:
        if not call.settled:
            call.settled = True
            self._outcomes.append((call, outcome))

    def _fill(self) -> None:
        """Replaces what was lost, and grows while calls wait, up to the limit."""
        while self._queue and self._queue[0].settled:
            self._queue.popleft()
        while self._queue and self._idle:
            self._next(self._idle.pop())
        wanted = min(self._limit, max(len(self._slots) + len(self._queue), self._largest))
        while len(self._slots) < wanted:
            self._next(self._start_process())
        self._largest = max(self._largest, wanted)

    def _start_process(self) -> Slot:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        claims = os.pipe()
        for fd in claims:
            os.set_blocking(fd, False)
        slot = Slot(ours, claims)
        self._slots.add(slot)
        self._started += 1
        assert self._selector is not None
        self._selector.register(slot, selectors.EVENT_READ, slot)
        with theirs:
            self._starter.start([theirs.fileno(), claims[0]])
        slot.prepare(reward_setup.setup())
        return slot

    def _outdated(self, slot: Slot) -> bool:
        return slot.setup != reward_setup.setup()

    def _watch_writers(self) -> None:
        for slot in self._slots:
            self._watch_writer(slot)

    def _watch_writer(self, slot: Slot) -> None:
        if slot.outgoing:
            self._watch(slot, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _watch(self, slot: Slot, events: int) -> None:
        if self._selector is not None:
            self._selector.modify(slot, events, slot)

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            with contextlib.suppress(OSError):
                self._wake_writer.send(b"\0")


def _resolve(delivered: list[tuple[Call, Outcome]]) -> None:
    for call, outcome in delivered:
        if not call.reply.done():
            call.reply.set_result(outcome)
