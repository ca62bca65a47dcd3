"""Forwards one ASGI request over HTTP/1.1 to the binary, streaming in both directions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote, urlsplit

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

# About one connection, not about the message; never forwarded.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
    }
)
# Shows the binary that a request comes from this process, and not past it.
_TOKEN_HEADER = b"x-osmosis-serve-token"
_MAX_HEAD = 256 * 1024
_CHUNK = 256 * 1024


class UpstreamError(Exception):
    """The binary did not answer in HTTP."""


class Reply:
    """The head of an answer, and its body while it arrives. Closes its connection at the end."""

    def __init__(
        self,
        status: int,
        headers: list[tuple[bytes, bytes]],
        reader: asyncio.StreamReader,
        end: Callable[[], Awaitable[None]],
        has_body: bool,
    ) -> None:
        self.status = status
        self.headers = [(k, v) for k, v in headers if k not in _HOP_BY_HOP]
        self._reader = reader
        self._end = end
        named = dict(headers)
        self._chunked = named.get(b"transfer-encoding", b"").lower() == b"chunked"
        length = named.get(b"content-length")
        self._length = 0 if not has_body else (int(length) if length is not None else None)

    async def __aenter__(self) -> Reply:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def body(self) -> AsyncIterator[bytes]:
        """The body, piece by piece. Raises `UpstreamError` when it breaks off."""
        try:
            if self._length == 0:
                return
            if self._chunked:
                while size := int((await self._reader.readline()).split(b";")[0], 16):
                    async for piece in self._read(size):
                        yield piece
                    await self._reader.readexactly(2)
            elif self._length is not None:
                async for piece in self._read(self._length):
                    yield piece
            else:
                while piece := await self._reader.read(_CHUNK):
                    yield piece
        except (OSError, EOFError, ValueError) as error:
            raise UpstreamError(f"the answer broke off: {error}") from error

    async def _read(self, size: int) -> AsyncIterator[bytes]:
        while size:
            piece = await self._reader.readexactly(min(size, _CHUNK))
            size -= len(piece)
            yield piece


async def forward(url: str, token: str, scope: MutableMapping[str, Any], receive: Receive) -> Reply:
    """Sends the request and returns the answer as soon as its head is here."""
    place = urlsplit(url)
    try:
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=_MAX_HEAD)
    except OSError as error:
        raise UpstreamError(f"no connection to `{url}`: {error}") from error
    # The binary may answer before it has read everything, and refuse the rest.
    sending = asyncio.ensure_future(_send_request(writer, token, scope, receive))

    async def end() -> None:
        sending.cancel()
        await asyncio.wait({sending})
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    try:
        status, headers = await _read_head(reader)
    except BaseException:
        await end()
        raise
    has_body = scope["method"] != "HEAD" and status not in {204, 304}
    return Reply(status, headers, reader, end, has_body)


async def _send_request(
    writer: asyncio.StreamWriter, token: str, scope: MutableMapping[str, Any], receive: Receive
) -> None:
    dropped = _HOP_BY_HOP | {_TOKEN_HEADER}
    headers = [(k.lower(), v) for k, v in scope["headers"] if k.lower() not in dropped]
    headers.append((_TOKEN_HEADER, token.encode()))
    chunked = not any(k == b"content-length" for k, _ in headers)
    event = await receive()
    if chunked and not event.get("body") and not event.get("more_body"):
        chunked = False
    if chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    headers.append((b"connection", b"close"))
    lines = [f"{scope['method']} {_target(scope)} HTTP/1.1".encode("latin-1")]
    lines += [k + b": " + v for k, v in headers]
    try:
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
        while event["type"] == "http.request":
            body = event.get("body", b"")
            if body:
                writer.write(b"%x\r\n%s\r\n" % (len(body), body) if chunked else body)
                await writer.drain()
            if not event.get("more_body"):
                if chunked:
                    writer.write(b"0\r\n\r\n")
                await writer.drain()
                return
            event = await receive()
        # The client left in the middle of its request: the binary must not take it for whole.
        writer.transport.abort()
    except OSError:
        # What the binary said before it closed is still to be read.
        return


def _target(scope: MutableMapping[str, Any]) -> str:
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(scope["path"])
    # Below another app's path, the binary is still at its own root.
    root = scope.get("root_path", "").rstrip("/")
    if root and path.startswith(f"{root}/"):
        path = path.removeprefix(root)
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{query}" if query else path


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, list[tuple[bytes, bytes]]]:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
            status = int(head[0].split(b" ", 2)[1])
            if status >= 200:
                break
        pairs = (line.split(b":", 1) for line in head[1:] if line)
        return status, [(name.strip().lower(), value.strip()) for name, value in pairs]
    except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
        raise UpstreamError(f"no answer in HTTP: {type(error).__name__}: {error}") from error
