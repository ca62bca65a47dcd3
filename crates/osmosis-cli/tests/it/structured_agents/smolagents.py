"""A tool agent of smolagents: every turn has to call a tool, and `final_answer` ends the run."""

import asyncio
from typing import Any

from choice import ChoiceGrader
from smolagents import LogLevel, OpenAIModel, Tool, ToolCallingAgent

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, get_rollout_context


class Answer(Tool):
    """The agent's own `final_answer` would take any text."""

    name = "final_answer"
    description = "Answers with a colour and a size."
    inputs = {
        "colour": {"type": "string", "enum": ["red", "green", "blue"], "description": "a colour"},
        "size": {"type": "integer", "minimum": 1, "maximum": 9, "description": "a size"},
    }
    output_type = "object"

    def forward(self, colour: str, size: int) -> dict[str, Any]:
        return {"colour": colour, "size": size}


class Choose(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
        rollout = get_rollout_context()
        assert rollout is not None
        model = OpenAIModel(
            "osmosis-rollout",
            api_base=rollout.chat_completions_url,
            api_key=rollout.api_key,
            max_tokens=100,
            parallel_tool_calls=False,
        )
        agent = ToolCallingAgent(
            tools=[Answer()], model=model, max_steps=1, verbosity_level=LogLevel.OFF
        )
        # The agent's own has thousands of tokens, and `builtin/tiny` a context of 1024.
        agent.prompt_templates["system_prompt"] = "Choose with the tool."
        choice = await asyncio.to_thread(agent.run, ctx.prompt[-1]["content"])
        return [*ctx.prompt, {"role": "assistant", "content": choice}]


class LastMessage(ChoiceGrader):
    def answer(self, messages: list[Any]) -> Any:
        return messages[-1]["content"]
