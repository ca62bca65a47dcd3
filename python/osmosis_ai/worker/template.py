"""The mode a worker starts in: a blocking loop that loads and forks, without any thread.

It ends when the process is told to leave, when a task arrives (the process then serves it itself),
or in a forked child.
"""

from __future__ import annotations

import gc
import os
import select
from dataclasses import dataclass
from typing import Any

from osmosis_ai.worker.children import Children
from osmosis_ai.worker.connection import Connection
from osmosis_ai.worker.frames import (
    Failure,
    Fork,
    Forked,
    ForkFailed,
    Grade,
    Load,
    LoadFailed,
    Problem,
    Run,
    Shutdown,
    TaskFailed,
)
from osmosis_ai.worker.loading import Rollout, load_rollout
from osmosis_ai.worker.process import reason_not_to_fork

_POLL_MS = 200


@dataclass(frozen=True)
class Leave:
    """The process was told to leave."""


@dataclass(frozen=True)
class Serve:
    """A task arrived: this process serves, beginning with these frames."""

    rollout: Rollout
    frames: list[Any]


@dataclass(frozen=True)
class ChildStarts:
    """This is the forked child; it dials in with the token."""

    rollout: Rollout
    token: str
    template_pid: int


class Template:
    """Loads the entrypoint and forks workers from it."""

    def __init__(self, connection: Connection, children: Children) -> None:
        self._connection = connection
        self._children = children
        self._rollout: Rollout | None = None

    def run(self, frames: list[Any]) -> Leave | Serve | ChildStarts:
        """Answers frames until the mode changes. Raises `DisconnectedError` with the engine."""
        while True:
            for index, frame in enumerate(frames):
                if isinstance(frame, Shutdown):
                    return Leave()
                if isinstance(frame, Run | Grade):
                    if self._rollout is not None:
                        return Serve(self._rollout, frames[index:])
                    failure = Failure("agent_error", "not_loaded", "nothing is loaded yet")
                    self._connection.send_now(TaskFailed(frame.task, failure))
                elif isinstance(frame, Load):
                    self._load(frame)
                elif isinstance(frame, Fork):
                    child = self._fork(frame.token)
                    if child is not None:
                        return child
            frames = self._next()

    def _next(self) -> list[Any]:
        timeout = _POLL_MS if self._children.need_polling() else None
        ours = self._connection.fileno()
        # Not `select`, which takes no descriptor from 1024 on: there may be many children.
        poll = select.poll()
        for descriptor in (ours, *self._children.descriptors()):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(timeout)}
        for exited in self._children.reap():
            self._connection.send_now(exited)
        return self._connection.receive() if ours in ready else []

    def _load(self, load: Load) -> None:
        if self._rollout is not None:
            if load == self._rollout.load:
                self._connection.send_now(self._rollout.loaded)
                return
            message = f"this process has loaded `{self._rollout.load.entrypoint}` already"
            self._connection.send_now(LoadFailed([Problem("already_loaded", message, None, None)]))
            return
        loaded = load_rollout(load)
        if isinstance(loaded, Rollout):
            self._rollout = loaded
            # What is loaded stays: the collector need not touch (and so copy) it in children.
            gc.collect()
            gc.freeze()
            self._connection.send_now(loaded.loaded)
        else:
            self._connection.send_now(loaded)

    def _fork(self, token: str) -> ChildStarts | None:
        reason = "nothing is loaded yet" if self._rollout is None else reason_not_to_fork()
        if reason is None:
            template_pid = os.getpid()
            try:
                pid = os.fork()
            except OSError as error:
                reason = str(error)
            else:
                if pid == 0 and self._rollout is not None:
                    return ChildStarts(self._rollout, token, template_pid)
                self._children.add(pid)
                self._connection.send_now(Forked(token, pid))
                return None
        self._connection.send_now(ForkFailed(token, reason))
        return None
