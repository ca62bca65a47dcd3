"""What a worker asks of its operating system."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

IS_LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

# Loaded before any fork, so that a child needs no import for it.
_libc: Any = ctypes.CDLL(None, use_errno=True) if IS_LINUX else None


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent is gone; leaves at once if it is."""
    if not IS_LINUX:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Asks the kernel to make this process the parent of orphans among its descendants."""
    if IS_LINUX:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hide_from_other_processes() -> None:
    """Other processes of this user can't trace this one any more, nor read its memory.

    What it forks is hidden too; another program that it starts is not.
    """
    if IS_LINUX:
        _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def lead_group() -> None:
    """In a forked child: what user code starts can be ended together with this process."""
    os.setpgid(0, 0)


def ignore_interrupts() -> None:
    """Leaves Ctrl-C to the engine. By a handler: subprocesses would inherit an ignored signal."""
    signal.signal(signal.SIGINT, lambda *_: None)


def restore_signals() -> None:
    """In a forked child: nothing of the template's signal handling stays."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    ignore_interrupts()


def reseed() -> None:
    """Forked siblings must not draw the same random numbers."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        with contextlib.suppress(Exception):
            numpy_random.seed()


def read_input() -> str:
    """What is on standard input, past Python's own buffer, which user code may look into."""
    text = b""
    while piece := os.read(0, 4096):
        text += piece
    return text.decode()


def close_input() -> None:
    """User code that reads standard input finds it empty."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def reason_not_to_fork() -> str | None:
    """Why processes forked from this one would not be sound; `None` when they are."""
    if not IS_LINUX:
        return f"forking after imports is not sound on {sys.platform}"
    names = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    if names:
        return f"importing the entrypoint started threads: {', '.join(names)}"
    with contextlib.suppress(OSError):
        tasks = len(list(Path("/proc/self/task").iterdir()))
        if tasks > 1:
            return f"importing the entrypoint started {tasks - 1} native threads"
    return None
