"""A calculator agent on Strands, and the grader that scores it."""

import re

from strands import tool

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext
from osmosis_ai.rollout.integrations.agents.strands import (
    OsmosisRolloutModel,
    OsmosisStrandsAgent,
)


@tool
def multiply(a: int, b: int) -> int:
    """Return the product of two whole numbers."""
    return a * b


class Workflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        # The agent is the sample, and its name the sample's id.
        agent = OsmosisStrandsAgent(
            name="calculator",
            system_prompt="Answer with the tool's result.",
            model=OsmosisRolloutModel(params={"max_tokens": 256}),
            tools=[multiply],
            messages=ctx.prompt,
            callback_handler=None,
        )
        await agent.invoke_async()


def last_number(text: str) -> str:
    """The last number of a text: what comes before is how the agent got there."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return numbers[-1] if numbers else ""


class AnswerGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        # `messages` are Strands' own; the last one is the agent's answer.
        answer = ctx.sample.messages[-1]["content"][0]["text"]
        ctx.set_reward(1.0 if last_number(answer) == ctx.label else 0.0)
