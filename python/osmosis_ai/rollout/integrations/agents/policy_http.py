"""The connections of a process to the policy: one aiohttp pool per event loop.

httpx looks through its whole pool for every request; with many rollouts in one process that costs
more than the request. Without aiohttp the integrations use httpx.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import openai

from osmosis_ai.rollout.cleanup import PerLoop

try:
    import aiohttp

    AIOHTTP_ERRORS: tuple[type[Exception], ...] = (aiohttp.ClientError, OSError)
    HAS_AIOHTTP = True
except ImportError:
    AIOHTTP_ERRORS = (OSError,)
    HAS_AIOHTTP = False

_BROKEN_OFF: tuple[type[Exception], ...] = (*AIOHTTP_ERRORS, asyncio.TimeoutError)

CONNECT_SECONDS = 30.0
_CHUNK = 64 * 1024

# The `openai` package builds on httpx or on httpx2, depending on its version.
httpx: Any = import_module(
    next(
        c for c in openai.DefaultAsyncHttpxClient.__mro__ if c.__name__ == "AsyncClient"
    ).__module__.partition(".")[0]
)


def is_loopback(url: str) -> bool:
    """Whether the URL leads to this machine, which no proxy of the environment can reach."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def http_client(url: str) -> Any:
    """An httpx client for the URL: over the shared session, or with a pool of its own."""
    if HAS_AIOHTTP:
        return httpx.AsyncClient(transport=SharedTransport(), trust_env=False)
    return openai.DefaultAsyncHttpxClient(
        timeout=openai.Timeout(None, connect=CONNECT_SECONDS),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=not is_loopback(url),
    )


def session_for(url: str) -> aiohttp.ClientSession:
    """The running loop's session; all rollouts share its connections, none of its cookies."""
    return _sessions.get(is_loopback(url))


def _new_session(loopback: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        # The engine keeps the deadlines.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        trust_env=not loopback,
    )


async def _close(session: aiohttp.ClientSession) -> None:
    await session.close()


_sessions: PerLoop[aiohttp.ClientSession] = PerLoop(_new_session, _close)


class SharedTransport(httpx.AsyncBaseTransport):  # type: ignore[misc]
    """Carries what the `openai` package sends through httpx over the shared session."""

    async def handle_async_request(self, request: Any) -> Any:
        """Sends one request; the reply's body is read as it arrives."""
        session = session_for(str(request.url))
        try:
            reply = await session.request(
                request.method,
                str(request.url),
                headers=request.headers.multi_items(),
                data=await request.aread() or None,
                allow_redirects=False,
                auto_decompress=False,
            )
        except asyncio.TimeoutError as error:
            raise httpx.ConnectTimeout(str(error), request=request) from error
        except AIOHTTP_ERRORS as error:
            raise httpx.ConnectError(str(error), request=request) from error
        return httpx.Response(
            status_code=reply.status,
            headers=reply.raw_headers,
            stream=_Body(reply, request),
            request=request,
        )


class _Body(httpx.AsyncByteStream):  # type: ignore[misc]
    def __init__(self, reply: aiohttp.ClientResponse, request: Any) -> None:
        self._reply = reply
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._reply.content.iter_chunked(_CHUNK):
                yield chunk
        except _BROKEN_OFF as error:
            raise httpx.ReadError(str(error), request=self._request) from error

    async def aclose(self) -> None:
        # A reply that was not read to its end can't give its connection back.
        self._reply.close()
