"""The grader's side of a rollout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from osmosis_ai.rollout.context import GraderContext
from osmosis_ai.rollout.types import GraderConfig


class Grader(ABC):
    """Gives every sample of a rollout a reward.

    One instance per execution, with a deep copy of the config.
    """

    def __init__(self, config: GraderConfig | None = None) -> None:
        self.config: Any = config

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> Any:
        """Calls `ctx.set_sample_reward` for every sample that is kept."""
        raise NotImplementedError
