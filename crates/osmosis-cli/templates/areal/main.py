"""An agent workflow as in AReaL: it takes a dataset row, and what it returns is the reward."""

import re
from typing import Any

from areal.api.reward_api import AsyncRewardWrapper
from openai import AsyncOpenAI


def exact(answer: str, expected: str) -> float:
    # The last number counts: what comes before is how the agent got there.
    numbers = re.findall(r"-?\d+(?:\.\d+)?", answer.replace(",", ""))
    return 1.0 if numbers[-1:] == [expected] else 0.0


class Workflow:
    def __init__(self, model: str = "default") -> None:
        # Built once; what is expensive belongs here.
        self.model = model
        self.reward = AsyncRewardWrapper(exact, timeout_seconds=15)

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        client = AsyncOpenAI(
            base_url=extra_kwargs["base_url"],
            api_key=extra_kwargs["api_key"],
            http_client=extra_kwargs["http_client"],
            max_retries=0,
        )
        reply = await client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": data["question"]}],
        )
        answer = reply.choices[0].message.content or ""
        return await self.reward(answer, data["answer"])
