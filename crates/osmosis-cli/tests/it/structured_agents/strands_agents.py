"""An agent of Strands with a `structured_output_model`: it answers freely first, and then has to call a tool."""

from typing import Any

from choice import Choice, ChoiceGrader
from strands import tool

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext
from osmosis_ai.rollout.integrations.agents.strands import (
    OsmosisRolloutModel,
    OsmosisStrandsAgent,
)


@tool
def calculate(a: int, operation: str, b: int) -> str:
    """Apply an operation to two integers."""
    return str(a + b) if operation == "add" else "unknown operation"


def called(question: str) -> list[dict[str, Any]]:
    """A conversation in which the tool was just called: here `builtin/tiny` knows how a free answer ends."""
    a, b = (int(word) for word in question.rstrip("?").split() if word.isdigit())
    call = {
        "toolUseId": "call_0",
        "name": "calculate",
        "input": {"a": a, "operation": "add", "b": b},
    }
    result = {"toolUseId": "call_0", "status": "success", "content": [{"text": str(a + b)}]}
    return [
        {"role": "user", "content": [{"text": question}]},
        {"role": "assistant", "content": [{"toolUse": call}]},
        {"role": "user", "content": [{"toolResult": result}]},
    ]


class Choose(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        agent = OsmosisStrandsAgent(
            name="chooser",
            model=OsmosisRolloutModel(params={"max_tokens": 100}),
            system_prompt="Use the tool, then answer with the number alone.",
            tools=[calculate],
            structured_output_model=Choice,
            messages=called(ctx.prompt[-1]["content"]),
            callback_handler=None,
        )
        result = await agent.invoke_async()
        assert isinstance(result.structured_output, Choice)


class StrandsGrader(ChoiceGrader):
    def answer(self, messages: list[Any]) -> Any:
        blocks = [block for message in messages for block in message["content"]]
        uses = [block["toolUse"] for block in blocks if "toolUse" in block]
        return uses[-1]["input"]
