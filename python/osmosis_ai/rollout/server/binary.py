"""The `osmosis` program: found, started, told to leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any

logger = logging.getLogger("osmosis_ai.rollout.server")

BINARY_VARIABLE = "OSMOSIS_BIN"
TOKEN_VARIABLE = "OSMOSIS_SERVE_TOKEN"
_START_SECONDS = 30.0
# Longer than the binary's own patience with what it drains.
_STOP_SECONDS = 60.0
_MAX_LINE = 1024 * 1024


class ServerStartError(Exception):
    """The binary could not be started, or did not say where it listens."""


def find_binary() -> str:
    """`OSMOSIS_BIN`, then beside the interpreter, then on the `PATH`."""
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise ServerStartError(f"{BINARY_VARIABLE} is `{named}`, which is no program")
        return found
    # Not resolved: in a virtual environment the interpreter is a link, its neighbours are not.
    beside = Path(sys.executable).with_name("osmosis")
    found = shutil.which(str(beside)) or shutil.which("osmosis")
    if found is None:
        raise ServerStartError(
            f"the `osmosis` program is neither beside `{sys.executable}` nor on the PATH; install "
            f"`osmosis-rs`, or name the program in {BINARY_VARIABLE}"
        )
    return found


class Binary:
    """The running program, and where it listens."""

    def __init__(self, process: asyncio.subprocess.Process, token: str) -> None:
        self._process = process
        self._reader: asyncio.Task[None] | None = None
        self.worker_token = token
        self.worker_address = ""
        self.url = ""

    @classmethod
    async def start(cls, run_name: str) -> Binary:
        """Starts the program and waits until it listens. Raises `ServerStartError`."""
        program, token = find_binary(), secrets.token_urlsafe(32)
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *("serve", "--attach", "--listen", "127.0.0.1:0", "--json", "--name", run_name),
                # It leaves when this end closes, however this process ends.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, TOKEN_VARIABLE: token},
                # Ctrl-C in a terminal is for us; we tell it when to leave.
                start_new_session=True,
                limit=_MAX_LINE,
            )
        except OSError as error:
            raise ServerStartError(f"`{program}` could not be started: {error}") from error
        binary = cls(process, token)
        try:
            await asyncio.wait_for(binary._read_where(program), _START_SECONDS)
        except asyncio.TimeoutError:
            await binary.stop(0)
            raise ServerStartError(
                f"`{program} serve` did not say within {_START_SECONDS:g} s where it listens"
            ) from None
        except BaseException:
            await binary.stop(0)
            raise
        binary._reader = asyncio.ensure_future(binary._pass_on())
        return binary

    @property
    def is_running(self) -> bool:
        """Whether the program has not ended."""
        return self._process.returncode is None

    async def ended(self) -> None:
        """Returns when the program has ended."""
        await self._process.wait()

    async def stop(self, patience: float = _STOP_SECONDS) -> None:
        """Asks the program to drain and leave; ends it when it takes too long."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), patience)
            except asyncio.TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        if self._reader is not None:
            await asyncio.wait({self._reader}, timeout=1)
            self._reader.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _read_where(self, program: str) -> None:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            raise ServerStartError(
                f"`{program} serve --attach` ended with code {code} before it listened; its own "
                "words are above. Is it the `osmosis` of `osmosis-rs`?"
            )
        try:
            said: Any = json.loads(line)
            resource = said["resource"]
            self.url = _text(resource["url"]).rstrip("/")
            self.worker_address = _text(resource["worker_address"])
        except (ValueError, KeyError, TypeError):
            raise ServerStartError(
                f"`{program} serve --attach` said `{line[:200]!r}`, which does not tell where it "
                "listens"
            ) from None

    async def _pass_on(self) -> None:
        """What the program prints afterwards is for people."""
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):
            while line := await self._process.stdout.readline():
                logger.info("%s", line.decode(errors="replace").rstrip())


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("expected text")
    return value
