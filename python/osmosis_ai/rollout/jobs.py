"""One task of a worker, and the closed sets of results that a workflow kind may return for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from osmosis_ai.rollout.context import Judge
from osmosis_ai.rollout.types import MessageDict, RolloutSample


@dataclass(frozen=True)
class RunJob:
    """Run the workflow on one row."""

    # The engine's number for the task.
    task: int
    rollout_id: str
    prompt: list[MessageDict]
    metadata: dict[str, Any] | None
    chat_completions_url: str
    api_key: str = field(repr=False)
    # Where files of the rollout may go; not created yet.
    artifacts_dir: str | None
    # The whole row; only a workflow that grades itself gets it.
    row: dict[str, Any] | None = None
    is_eval: bool = False
    # For clients that the workflow gives no address.
    other_api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class GradeJob:
    """Grade the samples of one rollout."""

    label: str | None
    samples: dict[str, RolloutSample]
    metadata: dict[str, Any] | None
    artifacts_dir: str | None
    project_path: str
    judge: Judge | None
    # How many turns each sample has, where the run knows it.
    turn_counts: dict[str, int] | None = None


@dataclass(frozen=True)
class UngradedSamples:
    """Samples for the grader, in order of registration, and the workflow's own numbers."""

    samples: list[RolloutSample]
    metrics: dict[str, Any] | None


@dataclass(frozen=True)
class RolloutReward:
    """One reward for the whole rollout, from a workflow that grades itself."""

    reward: float
    # Token sequences that the workflow returned, each an object of the wire format.
    sequences: list[dict[str, Any]] | None
    metrics: dict[str, Any] | None


@dataclass(frozen=True)
class CallRewards:
    """Rewards of single model calls by completion id, from a workflow that grades itself."""

    rewards: dict[str, float]
    metrics: dict[str, Any] | None


@dataclass(frozen=True)
class Declined:
    """The workflow declined to be scored."""

    reason: str


@dataclass(frozen=True)
class GradedSamples:
    """Every sample that the grader kept, each with a reward or marked as removed."""

    samples: list[RolloutSample]


@dataclass(frozen=True)
class NoGrader:
    """This workflow grades itself: nothing can be graded apart from a run."""

    workflow: str


RunResult: TypeAlias = UngradedSamples | RolloutReward | CallRewards | Declined
GradeResult: TypeAlias = GradedSamples | NoGrader
