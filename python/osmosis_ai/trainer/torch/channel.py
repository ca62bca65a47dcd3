"""The connection to the program that started this one: one JSON object per line, both ways."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

ADDRESS_VARIABLE = "OSMOSIS_TRAINER_SOCKET"
PROTOCOL = 1

Message = dict[str, Any]


class ClosedError(Exception):
    """The other side is gone, and with it the reason to go on."""


class Channel:
    """Messages over a Unix socket. One request is answered at a time."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._reader = self._socket.makefile("rb")

    @classmethod
    def from_environment(cls) -> Channel:
        """The connection that the starting program left the address of."""
        path = os.environ.get(ADDRESS_VARIABLE)
        if not path:
            raise SystemExit(
                "osmosis_ai.trainer.torch is started by `osmosis train submit` with "
                '`[trainer] kind = "torch"` (docs/training.md)'
            )
        return cls(path)

    def receive(self) -> Message:
        """The next message; `ClosedError` when there will be none."""
        line = self._reader.readline()
        if not line.endswith(b"\n"):
            raise ClosedError
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ClosedError
        return message

    def send(self, message: Message) -> None:
        """Sends one message. A number that is not finite is an error, not text."""
        line = json.dumps(message, allow_nan=False, separators=(",", ":")) + "\n"
        try:
            self._socket.sendall(line.encode())
        except OSError as error:
            raise ClosedError from error
