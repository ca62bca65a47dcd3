"""Shared HTTP clients: one of each kind per event loop, keep-alive, without a cap on connections.

httpx looks through its whole pool for every request, which costs more than the request when
thousands are under way; with aiohttp installed, the httpx client sends through its session.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from osmosis_ai.rollout.cleanup import PerLoop

if TYPE_CHECKING:
    import aiohttp

# Rollouts have their own deadlines; these only keep a forgotten call from waiting for good.
_TOTAL_SECONDS = 3600.0
_CONNECT_SECONDS = 60.0
_KEEPALIVE_SECONDS = 60.0
_CHUNK = 64 * 1024
_EXTRA = "install it with `pip install 'osmosis-rs[areal]'`"


class MissingExtraError(ImportError):
    """An optional package is needed and not installed."""


def aiohttp_session() -> aiohttp.ClientSession:
    """The running loop's session."""
    _module("aiohttp")
    session: aiohttp.ClientSession = _sessions.get()
    return session


def httpx_client() -> Any:
    """The running loop's client."""
    return _clients.get(_httpx_name())


def has_aiohttp() -> bool:
    """Whether `aiohttp_session` can be had."""
    return importlib.util.find_spec("aiohttp") is not None


def has_httpx() -> bool:
    """Whether `httpx_client` can be had."""
    return importlib.util.find_spec(_httpx_name()) is not None


async def close() -> None:
    """Closes what the running loop has of both."""
    await _clients.close_here()
    await _sessions.close_here()


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(f"`{name}` is not installed; {_EXTRA}", name=error.name) from None


def _httpx_name() -> str:
    """The `openai` package builds on httpx or on httpx2, and takes only its own kind of client."""
    if importlib.util.find_spec("openai") is not None:
        openai = import_module("openai")
        for cls in openai.DefaultAsyncHttpxClient.__mro__:
            if cls.__name__ == "AsyncClient":
                return str(cls.__module__).partition(".")[0]
    return "httpx"


def _new_session(_: Any) -> Any:
    aiohttp = _module("aiohttp")
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
        # Rollouts share connections, none of each other's cookies.
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=_TOTAL_SECONDS, sock_connect=_CONNECT_SECONDS),
    )


def _new_client(name: Any) -> Any:
    httpx = _module(name)
    timeout = httpx.Timeout(_TOTAL_SECONDS, connect=_CONNECT_SECONDS)
    if has_aiohttp():
        return httpx.AsyncClient(
            transport=_transport(httpx), timeout=timeout, cookies=_no_cookies(), trust_env=False
        )
    limits = httpx.Limits(
        max_connections=None,
        max_keepalive_connections=None,
        keepalive_expiry=_KEEPALIVE_SECONDS,
    )
    # A transport of one's own goes past the environment's proxy, which can't reach the gateway.
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(limits=limits), timeout=timeout, cookies=_no_cookies()
    )


def _no_cookies() -> Any:
    """A jar that keeps nothing, of the kind that httpx takes over as it is."""
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


async def _close_session(session: Any) -> None:
    await session.close()


async def _close_client(client: Any) -> None:
    await client.aclose()


_sessions: PerLoop[Any] = PerLoop(_new_session, _close_session)
_clients: PerLoop[Any] = PerLoop(_new_client, _close_client)


def _transport(httpx: ModuleType) -> Any:
    """A transport of that httpx over the running loop's aiohttp session."""
    aiohttp = _module("aiohttp")
    yarl = _module("yarl")
    # Failures must be httpx's own, which is what SDKs retry on.
    broken: tuple[type[BaseException], ...] = (aiohttp.ClientError, OSError)

    class Body(httpx.AsyncByteStream):  # type: ignore[name-defined,misc]
        def __init__(self, reply: Any, request: Any) -> None:
            self._reply = reply
            self._request = request

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for chunk in self._reply.content.iter_chunked(_CHUNK):
                    yield chunk
            except asyncio.TimeoutError as error:
                raise httpx.ReadTimeout(str(error), request=self._request) from error
            except broken as error:
                raise httpx.ReadError(str(error), request=self._request) from error

        async def aclose(self) -> None:
            # One that was read to its end has given its connection back already.
            self._reply.close()

    class Transport(httpx.AsyncBaseTransport):  # type: ignore[name-defined,misc]
        async def handle_async_request(self, request: Any) -> Any:
            wanted = request.extensions.get("timeout", {})
            try:
                reply = await aiohttp_session().request(
                    request.method,
                    yarl.URL(str(request.url), encoded=True),
                    headers=request.headers.multi_items(),
                    data=await request.aread() or None,
                    allow_redirects=False,
                    auto_decompress=False,
                    timeout=aiohttp.ClientTimeout(
                        total=None,
                        sock_connect=wanted.get("connect"),
                        sock_read=wanted.get("read"),
                    ),
                )
            except aiohttp.ConnectionTimeoutError as error:
                raise httpx.ConnectTimeout(str(error), request=request) from error
            except asyncio.TimeoutError as error:
                raise httpx.ReadTimeout(str(error), request=request) from error
            except aiohttp.ClientConnectorError as error:
                raise httpx.ConnectError(str(error), request=request) from error
            except broken as error:
                raise httpx.ReadError(str(error), request=request) from error
            return httpx.Response(
                status_code=reply.status,
                headers=reply.raw_headers,
                stream=Body(reply, request),
                request=request,
            )

    return Transport()
