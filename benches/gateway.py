"""What recording a model call costs.

Run it with `cargo xtask bench gateway` (`-- --only cost`, `latency`, `slow`, `streams` or `memory` for one part;
`--with litellm` also drives LiteLLM's proxy, which is installed from PyPI into a venv in the user's cache).

The same client asks the same mock model server through a bare Rust proxy that keeps the raw bytes in memory
(the baseline), and through `osmosis gateway`, which identifies, checks and durably records each call. The proxy under
test is alone on one core; client and model server share the other. The main figure is the processor time of the
proxy's process per call. Rounds alternate, medians are printed.

- cost: plain calls, calls with logprobs (256 tokens), streams (64 events), up to 32 under way, at equal rates.
- latency: what a call at concurrency 1 takes more than without anything in between.
- slow: a model that takes 50 ms, at concurrency 1,000.
- streams: 9,000 streams open at once, and the gateway's memory.
- memory: the gateway's memory over 1,000,000 calls (`--calls` for fewer).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import resource
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import gateway_process

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = ("plain", "logprobs", "stream")
# Calls per second, the same for all and what all of them can do: sending to a process that sleeps costs more than to
# one that is busy, so a rate that one of them can't keep would be counted against the other.
RATES = {"plain": 3_000, "logprobs": 3_000, "stream": 500}
# Short rounds: the speed of a shared machine changes from second to second, and rivals shall meet the same.
SECONDS = 2
TICKS = os.sysconf("SC_CLK_TCK")
PROXY_CORE, OTHER_CORE = "0", "1"
GOAL_COST, GOAL_LATENCY_MS, GOAL_SLOW, GOAL_LITELLM, GOAL_STREAMS_MB = 1.5, 0.3, 0.9, 80, 450


@dataclass
class Server:
    """A process that answers calls."""

    name: str
    pid: int
    url: str
    key: str

    def cpu(self) -> float:
        """Processor seconds so far."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> tuple[float, float]:
        """Megabytes now, and at most."""
        lines = pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return tuple(int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


@contextlib.contextmanager
def running(command: list[str], core: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(["taskset", "-c", core, *command], stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


class Bench:
    """The programs under test."""

    def __init__(self, osmosis: str, parts: str) -> None:
        self.osmosis, self.parts = osmosis, parts

    @contextlib.contextmanager
    def upstream(self, delay_ms: int = 0, gap_ms: int = 0) -> Iterator[str]:
        options = ["--delay-ms", str(delay_ms), "--gap-ms", str(gap_ms)]
        with running([self.parts, "upstream", *options], OTHER_CORE) as process:
            yield process.stdout.readline().strip()  # type: ignore[union-attr]

    @contextlib.contextmanager
    def proxy(self, upstream: str) -> Iterator[Server]:
        with running([self.parts, "proxy", "--upstream", upstream], PROXY_CORE) as process:
            url = process.stdout.readline().strip()  # type: ignore[union-attr]
            yield Server("bare proxy", process.pid, f"{url}/v1", "none")

    @contextlib.contextmanager
    def gateway(self, upstream: str) -> Iterator[Server]:
        with gateway_process.gateway(self.osmosis, "--upstream", f"{upstream}/v1", core=PROXY_CORE) as serving:
            yield Server("osmosis gateway", serving.pid, serving.url, serving.key)

    @contextlib.contextmanager
    def litellm(self, upstream: str) -> Iterator[Server]:
        command = litellm_command()
        with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as folder:
            model = {"model": "openai/mock", "api_base": f"{upstream}/v1", "api_key": "mock"}
            config = {"model_list": [{"model_name": "osmosis-rollout", "litellm_params": model}]}
            path = pathlib.Path(folder) / "config.json"
            path.write_text(json.dumps(config))
            port = free_port()
            command = [*command, "--config", str(path), "--port", str(port), "--host", "127.0.0.1"]
            key = f"sk-{secrets.token_hex(32)}"
            environment = {**os.environ, "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
            environment["LITELLM_MASTER_KEY"] = key
            log = open(f"{folder}/log", "w")
            with running(command, PROXY_CORE, cwd=folder, env=environment, stderr=log) as process:
                await_health(f"http://127.0.0.1:{port}/health/liveliness", process, f"{folder}/log")
                yield Server("LiteLLM proxy", process.pid, f"http://127.0.0.1:{port}/v1", key)

    def load(self, url: str, key: str, kind: str, concurrency: int, requests: int, per_second: int = 0) -> dict:  # type: ignore[type-arg]
        command = [self.parts, "load", "--url", f"{url}/chat/completions", "--key", key, "--kind", kind]
        command += ["--concurrency", str(concurrency), "--requests", str(requests), "--per-second", str(per_second)]
        done = subprocess.run(["taskset", "-c", OTHER_CORE, *command], check=True, stdout=subprocess.PIPE, text=True)
        measured = json.loads(done.stdout)
        if measured["errors"]:
            print(f"    {measured['errors']} errors, first: {measured['first_error']}")
        return measured

    def cost(self, server: Server, kind: str, requests: int, per_second: int) -> float:
        """Processor microseconds per call, up to 32 under way."""
        before = server.cpu()
        self.load(server.url, server.key, kind, 32, requests, per_second)
        return (server.cpu() - before) / requests * 1e6


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def litellm_command() -> list[str]:
    venv = pathlib.Path.home() / ".cache" / "osmosis" / "bench-litellm"
    program = venv / "bin" / "litellm"
    if not program.exists():
        print("Installing litellm[proxy] into", venv)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(venv / "bin" / "pip"), "install", "--quiet", "litellm[proxy]"], check=True)
    return [str(program)]


def await_health(url: str, process: subprocess.Popen[str], log: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).read()
            return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"LiteLLM did not start:\n{pathlib.Path(log).read_text()[-2000:]}")


def verdict(good: bool) -> str:
    return "goal met" if good else "GOAL MISSED"


def cost(bench: Bench, rounds: int, with_litellm: bool) -> None:
    print("\nProcessor time per call, concurrency 32, equal rates (µs, median of rounds)")
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(bench.upstream())
        some = {kind: rate * SECONDS for kind, rate in RATES.items()}
        servers = [(stack.enter_context(start(upstream)), some) for start in (bench.proxy, bench.gateway)]
        if with_litellm:
            servers.append((stack.enter_context(bench.litellm(upstream)), dict.fromkeys(KINDS, 600)))
        for server, _ in servers:
            for kind in KINDS:
                bench.load(server.url, server.key, kind, 32, 300)
        for kind in KINDS:
            figures: dict[str, list[float]] = {server.name: [] for server, _ in servers}
            for number in range(rounds):
                # In turns: whoever comes second finds another machine.
                for server, requests in servers[:: -1 if number % 2 else 1]:
                    rate = 0 if server.name == "LiteLLM proxy" else RATES[kind]
                    figures[server.name].append(bench.cost(server, kind, requests[kind], rate))
            middle = {name: statistics.median(values) for name, values in figures.items()}
            base, ours = middle["bare proxy"], middle["osmosis gateway"]
            spread = ", ".join(f"{value:.0f}" for value in figures["osmosis gateway"])
            print(f"  {kind:9} bare {base:6.1f}   ours {ours:6.1f} ({spread})   ratio {ours / base:.2f}   {verdict(ours / base <= GOAL_COST)}")
            if with_litellm:
                other = middle["LiteLLM proxy"]
                print(f"  {'':9} LiteLLM {other:8.0f}   {other / ours:.0f} times ours   {verdict(other / ours >= GOAL_LITELLM)}")


def latency(bench: Bench, rounds: int) -> None:
    print("\nTime of a plain call at concurrency 1 (ms, median)")
    with bench.upstream() as upstream, bench.proxy(upstream) as proxy, bench.gateway(upstream) as gateway:
        direct = Server("direct", proxy.pid, f"{upstream}/v1", "none")
        middle = {}
        for server in (direct, proxy, gateway):
            bench.load(server.url, server.key, "plain", 1, 300)
            middle[server.name] = []
        for _ in range(rounds):
            for server in (direct, proxy, gateway):
                middle[server.name].append(bench.load(server.url, server.key, "plain", 1, 3_000)["ms"]["p50"])
    for name, values in middle.items():
        print(f"  {name:16} {statistics.median(values):.3f}")
    added = statistics.median(middle["osmosis gateway"]) - statistics.median(middle["direct"])
    print(f"  added by the gateway: {added:.3f} ms   {verdict(added < GOAL_LATENCY_MS)}")


def slow(bench: Bench, rounds: int) -> None:
    print("\nA model that takes 50 ms, concurrency 1,000 (calls/s, median)")
    with bench.upstream(delay_ms=50) as upstream, bench.proxy(upstream) as proxy, bench.gateway(upstream) as gateway:
        rates: dict[str, list[float]] = {proxy.name: [], gateway.name: []}
        errors = 0
        for _ in range(rounds):
            for server in (proxy, gateway):
                measured = bench.load(server.url, server.key, "plain", 1_000, 30_000)
                rates[server.name].append(measured["per_second"])
                errors += measured["errors"]
    base, ours = (statistics.median(values) for values in rates.values())
    print(f"  bare {base:.0f}   ours {ours:.0f}   ratio {ours / base:.2f}   errors {errors}   {verdict(ours / base >= GOAL_SLOW and not errors)}")


def streams(bench: Bench, count: int) -> None:
    print(f"\n{count:,} streams open at once")
    with bench.upstream(gap_ms=400) as upstream, bench.gateway(upstream) as gateway:
        measured = bench.load(gateway.url, gateway.key, "stream", count, count)
        _, most = gateway.memory()
    good = most < GOAL_STREAMS_MB and not measured["errors"]
    print(f"  answered {measured['answered']:,}   errors {measured['errors']}   memory at most {most:.0f} MB   {verdict(good)}")


def memory(bench: Bench, calls: int) -> None:
    print(f"\nMemory over {calls:,} plain calls")
    with bench.upstream() as upstream, bench.gateway(upstream) as gateway:
        for part in range(10):
            errors = bench.load(gateway.url, gateway.key, "plain", 32, calls // 10)["errors"]
            now, most = gateway.memory()
            print(f"  after {calls // 10 * (part + 1):>9,} calls: {now:6.1f} MB now, {most:6.1f} at most, {errors} errors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--osmosis", required=True, help="the release build of the program")
    parser.add_argument("--only", choices=["cost", "latency", "slow", "streams", "memory"])
    parser.add_argument("--with", dest="peers", action="append", default=[], choices=["litellm"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=9_000)
    chosen = parser.parse_args()
    if not shutil.which("taskset"):
        raise SystemExit("`taskset` (package util-linux) is needed to pin processes to cores")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    build = ["cargo", "build", "--release", "--quiet", "-p", "osmosis-gateway", "--example", "gateway_speed"]
    subprocess.run(build, cwd=ROOT, check=True)
    bench = Bench(chosen.osmosis, str(pathlib.Path(chosen.osmosis).parent / "examples" / "gateway_speed"))
    print(f"load of the machine: {os.getloadavg()[0]:.1f}, files per process: {hard}")
    wanted = [chosen.only] if chosen.only else ["cost", "latency", "slow", "streams", "memory"]
    for part in wanted:
        if part == "cost":
            cost(bench, chosen.rounds, "litellm" in chosen.peers)
        elif part == "latency":
            latency(bench, chosen.rounds)
        elif part == "slow":
            slow(bench, chosen.rounds)
        elif part == "streams":
            streams(bench, chosen.streams)
        else:
            memory(bench, chosen.calls)


if __name__ == "__main__":
    main()
