"""What the first path costs: start-up, time to the first result, CPU per rollout.

Run it with `cargo xtask bench first_path`. Everything is measured in one run on one machine:

- `osmosis --help`: median of 20 starts, beside `true`.
- From `eval submit` on a prepared environment to the first finished rollout: median of 5.
- CPU per rollout: the same multiply agent on the OpenAI Agents SDK against the same model server, once
  bare (`Runner.run` in one process), once through `osmosis eval submit`. Both are slopes between a small
  and a large number of rollouts, so that start-up does not count. The model server is a process of its
  own and is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from projects import MULTIPLY_TOOL

SMALL, LARGE, CONCURRENCY = 40, 240, 32

AGENT = MULTIPLY_TOOL + """
class Multiply(AgentWorkflow):
    async def run(self, ctx):
        agent = OsmosisAgent(name="calc", model=OsmosisRolloutModel(), tools=[multiply])
        await Runner.run(agent, ctx.prompt, session=OsmosisMemorySession(name="calc"))

class Exact(Grader):
    async def grade(self, ctx):
        text = ctx.sample.messages[-1]["content"][0]["text"]
        ctx.set_reward(1.0 if ctx.label in text.split() else 0.0)
"""

BARE = """
import asyncio, os, sys
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)

@function_tool
def multiply(a: int, b: int) -> int:
    "Return the product."
    return a * b

async def main(count):
    client = AsyncOpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="x")
    model = OpenAIChatCompletionsModel(model="m", openai_client=client)
    gate = asyncio.Semaphore(%d)
    async def one(i):
        async with gate:
            agent = Agent(name="calc", model=model, tools=[multiply])
            prompt = [{"role": "user", "content": f"What is {i + 2} times 3?"}]
            result = await Runner.run(agent, prompt)
            assert str((i + 2) * 3) in result.final_output
    await asyncio.gather(*(one(i) for i in range(count)))

asyncio.run(main(int(sys.argv[1])))
""" % CONCURRENCY


async def serve() -> None:
    """A model server in the documented wire format: a tool call, then its result."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                request = json.loads(await reader.readexactly(length))
                body = json.dumps(answer(request["messages"])).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                    b"content-length: %d\r\n\r\n%s" % (len(body), body)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def answer(messages: list[dict]) -> dict:
    last = messages[-1]
    if last["role"] == "tool":
        message = {"role": "assistant", "content": f"It is {last['content']} ."}
    else:
        words = last["content"].rstrip("?").split()
        arguments = json.dumps({"a": int(words[2]), "b": int(words[4])})
        function = {"name": "multiply", "arguments": arguments}
        call = {"id": "c1", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    usage = {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


def cpu_of(command: list[str], environment: dict[str, str], folder: str | None = None) -> float:
    """CPU seconds of a command and everything it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def starts(command: list[str]) -> float:
    times = []
    for _ in range(20):
        began = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def make_workspace(root: pathlib.Path) -> None:
    (root / "rollouts/r").mkdir(parents=True)
    (root / "data").mkdir()
    (root / "rollouts/r/main.py").write_text(AGENT)
    rows = [
        {"user_prompt": f"What is {i + 2} times 3?", "ground_truth": str((i + 2) * 3)}
        for i in range(LARGE)
    ]
    (root / "data/d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "c.toml").write_text(
        '[experiment]\nrollout = "r"\nentrypoint = "main.py"\ndataset = "d"\nmodel_path = "m"\n'
    )


def submit(osmosis: str, count: int) -> list[str]:
    return [
        osmosis, "eval", "submit", "c.toml", "--python", sys.executable, "--limit", str(count),
        "--max-in-flight", str(CONCURRENCY), "--json",
    ]  # fmt: skip


def first_result(osmosis: str, root: str, environment: dict[str, str]) -> float:
    """Milliseconds from `eval submit` to the first finished rollout, as the store saw it."""
    began = time.time() * 1000
    done = subprocess.run(
        submit(osmosis, 1), env=environment, cwd=root, capture_output=True, text=True, check=True
    )
    path = json.loads(done.stdout)["resource"]["output_path"]
    import sqlite3

    with sqlite3.connect(f"{path}/run.db") as database:
        (finished,) = database.execute("SELECT MIN(finished_at_ms) FROM rollouts").fetchone()
    return finished - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve())
        return
    osmosis = str(pathlib.Path(arguments.osmosis).resolve())
    help_ms, true_ms = starts([osmosis, "--help"]), starts([shutil.which("true") or "true"])
    print(f"osmosis --help                     {help_ms:7.1f} ms   (`true`: {true_ms:.1f} ms)")

    server = subprocess.Popen(
        [sys.executable, __file__, "--osmosis", "-", "--serve"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        environment = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "x"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with tempfile.TemporaryDirectory() as folder:
            make_workspace(pathlib.Path(folder))
            first_result(osmosis, folder, environment)  # Fills Python's bytecode caches.
            times = [first_result(osmosis, folder, environment) for _ in range(5)]
            imports = cpu_wall([sys.executable, "-c", "import agents"], environment)
            print(
                f"submit to first finished rollout   {statistics.median(times):7.0f} ms"
                f"   (`import agents` alone: {imports:.0f} ms)"
            )
            ours, bare = [], []
            for _ in range(3):
                bare.append(slope(lambda n: [sys.executable, "-c", BARE, str(n)], environment, folder))
                ours.append(slope(lambda n: submit(osmosis, n), environment, folder))
            bare_ms, ours_ms = statistics.median(bare), statistics.median(ours)
            print(f"CPU per rollout, bare agent loop   {bare_ms:7.2f} ms")
            print(f"CPU per rollout, osmosis           {ours_ms:7.2f} ms")
            print(f"  added                            {ours_ms - bare_ms:7.2f} ms")
            print(f"  ratio                            {ours_ms / bare_ms:7.2f}")
    finally:
        server.kill()
        server.wait()


def slope(command, environment: dict[str, str], folder: str) -> float:
    """CPU milliseconds per rollout, without start-up."""
    small = cpu_of(command(SMALL), environment, folder)
    large = cpu_of(command(LARGE), environment, folder)
    return 1000 * (large - small) / (LARGE - SMALL)


def cpu_wall(command: list[str], environment: dict[str, str]) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run(command, env=environment, capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


if __name__ == "__main__":
    main()
