"""One-call rollouts with the reference SDK (`osmosis-ai` from PyPI), for `frameworks.py --with-reference`.

Runs in a venv of its own. `python reference_loop.py bridge MODEL_URL KEY` serves the SDK's bridge and prints its
URL. `python reference_loop.py backend BRIDGE_URL KEY` runs rollouts on the SDK's `LocalBackend`: it reads lines
`CONCURRENCY COUNT` and answers each with `WALL_SECONDS CPU_SECONDS`. Rollouts are given to the backend in process:
the SDK's own HTTP server and its polling would come on top.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time

from framework_loops import MESSAGES


async def bridge(model_url: str, key: str) -> None:
    from osmosis_ai.eval.local.listener import LlmBridgeListener
    from osmosis_ai.eval.local.llm_bridge import LiteLLMBridge

    litellm = LiteLLMBridge(model="openai/m", api_key="x", api_base=model_url)
    async with LlmBridgeListener(litellm, auth_token=key) as listener:
        print(listener.base_url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def backend(bridge_url: str, key: str) -> None:
    from agents import Runner
    from osmosis_ai.rollout import (
        AgentWorkflow,
        AgentWorkflowConfig,
        ExecutionRequest,
        Grader,
        LocalBackend,
        RolloutContext,
        RolloutStatus,
    )
    from osmosis_ai.rollout.integrations.agents.openai_agents import (
        OsmosisAgent,
        OsmosisMemorySession,
        OsmosisRolloutModel,
    )

    class Solve(AgentWorkflow):
        async def run(self, ctx):
            agent = OsmosisAgent(name="solver", model=OsmosisRolloutModel())
            await Runner.run(agent, ctx.prompt, session=OsmosisMemorySession())

    class Any(Grader):
        async def grade(self, ctx):
            ctx.set_reward(1.0)

    config = AgentWorkflowConfig(name="solve", concurrency={"max_concurrent": 1024})
    local = LocalBackend(workflow=Solve, workflow_config=config, grader=Any)
    begun = time.time_ns()

    async def rollout(number: int) -> None:
        name = f"r-{begun}-{number}"
        with RolloutContext(f"{bridge_url}/v1/rollouts/{name}", key, name):
            outcome = await local.execute(ExecutionRequest(id=name, prompt=list(MESSAGES), label="x"))
        assert outcome.result.status is RolloutStatus.SUCCESS, outcome

    async def measure(concurrency: int, count: int) -> tuple[float, float]:
        numbers = iter(range(count))

        async def lane() -> None:
            for number in numbers:
                await rollout(number)

        wall, processor = time.perf_counter(), time.process_time()
        await asyncio.gather(*(lane() for _ in range(concurrency)))
        return time.perf_counter() - wall, time.process_time() - processor

    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        concurrency, count = map(int, line.split())
        print(*await measure(concurrency, count), flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    role = {"bridge": bridge, "backend": backend}[sys.argv[1]]
    asyncio.run(role(*sys.argv[2:]))
