"""What does the gateway cost? Run it with `cargo xtask bench gateway` (`-- --only cost` for one part, `-- --quick` for
a table in four minutes, `-- --with litellm` to add LiteLLM's proxy, which is installed from PyPI into a venv in the
user's cache).

The same client asks the same mock model server through five programs in turn, each alone on one core while client and
model server share the other:

- bare, general: a Rust proxy on hyper that keeps the raw bytes in memory, with hyper's pooled client.
- bare, same client: the same proxy with the gateway's own client. What the gateway costs is compared with this.
- store off: the gateway, recording nothing.
- group commit: `osmosis gateway` as it is: identifies, checks and records each call; calls are on the disk up to 60 ms
  after their answers.
- durable answer: `osmosis gateway --durable answer`: calls are on the disk before their answers are complete.

All have the same allocator. The figure is the processor time of the program's process per call, all threads. Rounds
alternate in both orders, medians are printed.

- cost: plain calls, calls with logprobs (256 tokens), streams (64 events) without gaps, up to 32 under way, at equal
  rates and as fast as they are answered; streams of 50 events per second, 256 at once.
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
from tables import print_table

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = ("plain", "logprobs", "stream")
# Calls per second, the same for all and what all of them can do: sending to a process that sleeps costs more than to
# one that is busy, so a rate that one of them can't keep would be counted against the other.
RATES = {"plain": 3_000, "logprobs": 3_000, "stream": 500}
# Tokens come 20 ms apart: 50 a second.
GAP_MS, STREAMS_WITH_GAPS = 20, 256
PROXY_CORE, OTHER_CORE = "0", "1"
BARE_GENERAL, BARE, STORE_OFF = "bare, general", "bare, same client", "store off"
GROUP, DURABLE, LITELLM = "group commit", "durable answer", "LiteLLM"
# Of the group commit to the bare proxy with the same client.
GOAL_COST = {"plain": 1.3, "logprobs": 1.3, "stream": 1.2}
GOAL_LATENCY_MS, GOAL_SLOW, GOAL_LITELLM, GOAL_STREAMS_MB = 0.3, 0.9, 80, 450


@dataclass
class Server:
    """A process that answers calls."""

    name: str
    pid: int
    url: str
    key: str

    def cpu(self) -> float:
        """Processor seconds of all threads so far, to the nanosecond."""
        tasks = pathlib.Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

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
    def bare(self, upstream: str, client: str = "direct") -> Iterator[Server]:
        command = [self.parts, "proxy", "--upstream", upstream, "--client", client]
        with running(command, PROXY_CORE) as process:
            url = process.stdout.readline().strip()  # type: ignore[union-attr]
            yield Server(BARE if client == "direct" else BARE_GENERAL, process.pid, f"{url}/v1", "none")

    def bare_general(self, upstream: str) -> contextlib.AbstractContextManager[Server]:
        return self.bare(upstream, "general")

    @contextlib.contextmanager
    def store_off(self, upstream: str) -> Iterator[Server]:
        with running([self.parts, "gateway", "--upstream", upstream], PROXY_CORE) as process:
            url, key = process.stdout.readline().split()  # type: ignore[union-attr]
            yield Server(STORE_OFF, process.pid, url, key)

    @contextlib.contextmanager
    def gateway(self, upstream: str, durable: str = "group") -> Iterator[Server]:
        options = ["--upstream", f"{upstream}/v1", "--durable", durable]
        with gateway_process.gateway(self.osmosis, *options, core=PROXY_CORE) as serving:
            yield Server(GROUP if durable == "group" else DURABLE, serving.pid, serving.url, serving.key)

    def durable(self, upstream: str) -> contextlib.AbstractContextManager[Server]:
        return self.gateway(upstream, "answer")

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
                yield Server(LITELLM, process.pid, f"http://127.0.0.1:{port}/v1", key)

    def load(
        self, server: Server, kind: str, concurrency: int, requests: int = 0, seconds: int = 0, per_second: int = 0
    ) -> dict:  # type: ignore[type-arg]
        """So many calls, or for so long."""
        command = [self.parts, "load", "--url", f"{server.url}/chat/completions", "--key", server.key, "--kind", kind]
        command += ["--concurrency", str(concurrency), "--per-second", str(per_second)]
        command += ["--requests", str(requests)] if requests else ["--seconds", str(seconds)]
        done = subprocess.run(["taskset", "-c", OTHER_CORE, *command], check=True, stdout=subprocess.PIPE, text=True)
        measured = json.loads(done.stdout)
        if measured["errors"]:
            print(f"    {server.name}: {measured['errors']} errors, first: {measured['first_error']}")
        return measured

    def cost(self, server: Server, kind: str, concurrency: int, seconds: int, per_second: int) -> dict:  # type: ignore[type-arg]
        """Processor microseconds per call, and what the client saw."""
        before = server.cpu()
        measured = self.load(server, kind, concurrency, seconds=seconds, per_second=per_second)
        return {**measured, "us": (server.cpu() - before) / max(measured["answered"], 1) * 1e6}


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
    return "met" if good else "**missed**"


def cost(bench: Bench, rounds: int, seconds: int, with_litellm: bool) -> None:
    print(f"\n### Processor time per call (µs, medians of {rounds} rounds of {seconds} s)")
    starts = [bench.bare_general, bench.bare, bench.store_off, bench.gateway, bench.durable]
    if with_litellm:
        starts.append(bench.litellm)
    rows: list[list[object]] = []
    waits: list[list[object]] = []
    for gap_ms in (0, GAP_MS):
        with contextlib.ExitStack() as stack:
            upstream = stack.enter_context(bench.upstream(gap_ms=gap_ms))
            servers = [stack.enter_context(start(upstream)) for start in starts]
            for server in servers:
                for kind in KINDS:
                    bench.load(server, kind, 32, requests=64 if gap_ms else 300)
            if gap_ms:
                what = f"streamed, {1000 // gap_ms} events/s, {STREAMS_WITH_GAPS} at once"
                # A stream takes longer than a short round.
                rows.append(cost_row(bench, servers, what, "stream", rounds, 2 * seconds, 0, STREAMS_WITH_GAPS, waits))
                continue
            for kind in KINDS:
                for rate in (RATES[kind], 0):
                    what = {"plain": "plain", "logprobs": "with logprobs", "stream": "streamed without gaps"}[kind]
                    what += f", {rate:,}/s" if rate else ", no fixed rate"
                    rows.append(cost_row(bench, servers, what, kind, rounds, seconds, rate, 32, waits))
    litellm = [f"{LITELLM} / group"] if with_litellm else []
    header = ["call", BARE_GENERAL, BARE, STORE_OFF, GROUP, DURABLE, "group / bare, same client", "goal"]
    print_table([*header, "group / bare, general", "group / store off", *litellm], rows)
    print("### What a caller sees (medians of the same rounds)")
    print_table(["call", *(f"{name}: {unit}" for name in (BARE, GROUP, DURABLE) for unit in ("calls/s", "ms"))], waits)


def cost_row(
    bench: Bench,
    servers: list[Server],
    what: str,
    kind: str,
    rounds: int,
    seconds: int,
    rate: int,
    concurrency: int,
    waits: list[list[object]],
) -> list[object]:
    """One row: all servers in turn, in both orders, because whoever comes second finds another machine."""
    figures: dict[str, list[dict[str, float]]] = {server.name: [] for server in servers}
    for number in range(rounds):
        for server in servers[:: -1 if number % 2 else 1]:
            limit = 0 if server.name == LITELLM else rate
            measured = bench.cost(server, kind, concurrency, seconds, limit)
            seen = {"us": measured["us"], "per_second": measured["per_second"], "ms": measured["ms"]["p50"] or 0}
            figures[server.name].append(seen)

    def middle(name: str, figure: str = "us") -> float:
        return statistics.median(measured[figure] for measured in figures[name])

    def ratio(other: str) -> str:
        # Of each round, so that a machine that changes its speed between rounds changes no ratio.
        return f"{statistics.median(a['us'] / b['us'] for a, b in zip(figures[GROUP], figures[other])):.2f}"

    waits.append([what])
    for name in (BARE, GROUP, DURABLE):
        waits[-1] += [f"{middle(name, 'per_second'):,.0f}", f"{middle(name, 'ms'):.2f}"]
    goal = GOAL_COST[kind]
    ours = ratio(BARE)
    row: list[object] = [what, *(f"{middle(name):.1f}" for name in (BARE_GENERAL, BARE, STORE_OFF, GROUP, DURABLE))]
    row += [ours, f"{goal}: {'met' if float(ours) <= goal else '**missed**'}", ratio(BARE_GENERAL), ratio(STORE_OFF)]
    if LITELLM in figures:
        row.append(f"{middle(LITELLM) / middle(GROUP):.0f}")
    return row


def latency(bench: Bench, rounds: int) -> None:
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(bench.upstream())
        servers = [stack.enter_context(start(upstream)) for start in (bench.bare, bench.gateway, bench.durable)]
        servers.insert(0, Server("direct", servers[0].pid, f"{upstream}/v1", "none"))
        times: dict[str, list[float]] = {server.name: [] for server in servers}
        for server in servers:
            bench.load(server, "plain", 1, requests=300)
        for _ in range(rounds):
            for server in servers:
                requests = 300 if server.name == DURABLE else 3_000
                times[server.name].append(bench.load(server, "plain", 1, requests=requests)["ms"]["p50"])
    middle = {name: statistics.median(values) for name, values in times.items()}
    print("\n### Time of a plain call at concurrency 1 (ms, median)")
    added = middle[GROUP] - middle["direct"]
    print_table(
        [*middle, "added by the group commit", "goal"],
        [[*(f"{value:.3f}" for value in middle.values()), f"{added:.3f}", f"{GOAL_LATENCY_MS}: {verdict(added < GOAL_LATENCY_MS)}"]],
    )


def slow(bench: Bench, rounds: int) -> None:
    print("\n### A model that takes 50 ms, concurrency 1,000 (calls/s, median)")
    with bench.upstream(delay_ms=50) as upstream, bench.bare(upstream) as proxy, bench.gateway(upstream) as gateway:
        rates: dict[str, list[float]] = {proxy.name: [], gateway.name: []}
        errors = 0
        for _ in range(rounds):
            for server in (proxy, gateway):
                measured = bench.load(server, "plain", 1_000, requests=30_000)
                rates[server.name].append(measured["per_second"])
                errors += measured["errors"]
    base, ours = (statistics.median(values) for values in rates.values())
    good = verdict(ours / base >= GOAL_SLOW and not errors)
    print_table([BARE, GROUP, "ratio", "errors", "goal"], [[f"{base:,.0f}", f"{ours:,.0f}", f"{ours / base:.2f}", errors, f"{GOAL_SLOW}: {good}"]])


def streams(bench: Bench, count: int) -> None:
    print(f"\n### {count:,} streams open at once")
    with bench.upstream(gap_ms=400) as upstream, bench.gateway(upstream) as gateway:
        measured = bench.load(gateway, "stream", count, requests=count)
        _, most = gateway.memory()
    good = verdict(most < GOAL_STREAMS_MB and not measured["errors"])
    print_table(["answered", "errors", "memory at most", "goal"], [[f"{measured['answered']:,}", measured["errors"], f"{most:.0f} MB", f"{GOAL_STREAMS_MB} MB: {good}"]])


def memory(bench: Bench, calls: int) -> None:
    print(f"\n### Memory over {calls:,} plain calls")
    rows = []
    with bench.upstream() as upstream, bench.gateway(upstream) as gateway:
        for part in range(10):
            errors = bench.load(gateway, "plain", 32, requests=calls // 10)["errors"]
            now, most = gateway.memory()
            rows.append([f"{calls // 10 * (part + 1):,}", f"{now:.1f} MB", f"{most:.1f} MB", errors])
    print_table(["after calls", "now", "at most", "errors"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--osmosis", required=True, help="the program, built with the profile `dist`")
    parser.add_argument("--only", choices=["cost", "latency", "slow", "streams", "memory"])
    parser.add_argument("--with", dest="peers", action="append", default=[], choices=["litellm"])
    parser.add_argument("--quick", action="store_true", help="the table of costs alone, in shorter rounds")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=int, help="of a round")
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=9_000)
    parser.add_argument("--markdown", action="store_true", help="the tables are markdown in any case")
    parser.add_argument("--parts", help="a built `gateway_speed`, instead of building it")
    chosen = parser.parse_args()
    if not shutil.which("taskset"):
        raise SystemExit("`taskset` (package util-linux) is needed to pin processes to cores")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if not chosen.parts:
        build = ["cargo", "build", "--profile", "dist", "--quiet", "-p", "osmosis-gateway", "--example", "gateway_speed"]
        subprocess.run(build, cwd=ROOT, check=True)
    parts = chosen.parts or str(pathlib.Path(chosen.osmosis).parent / "examples" / "gateway_speed")
    bench = Bench(os.path.abspath(chosen.osmosis), os.path.abspath(parts))
    rounds = chosen.rounds or 5
    print(f"Load of the machine before: {os.getloadavg()[0]:.1f}; records on {file_system(tempfile.gettempdir())}.")
    parts_wanted = ["cost"] if chosen.quick else ["cost", "latency", "slow", "streams", "memory"]
    for part in [chosen.only] if chosen.only else parts_wanted:
        if part == "cost":
            cost(bench, rounds, chosen.seconds or (1 if chosen.quick else 2), "litellm" in chosen.peers)
        elif part == "latency":
            latency(bench, rounds)
        elif part == "slow":
            slow(bench, rounds)
        elif part == "streams":
            streams(bench, chosen.streams)
        else:
            memory(bench, chosen.calls)
    print(f"Load of the machine after: {os.getloadavg()[0]:.1f}.")


def file_system(folder: str) -> str:
    """The kind of the file system that a folder is on."""
    mounts = [line.split()[1:3] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    path = pathlib.Path(folder).resolve()
    on = [(len(place), kind) for place, kind in mounts if path.is_relative_to(place)]
    return max(on)[1] if on else "an unknown file system"


if __name__ == "__main__":
    main()
