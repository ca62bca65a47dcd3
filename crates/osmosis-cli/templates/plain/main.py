"""An agent without a framework: it asks the policy over plain HTTP and returns its messages."""

import re

import httpx

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    get_rollout_context,
)


class Workflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> list[dict]:
        rollout = get_rollout_context()
        async with httpx.AsyncClient(timeout=300) as client:
            reply = await client.post(
                f"{rollout.chat_completions_url}/chat/completions",
                headers={"Authorization": f"Bearer {rollout.api_key}"},
                json={"model": "osmosis-rollout", "messages": ctx.prompt},
            )
            reply.raise_for_status()
        # A returned message list becomes the sample `main`.
        return [*ctx.prompt, reply.json()["choices"][0]["message"]]


def last_number(text: str) -> str:
    """The last number of a text: what comes before is how the agent got there."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return numbers[-1] if numbers else ""


class AnswerGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        answer = ctx.sample.messages[-1]["content"]
        ctx.set_reward(1.0 if last_number(answer) == ctx.label else 0.0)
