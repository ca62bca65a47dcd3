"""One-call rollouts in one process, for `frameworks.py`: the bare framework, or our integration.

`python framework_loops.py LOOP`, with OPENAI_BASE_URL and OPENAI_API_KEY set, and `python/` of this repository in
PYTHONPATH. It reads lines `CONCURRENCY COUNT` and answers each with `WALL_SECONDS CPU_SECONDS` of that many rollouts.
Every rollout makes an agent of its own, as a workflow does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable

PROMPT = "What is 6 times 7? Answer with words."
MESSAGES = [{"role": "user", "content": PROMPT}]

Rollout = Callable[[int], Awaitable[object]]


def openai_bare(traced: bool) -> Rollout:
    import agents
    from openai import AsyncOpenAI

    # The endpoint speaks chat completions. Traces have no key: they are made, as by default, and go nowhere.
    agents.set_default_openai_api("chat_completions")
    agents.set_default_openai_client(AsyncOpenAI(), use_for_tracing=False)
    del os.environ["OPENAI_API_KEY"]
    agents.set_tracing_disabled(not traced)

    async def rollout(_: int) -> object:
        agent = agents.Agent(name="solver", model="m")
        return (await agents.Runner.run(agent, list(MESSAGES))).final_output

    return rollout


def endpoint() -> tuple[str, str, str | None]:
    """URL, key, and the one rollout that the key opens, when it is a gateway's."""
    return os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], os.environ.get("OSMOSIS_ROLLOUT_ID")


def openai_ours() -> Rollout:
    from osmosis_ai.rollout import runtime

    # What a worker does before it imports user code: no traces.
    runtime.enter_worker()
    from agents import Runner
    from osmosis_ai.rollout import RolloutContext
    from osmosis_ai.rollout.integrations.agents.openai_agents import (
        OsmosisAgent,
        OsmosisMemorySession,
        OsmosisRolloutModel,
    )

    url, key, name = endpoint()

    async def rollout(number: int) -> object:
        with RolloutContext(chat_completions_url=url, api_key=key, rollout_id=name or f"r-{number}") as context:
            agent = OsmosisAgent(name="solver", model=OsmosisRolloutModel())
            session = OsmosisMemorySession(name="solver")
            result = await Runner.run(agent, list(MESSAGES), session=session)
            await context.get_samples()
            return result.final_output

    return rollout


def strands_bare() -> Rollout:
    from strands import Agent
    from strands.models.openai import OpenAIModel

    arguments = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    model = OpenAIModel(client_args=arguments, model_id="m")

    async def rollout(_: int) -> object:
        agent = Agent(model=model, callback_handler=None)
        return str(await agent.invoke_async(PROMPT))

    return rollout


def strands_ours() -> Rollout:
    from osmosis_ai.rollout import RolloutContext, runtime

    runtime.enter_worker()
    from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel, OsmosisStrandsAgent

    url, key, name = endpoint()

    async def rollout(number: int) -> object:
        with RolloutContext(chat_completions_url=url, api_key=key, rollout_id=name or f"r-{number}") as context:
            agent = OsmosisStrandsAgent(name="solver", model=OsmosisRolloutModel(), callback_handler=None)
            result = str(await agent.invoke_async(PROMPT))
            await context.get_samples()
            return result

    return rollout


LOOPS: dict[str, Callable[[], Rollout]] = {
    "openai-bare": lambda: openai_bare(traced=True),
    "openai-untraced": lambda: openai_bare(traced=False),
    "openai-ours": openai_ours,
    "strands-bare": strands_bare,
    "strands-ours": strands_ours,
}


async def measure(rollout: Rollout, concurrency: int, count: int) -> tuple[float, float]:
    numbers = iter(range(count))

    async def lane() -> None:
        for number in numbers:
            answer = str(await rollout(number))
            assert answer.startswith("word0"), answer

    wall, processor = time.perf_counter(), time.process_time()
    # A task each, as rollouts have.
    await asyncio.gather(*(lane() for _ in range(concurrency)))
    return time.perf_counter() - wall, time.process_time() - processor


async def main(name: str) -> None:
    rollout = LOOPS[name]()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        concurrency, count = map(int, line.split())
        print(*await measure(rollout, concurrency, count), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
