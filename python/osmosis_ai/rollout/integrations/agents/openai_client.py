"""The `openai` client by which both integrations call the policy.

One client serves all rollouts of a process: the key, the rollout and the sample are headers of
each call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote

import openai
from openai import Omit
from openai.resources.chat import AsyncChat, AsyncCompletions
from openai.types.chat import ChatCompletion
from pydantic import ValidationError

from osmosis_ai.rollout.cleanup import PerLoop
from osmosis_ai.rollout.context import RolloutContext, get_rollout_context
from osmosis_ai.rollout.errors import NoRolloutContextError
from osmosis_ai.rollout.integrations.agents.policy_http import (
    AIOHTTP_ERRORS,
    CONNECT_SECONDS,
    HAS_AIOHTTP,
    http_client,
    httpx,
    session_for,
)

POLICY_MODEL = "openai/osmosis-rollout"

# What may stand in a header as it is. `%` and everything beyond ASCII is percent-encoded.
_HEADER_SAFE = "!#$&'()*+/:;=?@[]~"
_NOT_GIVEN = (openai.NotGiven, Omit)
# Arguments of `create` that are about the request rather than in it.
_ABOUT = frozenset({"extra_headers", "extra_query", "extra_body", "timeout"})


def policy_url(context: RolloutContext) -> str:
    """The base URL of the rollout's policy; raises when the context has none."""
    if not context.base_url:
        raise NoRolloutContextError(
            "the rollout context has no `chat_completions_url`; set it, or "
            "OSMOSIS_CHAT_COMPLETIONS_URL"
        )
    return context.base_url


def client_for(context: RolloutContext) -> PolicyClient:
    """The running loop's client for the rollout's policy."""
    return _clients.get(policy_url(context))


def call_headers(context: RolloutContext, sample: str) -> dict[str, str]:
    """The headers by which the gateway admits a call and joins it to its rollout and sample."""
    headers = {
        "Authorization": f"Bearer {context.api_key or 'none'}",
        "x-sample-id": quote(sample, safe=_HEADER_SAFE),
    }
    if context.rollout_id:
        headers["x-rollout-id"] = quote(context.rollout_id, safe=_HEADER_SAFE)
    return headers


class PolicyClient(openai.AsyncOpenAI):
    """An `openai` client whose plain chat completions skip most of the package's machinery.

    A call that is not streamed goes straight to the shared connections, and its reply is validated
    in one step. Everything else takes the package's own way, over the same connections.
    """

    @cached_property
    def chat(self) -> AsyncChat:
        """The chat resource, with our completions."""
        return _Chat(self)

    def with_options(self, **options: Any) -> PolicyClient:
        """This client, when nothing but retries is asked for: there are none to turn off."""
        return self if set(options) == {"max_retries"} else super().with_options(**options)


class _Chat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncCompletions:
        return _Completions(self._client)


class _Completions(AsyncCompletions):
    async def create(self, **arguments: Any) -> Any:  # type: ignore[override]
        body = _plain_body(arguments) if HAS_AIOHTTP else None
        headers = arguments.get("extra_headers") or {}
        if body is None:
            reply: Any = await super().create(**arguments)
        else:
            reply = await _complete(self._client, body, headers)
        _note_end(reply, headers)
        return reply


def _note_end(reply: Any, headers: Mapping[str, Any]) -> None:
    """Keeps with the rollout why the answer ended; a stream has no choices to look at."""
    context, sample = get_rollout_context(), headers.get("x-sample-id")
    choices = getattr(reply, "choices", None)
    if context is not None and isinstance(sample, str) and choices:
        context.note_finish_reason(unquote(sample), getattr(choices[0], "finish_reason", None))


def _plain_body(arguments: dict[str, Any]) -> bytes | None:
    """The body of a call that needs none of the package's machinery, else `None`."""
    given = {k: v for k, v in arguments.items() if not isinstance(v, _NOT_GIVEN)}
    if given.get("stream") or given.get("extra_query") or given.get("timeout") is not None:
        return None
    body = {name: value for name, value in given.items() if name not in _ABOUT}
    body.update(given.get("extra_body") or {})
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError):
        # The package knows how to render more types than JSON does.
        return None


async def _complete(
    client: openai.AsyncOpenAI, body: bytes, extra_headers: dict[str, Any]
) -> ChatCompletion:
    url = f"{str(client.base_url).rstrip('/')}/chat/completions"
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    headers.update((k, v) for k, v in extra_headers.items() if not isinstance(v, _NOT_GIVEN))
    try:
        async with session_for(url).post(
            url, data=body, headers=headers, allow_redirects=False
        ) as reply:
            content = await reply.read()
    except asyncio.TimeoutError as error:
        raise openai.APITimeoutError(httpx.Request("POST", url)) from error
    except AIOHTTP_ERRORS as error:
        raise openai.APIConnectionError(
            message=f"Connection error: {error}", request=httpx.Request("POST", url)
        ) from error
    if not 200 <= reply.status < 300:
        raise client._make_status_error_from_response(
            httpx.Response(
                reply.status,
                headers=[(k, v) for k, v in reply.headers.items() if k not in _OF_THE_BODY],
                content=content,
                request=httpx.Request("POST", url),
            )
        )
    return _parsed(content, url)


# What aiohttp has undone when the content is here.
_OF_THE_BODY = frozenset({"Content-Encoding", "Content-Length", "Transfer-Encoding"})


def _parsed(content: bytes, url: str) -> ChatCompletion:
    try:
        return ChatCompletion.model_validate_json(content)
    except ValidationError:
        # As lenient as the package: a server may leave things out.
        try:
            return ChatCompletion.construct(**json.loads(content))
        except (ValueError, TypeError) as error:
            raise openai.APIResponseValidationError(
                response=httpx.Response(200, content=content, request=httpx.Request("POST", url)),
                body=None,
                message=f"the policy's reply is not a chat completion: {error}",
            ) from None


def _new_client(base_url: Hashable) -> PolicyClient:
    return PolicyClient(
        # Each call brings its own.
        api_key="none",
        base_url=str(base_url),
        # The gateway retries and the engine keeps the deadlines; a second opinion here would only
        # repeat calls behind their back.
        max_retries=0,
        timeout=openai.Timeout(None, connect=CONNECT_SECONDS),
        http_client=http_client(str(base_url)),
    )


async def _close(client: PolicyClient) -> None:
    await client.close()


_clients: PerLoop[PolicyClient] = PerLoop(_new_client, _close)
