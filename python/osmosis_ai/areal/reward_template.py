"""The template that reward processes are forked from, as its owner sees it."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Sequence

from osmosis_ai.areal import reward_process
from osmosis_ai.areal.reward_process import HEADER

_ENDED = struct.Struct("<Qi")
_CLOSE_SECONDS = 2.0


class Template:
    """A clean process of its own session: what is sent to a terminal's programs misses it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", reward_process.__file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._partial = b""

    def fileno(self) -> int:
        """For selectors: readable when `ended` has something to say."""
        return self._control.fileno()

    def send(self, kind: int, payload: bytes, fds: Sequence[int] = ()) -> None:
        """Tells it something. Raises `OSError` when it is gone."""
        head = HEADER.pack(kind, 0, len(payload))
        socket.send_fds(self._control, [head + payload], list(fds))

    def ended(self) -> list[tuple[int, int]]:
        """Processes that it has collected, with their exit codes. `EOFError` when it is gone."""
        try:
            data = self._control.recv(4096)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        data = self._partial + data
        whole = len(data) - len(data) % _ENDED.size
        self._partial = data[whole:]
        return list(_ENDED.iter_unpack(data[:whole]))

    def close(self) -> None:
        """Lets it go, with all its processes."""
        self._control.close()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def abandon(self) -> None:
        """In a forked child of the owner: it is not ours to wait for."""
        self._control.close()
        self._process.returncode = 0
