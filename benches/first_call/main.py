"""An agent of one call: it asks for a tool call, and nothing runs it. For `benches/trl_peer.py`."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from call_format import INSTRUCTIONS, MAX_TOKENS, TOOL, score, text_of
from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    get_rollout_context,
)


class FirstCall(AgentWorkflow):
    """The HTTP is written by hand, so that an HTTP client is no part of what is measured: TRL has none."""

    async def run(self, ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
        rollout = get_rollout_context()
        address = urlsplit(rollout.chat_completions_url)
        messages = [{"role": "system", "content": INSTRUCTIONS}, *ctx.prompt]
        request = {"model": "osmosis-rollout", "messages": messages, "tools": [TOOL], "max_tokens": MAX_TOKENS}
        body = json.dumps(request).encode()
        head = (
            f"POST {address.path}/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {rollout.api_key}\r\n"
        )
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head.encode() + body)
        reply = await reader.read()
        writer.close()
        if b" 200 " not in reply[:20]:
            raise RuntimeError(reply[:500].decode())
        return [*messages, json.loads(reply.split(b"\r\n\r\n", 1)[1])["choices"][0]["message"]]


class CallGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        ctx.set_reward(score(text_of(ctx.sample.messages[-1]), ctx.label or ""))
