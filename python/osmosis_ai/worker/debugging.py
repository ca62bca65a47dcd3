"""The debugger of `osmosis rollout run --pdb`, on the terminal of whoever started it.

A worker's standard streams lead to the engine and its process group is in the background, so pdb
would find neither input nor output. For the time of each prompt it takes the terminal: as the
standard streams, and as the group that Ctrl-C and input go to.
"""

from __future__ import annotations

import asyncio
import bdb
import contextlib
import os
import pdb
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from osmosis_ai import project_snapshot
from osmosis_ai.rollout.failure import is_our_code, user_traceback

# Set by the engine for the workers of a run that is debugged.
DEBUG_VARIABLE = "_OSMOSIS_DEBUG"
_TERMINAL = "/dev/tty"
# The engine prints what came before, over another connection; nobody says when it is done.
_LET_ENGINE_PRINT_SECONDS = 0.2

_enabled = False


def enable_if_asked() -> bool:
    """Reads the engine's wish, before user code is imported. `breakpoint()` works from then on."""
    global _enabled
    if os.environ.pop(DEBUG_VARIABLE, ""):
        _enabled = True
        sys.breakpointhook = _break_here
    return _enabled


def examine(error: BaseException) -> None:
    """Opens the debugger where user code raised; returns when the user quits it."""
    quiet = (asyncio.CancelledError, bdb.BdbQuit, SystemExit, KeyboardInterrupt)
    if not _enabled or isinstance(error, quiet) or error.__traceback__ is None:
        return
    debugger = TerminalPdb()
    debugger.introduction = (user_traceback(error) or repr(error)) + (
        "\n\nThe rollout stopped here. Commands: `w` where, `u`/`d` up and down, `p NAME` print, "
        "`q` quit; then the rollout ends as failed.\n"
    )
    debugger.reset()
    debugger.interaction(None, _in_user_code(error))


class TerminalPdb(pdb.Pdb):
    """pdb that has the terminal while it waits for a command."""

    def __init__(self) -> None:
        super().__init__(nosigint=True)
        self.introduction = ""

    def lookupmodule(self, filename: str) -> str | None:
        """A file as frames name it, for breakpoints."""
        found: str | None = super().lookupmodule(filename)
        return None if found is None else project_snapshot.shown(found)

    def interaction(self, *args: Any, **kwargs: Any) -> None:
        """Talks to the user, on the terminal."""
        time.sleep(_LET_ENGINE_PRINT_SECONDS)
        with _terminal():
            self.stdin, self.stdout = sys.stdin, sys.stdout
            if self.introduction:
                self.message(self.introduction)
                self.introduction = ""
            super().interaction(*args, **kwargs)


def _break_here(*args: Any, **kwargs: Any) -> None:
    TerminalPdb().set_trace(sys._getframe(1))


def _in_user_code(error: BaseException) -> Any:
    """The traceback from its first to its last frame outside of this package: pdb opens there."""
    frames = []
    tb = error.__traceback__
    while tb is not None:
        frames.append(tb)
        tb = tb.tb_next
    ours = [is_our_code(one.tb_frame.f_code.co_filename) for one in frames]
    if all(ours):
        return error.__traceback__
    first, last = ours.index(False), len(ours) - 1 - ours[::-1].index(False)
    cut: TracebackType | None = None
    for one in reversed(frames[first : last + 1]):
        cut = TracebackType(cut, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return cut


@contextlib.contextmanager
def _terminal() -> Iterator[None]:
    terminal = os.open(_TERMINAL, os.O_RDWR)
    streams = sys.stdin, sys.stdout, sys.stderr
    kept = [os.dup(fd) for fd in (0, 1, 2)]
    # Taking the terminal from the background would stop us otherwise.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    group = os.tcgetpgrp(terminal)
    interrupts: Any = None
    if threading.current_thread() is threading.main_thread():
        interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        os.tcsetpgrp(terminal, os.getpgrp())
        for fd in (0, 1, 2):
            os.dup2(terminal, fd)
        sys.stdin = os.fdopen(0, encoding="utf-8", errors="replace", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False, buffering=1)
        sys.stderr = sys.stdout
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        sys.stdin, sys.stdout, sys.stderr = streams
        for fd, copy in enumerate(kept):
            os.dup2(copy, fd)
            os.close(copy)
        if interrupts is not None:
            signal.signal(signal.SIGINT, interrupts)
        with contextlib.suppress(OSError):
            os.tcsetpgrp(terminal, group)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})
        os.close(terminal)
