"""The calculator example with tools that are usually quick and sometimes very slow.

How long they take is scripted: it follows from the rollout's id alone, so all ways of training meet the same
latencies. Held-out rows (without `slow` in their metadata) are answered at once. `async_training.py` puts the
example's own program beside this one.
"""

import asyncio
import contextvars
import hashlib
from typing import Any

import calculator_example
from agents import FunctionTool

from osmosis_ai.rollout import AgentWorkflowContext, get_rollout_context

SECONDS: contextvars.ContextVar[float] = contextvars.ContextVar("SECONDS", default=0.0)


def latency(rollout_id: str, metadata: dict[str, Any] | None) -> float:
    """Seconds: `usual` for most rollouts, `slow` for the share `tail` of them."""
    if not metadata or "slow" not in metadata:
        return 0.0
    drawn = int.from_bytes(hashlib.sha256(rollout_id.encode()).digest()[:8], "big") / 2**64
    return float(metadata["slow"] if drawn < metadata["tail"] else metadata["usual"])


def slow_down(tool: FunctionTool) -> None:
    invoke = tool.on_invoke_tool

    async def later(*arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(SECONDS.get())
        return await invoke(*arguments, **named)

    tool.on_invoke_tool = later


for tool in [value for value in vars(calculator_example).values() if isinstance(value, FunctionTool)]:
    slow_down(tool)


class LongTailWorkflow(calculator_example.CalculatorWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        context = get_rollout_context()
        SECONDS.set(latency(context.rollout_id if context else "", ctx.metadata))
        await super().run(ctx)


NumberGrader = calculator_example.NumberGrader
