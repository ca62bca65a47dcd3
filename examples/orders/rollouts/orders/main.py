"""An agent that writes an order down in a strict format, and the grader that checks every field."""

from typing import Any

from agents import ModelSettings, Runner
from order_format import INSTRUCTIONS, MAX_TOKENS, score

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)


class OrderWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisAgent(
            name="orders",
            instructions=INSTRUCTIONS,
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(max_tokens=MAX_TOKENS),
        )
        await Runner.run(agent, ctx.prompt, session=OsmosisMemorySession(name="orders"))


class OrderGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        ctx.set_reward(score(final_text(ctx.sample.messages), ctx.label or ""))


def final_text(items: list[dict[str, Any]]) -> str:
    """The reply as it was written, spaces included. Items have the shape of the Responses API."""
    last = items[-1] if items else {}
    if last.get("role") != "assistant":
        return ""
    return "".join(block.get("text", "") for block in last["content"])
