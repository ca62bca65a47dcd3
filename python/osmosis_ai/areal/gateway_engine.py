"""The engine of `arun_episode`: token in, token out, through the gateway."""

from __future__ import annotations

import time
from typing import Any

from osmosis_ai.areal import http_clients
from osmosis_ai.areal.arrays import plain
from osmosis_ai.areal.cli_args import GenerationHyperparameters
from osmosis_ai.areal.io_struct import ModelRequest, ModelResponse, StopReason
from osmosis_ai.rollout.errors import OsmosisError

# AReaL's way to say that no token is left out.
_NO_TOP_K = 100_000_000
_STOP_REASONS: dict[str, StopReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "abort": "abort",
}


class GenerationError(OsmosisError, RuntimeError):
    """The policy could not continue the tokens."""

    kind = "generation_failed"


class GatewayEngine:
    """What `arun_episode` gets as `engine`."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self._url = f"{base_url.rstrip('/')}/generate"
        self._headers = {"authorization": f"Bearer {api_key}"}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the engine of `arun_episode` has no `{name}`: it continues tokens with `await "
            "engine.agenerate(ModelRequest(input_ids=..., gconfig=...))`; for text, give the "
            "workflow `async def run(self, data, **extra_kwargs)` and an OpenAI client with "
            '`extra_kwargs["base_url"]` and `extra_kwargs["api_key"]`'
        )

    async def agenerate(self, req: ModelRequest) -> ModelResponse:
        """Continues the tokens of the request with the policy.

        Raises `ValueError` for a request that can't be made, `GenerationError` with the gateway's
        words for one that failed. A cancelled task cancels the request.
        """
        body = _body(req)
        began = time.perf_counter()
        status, answer = await _post(self._url, body, self._headers)
        if status >= 400:
            raise GenerationError(_refusal(status, answer))
        try:
            return _response(req, answer, time.perf_counter() - began)
        except (KeyError, TypeError, ValueError) as error:
            raise GenerationError(
                f"the gateway's answer can't be read: {type(error).__name__}: {error}"
            ) from None


def _body(req: ModelRequest) -> dict[str, Any]:
    gconfig = req.gconfig
    if gconfig.n_samples != 1:
        raise ValueError(
            f"`gconfig.n_samples` is {gconfig.n_samples}; one request gives one sequence: use "
            "`gconfig.new(n_samples=1)`, the run makes the group"
        )
    if gconfig.use_beam_search:
        raise ValueError("`gconfig.use_beam_search` is not supported")
    if req.image_data:
        raise ValueError("images are not supported in a ModelRequest")
    input_ids = plain(req.input_ids)
    if not isinstance(input_ids, list) or not input_ids:
        raise ValueError("`input_ids` must be a list of token ids with something in it")
    return {
        "input_ids": [int(token) for token in input_ids],
        "sampling_params": _sampling(gconfig, len(input_ids)),
        "rid": req.rid,
    }


def _sampling(gconfig: GenerationHyperparameters, prompt: int) -> dict[str, Any]:
    longest = min(gconfig.max_new_tokens, gconfig.max_tokens - prompt)
    if longest <= 0:
        raise ValueError(
            f"the prompt has {prompt} tokens and `gconfig.max_tokens` is {gconfig.max_tokens}: "
            "nothing is left to generate"
        )
    params: dict[str, Any] = {
        "max_new_tokens": longest,
        "temperature": 0.0 if gconfig.greedy else gconfig.temperature,
        "top_p": gconfig.top_p,
        "stop_token_ids": [int(token) for token in gconfig.stop_token_ids if token is not None],
    }
    if 0 < gconfig.top_k < _NO_TOP_K:
        params["top_k"] = gconfig.top_k
    # Said only when asked for: not every engine knows all of these.
    if gconfig.min_new_tokens:
        params["min_new_tokens"] = gconfig.min_new_tokens
    if gconfig.ignore_eos:
        params["ignore_eos"] = True
    if gconfig.stop:
        params["stop"] = gconfig.stop
    if gconfig.frequency_penalty:
        params["frequency_penalty"] = gconfig.frequency_penalty
    return params


async def _post(url: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
    """With aiohttp when it is there, which costs less than httpx when many calls are under way."""
    if http_clients.has_aiohttp():
        async with http_clients.aiohttp_session().post(url, json=body, headers=headers) as reply:
            return reply.status, await _json(reply)
    answer = await http_clients.httpx_client().post(url, json=body, headers=headers)
    try:
        return answer.status_code, answer.json()
    except ValueError:
        return answer.status_code, answer.text


async def _json(reply: Any) -> Any:
    try:
        return await reply.json(content_type=None)
    except ValueError:
        return await reply.text()


def _refusal(status: int, answer: Any) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return f"the gateway answered `agenerate` with {status}: {message or str(answer)[:300]}"


def _response(req: ModelRequest, answer: dict[str, Any], took: float) -> ModelResponse:
    output = [int(token) for token in answer["output_ids"]]
    logprobs = [float(number) for number in answer.get("output_logprobs") or []]
    versions = [int(number) for number in answer.get("output_versions") or []]
    for name, found in (("output_logprobs", logprobs), ("output_versions", versions)):
        if len(found) != len(output):
            raise ValueError(f"{len(found)} `{name}` for {len(output)} tokens")
    return ModelResponse(
        input_tokens=[int(token) for token in plain(req.input_ids)],
        output_tokens=output,
        output_logprobs=logprobs,
        output_versions=versions,
        stop_reason=_STOP_REASONS[answer["stop_reason"]],
        tokenizer=req.tokenizer,
        processor=req.processor,
        latency=float(answer.get("latency") or took),
        ttft=float(answer.get("ttft") or took),
    )
