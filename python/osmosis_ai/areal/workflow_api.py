"""The shapes of workflows (`areal.api.workflow_api`), recognised by what they can do."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from enum import Enum
from typing import Any

from osmosis_ai.areal.engine_api import InferenceEngine

# An object or class of either shape.
WorkflowLike = Any


class RolloutWorkflow(ABC):
    """A workflow that talks to the policy in tokens."""

    @abstractmethod
    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> Any:
        """Runs one rollout on a dataset row; `None` rejects it. See `results.read_episode`."""


class AgentWorkflow(ABC):
    """A workflow that talks to the policy through an SDK. Deriving from this is optional."""

    @abstractmethod
    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> Any:
        """Runs one rollout on a dataset row; see `results.read_agent_reward`.

        `extra_kwargs` holds `base_url`, `api_key` and `http_client`.
        """


class WorkflowShape(Enum):
    """Which method runs a rollout."""

    EPISODE = "arun_episode"
    AGENT = "run"


def workflow_shape(value: Any) -> WorkflowShape | None:
    """The shape of a workflow or workflow class; `None` for anything else.

    By its methods, not its bases: a class written for the real `areal` counts as one for ours. A
    class that still has abstract methods does not count.
    """
    if inspect.isabstract(value):
        return None
    for shape in WorkflowShape:
        method = inspect.unwrap(getattr(value, shape.value, None) or _nothing)
        if inspect.iscoroutinefunction(method) and _takes_row(method, shape):
            return shape
    return None


def _nothing() -> None:
    pass


def _takes_row(method: Any, shape: WorkflowShape) -> bool:
    parameters = list(inspect.signature(method).parameters.values())
    if shape is WorkflowShape.EPISODE:
        return True
    # `run(self, ctx)` of an osmosis workflow has no place for `base_url` and its companions.
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
