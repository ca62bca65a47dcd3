"""Asks the judge, again when its reply is of no use, and never makes up a score."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from osmosis_ai.eval.rubric import http, prompt
from osmosis_ai.eval.rubric.endpoint import Endpoint, resolve
from osmosis_ai.eval.rubric.types import (
    MalformedJudgementError,
    ModelNotFoundError,
    ProviderRequestError,
    RubricResult,
)

_TIMEOUT_SECONDS = 120.0
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 30.0
_BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
# A request that asks for more than the endpoint knows.
_REFUSED = frozenset({400, 404, 415, 422, 501})
# What may be left out of a request when an endpoint refuses it, by what its refusal speaks of.
_OPTIONAL = ("temperature", "response_format")
# What endpoints have refused before, so that each is asked once: (base URL, model) to names.
_refusals: dict[tuple[str, str], frozenset[str]] = {}


async def evaluate_rubric(
    *,
    rubric: str,
    solution_str: str | None = None,
    messages: Sequence[Any] | None = None,
    model: str | None = None,
    ground_truth: str | None = None,
    original_input: str | None = None,
    metadata: dict[str, Any] | None = None,
    score_min: float = 0.0,
    score_max: float = 1.0,
    api_key: str | None = None,
    base_url: str | None = None,
    timeout: float | None = None,
    system_prompt: str | None = None,
    temperature: float | None = 0.0,
    max_tokens: int | None = None,
    max_attempts: int = 3,
) -> RubricResult:
    """Has a model score an answer by a rubric.

    Inside `grade` the judge is the one that `judge_model` in `[grader]` names, and its calls are
    recorded with the rollout. With `model` or `base_url` it is that one, asked directly:
    `provider/name` takes the provider's `*_BASE_URL` and `*_API_KEY` from the environment, any
    other name goes to `OPENAI_BASE_URL`.

    Args:
        rubric: What to score by, in words.
        solution_str: The answer to be scored; or
        messages: the conversation to be scored.
        model: The judge, when it is not the grader's own.
        ground_truth: The right answer, for the judge to compare with.
        original_input: What the answer was to.
        metadata: What else the judge should know, as JSON.
        score_min: The worst score.
        score_max: The best score. A score beyond the range is brought into it.
        api_key: The key of the judge, when it is not in the environment.
        base_url: Where an OpenAI-compatible judge is.
        timeout: Seconds for one call; 120, or those of the grade for the grader's own judge.
        system_prompt: Put before what the judge is told about its task.
        temperature: Left out of the call when `None`, and when the endpoint refuses it.
        max_tokens: Most tokens of a reply.
        max_attempts: How often the judge is asked until its reply can be used.

    Returns:
        Score and explanation; `float(result)` is the score.

    Raises:
        JudgeError: There is no verdict. `MissingAPIKeyError`: no judge is configured;
            `ProviderRequestError`: it can't be reached or refuses; `ModelNotFoundError`: it is not
            there; `MalformedJudgementError`: no reply had a score in it.
    """
    answer = _answer(rubric, solution_str, messages)
    _check(score_min, score_max, max_attempts)
    endpoint = resolve(model, base_url, api_key)
    own = model is None and base_url is None
    # The grade has a deadline already, and a model on this machine may take its time.
    limit = _TIMEOUT_SECONDS if timeout is None and not own else timeout
    asked = _Asked(endpoint, limit, own)
    options: dict[str, Any] = {"response_format": prompt.response_format(score_min, score_max)}
    if temperature is not None:
        options["temperature"] = temperature
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    conversation: list[dict[str, str]] = [
        {"role": "system", "content": prompt.system_text(score_min, score_max, system_prompt)},
        {
            "role": "user",
            "content": prompt.user_text(rubric, answer, original_input, ground_truth, metadata),
        },
    ]
    problems: list[str] = []
    reply = ""
    for attempt in range(max_attempts):
        try:
            reply = await asked.reply(conversation, options)
        except _BusyError as busy:
            problems.append(str(busy))
            if asked.own or attempt + 1 == max_attempts:
                raise asked.failed(problems) from None
            await asyncio.sleep(busy.wait(attempt))
            continue
        try:
            raw, explanation = prompt.read(reply)
        except prompt.UnreadableReplyError as unreadable:
            problems.append(str(unreadable))
            # The same question would get the same answer.
            conversation = [
                *conversation[:2],
                {"role": "assistant", "content": reply},
                {"role": "user", "content": prompt.correction(str(unreadable))},
            ]
            continue
        return RubricResult(min(max(raw, score_min), score_max), explanation, raw)
    raise asked.malformed(problems, reply)


def _answer(rubric: Any, solution: Any, messages: Any) -> str:
    if not isinstance(rubric, str) or not rubric.strip():
        raise TypeError("`rubric` must be a text that is not empty")
    if (solution is None) == (messages is None):
        raise TypeError("give either `solution_str` or `messages`")
    if messages is not None:
        if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
            raise TypeError("`messages` must be a list of messages that is not empty")
        return prompt.transcript(messages)
    # An empty answer is an answer, and the judge may say what it is worth.
    if not isinstance(solution, str):
        raise TypeError(f"`solution_str` must be text, not {type(solution).__name__}")
    return solution


def _check(score_min: float, score_max: float, max_attempts: int) -> None:
    if not (math.isfinite(score_min) and math.isfinite(score_max) and score_min < score_max):
        raise ValueError(f"the scores {score_min} to {score_max} are no range")
    if max_attempts < 1:
        raise ValueError("`max_attempts` must be at least 1")


class _BusyError(Exception):
    """The judge may answer another time."""

    def __init__(self, detail: str, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self._retry_after = retry_after

    def wait(self, attempt: int) -> float:
        own = _FIRST_WAIT_SECONDS * 2.0**attempt
        asked = self._retry_after if self._retry_after is not None else own
        return min(max(asked, 0.0), _LONGEST_WAIT_SECONDS)


class _Asked:
    """A judge, and what it was asked."""

    def __init__(self, endpoint: Endpoint, timeout: float | None, own: bool) -> None:
        # The engine waits for the grader's own judge, and grades again when it is there.
        self.own = own
        self._endpoint = endpoint
        self._timeout = timeout
        self._where = urlsplit(endpoint.base_url).netloc or endpoint.base_url

    async def reply(self, conversation: list[dict[str, str]], options: dict[str, Any]) -> str:
        """The text of the judge's reply, without what the endpoint does not know."""
        place = (self._endpoint.base_url, self._endpoint.model)
        while True:
            left_out = _refusals.get(place, frozenset())
            body: dict[str, Any] = {"model": self._endpoint.model, "messages": conversation}
            body |= {name: value for name, value in options.items() if name not in left_out}
            answer = await self._post(body)
            if answer.status == 200:
                return self._text(answer)
            refused = _refused_option(answer, body)
            if refused is None:
                raise self._error(answer)
            # Not remembered for a while only: what an endpoint knows does not change under a run.
            _refusals[place] = left_out | {refused}

    async def _post(self, body: dict[str, Any]) -> http.Reply:
        endpoint = self._endpoint
        try:
            answer = await http.post(endpoint.url, body, endpoint.api_key, self._timeout)
        except http.NoReplyError as error:
            raise _BusyError(f"no reply: {error}") from None
        if answer.status in _BUSY:
            raise _BusyError(_said(answer), answer.retry_after)
        return answer

    def _text(self, answer: http.Reply) -> str:
        reply = answer.json()
        try:
            message = reply["choices"][0]["message"]
        except (TypeError, KeyError, IndexError):
            raise _BusyError("the reply is no chat completion") from None
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
        refusal = message.get("refusal") if isinstance(message, dict) else None
        return content if isinstance(content, str) and content else str(refusal or "")

    def _error(self, answer: http.Reply) -> ProviderRequestError:
        said = _said(answer)
        missing = answer.status == 404 or "model_not_found" in said
        kind = ModelNotFoundError if missing else ProviderRequestError
        return kind(self._where, self._endpoint.model, said)

    def failed(self, problems: list[str]) -> ProviderRequestError:
        """The last word of a judge that can't be had."""
        times = f"asked {len(problems)} times; " if len(problems) > 1 else ""
        return ProviderRequestError(
            self._where, self._endpoint.model, f"{times}{_listed(problems)}"
        )

    def malformed(self, problems: list[str], reply: str) -> MalformedJudgementError:
        """The last word of a judge that gives no score."""
        return MalformedJudgementError(
            self._where,
            self._endpoint.model,
            # On a line of its own: reports put failures together by the first line.
            f"no score in {len(problems)} replies ({_listed(problems)})\n"
            f"the last reply was: {prompt.shown(reply) or '(empty)'}",
        )


def _listed(problems: list[str]) -> str:
    return "; ".join(dict.fromkeys(problems))


def _refused_option(answer: http.Reply, body: dict[str, Any]) -> str | None:
    """What to leave out, when the refusal may be about something that can be."""
    if answer.status not in _REFUSED:
        return None
    there = [name for name in _OPTIONAL if name in body]
    said = _said(answer)
    for name in there:
        if name in said:
            return name
    if answer.status == 404 or "model_not_found" in said:
        return None
    # Many endpoints do not say what they do not know.
    return "response_format" if "response_format" in there else None


def _said(answer: http.Reply) -> str:
    reply = answer.json()
    error = reply.get("error") if isinstance(reply, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    code = error.get("code") if isinstance(error, dict) else None
    text = message if isinstance(message, str) else answer.body.decode(errors="replace")
    code_text = f" ({code})" if isinstance(code, str) else ""
    return f"status {answer.status}: {prompt.shown(text)}{code_text}"
