"""An agent that answers questions with a calculator tool, and the grader that checks its answer."""

import operator
from collections.abc import Callable
from typing import Any

from agents import ModelSettings, Runner, function_tool
from agents.exceptions import MaxTurnsExceeded, ModelBehaviorError

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)

# A call of the tool, the answer, and one turn to recover from a mistake.
MAX_TURNS = 3
# A tool call takes about 20 tokens of `builtin/tiny`; what is longer has gone astray.
MAX_TOKENS = 64

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


@function_tool
def calculate(a: int, operation: str, b: int) -> str:
    """Apply add, subtract, multiply, divide, remainder, larger, smaller or average to two integers."""
    if operation not in OPERATIONS:
        return f"error: unknown operation {operation}"
    try:
        return str(OPERATIONS[operation](a, b))
    except ZeroDivisionError:
        return "error: division by zero"


class CalculatorWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisAgent(
            name="calculator",
            instructions="Use the tool, then answer with the number alone.",
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(max_tokens=MAX_TOKENS),
            tools=[calculate],
        )
        session = OsmosisMemorySession(name="calculator")
        try:
            await Runner.run(agent, ctx.prompt, session=session, max_turns=MAX_TURNS)
        except (MaxTurnsExceeded, ModelBehaviorError):
            # The policy's fault, and its lesson: what the session holds is graded, and earns nothing.
            pass


class NumberGrader(Grader):
    """1 when the agent's last words are the right number and nothing else, otherwise 0."""

    async def grade(self, ctx: GraderContext) -> None:
        right = ctx.label is not None and final_text(ctx.sample.messages) == ctx.label
        ctx.set_reward(1.0 if right else 0.0)


def final_text(items: list[dict[str, Any]]) -> str | None:
    """What the agent said last; `None` when it ended with a tool call or a tool's result.

    Items have the shape of the Responses API.
    """
    last = items[-1] if items else {}
    if last.get("role") != "assistant":
        return None
    return "".join(block.get("text", "") for block in last["content"]).strip()
