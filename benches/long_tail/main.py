"""The calculator example with a tool that is usually quick and sometimes very slow.

How long it takes is scripted: it follows from the rollout's id alone, so both ways of training meet the same
latencies. Held-out rows (without `slow` in their metadata) are answered at once.
"""

import asyncio
import hashlib
import operator
from collections.abc import Callable
from typing import Any

from agents import ModelSettings, Runner, function_tool
from agents.exceptions import MaxTurnsExceeded, ModelBehaviorError

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext, get_rollout_context
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.floordiv,
    "remainder": operator.mod,
    "larger": max,
    "smaller": min,
    "average": lambda a, b: (a + b) // 2,
}


def latency(rollout_id: str, metadata: dict[str, Any] | None) -> float:
    """Seconds: `usual` for most rollouts, `slow` for the share `tail` of them."""
    if not metadata:
        return 0.0
    drawn = int.from_bytes(hashlib.sha256(rollout_id.encode()).digest()[:8], "big") / 2**64
    return metadata["slow"] if drawn < metadata["tail"] else metadata["usual"]


class CalculatorWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        context = get_rollout_context()
        seconds = latency(context.rollout_id if context else "", ctx.metadata)

        @function_tool
        async def calculate(a: int, operation: str, b: int) -> str:
            """Apply add, subtract, multiply, divide, remainder, larger, smaller or average to two integers."""
            await asyncio.sleep(seconds)
            if operation not in OPERATIONS:
                return f"error: unknown operation {operation}"
            try:
                return str(OPERATIONS[operation](a, b))
            except ZeroDivisionError:
                return "error: division by zero"

        agent = OsmosisAgent(
            name="calculator",
            instructions="Use the tool, then answer with the number alone.",
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(max_tokens=64),
            tools=[calculate],
        )
        try:
            await Runner.run(agent, ctx.prompt, session=OsmosisMemorySession(name="calculator"), max_turns=3)
        except (MaxTurnsExceeded, ModelBehaviorError):
            pass


class NumberGrader(Grader):
    """1 when the agent's last words are the right number and nothing else, otherwise 0."""

    async def grade(self, ctx: GraderContext) -> None:
        last = ctx.sample.messages[-1] if ctx.sample.messages else {}
        text = None
        if last.get("role") == "assistant":
            text = "".join(block.get("text", "") for block in last["content"]).strip()
        ctx.set_reward(1.0 if ctx.label is not None and text == ctx.label else 0.0)
