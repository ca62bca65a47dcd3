"""What every backend can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from osmosis_ai.rollout.types import ExecutionRequest, ExecutionResult

PhaseCallback = Callable[[ExecutionResult], Awaitable[None]]


class ExecutionBackend(ABC):
    """Runs and grades one request at a time, as many at once as it likes."""

    @abstractmethod
    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: PhaseCallback,
        on_grader_complete: PhaseCallback | None = None,
    ) -> None:
        """Runs the request; each phase reports to its callback, failures too."""
        raise NotImplementedError

    def health(self) -> dict[str, Any]:
        """What an operator wants to know."""
        return {"status": "ok"}


class ServedBackend:
    """What serves a backend over HTTP (`osmosis_ai.rollout.server`); preflight looks for it."""

    backend: ExecutionBackend
