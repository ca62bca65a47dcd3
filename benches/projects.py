"""Source code of the rollout projects that several programs measure."""

from __future__ import annotations

# A workflow and grader that never call a model.
ECHO = """
from osmosis_ai.rollout import AgentWorkflow, Grader

class Echo(AgentWorkflow):
    async def run(self, ctx):
        return [*ctx.prompt, {"role": "assistant", "content": ctx.prompt[-1]["content"][4:]}]

class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"] == ctx.label else 0.0)
"""

# One model call. The HTTP is written by hand, so that the engine is measured and not an HTTP client.
ASK = """
import asyncio
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context

class Ask(AgentWorkflow):
    async def run(self, ctx):
        rollout = get_rollout_context()
        host, port = rollout.chat_completions_url.split("/")[2].split(":")
        body = b'{"model":"m","messages":[{"role":"user","content":"wait"}]}'
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\\r\\nhost: x\\r\\nauthorization: Bearer "
            + rollout.api_key.encode() + b"\\r\\ncontent-type: application/json\\r\\ncontent-length: "
            + str(len(body)).encode() + b"\\r\\nconnection: close\\r\\n\\r\\n" + body
        )
        reply = await reader.read()
        writer.close()
        assert b"200 OK" in reply[:40], reply[:200]
        return [*ctx.prompt, {"role": "assistant", "content": "x"}]

class Any(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"""

# The head of an agent on the OpenAI Agents SDK with one tool.
MULTIPLY_TOOL = """
from agents import Runner, function_tool
from osmosis_ai.rollout import AgentWorkflow, Grader
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel,
)

@function_tool
def multiply(a: int, b: int) -> int:
    "Return the product."
    return a * b
"""
