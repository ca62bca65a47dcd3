"""An agent that does what the first word of its prompt says, and answers as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time

import httpx
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context

# Nobody else sleeps for so long: it tells these processes from others.
SLEEP = ["sleep", "86397"]


def nested(depth):
    value = "bottom"
    for _ in range(depth):
        value = [value]
    return value


def misbehave(deed):
    if deed == "child":
        subprocess.Popen(SLEEP)
    elif deed == "daemon":
        subprocess.Popen(SLEEP, start_new_session=True)
    elif deed == "orphan":
        subprocess.run(["sh", "-c", "setsid " + " ".join(SLEEP) + " </dev/null >/dev/null 2>&1 &"])
    elif deed == "kill_parent":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)
    elif deed == "kill_self":
        os.kill(os.getpid(), signal.SIGKILL)
    elif deed == "print":
        line = "x" * 1023 + "\n"
        for _ in range(32):
            sys.stdout.write(line * 1024)
        sys.stdout.flush()
    elif deed == "escape":
        print("\x1b]0;owned\x07\x1b[2Jprinted", flush=True)
        raise ValueError("\x1b[31mraised\x1b[0m\x9b2J")
    elif deed == "leak":
        print("the key is", os.environ["SEARCH_KEY"], flush=True)
        raise ValueError("the key is " + os.environ["SEARCH_KEY"])
    elif deed == "block":
        time.sleep(3600)
    elif deed == "memory":
        len(bytearray(96 << 20))


class Tortured(AgentWorkflow):
    async def run(self, ctx):
        deed = ctx.prompt[-1]["content"].split()[0]
        misbehave(deed)
        rollout = get_rollout_context()
        async with httpx.AsyncClient(timeout=60) as client:
            reply = await client.post(
                f"{rollout.chat_completions_url}/chat/completions",
                headers={"Authorization": f"Bearer {rollout.api_key}"},
                json={"model": "osmosis-rollout", "messages": ctx.prompt},
            )
            reply.raise_for_status()
        message = reply.json()["choices"][0]["message"]
        if deed == "deep":
            message = {**message, "nested": nested(2000)}
        return [*ctx.prompt, message]


class Exact(Grader):
    async def grade(self, ctx):
        words = str(ctx.sample.messages[-1]["content"]).rstrip(".").split()
        ctx.set_reward(1.0 if ctx.label in words else 0.0)
