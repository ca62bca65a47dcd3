"""An agent whose reward says how its text sums up, so that there is always something to learn."""

import httpx
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context


class Short(AgentWorkflow):
    async def run(self, ctx):
        rollout = get_rollout_context()
        async with httpx.AsyncClient(timeout=60) as client:
            reply = await client.post(
                f"{rollout.chat_completions_url}/chat/completions",
                headers={"Authorization": f"Bearer {rollout.api_key}"},
                json={"model": "osmosis-rollout", "messages": ctx.prompt, "max_tokens": 12},
            )
            reply.raise_for_status()
            return [*ctx.prompt, reply.json()["choices"][0]["message"]]


class Checksum(Grader):
    async def grade(self, ctx):
        ctx.set_reward(sum(map(ord, str(ctx.sample.messages[-1]["content"]))) % 5 / 4)
