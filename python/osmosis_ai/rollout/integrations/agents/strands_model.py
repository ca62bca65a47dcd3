"""The policy as a Strands model."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from typing import Any

import openai
from strands import Agent
from strands.models.openai import OpenAIModel
from strands.types.exceptions import ContextWindowOverflowException, ModelThrottledException

from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.integrations.agents.openai_client import (
    POLICY_MODEL,
    call_headers,
    client_for,
)

# Earlier versions always retry a throttled call, for minutes.
RETRIES_CAN_BE_OFF = "retry_strategy" in inspect.signature(Agent.__init__).parameters

_STOP_REASONS = {"length": "max_tokens", "content_filter": "content_filtered"}


class PolicyModel(OpenAIModel):
    """The policy, bound to one sample of one rollout.

    Requests have the shape that Strands' own OpenAI model gives them. Replies are not streamed:
    nobody watches a rollout, and a whole reply costs a fraction of its chunks. The event loop of
    Strands gets it as one delta per content block.
    """

    def __init__(self, context: RolloutContext, sample: str, config: dict[str, Any]) -> None:
        # Not the base's: in some versions it makes a client, which here is shared.
        self.config = {**config, "model_id": POLICY_MODEL}
        self.rollout_context = context
        self.sample = sample

    def __deepcopy__(self, memo: dict[int, Any]) -> PolicyModel:
        # Belongs to its rollout; copies of an agent share it.
        return self

    async def stream(  # type: ignore[override]
        self,
        messages: Any,
        tool_specs: Any = None,
        system_prompt: str | None = None,
        *,
        tool_choice: Any = None,
        **_: Any,
    ) -> AsyncGenerator[Any, None]:
        """Calls the policy with the headers of rollout and sample."""
        request = self._request(messages, tool_specs, system_prompt, tool_choice)
        try:
            completions = client_for(self.rollout_context).chat.completions
            reply: Any = await completions.create(**request)
        except openai.APIError as error:
            raise _in_strands_words(error) from error
        if reply.choices:
            # The sync calls of Strands run in threads, which may not know the rollout's context.
            self.rollout_context.note_finish_reason(self.sample, reply.choices[0].finish_reason)
        for event in _events(reply):
            yield event

    async def structured_output(  # type: ignore[override]
        self, output_model: Any, prompt: Any, system_prompt: str | None = None, **_: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Asks the policy for an instance of a pydantic model."""
        request = self._request(prompt, None, system_prompt, None)
        try:
            completions = client_for(self.rollout_context).chat.completions
            reply = await completions.parse(**request, response_format=output_model)
        except openai.APIError as error:
            raise _in_strands_words(error) from error
        parsed = reply.choices[0].message.parsed if reply.choices else None
        if parsed is None:
            raise ValueError(f"the policy's reply is no `{output_model.__name__}`")
        yield {"output": parsed}

    def _request(
        self, messages: Any, tool_specs: Any, system_prompt: str | None, tool_choice: Any
    ) -> dict[str, Any]:
        choice = {"tool_choice": tool_choice} if tool_choice else {}
        request: dict[str, Any] = self.format_request(messages, tool_specs, system_prompt, **choice)
        for unwanted in ("stream", "stream_options"):
            request.pop(unwanted, None)
        if not request.get("tools"):
            request.pop("tools", None)
        request["messages"] = [_flat(message) for message in request["messages"]]
        own_headers = request.pop("extra_headers", None) or {}
        request["extra_headers"] = {
            **own_headers,
            **call_headers(self.rollout_context, self.sample),
        }
        return request


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    """The message with one text part as plain text, which every chat template understands."""
    content = message.get("content")
    if isinstance(content, list) and len(content) == 1 and content[0].get("type") == "text":
        return {**message, "content": content[0]["text"]}
    return message


def _events(reply: Any) -> list[dict[str, Any]]:
    if not reply.choices:
        error = getattr(reply, "error", None)
        raise ValueError(f"the policy's reply has no choices{f': {error}' if error else ''}")
    choice = reply.choices[0]
    message = choice.message
    events: list[dict[str, Any]] = [{"messageStart": {"role": "assistant"}}]
    reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    if isinstance(reasoning, str):
        events += _content({}, {"reasoningContent": {"text": reasoning}})
    text = message.content or message.refusal
    if text:
        events += _content({}, {"text": text})
    for call in message.tool_calls or []:
        start = {"toolUse": {"name": call.function.name, "toolUseId": call.id}}
        events += _content(start, {"toolUse": {"input": call.function.arguments or ""}})
    default = "tool_use" if message.tool_calls else "end_turn"
    reason = _STOP_REASONS.get(choice.finish_reason, default)
    events.append({"messageStop": {"stopReason": reason}})
    if reply.usage is not None:
        events.append({"metadata": {"usage": _usage(reply.usage), "metrics": {"latencyMs": 0}}})
    return events


def _content(start: dict[str, Any], delta: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"contentBlockStart": {"start": start}},
        {"contentBlockDelta": {"delta": delta}},
        {"contentBlockStop": {}},
    ]


def _usage(usage: Any) -> dict[str, int]:
    counted = {
        "inputTokens": usage.prompt_tokens or 0,
        "outputTokens": usage.completion_tokens or 0,
        "totalTokens": usage.total_tokens or 0,
    }
    cached = getattr(usage.prompt_tokens_details, "cached_tokens", None)
    return {**counted, "cacheReadInputTokens": cached} if isinstance(cached, int) else counted


def _in_strands_words(error: openai.APIError) -> Exception:
    """The exceptions that Strands and its users act on; all others stay as they are."""
    if isinstance(error, openai.RateLimitError) and RETRIES_CAN_BE_OFF:
        return ModelThrottledException(str(error))
    if isinstance(error, openai.BadRequestError) and (
        error.code == "context_length_exceeded" or "context length" in str(error).lower()
    ):
        return ContextWindowOverflowException(str(error))
    return error
