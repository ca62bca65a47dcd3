"""A calculator agent on the OpenAI Agents SDK, and the grader that scores it."""

import re

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


class Workflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisAgent(
            name="calculator",
            instructions="Answer with the tool's result.",
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(max_tokens=256),
            tools=[multiply],
        )
        session = OsmosisMemorySession(name="calculator")
        await Runner.run(agent, ctx.prompt, session=session)


def last_number(text: str) -> str:
    """The last number of a text: what comes before is how the agent got there."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return numbers[-1] if numbers else ""


class AnswerGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        # `messages` are the runner's own items; the last one is the agent's answer.
        answer = ctx.sample.messages[-1]["content"][0]["text"]
        ctx.set_reward(1.0 if last_number(answer) == ctx.label else 0.0)
