"""Numbers that workflows track beside the reward (`areal.utils.stats_tracker`).

```python
stats_tracker.get(workflow_context.stat_scope()).scalar(turns=3)
```

They are collected per rollout; `export` is for code that runs without the engine. Scopes belong to
the task that opened them, so that rollouts on one loop don't name each other's numbers.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeVar

from osmosis_ai.areal.arrays import flat, plain

F = TypeVar("F", bound=Callable[..., Any])


class ReduceType(Enum):
    """What many values of one key become."""

    AVG_MIN_MAX = auto()
    AVG = auto()
    SUM = auto()
    MIN = auto()
    MAX = auto()
    SCALAR = auto()


@dataclass
class Series:
    """The values of one key so far."""

    reduce: ReduceType
    count: int = 0
    total: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf

    def add(self, values: list[float]) -> None:
        """Takes in more values."""
        if values:
            self.count += len(values)
            self.total += math.fsum(values)
            self.lowest = min(self.lowest, *values)
            self.highest = max(self.highest, *values)

    def numbers(self, key: str) -> dict[str, float]:
        """What is reported for the key."""
        if self.reduce is ReduceType.SUM:
            return {key: self.total}
        if self.count == 0:
            return {}
        mean = self.total / self.count
        if self.reduce is ReduceType.SCALAR:
            return {key: mean, f"{key}__count": self.count}
        if self.reduce is ReduceType.AVG:
            return {key: mean}
        if self.reduce is ReduceType.MIN:
            return {key: self.lowest}
        if self.reduce is ReduceType.MAX:
            return {key: self.highest}
        return {f"{key}/avg": mean, f"{key}/min": self.lowest, f"{key}/max": self.highest}


@dataclass
class Collected:
    """The numbers of one rollout."""

    series: dict[str, Series] = field(default_factory=dict)
    masks: dict[str, list[bool]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, key: str, values: list[float], reduce: ReduceType) -> None:
        """Takes in values under their full key."""
        with self._lock:
            known = self.series.get(key)
            if known is None:
                known = self.series[key] = Series(reduce)
            known.reduce = reduce
            known.add(values)

    def numbers(self) -> dict[str, float]:
        """What is reported."""
        with self._lock:
            found: dict[str, float] = {}
            for key, series in self.series.items():
                found.update(series.numbers(key))
            return found

    def clear(self) -> None:
        """Starts over."""
        with self._lock:
            self.series.clear()
            self.masks.clear()


_outside = Collected()
_current: ContextVar[Collected] = ContextVar("osmosis_collected_stats", default=_outside)
_no_scopes: dict[str, tuple[str, ...]] = {}
_scopes: ContextVar[dict[str, tuple[str, ...]]] = ContextVar(
    "osmosis_stat_scopes", default=_no_scopes
)


@contextmanager
def collecting() -> Iterator[Collected]:
    """Collects what the code inside tracks, the tasks that it starts included."""
    collected = Collected()
    token = _current.set(collected)
    try:
        yield collected
    finally:
        _current.reset(token)


class StatsTracker:
    """Tracks numbers under one name."""

    def __init__(self, name: str = "") -> None:
        self._name = name.strip("/")

    @contextmanager
    def scope(self, name: str) -> Iterator[StatsTracker]:
        """Puts the name before the keys that are tracked inside."""
        with self._in_scope((*self._opened(), name.strip("/"))):
            yield self

    @contextmanager
    def disable_scope(self) -> Iterator[None]:
        """Tracks keys as they are, without this tracker's name."""
        with self._in_scope(()):
            yield

    def scope_func_wrapper(self, name: str) -> Callable[[F], F]:
        """Puts a function inside a scope."""

        def decorate(function: F) -> F:
            @functools.wraps(function)
            def inside(*args: Any, **kwargs: Any) -> Any:
                with self.scope(name):
                    return function(*args, **kwargs)

            return inside  # type: ignore[return-value]

        return decorate

    @contextmanager
    def record_timing(self, key: str) -> Iterator[None]:
        """Tracks how many seconds the code inside took, as `timeperf/<key>`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - started
            _current.get().add(f"timeperf/{key}", [took], ReduceType.SCALAR)

    def scalar(self, **values: Any) -> None:
        """Tracks one number per key; their mean is reported."""
        for key, value in values.items():
            _current.get().add(self._full(key), [float(value)], ReduceType.SCALAR)

    def denominator(self, **masks: Any) -> None:
        """Tracks masks: how many of their places are set, and which for a later `stat`."""
        for key, mask in masks.items():
            values = [bool(place) for place in flat(plain(mask))]
            if not values:
                raise ValueError(f"the mask `{key}` must not be empty")
            full = self._full(key)
            collected = _current.get()
            collected.masks[full] = values
            collected.add(full, [float(value) for value in values], ReduceType.SUM)

    def stat(self, denominator: str, reduce_type: ReduceType | None = None, **arrays: Any) -> None:
        """Tracks those places of arrays that the mask has set."""
        if reduce_type is ReduceType.SCALAR:
            raise ValueError("an array can't be tracked as a scalar; use `scalar`")
        collected = _current.get()
        mask = collected.masks.get(self._full(denominator))
        if mask is None:
            raise ValueError(
                f"there is no mask `{self._full(denominator)}`; track it first with "
                f"`denominator({denominator}=...)`"
            )
        for key, array in arrays.items():
            values = [float(value) for value in flat(plain(array))]
            if len(values) != len(mask):
                raise ValueError(
                    f"`{key}` has {len(values)} values, its mask `{denominator}` has {len(mask)}"
                )
            kept = [value for value, counts in zip(values, mask, strict=True) if counts]
            collected.add(self._full(key), kept, reduce_type or ReduceType.AVG_MIN_MAX)

    def export(
        self, key: str | None = None, reduce_group: Any = None, reset: bool = True
    ) -> dict[str, float]:
        """This tracker's numbers so far, of the running rollout or of none."""
        collected = _current.get()
        prefix = f"{self._name}/" if self._name else ""
        found: dict[str, float] = {}
        for name in list(collected.series):
            if name == self._full(key) if key is not None else name.startswith(prefix):
                found.update(collected.series[name].numbers(name))
                if reset:
                    del collected.series[name]
        return found

    def _opened(self) -> tuple[str, ...]:
        return _scopes.get().get(self._name, (self._name,) if self._name else ())

    def _full(self, key: str) -> str:
        return "/".join((*self._opened(), key))

    @contextmanager
    def _in_scope(self, names: tuple[str, ...]) -> Iterator[None]:
        token = _scopes.set({**_scopes.get(), self._name: names})
        try:
            yield
        finally:
            _scopes.reset(token)


DEFAULT_TRACKER = StatsTracker()
scope = DEFAULT_TRACKER.scope
scope_func_wrapper = DEFAULT_TRACKER.scope_func_wrapper
record_timing = DEFAULT_TRACKER.record_timing
scalar = DEFAULT_TRACKER.scalar
denominator = DEFAULT_TRACKER.denominator
stat = DEFAULT_TRACKER.stat
export = DEFAULT_TRACKER.export


def get(name: str = "") -> StatsTracker:
    """The tracker of that name."""
    return StatsTracker(name) if name else DEFAULT_TRACKER


def export_all(reduce_group: Any = None, reset: bool = True) -> dict[str, float]:
    """Everything tracked so far, in the running rollout or outside of any."""
    collected = _current.get()
    found = collected.numbers()
    if reset:
        collected.clear()
    return found
