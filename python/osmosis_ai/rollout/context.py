"""What surrounds user code while it runs: the rollout, its samples, the row, the grade."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

from typing_extensions import TypeVar

from osmosis_ai.rollout.artifacts import FOLDER_FIELD
from osmosis_ai.rollout.types import (
    AgentWorkflowConfig,
    RolloutSample,
    as_reward,
    as_turn_rewards,
    check_sample_id,
)

TConfig = TypeVar("TConfig", bound=AgentWorkflowConfig, default=AgentWorkflowConfig)

_CHAT_COMPLETIONS_URL_VARIABLE = "OSMOSIS_CHAT_COMPLETIONS_URL"
_API_KEY_VARIABLE = "OSMOSIS_API_KEY"
_ROLLOUT_ID_VARIABLE = "OSMOSIS_ROLLOUT_ID"
_ENDPOINT = "/chat/completions"
_UNNAMED = "main"
# The finish reason of an answer that ended at the token limit.
_CUT = "length"

_current: ContextVar[RolloutContext | None] = ContextVar("osmosis_rollout_context", default=None)


def get_rollout_context() -> RolloutContext | None:
    """The context of the rollout that is running here, if one is."""
    return _current.get()


class SampleSource(ABC):
    """Something that holds a conversation and can hand it over as a sample."""

    @abstractmethod
    async def get_sample(self, name: str) -> RolloutSample:
        """The conversation so far, as the sample of this name."""
        raise NotImplementedError


@dataclass(eq=False)
class RolloutContext:
    """Where model calls of a rollout go and where its samples come from.

    Empty fields are taken from `OSMOSIS_CHAT_COMPLETIONS_URL`, `OSMOSIS_API_KEY` and
    `OSMOSIS_ROLLOUT_ID`. Used as a context manager, it is what `get_rollout_context()` returns.
    """

    chat_completions_url: str = ""
    api_key: str | None = field(default=None, repr=False)
    rollout_id: str = ""
    # Where the files of this rollout go, when they are kept.
    artifacts_dir: Path | None = field(default=None, kw_only=True)
    # What an integration keeps for as long as the context lives.
    attachments: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    _sources: dict[str, SampleSource] = field(default_factory=dict, init=False, repr=False)
    # Why the last answer of each sample ended.
    _finish_reasons: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _tokens: list[Token[RolloutContext | None]] = field(
        default_factory=list, init=False, repr=False
    )

    def __post_init__(self) -> None:
        self.chat_completions_url = self.chat_completions_url or os.environ.get(
            _CHAT_COMPLETIONS_URL_VARIABLE, ""
        )
        self.api_key = self.api_key or os.environ.get(_API_KEY_VARIABLE) or None
        self.rollout_id = self.rollout_id or os.environ.get(_ROLLOUT_ID_VARIABLE, "")

    def __enter__(self) -> RolloutContext:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._tokens.pop())

    @property
    def base_url(self) -> str:
        """The URL that OpenAI clients want: without `/chat/completions` at its end."""
        return self.chat_completions_url.rstrip("/").removesuffix(_ENDPOINT).rstrip("/")

    @property
    def sample_names(self) -> list[str]:
        """The registered names, in order of registration."""
        return list(self._sources)

    def free_sample_name(self) -> str:
        """A name for a source that was given none: `main`, then `main-2` and so on."""
        name, number = _UNNAMED, 1
        while name in self._sources:
            number += 1
            name = f"{_UNNAMED}-{number}"
        return name

    def register_sample_source(self, name: str, source: SampleSource) -> None:
        """Adds a source; its name becomes the sample's id. A second one of the name is an error."""
        check_sample_id(name)
        if name in self._sources:
            raise ValueError(
                f"a sample source named `{name}` is already registered in rollout "
                f"`{self.rollout_id}`; give each session or agent its own name"
            )
        self._sources[name] = source

    def set_sample_source(self, source: SampleSource, name: str | None = None) -> None:
        """`register_sample_source` in the words of edition 0.3, where the name may be left out."""
        own_name = getattr(source, "name", None)
        self.register_sample_source(
            name or (own_name if isinstance(own_name, str) and own_name else _UNNAMED), source
        )

    def note_finish_reason(self, sample: str, reason: str | None) -> None:
        """Keeps why the latest answer of a sample ended, for the mark of one that was cut."""
        if reason is not None:
            self._finish_reasons[sample] = reason

    async def get_samples(self) -> dict[str, RolloutSample]:
        """The samples of all sources by name. A sample's id is the name it is registered under."""
        samples = {}
        for name, source in list(self._sources.items()):
            sample = await _ask(source, name)
            if not isinstance(sample, RolloutSample):
                raise TypeError(
                    f"sample source `{name}` returned {type(sample).__name__}, not a RolloutSample"
                )
            if sample.id != name:
                sample = sample.model_copy(update={"id": name})
            if self._finish_reasons.get(name) == _CUT:
                marked = {"finish_reason": _CUT, **sample.extra_fields}
                sample = sample.model_copy(update={"extra_fields": marked})
            samples[name] = sample
        return samples

    async def get_sample(self, name: str | None = None) -> RolloutSample | None:
        """The sample of this name; without a name the only one, or `None` when there is none."""
        samples = await self.get_samples()
        if name is not None:
            return samples.get(name)
        if len(samples) > 1:
            raise ValueError(f"there are {len(samples)} samples ({', '.join(samples)}); name one")
        return next(iter(samples.values()), None)


async def _ask(source: SampleSource, name: str) -> Any:
    # Sources written for edition 0.3 take no name.
    try:
        inspect.signature(source.get_sample).bind(name)
    except TypeError:
        return await source.get_sample()  # type: ignore[call-arg]
    return await source.get_sample(name)


@dataclass
class AgentWorkflowContext(Generic[TConfig]):
    """What `run` is given: the row's messages, never its label."""

    # Dicts; but each framework has its own type for messages, and takes no other.
    prompt: list[Any]
    config: TConfig | None = None
    metadata: dict[str, Any] | None = None
    artifacts_dir: Path | None = FOLDER_FIELD


@dataclass(frozen=True)
class Judge:
    """The model that `judge_model` in `[grader]` names, behind the OpenAI API.

    Any OpenAI client works with it; `evaluate_rubric` takes it by itself. The key ends with the
    grade, and what is asked with it is recorded and counted apart from the policy's calls.
    """

    base_url: str
    api_key: str = field(repr=False)
    model: str


_judge: ContextVar[Judge | None] = ContextVar("osmosis_judge", default=None)


def current_judge() -> Judge | None:
    """The judge of the grader that is running here, if it has one."""
    return _judge.get()


@contextmanager
def judging_with(judge: Judge | None) -> Iterator[None]:
    """While it is open, `current_judge()` is this one."""
    token = _judge.set(judge)
    try:
        yield
    finally:
        _judge.reset(token)


@dataclass
class GraderContext:
    """What `grade` is given: the label, the samples, and a place for rewards."""

    label: str | None = None
    samples: dict[str, RolloutSample] = field(default_factory=dict)
    metadata: dict[str, Any] | None = None
    artifacts_dir: Path | None = FOLDER_FIELD
    project_path: str | None = None
    # Who may be asked, when the config names a `judge_model`.
    judge: Judge | None = None
    # How many turns each sample has, where the run knows it.
    turn_counts: dict[str, int] | None = None

    def get_samples(self) -> dict[str, RolloutSample]:
        """The samples by id."""
        return self.samples

    def set_sample_reward(self, sample_id: str, reward: float) -> None:
        """Gives a sample its reward: a finite number."""
        self._named(sample_id).reward = as_reward(reward)

    def set_sample_turn_rewards(self, sample_id: str, rewards: Iterable[float]) -> None:
        """Gives each turn of a sample a reward of its own: as many finite numbers as it has turns.

        A turn is one answer of the policy, in the order in which they were given. Training uses
        these rewards in place of the sample's own, which it still needs for everything else.
        """
        sample = self._named(sample_id)
        given = as_turn_rewards(rewards)
        expected = None if self.turn_counts is None else self.turn_counts.get(sample_id, 0)
        if expected is not None and len(given) != expected:
            raise ValueError(
                f"sample `{sample_id}` has {expected} turns, and got rewards for {len(given)}; "
                "a turn is one answer of the policy (`ctx.turn_count()` is their number)"
            )
        sample.turn_rewards = given or None

    def turn_count(self, sample_id: str | None = None) -> int:
        """How many turns a sample has, the only one unless one is named."""
        name = self._only_name() if sample_id is None else sample_id
        self._named(name)
        if self.turn_counts is None:
            raise ValueError(
                "how many turns a sample has is known while osmosis runs the grader; elsewhere, "
                'pass it: `GraderContext(…, turn_counts={"main": 2})`'
            )
        return self.turn_counts.get(name, 0)

    def _named(self, sample_id: str) -> RolloutSample:
        sample = self.samples.get(sample_id)
        if sample is None:
            known = ", ".join(f"`{name}`" for name in self.samples) or "none"
            raise ValueError(f"there is no sample `{sample_id}`; samples here: {known}")
        return sample

    @property
    def sample(self) -> RolloutSample:
        """The sample, when there is exactly one."""
        return self.samples[self._only_name()]

    def _only_name(self) -> str:
        if len(self.samples) != 1:
            names = ", ".join(f"`{name}`" for name in self.samples) or "none"
            raise ValueError(
                f"`ctx.sample` and `ctx.set_reward` need exactly one sample, "
                f"but there are: {names}; use `ctx.samples` and `ctx.set_sample_reward`"
            )
        return next(iter(self.samples))

    def set_reward(self, reward: float) -> None:
        """Gives the only sample its reward."""
        self.sample.reward = as_reward(reward)

    def set_turn_rewards(self, rewards: Iterable[float]) -> None:
        """`set_sample_turn_rewards` for the only sample."""
        self.set_sample_turn_rewards(self._only_name(), rewards)
