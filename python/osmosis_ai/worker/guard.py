"""The process between the template and a worker that it forked.

To the kernel it is the parent of everything that the worker's subprocesses leave behind. So the
orphans of one worker are told apart from those of its siblings: they are handed on, to the engine's
guard, only when this worker has ended, and are ended there. Meanwhile they are waited for here,
where user code, which may wait for any child of its own, can't be confused by them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
from typing import NoReturn

from osmosis_ai.worker.process import (
    adopt_orphans,
    die_with_parent,
    lead_group,
    restore_signals,
)


def go_on_behind_guard(template: int) -> None:
    """In a forked child: returns in a child of its own. What stays is its guard, in its group."""
    lead_group()
    restore_signals()
    die_with_parent(template)
    adopt_orphans()
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        die_with_parent(guard)
        return
    _stand(worker)


def _stand(worker: int) -> NoReturn:
    try:
        _hold_nothing()
        _end_like(_status_of(worker))
    finally:
        # Never back into the template's code, whatever happens.
        os._exit(1)


def _hold_nothing() -> None:
    """Connections and files of the template must not stay open because of us."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _status_of(worker: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == worker:
            return os.waitstatus_to_exitcode(status)


def _end_like(code: int) -> NoReturn:
    """The template, which waits for us, is told how the worker ended."""
    if code < 0:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)
