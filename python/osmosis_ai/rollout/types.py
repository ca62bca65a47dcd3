"""The values that workflows, graders and backends exchange."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from osmosis_ai.rollout.errors import InvalidRewardError, InvalidSampleIdError

MessageDict = dict[str, Any]

_MAX_ID_BYTES = 200
_PATH_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")


class ConcurrencyConfig(BaseModel):
    """How many executions may run at once; `None` is unlimited."""

    max_concurrent: int | None = Field(default=None, ge=1)


class BaseConfig(BaseModel):
    """The base of every config: named, open to extra fields, checked on assignment."""

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    name: str
    description: str | None = None


class AgentWorkflowConfig(BaseConfig):
    """The config of a workflow."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)


class GraderConfig(BaseConfig):
    """The config of a grader."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)


class AgentWorkflowOutput(BaseModel):
    """What `run` may return: messages when no sample source is registered, and numbers."""

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    messages: list[Any] | None = None
    metrics: dict[str, Any] | None = None


# Squares of rewards and their sums stay finite; the engine has the same limit.
MAX_REWARD = 1e15


def as_reward(value: Any) -> float:
    """The reward as a float; raises `InvalidRewardError` for what is not a finite number of at most
    `MAX_REWARD` in size.
    """
    if isinstance(value, str | bytes | bytearray) or not hasattr(value, "__float__"):
        # Integers of numpy and friends come through `__index__`.
        if not hasattr(value, "__index__"):
            raise InvalidRewardError(
                f"a reward must be a finite number between -1e15 and 1e15, not `{value!r:.80}` "
                f"of type {type(value).__name__}"
            )
        value = value.__index__()
    try:
        reward = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InvalidRewardError(
            f"a reward must be a finite number between -1e15 and 1e15, not a "
            f"{type(value).__name__}: {error}"
        ) from None
    if not abs(reward) <= MAX_REWARD:
        raise InvalidRewardError(
            f"a reward must be a finite number between -1e15 and 1e15, not `{reward}`"
        )
    return reward


def as_turn_rewards(values: Any) -> list[float]:
    """The rewards of a sample's turns as floats; raises `InvalidRewardError` for what is not a list
    of rewards, naming the first turn that has none.
    """
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Iterable):
        raise InvalidRewardError(
            f"rewards of turns must be a list of numbers, one for each turn, not `{values!r:.80}` "
            f"of type {type(values).__name__}"
        )
    rewards = []
    for turn, value in enumerate(values):
        try:
            rewards.append(as_reward(value))
        except InvalidRewardError as error:
            raise InvalidRewardError(f"turn {turn}: {error}") from None
    return rewards


def check_sample_id(name: Any) -> str:
    """The name, when it can be a sample's id; raises `InvalidSampleIdError` otherwise."""
    if not isinstance(name, str):
        raise InvalidSampleIdError(f"a sample id must be text, not {type(name).__name__}")
    if not name:
        raise InvalidSampleIdError("a sample id must not be empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidSampleIdError(f"sample id {name!r} is not valid Unicode") from None
    if size > _MAX_ID_BYTES:
        raise InvalidSampleIdError(f"sample id `{name[:40]}…` is longer than {_MAX_ID_BYTES} bytes")
    if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in name):
        raise InvalidSampleIdError(f"sample id {name!r} must not contain control characters")
    return name


class RolloutSample(BaseModel):
    """One conversation of a rollout, and what a grader made of it."""

    model_config = ConfigDict(validate_assignment=True, arbitrary_types_allowed=True)

    id: Annotated[str, BeforeValidator(check_sample_id)] = "main"
    messages: list[Any] = Field(default_factory=list)
    label: str | None = None
    reward: Annotated[
        float | None, BeforeValidator(lambda r: None if r is None else as_reward(r))
    ] = None
    remove_sample: bool = False
    metrics: dict[str, Any] = Field(default_factory=dict)
    extra_fields: dict[str, Any] = Field(default_factory=dict)
    # One for each answer of the policy, in order; training compares single turns by them.
    turn_rewards: Annotated[
        list[float] | None, BeforeValidator(lambda r: None if r is None else as_turn_rewards(r))
    ] = None

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Readers from before there were rewards of turns get what they got.
        dumped: dict[str, Any] = handler(self)
        if self.turn_rewards is None:
            dumped.pop("turn_rewards", None)
        return dumped

    @property
    def truncated(self) -> bool:
        """Whether the sample ends with an answer that was cut at the token limit."""
        return self.extra_fields.get("finish_reason") == "length"


class _TextEnum(str, Enum):
    def __str__(self) -> str:
        return str(self.value)


class RolloutStatus(_TextEnum):
    """Where a rollout is."""

    QUEUED = "queued"
    RUNNING = "running"
    GRADING = "grading"
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class RolloutErrorCategory(_TextEnum):
    """The four words for what went wrong."""

    TIMEOUT = "timeout"
    VALIDATION_ERROR = "validation_error"
    HTTP_ERROR = "http_error"
    AGENT_ERROR = "agent_error"


class ExecutionRequest(BaseModel):
    """One dataset row to run and grade."""

    id: str
    prompt: list[MessageDict]
    label: str | None = None
    metadata: dict[str, Any] | None = None
    agent_timeout_sec: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    grader_timeout_sec: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @field_validator("id")
    @classmethod
    def _one_path_segment(cls, value: str) -> str:
        if not _PATH_SEGMENT.fullmatch(value) or value in {".", ".."} or len(value) > _MAX_ID_BYTES:
            raise ValueError(
                f"id `{value[:40]}` must be one path segment of letters, digits, `.`, `_` and `-`"
            )
        return value


class ExecutionResult(BaseModel):
    """How one phase of an execution ended."""

    status: RolloutStatus
    samples: dict[str, RolloutSample] = Field(default_factory=dict)
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
