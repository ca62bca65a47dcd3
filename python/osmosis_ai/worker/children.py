"""The processes that a template has forked."""

from __future__ import annotations

import contextlib
import os

from osmosis_ai.worker.frames import ChildExited


class Children:
    """Knows the forked processes by pid and notices when they end, without signals or threads."""

    def __init__(self) -> None:
        self._pidfds: dict[int, int | None] = {}

    def __bool__(self) -> bool:
        return bool(self._pidfds)

    def add(self, pid: int) -> None:
        """Remembers a process that was just forked."""
        try:
            self._pidfds[pid] = os.pidfd_open(pid)
        except (AttributeError, OSError):
            # Not every kernel has it: polling finds the end as well, a little later.
            self._pidfds[pid] = None

    def descriptors(self) -> list[int]:
        """Become readable when a process ends."""
        return [fd for fd in self._pidfds.values() if fd is not None]

    def need_polling(self) -> bool:
        """Whether a process ends without any descriptor saying so."""
        return None in self._pidfds.values()

    def reap(self) -> list[ChildExited]:
        """The processes that have ended since the last time."""
        ended = []
        for pid in list(self._pidfds):
            exited = _collect(pid)
            if exited is not None:
                self._forget(pid)
                ended.append(exited)
        return ended

    def forget_all(self) -> None:
        """In a forked child: they are its siblings."""
        for pid in list(self._pidfds):
            self._forget(pid)

    def _forget(self, pid: int) -> None:
        fd = self._pidfds.pop(pid)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)


def _collect(pid: int) -> ChildExited | None:
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        # Somebody else has waited for it; how it ended is lost.
        return ChildExited(pid, None, None)
    if done == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    return ChildExited(pid, code if code >= 0 else None, -code if code < 0 else None)
