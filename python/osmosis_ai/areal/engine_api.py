"""What a workflow may ask of its engine (`areal.api.engine_api`)."""

from __future__ import annotations

from typing import Protocol

from osmosis_ai.areal.io_struct import ModelRequest, ModelResponse


class InferenceEngine(Protocol):
    """The first argument of `arun_episode`."""

    async def agenerate(self, req: ModelRequest) -> ModelResponse:
        """Continues the tokens of the request with the policy."""
        ...
