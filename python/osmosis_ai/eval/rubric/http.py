"""One POST of JSON, in a thread: this package depends on no HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

# A judge's call is waiting, not work.
_MOST_AT_ONCE = 128
_MAX_REPLY_BYTES = 32 << 20


@dataclass(frozen=True)
class Reply:
    """What came back, whatever its status."""

    status: int
    body: bytes
    retry_after: float | None

    def json(self) -> Any:
        """The body, when it is JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class NoReplyError(Exception):
    """Nothing came back."""


async def post(url: str, body: dict[str, Any], key: str | None, timeout: float | None) -> Reply:
    """Posts the body; raises `NoReplyError` when there is no answer in time."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads(), _post, url, body, key, timeout)


@cache
def _threads() -> ThreadPoolExecutor:
    # Made when it is first needed: a worker is forked from a process that has no threads.
    return ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="osmosis-judge")


def _post(url: str, body: dict[str, Any], key: str | None, timeout: float | None) -> Reply:
    headers = {"content-type": "application/json", "accept": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    try:
        request = urllib.request.Request(
            url, json.dumps(body, ensure_ascii=False).encode(), headers, method="POST"
        )
        with _opener(_is_loopback(url)).open(request, timeout=timeout) as answer:
            return _reply(answer.status, answer.headers, answer.read(_MAX_REPLY_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return _reply(error.code, error.headers, error.read(_MAX_REPLY_BYTES))
    except urllib.error.URLError as error:
        raise NoReplyError(str(error.reason)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoReplyError(f"{type(error).__name__}: {error}") from None


def _reply(status: int, headers: Any, body: bytes) -> Reply:
    try:
        retry_after = float(headers.get("retry-after", ""))
    except ValueError:
        retry_after = None
    return Reply(status, body, retry_after)


@cache
def _opener(loopback: bool) -> urllib.request.OpenerDirector:
    # A proxy of the environment does not know what `localhost` means here.
    handlers = [urllib.request.ProxyHandler({})] if loopback else []
    return urllib.request.build_opener(*handlers, _NoRedirects)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would be sent without its body, and its key to somebody else."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
