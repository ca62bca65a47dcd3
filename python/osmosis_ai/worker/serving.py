"""Serves tasks: one event loop, each task in a context of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any, TypeAlias

from typing_extensions import assert_never

from osmosis_ai.rollout.cleanup import close_all
from osmosis_ai.rollout.errors import ResultTooLargeError
from osmosis_ai.worker.children import Children
from osmosis_ai.worker.connection import Connection, DisconnectedError
from osmosis_ai.worker.frames import (
    Cancel,
    Fork,
    ForkFailed,
    FrameError,
    Grade,
    Load,
    LoadFailed,
    LoopUnblocked,
    Problem,
    Run,
    Shutdown,
    Started,
    TaskCancelled,
)
from osmosis_ai.worker.loading import Rollout
from osmosis_ai.worker.output import Output, current_rollout
from osmosis_ai.worker.separation import current_task, hide, separate_tasks
from osmosis_ai.worker.tasks import (
    GradeAnswer,
    RunAnswer,
    execute_grade,
    execute_run,
    failed,
)
from osmosis_ai.worker.watchdog import Watchdog

_LEAVE_SECONDS = 2.0
_REAP_SECONDS = 0.5

Answer: TypeAlias = RunAnswer | GradeAnswer | TaskCancelled


class Server:
    """The serving mode of a worker. It ends only with the process."""

    def __init__(
        self, connection: Connection, output: Output, rollout: Rollout, children: Children
    ) -> None:
        self._connection = connection
        self._output = output
        self._rollout = rollout
        self._children = children
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._cancelled: set[int] = set()
        self._leaving: asyncio.Task[None] | None = None
        # Answers wait for the loop to turn.
        self._flushes = False

    def serve(self, frames: list[Any]) -> None:
        """Takes the frames that are already here, then serves until told to leave."""
        asyncio.set_event_loop(self._loop)
        separate_tasks(self._loop)
        self._loop.add_reader(self._connection.fileno(), self._readable)
        self._loop.call_soon(self._take, frames)
        if self._children:
            self._loop.call_later(_REAP_SECONDS, self._reap)
        Watchdog(self._loop, self._connection, self._running_task).start()
        while True:
            # `sys.exit()` in a task that user code started itself passes through the loop.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()

    def _running_task(self) -> int | None:
        """The task whose code the loop executes right now; called from the watchdog's thread."""
        running = asyncio.current_task(self._loop)
        if running is None:
            return None
        for task, handle in list(self._tasks.items()):
            if handle is running:
                return task
        # User code made this one; since Python 3.12 it tells what context it runs in.
        get_context = getattr(running, "get_context", None)
        return None if get_context is None else get_context().get(current_task)

    def _readable(self) -> None:
        try:
            self._take(self._connection.receive())
        except (DisconnectedError, FrameError):
            self._exit(1)

    def _take(self, frames: list[Any]) -> None:
        for frame in frames:
            if isinstance(frame, Run | Grade):
                self._start(frame)
            elif isinstance(frame, Cancel):
                self._cancel(frame.task)
            elif isinstance(frame, Shutdown):
                if self._leaving is None:
                    self._leaving = self._loop.create_task(self._leave())
            elif isinstance(frame, Fork):
                message = "this process runs tasks and can't be forked any more"
                self._send(ForkFailed(frame.token, message))
            elif isinstance(frame, Load):
                self._answer_load(frame)

    def _start(self, frame: Run | Grade) -> None:
        if self._leaving is None:
            task = self._loop.create_task(self._task(frame))
            hide(task)
            self._tasks[frame.task] = task

    def _cancel(self, task: int) -> None:
        running = self._tasks.get(task)
        if running is not None:
            self._cancelled.add(task)
            # Whoever does not stop now is not kept from it by another.
            self._send(LoopUnblocked())
            # Not at once: a task cancelled before its first step would never answer.
            self._loop.call_soon(running.cancel)

    async def _task(self, frame: Run | Grade) -> None:
        current_rollout.set(frame.rollout_id)
        current_task.set(frame.task)
        answer: Answer = await self._execute(frame)
        if frame.task in self._cancelled:
            answer = TaskCancelled(frame.task)
        self._output.finish(frame.rollout_id)
        self._tasks.pop(frame.task, None)
        self._cancelled.discard(frame.task)
        if self._leaving is None:
            self._answer(frame.task, answer)

    async def _execute(self, frame: Run | Grade) -> RunAnswer | GradeAnswer:
        def started() -> None:
            self._send(Started(frame.task))

        match frame:
            case Run():
                return await execute_run(self._rollout, frame, started)
            case Grade():
                return await execute_grade(self._rollout, frame, started)
            case _:
                assert_never(frame)

    def _answer(self, task: int, answer: Answer) -> None:
        try:
            self._connection.queue(answer)
        except FrameError as error:
            self._connection.queue(failed(task, ResultTooLargeError(str(error))))
        # With the next `started`, which leaves before any more code of the user's runs; else when
        # the loop turns. A grade of one line would wake the engine twice otherwise.
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        try:
            self._connection.flush()
        except DisconnectedError:
            self._exit(1)
        self._write_the_rest()

    def _answer_load(self, load: Load) -> None:
        if load == self._rollout.load:
            self._send(self._rollout.loaded)
            return
        message = f"this process has loaded `{self._rollout.load.entrypoint}` already"
        self._send(LoadFailed([Problem("already_loaded", message, None, None)]))

    def _send(self, frame: Any) -> None:
        try:
            self._connection.send(frame)
        except DisconnectedError:
            self._exit(1)
        self._write_the_rest()

    def _write_the_rest(self) -> None:
        if self._connection.pending:
            self._loop.add_writer(self._connection.fileno(), self._writable)

    def _writable(self) -> None:
        try:
            self._connection.flush()
        except DisconnectedError:
            self._exit(1)
        if not self._connection.pending:
            self._loop.remove_writer(self._connection.fileno())

    def _reap(self) -> None:
        for exited in self._children.reap():
            self._send(exited)
        if self._children:
            self._loop.call_later(_REAP_SECONDS, self._reap)

    async def _leave(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LEAVE_SECONDS)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(close_all(), _LEAVE_SECONDS)
        self._exit(0)

    def _exit(self, code: int) -> None:
        # Not `sys.exit`: threads and exit handlers of user code could keep us here.
        self._output.close()
        os._exit(code)
