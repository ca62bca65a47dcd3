"""Everything user code prints goes to the engine, line by line, tagged with its rollout.

Descriptors 1 and 2 are the output connection, so what subprocesses and C code write arrives too,
untagged. Python's own streams write whole lines; a line made while a rollout's task is running
starts with `\\x1e<rollout_id>\\x1f`.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import socket
import sys
import threading
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

TAG_START = "\x1e"
TAG_END = "\x1f"
# Lines beyond this are split, so that one write stays whole among other writers.
MAX_LINE_CHARACTERS = 8_000
# One text of any size is handled in pieces: lines are made of it, and bytes of those.
_MAX_PIECE_CHARACTERS = 1_000_000
_STUCK_SECONDS = 30.0

current_rollout: ContextVar[str | None] = ContextVar("osmosis_output_rollout", default=None)


class LineWriter:
    """Writes whole lines to one descriptor, from any thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def write_lines(self, rollout: str | None, lines: Iterable[str]) -> None:
        """Writes lines with their tag. When nobody listens any more they are lost."""
        data = "".join(_tagged(rollout, line) for line in lines)
        with self._lock, contextlib.suppress(OSError):
            self._write(data.encode("utf-8", "backslashreplace"))

    def redirect(self, fd: int) -> None:
        """Writes to another descriptor from now on."""
        self._fd = fd

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                # A subprocess that shares the descriptor may have made it non-blocking.
                if not select.select([], [self._fd], [], _STUCK_SECONDS)[1]:
                    return


class TaggedStream(io.TextIOBase):
    """A text stream that holds partial lines, one per rollout, until they are complete."""

    def __init__(self, writer: LineWriter, fd: int) -> None:
        self._writer = writer
        self._fd = fd
        self._partial: dict[str | None, str] = {}
        self._lock = threading.RLock()
        self._buffer = _ByteView(self)

    @property
    def buffer(self) -> Any:
        """For code that writes bytes."""
        return self._buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Always UTF-8."""
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """What can't be encoded is shown escaped."""
        return "backslashreplace"

    def write(self, text: str) -> int:
        """Writes the lines that are complete and keeps the rest."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        rollout = current_rollout.get()
        with self._lock:
            for start in range(0, len(text), _MAX_PIECE_CHARACTERS):
                self._write_piece(rollout, text[start : start + _MAX_PIECE_CHARACTERS])
        return len(text)

    def _write_piece(self, rollout: str | None, text: str) -> None:
        *lines, rest = (self._partial.pop(rollout, "") + text).split("\n")
        whole = len(rest) - len(rest) % MAX_LINE_CHARACTERS
        if len(rest) > MAX_LINE_CHARACTERS:
            lines.append(rest[:whole])
            rest = rest[whole:]
        if rest:
            self._partial[rollout] = rest
        if lines:
            self._writer.write_lines(rollout, lines)

    def finish(self, rollout: str | None) -> None:
        """Writes what is left of a rollout's last line."""
        with self._lock:
            rest = self._partial.pop(rollout, "")
            if rest:
                self._writer.write_lines(rollout, [rest])

    def finish_all(self) -> None:
        """Writes everything that is left."""
        for rollout in list(self._partial):
            self.finish(rollout)

    def flush(self) -> None:
        """Complete lines are never held, partial ones stay."""

    def fileno(self) -> int:
        """The descriptor for subprocesses, which write to the same connection."""
        return self._fd

    def isatty(self) -> bool:
        """Never a terminal."""
        return False

    def writable(self) -> bool:
        """Always."""
        return True

    def reconfigure(self, **_: Any) -> None:
        """Accepted and ignored: the engine wants UTF-8 lines."""


class _ByteView(io.RawIOBase):
    def __init__(self, stream: TaggedStream) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        data = bytes(data)
        self._stream.write(data.decode("utf-8", "backslashreplace"))
        return len(data)

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True


class Output:
    """The process's standard streams, once they lead to the engine."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._writer = LineWriter(sock.fileno())
        self.stdout = TaggedStream(self._writer, 1)
        self.stderr = TaggedStream(self._writer, 2)
        self._point_descriptors()
        sys.stdout = sys.__stdout__ = self.stdout  # type: ignore[misc, assignment]
        sys.stderr = sys.__stderr__ = self.stderr  # type: ignore[misc, assignment]

    def reconnect(self, sock: socket.socket) -> None:
        """In a forked child: the same streams, over a connection of its own."""
        inherited = self._sock
        self._sock = sock
        self._writer.redirect(sock.fileno())
        self._point_descriptors()
        inherited.close()

    def finish(self, rollout: str) -> None:
        """Writes what is left of a rollout's last lines."""
        self.stdout.finish(rollout)
        self.stderr.finish(rollout)

    def close(self) -> None:
        """Writes everything that is left."""
        self.stdout.finish_all()
        self.stderr.finish_all()

    def _point_descriptors(self) -> None:
        os.dup2(self._sock.fileno(), 1)
        os.dup2(self._sock.fileno(), 2)


def _tagged(rollout: str | None, line: str) -> str:
    tag = "" if rollout is None else f"{TAG_START}{rollout}{TAG_END}"
    line = line.rstrip("\r")
    if rollout is None and line.startswith(TAG_START):
        # Nobody may speak in the name of a rollout.
        line = "\u241e" + line[1:]
    return "".join(
        f"{tag}{line[start : start + MAX_LINE_CHARACTERS]}\n"
        for start in range(0, len(line) or 1, MAX_LINE_CHARACTERS)
    )
