"""An agent of the OpenAI Agents SDK with an `output_type`."""

from typing import Any

from agents import ModelSettings, Runner
from choice import Choice, ChoiceGrader

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)


class Choose(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisAgent(
            name="chooser",
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(max_tokens=100),
            output_type=Choice,
        )
        session = OsmosisMemorySession(name="chooser")
        result = await Runner.run(agent, ctx.prompt, session=session)
        assert isinstance(result.final_output, Choice)


class AgentsGrader(ChoiceGrader):
    def answer(self, messages: list[Any]) -> Any:
        return messages[-1]["content"][0]["text"]
