"""The ASGI app: starts the `osmosis` binary, works for it, and forwards requests to it.

The protocol has one implementation, in the binary. Making the app starts nothing; the server's
lifespan does, or the first request where there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from types import SimpleNamespace
from typing import Any

from osmosis_ai.rollout.backend.base import ExecutionBackend, ServedBackend
from osmosis_ai.rollout.cleanup import close_all
from osmosis_ai.rollout.runtime import keep_traces_here
from osmosis_ai.rollout.server.attached import AttachedWorker
from osmosis_ai.rollout.server.binary import Binary, ServerStartError
from osmosis_ai.rollout.server.forward import Reply, UpstreamError, forward
from osmosis_ai.rollout.server.hosts import HOSTS_VARIABLE, foreign_host

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

logger = logging.getLogger("osmosis_ai.rollout.server")

NAME_VARIABLE = "OSMOSIS_ROLLOUT_NAME"
# How long a binary that ended by itself stays away when nobody asks for it.
_RESTART_SECONDS = 1.0


def create_rollout_server(*, backend: ExecutionBackend, lifespan: Any = None) -> RolloutServer:
    """An ASGI app that serves `backend`, for uvicorn and its like.

    Every request but `GET /health` needs the key in `OSMOSIS_ROLLOUT_KEY`, where that is set.
    `lifespan` is called with the app and gives an async context manager that is entered before the
    first rollout and left after the last.
    """
    return RolloutServer(backend, lifespan)


class RolloutServer(ServedBackend):
    """What `create_rollout_server` returns. `state` is for the lifespan's own use."""

    def __init__(self, backend: ExecutionBackend, lifespan: Any = None) -> None:
        if not isinstance(backend, ExecutionBackend):
            raise TypeError(f"backend must be an ExecutionBackend, not {type(backend).__name__}")
        self.backend = backend
        self.state = SimpleNamespace()
        self._lifespan = lifespan
        self._around: contextlib.AsyncExitStack | None = None
        self._starting: asyncio.Lock | None = None
        self._binary: Binary | None = None
        self._watching: asyncio.Task[None] | None = None
        self._worker: AttachedWorker | None = None
        # The same for every start of the binary: it goes on with what it had accepted.
        made = time.strftime(f"attached-%Y%m%d-%H%M%S-{secrets.token_hex(3)}")
        self._run_name = os.environ.get(NAME_VARIABLE) or made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def start(self) -> str:
        """Starts what is not running yet and returns the binary's address."""
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self._binary is not None and self._binary.is_running:
                return self._binary.url
            await self._end_worker()
            keep_traces_here()
            if self._around is None:
                self._around = contextlib.AsyncExitStack()
                if self._lifespan is not None:
                    await self._around.enter_async_context(self._lifespan(self))
            binary = await Binary.start(self._run_name)
            try:
                self._worker = await AttachedWorker.dial(
                    self.backend, binary.worker_address, binary.worker_token
                )
            except BaseException:
                await binary.stop()
                raise
            self._binary = binary
            self._watching = asyncio.ensure_future(self._watch(binary))
            return binary.url

    async def stop(self) -> None:
        """Lets the binary drain while this process still works for it, then ends everything."""
        if self._watching is not None:
            self._watching.cancel()
        try:
            if self._binary is not None:
                await self._binary.stop()
            await self._end_worker()
            await close_all()
        finally:
            self._binary = None
            around, self._around = self._around, None
            if around is not None:
                await around.aclose()

    async def _watch(self, binary: Binary) -> None:
        """Starts the binary again when it ended by itself: callbacks may be left."""
        await binary.ended()
        while self._binary is binary:
            await asyncio.sleep(_RESTART_SECONDS)
            try:
                await self.start()
            except ServerStartError as error:
                logger.error("the rollout server's engine can't be started again: %s", error)

    async def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except BaseException as error:
            with contextlib.suppress(Exception):
                await self.stop()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            if not isinstance(error, Exception):
                raise
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        try:
            await self.stop()
        except Exception as error:
            await send({"type": "lifespan.shutdown.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = foreign_host(scope)
        if host is not None:
            detail = (
                f"`{host}` is not a name of this server; {HOSTS_VARIABLE} can hold further names"
            )
            await _send_json(send, 421, {"detail": detail})
            return
        try:
            url = await self.start()
            token = self._binary.worker_token if self._binary is not None else ""
            reply = await forward(url, token, scope, receive)
        except (ServerStartError, UpstreamError) as error:
            logger.error("no answer from the rollout server's engine: %s", error)
            await _send_json(send, 503, {"error": {"code": "unavailable", "message": str(error)}})
            return
        async with reply:
            if scope["method"] == "GET" and scope["path"].endswith("/health"):
                await self._send_health(reply, send)
            else:
                await _send_reply(reply, send)

    async def _send_health(self, reply: Reply, send: Send) -> None:
        """What the binary says of itself, and what the backend says of itself."""
        content = b"".join([chunk async for chunk in reply.body()])
        try:
            told = json.loads(content)
            health: Any = self.backend.health()
            told["backend"] = await health if inspect.isawaitable(health) else health
            await _send_json(send, reply.status, told)
        except Exception:
            logger.exception("the backend's health could not be told")
            await _send_whole(send, reply.status, reply.headers, content)


async def _send_reply(reply: Reply, send: Send) -> None:
    await send(
        {"type": "http.response.start", "status": reply.status, "headers": reply.headers},
    )
    async for chunk in reply.body():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_json(send: Send, status: int, value: Any) -> None:
    content = json.dumps(value).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    await _send_whole(send, status, headers, content)


async def _send_whole(
    send: Send, status: int, headers: list[tuple[bytes, bytes]], content: bytes
) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})
