"""HTTP to the engine's control API: the key, errors, and patience while the engine restarts."""

from __future__ import annotations

import http.client
import json
import logging
import time
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

from osmosis_ai.trainer.errors import (
    TrainerError,
    TrainerKeyError,
    TrainerRequestError,
    TrainerUnreachableError,
)

_log = logging.getLogger("osmosis_ai.trainer")

_FIRST_WAIT = 0.2
_LONGEST_WAIT = 5.0
# The engine stops, or something in front of it does not reach it.
_AGAIN = frozenset({429, 502, 503, 504})
# What a connection that ends too early raises, besides `OSError`.
_BROKEN = (http.client.HTTPException, URLError, OSError)


@dataclass(frozen=True)
class Reply:
    """What the engine answered; never an error."""

    status: int
    headers: Any
    body: bytes

    def json(self) -> Any:
        """The body, which is JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise TrainerError(
                "the answer is not JSON: is this the address of `osmosis train serve`?"
            ) from None


class Wire:
    """Asks the engine, and asks again while it can't be reached."""

    def __init__(self, base_url: str, api_key: str, retry_for: float) -> None:
        address = urlsplit(base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError(f"`{base_url}` is not an http or https URL")
        # The engine prints its base URL for model clients, which ends in `/v1`.
        self.root = base_url.rstrip("/").removesuffix("/v1")
        self._key = api_key
        self._retry_for = retry_for
        self._opener = _opener(address.hostname)

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        accept: str = "application/json",
        timeout: float = 60.0,
    ) -> Reply:
        """One request; tried again for a while when nobody answers."""
        request = Request(
            self.root + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self._key}",
                "Accept": accept,
                "Content-Type": "application/json",
            },
        )
        began = time.monotonic()
        wait = _FIRST_WAIT
        while True:
            try:
                return self._once(request, timeout)
            except _Again as again:
                if time.monotonic() - began + wait > self._retry_for:
                    raise TrainerUnreachableError(
                        f"the engine at {self.root} gives no answer: {again}; "
                        "is `osmosis train serve` running there?"
                    ) from again.__cause__
                _log.info("the engine gives no answer (%s); trying again in %.1f s", again, wait)
                time.sleep(wait)
                wait = min(wait * 2, _LONGEST_WAIT)

    def _once(self, request: Request, timeout: float) -> Reply:
        try:
            with self._opener.open(request, timeout=timeout) as response:
                return Reply(response.status, response.headers, response.read())
        except HTTPError as error:
            with error:
                code, message = _said(error)
            if error.code in _AGAIN:
                raise _Again(message) from error
            kind = TrainerKeyError if error.code in (401, 403) else TrainerRequestError
            raise kind(error.code, code, message) from None
        except _BROKEN as error:
            raise _Again(str(error) or type(error).__name__) from error


class _Again(Exception):
    """Nobody answered, or the engine is about to stop."""


def _said(error: HTTPError) -> tuple[str, str]:
    """Code and message of an error reply."""
    try:
        about = json.loads(error.read())["error"]
        return str(about.get("code")), str(about["message"])
    except (ValueError, KeyError, TypeError, AttributeError, *_BROKEN):
        return "unknown", f"HTTP {error.code} {error.reason}"


def _opener(host: str) -> OpenerDirector:
    """What is on this machine is never behind a proxy."""
    local = host == "localhost" or host == "::1" or host.startswith("127.")
    return build_opener(ProxyHandler({})) if local else build_opener()
