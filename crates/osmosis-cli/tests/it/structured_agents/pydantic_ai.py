"""An agent of PydanticAI with an `output_type`, which is a tool that the model has to call."""

from typing import Any

from choice import Choice, ChoiceGrader
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, get_rollout_context


class Choose(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
        rollout = get_rollout_context()
        assert rollout is not None
        provider = OpenAIProvider(base_url=rollout.chat_completions_url, api_key=rollout.api_key)
        model = OpenAIChatModel("osmosis-rollout", provider=provider)
        agent = Agent(model, output_type=Choice, model_settings={"max_tokens": 400})
        result = await agent.run(ctx.prompt[-1]["content"])
        return [*ctx.prompt, {"role": "assistant", "content": result.output.model_dump_json()}]


class LastMessage(ChoiceGrader):
    def answer(self, messages: list[Any]) -> Any:
        return messages[-1]["content"]
