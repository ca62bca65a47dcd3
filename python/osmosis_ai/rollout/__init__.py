"""Workflows, graders and what surrounds them. Loads no agent framework.

```python
from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext


class Echo(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> list[dict]:
        return [*ctx.prompt, {"role": "assistant", "content": "hello"}]
```
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend import ExecutionBackend, LocalBackend
from osmosis_ai.rollout.context import (
    AgentWorkflowContext,
    GraderContext,
    Judge,
    RolloutContext,
    SampleSource,
    get_rollout_context,
)
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import (
    AgentWorkflowConfig,
    AgentWorkflowOutput,
    BaseConfig,
    ConcurrencyConfig,
    ExecutionRequest,
    ExecutionResult,
    GraderConfig,
    MessageDict,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)

if TYPE_CHECKING:
    from osmosis_ai.rollout.integrations.agents.strands import (
        OsmosisRolloutModel as OsmosisRolloutModel,
    )
    from osmosis_ai.rollout.integrations.agents.strands import (
        OsmosisStrandsAgent as OsmosisStrandsAgent,
    )
    from osmosis_ai.rollout.server import ControllerAuth as ControllerAuth
    from osmosis_ai.rollout.server import create_rollout_server as create_rollout_server

# Names that load more than this package; not in `__all__`, which `import *` would load whole.
_LAZY = {
    "OsmosisRolloutModel": "osmosis_ai.rollout.integrations.agents.strands",
    "OsmosisStrandsAgent": "osmosis_ai.rollout.integrations.agents.strands",
    "ControllerAuth": "osmosis_ai.rollout.server",
    "create_rollout_server": "osmosis_ai.rollout.server",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


__all__ = [
    "AgentWorkflow",
    "AgentWorkflowConfig",
    "AgentWorkflowContext",
    "AgentWorkflowOutput",
    "BaseConfig",
    "ConcurrencyConfig",
    "ExecutionBackend",
    "ExecutionRequest",
    "ExecutionResult",
    "Grader",
    "GraderConfig",
    "GraderContext",
    "Judge",
    "LocalBackend",
    "MessageDict",
    "RolloutContext",
    "RolloutErrorCategory",
    "RolloutSample",
    "RolloutStatus",
    "SampleSource",
    "get_rollout_context",
]
