"""Reads what AReaL-style workflows return, and says clearly what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from osmosis_ai.areal.arrays import plain, shape
from osmosis_ai.rollout.errors import InvalidRewardError, WorkflowReturnError
from osmosis_ai.rollout.types import as_reward

# On tokens that the policy did not make.
PROMPT_VERSION = -1
_PER_TOKEN = ("input_ids", "attention_mask", "loss_mask", "logprobs", "versions")
_REQUIRED = ("input_ids", "attention_mask")
_WHOLE = {"input_ids", "versions"}
_MASKS = {"attention_mask", "loss_mask"}


@dataclass(frozen=True)
class Rejected:
    """The workflow returned `None`: the rollout counts for nothing."""


@dataclass(frozen=True)
class Sequence:
    """One row of arrays, without its padding."""

    input_ids: list[int]
    loss_mask: list[bool] | None
    logprobs: list[float] | None
    versions: list[int] | None
    reward: float | None
    id: str | None = None


@dataclass(frozen=True)
class Episode:
    """Sequences in tokens. `left_out` names arrays that nothing here reads."""

    sequences: list[Sequence]
    left_out: list[str]


@dataclass(frozen=True)
class LastReward:
    """One number: the reward of the last interaction."""

    reward: float


@dataclass(frozen=True)
class RewardsById:
    """Rewards by completion id. Whether these ids exist is for the engine to say."""

    rewards: dict[str, float]


def read_episode(returned: Any) -> Episode | Rejected:
    """What `arun_episode` returned: arrays by name, interactions by id, or `None`.

    Arrays are `[B, T]` or `[T]`; `rewards` has one number per sequence. Places whose attention mask
    is 0 are padding. An interaction has a `model_response` and a `reward`. Raises
    `WorkflowReturnError`, naming all that is wrong.
    """
    if returned is None:
        return Rejected()
    if not isinstance(returned, Mapping):
        raise WorkflowReturnError(
            f"`arun_episode` returned a value of type `{type(returned).__name__}`; it must return "
            "a dict of arrays by name, or None to reject the rollout"
        )
    if returned and all(hasattr(value, "model_response") for value in returned.values()):
        return _interactions(returned)
    problems: list[str] = []
    for name in _REQUIRED:
        if name not in returned:
            there = ", ".join(f"`{key}`" for key in returned) or "nothing"
            problems.append(f"`{name}` is missing (there is {there})")
    arrays: dict[str, list[list[Any]]] = {}
    for name in _PER_TOKEN:
        if returned.get(name) is not None:
            _collect(name, returned[name], arrays, problems)
    _check_shapes(arrays, problems)
    rewards = None
    if returned.get("rewards") is not None and "input_ids" in arrays:
        rewards = _rewards(returned["rewards"], len(arrays["input_ids"]), problems)
    if not problems:
        kept = _kept(arrays["attention_mask"], problems)
    if problems:
        raise WorkflowReturnError("`arun_episode` returned unusable arrays: " + "; ".join(problems))
    return Episode(
        sequences=[
            Sequence(
                input_ids=_row(arrays, "input_ids", index, places) or [],
                loss_mask=_row(arrays, "loss_mask", index, places),
                logprobs=_row(arrays, "logprobs", index, places),
                versions=_row(arrays, "versions", index, places),
                reward=None if rewards is None else rewards[index],
            )
            for index, places in enumerate(kept)
        ],
        left_out=[str(key) for key in returned if key not in (*_PER_TOKEN, "rewards")],
    )


def read_agent_reward(returned: Any) -> LastReward | RewardsById | Rejected:
    """What `run` returned: a number, a dict of them by completion id, or `None`."""
    if returned is None:
        return Rejected()
    if not isinstance(returned, Mapping):
        try:
            return LastReward(as_reward(_single(returned)))
        except InvalidRewardError as error:
            raise InvalidRewardError(
                f"`run` must return a finite number, a dict of them by completion id, or None: "
                f"{error}"
            ) from None
    if not returned:
        raise WorkflowReturnError(
            "`run` returned an empty dict; return None to reject the rollout, or the rewards by "
            "completion id"
        )
    rewards = {}
    problems = []
    for key, value in returned.items():
        if not isinstance(key, str) or not key:
            problems.append(f"`{key!r:.80}` is no completion id")
            continue
        try:
            rewards[key] = as_reward(_single(value))
        except InvalidRewardError as error:
            problems.append(f"`{key}`: {error}")
    if problems:
        raise InvalidRewardError("`run` returned unusable rewards: " + "; ".join(problems))
    return RewardsById(rewards)


def _interactions(returned: Mapping[Any, Any]) -> Episode:
    sequences = []
    problems = []
    for key, interaction in returned.items():
        response = interaction.model_response
        try:
            prompt = plain(response.input_tokens)
            output = plain(response.output_tokens)
            reward = interaction.reward
            one = read_episode(
                {
                    "input_ids": [*prompt, *output],
                    "attention_mask": [1] * (len(prompt) + len(output)),
                    "loss_mask": [0] * len(prompt) + [1] * len(output),
                    "logprobs": [0.0] * len(prompt) + plain(response.output_logprobs),
                    "versions": [PROMPT_VERSION] * len(prompt) + plain(response.output_versions),
                    "rewards": None if reward is None else as_reward(_single(reward)),
                }
            )
        except (AttributeError, TypeError, ValueError) as error:
            problems.append(f"interaction `{key}`: {error}")
            continue
        assert isinstance(one, Episode)
        sequences.append(replace(one.sequences[0], id=str(key)))
    if problems:
        raise WorkflowReturnError("`arun_episode` returned: " + "; ".join(problems))
    return Episode(sequences, [])


def _single(value: Any) -> Any:
    """The number in an array of one, which libraries differ about turning into a float."""
    if hasattr(value, "tolist"):
        value = value.tolist()
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
    return value


def _collect(
    name: str, value: Any, arrays: dict[str, list[list[Any]]], problems: list[str]
) -> None:
    try:
        numbers = plain(value)
        size = shape(numbers)
    except (TypeError, ValueError) as error:
        problems.append(f"`{name}`: {error}")
        return
    if len(size) not in (1, 2):
        problems.append(f"`{name}` has {len(size)} dimensions; it must be [B, T] or [T]")
        return
    rows = [numbers] if len(size) == 1 else numbers
    problem = next((text for row in rows if (text := _wrong_number(name, row))), None)
    if problem is not None:
        problems.append(f"`{name}` {problem}")
        return
    kind: Any = int if name in _WHOLE else bool if name in _MASKS else float
    arrays[name] = [[kind(number) for number in row] for row in rows]


def _wrong_number(name: str, row: list[Any]) -> str | None:
    for place, number in enumerate(row):
        if isinstance(number, float) and not math.isfinite(number):
            return f"holds `{number}` at position {place}"
        if name in _MASKS and number not in (0, 1):
            return f"holds `{number}` at position {place}; a mask has only 0 and 1"
        if name in _WHOLE and int(number) != number:
            return f"holds `{number}` at position {place}, which is no whole number"
        if name == "input_ids" and number < 0:
            return f"holds `{number}` at position {place}, which is no token"
        if name == "versions" and number < PROMPT_VERSION:
            return f"holds `{number}` at position {place}; {PROMPT_VERSION} is the lowest"
    return None


def _check_shapes(arrays: dict[str, list[list[Any]]], problems: list[str]) -> None:
    tokens = arrays.get("input_ids")
    if tokens is None:
        return
    expected = shape(tokens)
    if 0 in expected:
        problems.append("`input_ids` is empty")
    for name, rows in arrays.items():
        if shape(rows) != expected:
            problems.append(f"`{name}` is {_shown(rows)}, `input_ids` is {_shown(tokens)}")


def _shown(rows: list[list[Any]]) -> str:
    return "[" + ", ".join(str(size) for size in shape(rows)) + "]"


def _rewards(value: Any, count: int, problems: list[str]) -> list[float] | None:
    try:
        numbers = plain(value)
        size = shape(numbers)
    except (TypeError, ValueError) as error:
        problems.append(f"`rewards`: {error}")
        return None
    if size == ():
        numbers = [numbers]
    elif len(size) == 2 and size[1] == 1:
        numbers = [row[0] for row in numbers]
    elif len(size) != 1:
        problems.append(f"`rewards` has {len(size)} dimensions; it has one number per sequence")
        return None
    if len(numbers) != count:
        problems.append(f"`rewards` has {len(numbers)} numbers for {count} sequences")
        return None
    try:
        return [as_reward(number) for number in numbers]
    except InvalidRewardError as error:
        problems.append(f"`rewards`: {error}")
        return None


def _kept(masks: list[list[bool]], problems: list[str]) -> list[range]:
    """Where each sequence is, between its padding."""
    found = []
    for index, mask in enumerate(masks):
        if not any(mask):
            problems.append(f"`attention_mask` of sequence {index} keeps no token")
            continue
        first = mask.index(True)
        last = len(mask) - mask[::-1].index(True)
        if not all(mask[first:last]):
            problems.append(f"`attention_mask` of sequence {index} has a gap inside the sequence")
        found.append(range(first, last))
    return found


def _row(
    arrays: dict[str, list[list[Any]]], name: str, index: int, places: range
) -> list[Any] | None:
    rows = arrays.get(name)
    return None if rows is None else rows[index][places.start : places.stop]
