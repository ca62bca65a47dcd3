"""The worker's connection to the engine: dialling in, and whole frames in both directions."""

from __future__ import annotations

import errno
import os
import platform
import select
import socket
import threading
import time
from typing import Any

import osmosis_ai
from osmosis_ai.worker.frames import (
    PROTOCOL_VERSION,
    Hello,
    Refused,
    Welcome,
    encode,
    split_frames,
)

_DIAL_SECONDS = 10.0
_ANSWER_SECONDS = 60.0
_CHUNK = 256 * 1024
_NOT_READY = frozenset({errno.ECONNREFUSED, errno.ENOENT, errno.EAGAIN})


class RefusedError(Exception):
    """The engine does not want this worker."""


class DisconnectedError(Exception):
    """The engine closed the connection, or is gone."""


class Connection:
    """Sends and receives frames; sending is safe from any thread.

    The socket never blocks. What can't be sent at once waits in one buffer, in order, so frames of
    different threads never mix; `pending` says whether something waits.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._received = bytearray()
        self._outgoing = bytearray()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The socket's descriptor, for selecting."""
        return self._sock.fileno()

    def close(self) -> None:
        """Closes this process's end; another process that inherited the socket keeps its own."""
        self._sock.close()

    def receive(self) -> list[Any]:
        """The frames that have arrived. Raises `DisconnectedError` at the end of the stream."""
        try:
            chunk = self._sock.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise DisconnectedError(str(error)) from None
        if not chunk:
            raise DisconnectedError("the engine closed the connection")
        self._received += chunk
        return split_frames(self._received)

    def wait_for_frames(self, timeout: float) -> list[Any]:
        """Waits until at least one frame is here; raises `TimeoutError`."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the engine did not answer")
            if select.select([self], [], [], left)[0]:
                frames = self.receive()
                if frames:
                    return frames

    def queue(self, frame: Any) -> None:
        """Keeps a frame for the next `send` or `flush`."""
        data = encode(frame)
        with self._lock:
            self._outgoing += data

    def send(self, frame: Any) -> None:
        """Sends what the socket takes now and keeps the rest. Raises `DisconnectedError`."""
        data = encode(frame)
        with self._lock:
            self._outgoing += data
            self._flush()

    def send_now(self, frame: Any, patience: float = 30.0) -> None:
        """Sends and waits until everything has left."""
        self.send(frame)
        deadline = time.monotonic() + patience
        while self.pending and time.monotonic() < deadline:
            select.select([], [self], [], 0.5)
            self.flush()

    def flush(self) -> None:
        """Sends more of what waits."""
        with self._lock:
            self._flush()

    @property
    def pending(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._outgoing)

    def peer_is_gone(self) -> bool:
        """Whether the other end has hung up, without reading anything."""
        poll = select.poll()
        hang_up = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
        poll.register(self._sock, hang_up)
        return any(event & hang_up for _, event in poll.poll(0))

    def _flush(self) -> None:
        while self._outgoing:
            try:
                sent = self._sock.send(self._outgoing[:_CHUNK])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise DisconnectedError(str(error)) from None
            del self._outgoing[:sent]


def dial(address: str) -> socket.socket:
    """Connects to `unix:PATH` or `tcp:HOST:PORT`, waiting a little for a busy listener."""
    deadline = time.monotonic() + _DIAL_SECONDS
    while True:
        try:
            return _connect(address)
        except OSError as error:
            if error.errno not in _NOT_READY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def dial_control(address: str, token: str, features: list[str]) -> tuple[Connection, list[Any]]:
    """Opens the control connection; returns it with what already came after the welcome."""
    connection = Connection(dial(address))
    return connection, _introduce(connection, _hello(token, features, "control"))


def dial_output(address: str, token: str) -> socket.socket:
    """Opens the connection that takes, after the welcome, everything user code prints."""
    sock = dial(address)
    _introduce(Connection(sock), _hello(token, [], "output"))
    sock.setblocking(True)
    return sock


def _introduce(connection: Connection, hello: Hello) -> list[Any]:
    connection.send_now(hello)
    answer, *rest = connection.wait_for_frames(_ANSWER_SECONDS)
    if isinstance(answer, Refused):
        raise RefusedError(answer.reason)
    if not isinstance(answer, Welcome):
        raise RefusedError(f"expected a welcome, got `{type(answer).__name__}`")
    return rest


def _connect(address: str) -> socket.socket:
    scheme, _, place = address.partition(":")
    if scheme == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(place)
        except BaseException:
            sock.close()
            raise
        return sock
    if scheme == "tcp":
        host, _, port = place.rpartition(":")
        sock = socket.create_connection((host.strip("[]"), int(port)), timeout=_DIAL_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return sock
    raise ValueError(f"worker address `{address}` is neither `unix:PATH` nor `tcp:HOST:PORT`")


def _hello(token: str, features: list[str], channel: str) -> Hello:
    return Hello(
        protocol=PROTOCOL_VERSION,
        sdk=f"osmosis_ai {osmosis_ai.__version__} (python {platform.python_version()})",
        features=features,
        token=token,
        pid=os.getpid(),
        channel=channel,
    )
