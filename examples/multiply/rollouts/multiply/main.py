"""An agent that multiplies with a tool, and the grader that checks its answer."""

from typing import Any

from agents import ModelSettings, Runner, function_tool

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)


@function_tool
def multiply(a: int, b: int) -> int:
    """Return the product of two whole numbers."""
    return a * b


class MultiplyWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisAgent(
            name="multiplier",
            instructions="Use the multiply tool, then answer with its result.",
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(temperature=1.0, max_tokens=1024),
            tools=[multiply],
        )
        session = OsmosisMemorySession(name="multiplier")
        await Runner.run(agent, ctx.prompt, session=session)


class ProductGrader(Grader):
    """1 when the label is in the agent's last words, else 0."""

    async def grade(self, ctx: GraderContext) -> None:
        for sample_id, sample in ctx.samples.items():
            words = last_text(sample.messages).replace(".", " ").split()
            ctx.set_sample_reward(sample_id, 1.0 if ctx.label in words else 0.0)


def last_text(items: list[dict[str, Any]]) -> str:
    """The text of the last assistant item; items have the Responses API's shape."""
    for item in reversed(items):
        if item.get("role") == "assistant":
            return "".join(block.get("text", "") for block in item["content"])
    return ""
