"""A chat model of LangChain with `with_structured_output`."""

from typing import Any

from choice import Choice, ChoiceGrader
from langchain_openai import ChatOpenAI

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, get_rollout_context


class Choose(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
        rollout = get_rollout_context()
        assert rollout is not None
        model = ChatOpenAI(
            model="osmosis-rollout",
            base_url=rollout.chat_completions_url,
            api_key=rollout.api_key,
            max_tokens=100,
        )
        choice = await model.with_structured_output(Choice).ainvoke(ctx.prompt)
        assert isinstance(choice, Choice)
        return [*ctx.prompt, {"role": "assistant", "content": choice.model_dump_json()}]


class LastMessage(ChoiceGrader):
    def answer(self, messages: list[Any]) -> Any:
        return messages[-1]["content"]
