"""The agent's side of a rollout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic

from osmosis_ai.rollout.context import AgentWorkflowContext, TConfig


class AgentWorkflow(ABC, Generic[TConfig]):
    """What the agent does with one dataset row.

    One instance per execution, with a deep copy of the config.
    """

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def run(self, ctx: AgentWorkflowContext[TConfig]) -> Any:
        """Runs the agent. Integrations register the samples; otherwise return the messages."""
        raise NotImplementedError
