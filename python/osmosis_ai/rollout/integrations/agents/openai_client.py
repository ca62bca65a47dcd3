"""The OpenAI clients of a worker: one pool of connections, one key per rollout."""

from __future__ import annotations

import asyncio
import ipaddress
from urllib.parse import quote, urlsplit

import httpx2
import openai

from osmosis_ai.rollout.cleanup import close_at_exit
from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.errors import NoRolloutContextError

POLICY_MODEL = "openai/osmosis-rollout"

_CONNECT_SECONDS = 30.0
# What may stand in a header as it is. `%` and everything beyond ASCII is percent-encoded.
_HEADER_SAFE = "!#$&'()*+/:;=?@[]~"

_shared: dict[tuple[asyncio.AbstractEventLoop, bool], openai.AsyncOpenAI] = {}


def client_for(context: RolloutContext) -> openai.AsyncOpenAI:
    """A client for the rollout's policy, over the connections that all rollouts here share."""
    if not context.base_url:
        raise NoRolloutContextError(
            "the rollout context has no `chat_completions_url`; set it, or "
            "OSMOSIS_CHAT_COMPLETIONS_URL"
        )
    shared = _shared_client(_is_loopback(context.base_url))
    return shared.with_options(api_key=context.api_key or "none", base_url=context.base_url)


def identity_headers(context: RolloutContext, sample: str) -> dict[str, str]:
    """The headers by which the gateway joins a call to its rollout and sample."""
    headers = {"x-sample-id": quote(sample, safe=_HEADER_SAFE)}
    if context.rollout_id:
        headers["x-rollout-id"] = quote(context.rollout_id, safe=_HEADER_SAFE)
    return headers


def _shared_client(loopback: bool) -> openai.AsyncOpenAI:
    # Connections belong to an event loop; a tool that runs an agent in a thread has its own.
    loop = asyncio.get_running_loop()
    for known in [key for key in _shared if key[0].is_closed()]:
        del _shared[known]
    client = _shared.get((loop, loopback))
    if client is None:
        if not _shared:
            close_at_exit(_close_shared)
        client = _shared[(loop, loopback)] = _new_client(loopback)
    return client


def _new_client(loopback: bool) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="none",
        base_url="http://invalid/",
        # The gateway retries and the engine keeps the deadlines; a second opinion here would only
        # repeat calls behind their back.
        max_retries=0,
        timeout=openai.Timeout(None, connect=_CONNECT_SECONDS),
        http_client=openai.DefaultAsyncHttpxClient(
            timeout=openai.Timeout(None, connect=_CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            # A proxy of the environment can't reach this machine's loopback.
            trust_env=not loopback,
        ),
    )


async def _close_shared() -> None:
    for client in list(_shared.values()):
        await client.close()
    _shared.clear()


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
