"""Is one build slower than another? Compares two binaries in one run, each also with itself.

    python benches/builds.py --before OLD --after NEW --parts target/dist/examples/gateway_speed

A round measures four programs in turn, every second round in the opposite order: the old binary, the new one, and both
again. The ratio of the old binary's two turns shows what equal builds differ by on this machine; a difference
of the builds counts only beyond that. The figure is processor time (of the gateway's process per call; of all processes
of a run per rollout or training), which other programs on the machine disturb less than wall time.

- gateway: plain calls and calls with logprobs, 32 at once, as fast as they are answered, recorded.
- throughput: rollouts without model calls, Python workflow and grader, 2 workers.
- demo: `osmosis demo` with few steps; the held-out numbers of both builds must be equal to the last digit.
- many: a large run of each build in every round (`--many 100000`), with the peak memory of the engine and the time of
  `eval info` (the median of 9); medians. It has no second turns: a run of this size takes minutes.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Callable

import gateway
import throughput
from projects import ECHO
from tables import print_table

TURNS = ("before", "after", "before again", "after again")
CALLS = {"plain": 8_000, "logprobs": 3_000}
# How often a command that takes a fraction of a second is timed.
LOOKS = 9

Figures = dict[str, dict[str, list[float]]]


def processor_seconds() -> float:
    """Of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Comparison:
    def __init__(self, before: str, after: str, rounds: int) -> None:
        self.binaries = dict(zip(TURNS, (before, after, before, after)))
        self.rounds = rounds
        self.figures: Figures = {}

    def measure(self, what: str, one: Callable[[str], float]) -> None:
        """`one` measures a binary, given its turn."""
        found: dict[str, list[float]] = {turn: [] for turn in TURNS}
        for number in range(self.rounds):
            for turn in TURNS[:: -1 if number % 2 else 1]:
                found[turn].append(one(turn))
            shown = ", ".join(f"{turn} {values[-1]:.4g}" for turn, values in found.items())
            print(f"{what}, round {number + 1}: {shown}", file=sys.stderr, flush=True)
        self.figures[what] = found

    def print(self) -> None:
        rows = []
        for what, found in self.figures.items():

            def ratio(a: str, b: str, found: dict[str, list[float]] = found) -> list[float]:
                return [x / y for x, y in zip(found[a], found[b])]

            builds = ratio("after", "before") + ratio("after again", "before again")
            equal = ratio("before again", "before") + ratio("after again", "after")
            middle = statistics.median(builds)
            spread = statistics.median(abs(value - 1) for value in equal)
            worst = max(abs(value - 1) for value in equal)
            before = statistics.median(found["before"] + found["before again"])
            after = statistics.median(found["after"] + found["after again"])
            verdict = "no" if middle <= 1.05 + spread else "**yes**"
            row = [what, f"{before:.4g}", f"{after:.4g}", f"{middle:.3f}", f"{spread:.3f}", f"{worst:.3f}", verdict]
            rows.append([*row, f"{os.getloadavg()[1]:.1f}"])
        head = ["measured", "before", "after", "after / before", "equal builds: median", "largest", "worse by over 5%", "load"]
        print_table(head, rows)


def calls(comparison: Comparison, parts: str) -> None:
    with contextlib.ExitStack() as stack:
        benches = {turn: gateway.Bench(binary, parts) for turn, binary in comparison.binaries.items()}
        upstream = stack.enter_context(benches["before"].upstream())
        servers = {turn: stack.enter_context(bench.gateway(upstream)) for turn, bench in benches.items()}
        for turn, server in servers.items():
            for kind in CALLS:
                benches[turn].load(server, kind, 32, requests=1_000)
        for kind, requests in CALLS.items():

            def one(turn: str, kind: str = kind, requests: int = requests) -> float:
                before = servers[turn].cpu()
                answered = benches[turn].load(servers[turn], kind, 32, requests=requests)["answered"]
                return (servers[turn].cpu() - before) / answered * 1e6

            comparison.measure(f"gateway, {kind} call, µs", one)


def rollouts(comparison: Comparison, count: int, many: int) -> None:
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as folder:
        benches = {turn: throughput.Bench(binary, pathlib.Path(folder) / turn) for turn, binary in comparison.binaries.items()}
        for bench in benches.values():
            bench.rollout("python", "main.py", {"main.py": ECHO})
            lines = (json.dumps({"user_prompt": f"say {n}", "ground_truth": str(n)}) for n in range(max(count, many)))
            bench.write("data/d.jsonl", "\n".join(lines))
            bench.write("p.toml", "[[reply]]\ntext = 'x'\n")
            bench.submit("python", 100)

        def one(turn: str) -> float:
            before = processor_seconds()
            scored = benches[turn].submit("python", count)["outcomes"]["scored"]
            assert scored == count, f"{scored} of {count} scored"
            return (processor_seconds() - before) / count * 1e3

        comparison.measure(f"{count:,} rollouts, ms each", one)
        if many:
            print_large(comparison, benches, many)


def print_large(comparison: Comparison, benches: dict[str, throughput.Bench], count: int) -> None:
    turns = TURNS[:2]
    found: dict[str, list[list[float]]] = {turn: [] for turn in turns}
    for number in range(comparison.rounds):
        for turn in turns[:: -1 if number % 2 else 1]:
            found[turn].append(large(benches[turn], count))
            shown = ", ".join(f"{value:.3g}" for value in found[turn][-1])
            print(f"{count:,} rollouts, round {number + 1}, {turn}: {shown}", file=sys.stderr, flush=True)
    ratios = [after[1] / before[1] for before, after in zip(*found.values())]
    head = [f"{count:,} rollouts in one run", "seconds", "CPU s", "engine MB", "eval info s"]
    medians = {turn: map(statistics.median, zip(*runs)) for turn, runs in found.items()}
    print_table(head, [[turn, *(f"{value:.4g}" for value in values)] for turn, values in medians.items()])
    print(f"CPU, after / before: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
    looks = [after[3] / before[3] for before, after in zip(*found.values())]
    print(f"eval info, after / before: median {statistics.median(looks):.3f}, {min(looks):.3f} to {max(looks):.3f}\n")


def large(bench: throughput.Bench, count: int) -> list[float]:
    """Seconds, processor seconds, megabytes of the engine at most, median seconds of `eval info`."""
    began, used = time.monotonic(), processor_seconds()
    command = bench.command("python", count, 128, 2)
    process = subprocess.Popen(command, cwd=bench.root, env=bench.environment, stdout=subprocess.PIPE, text=True)
    most = 0.0
    while process.poll() is None:
        with contextlib.suppress(OSError, IndexError):
            most = max(most, throughput.memory_mb(process.pid))
        time.sleep(0.5)
    output, _ = process.communicate()
    assert json.loads(output)["resource"]["outcomes"]["scored"] == count
    took, used = time.monotonic() - began, processor_seconds() - used
    info = [bench.osmosis, "eval", "info", f"run-{bench.runs}", "--json"]
    looks = []
    for _ in range(LOOKS):
        began = time.monotonic()
        subprocess.run(info, cwd=bench.root, env=bench.environment, check=True, stdout=subprocess.DEVNULL)
        looks.append(time.monotonic() - began)
    looked = statistics.median(looks)
    # So that every run finds the disk as the first did.
    shutil.rmtree(pathlib.Path(bench.root) / ".osmosis" / "evals" / f"run-{bench.runs}")
    return [took, used, most, looked]


def demo(comparison: Comparison, steps: int) -> None:
    results: dict[str, set[str]] = {turn: set() for turn in TURNS}
    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as folder:

        def one(turn: str) -> float:
            home = pathlib.Path(folder) / turn
            for left in home.glob(".osmosis/*/*"):
                subprocess.run(["rm", "-r", str(left)], check=True)
            command = [comparison.binaries[turn], "demo", "--json", "--steps", str(steps), "--dir", str(home)]
            before = processor_seconds()
            done = subprocess.run([*command, "--python", sys.executable], stdout=subprocess.PIPE, check=True)
            used = processor_seconds() - before
            found = json.loads(done.stdout)["resource"]
            results[turn].add(json.dumps([found["before"], found["after"]], sort_keys=True))
            return used

        one("before")
        comparison.measure(f"demo of {steps} steps, CPU s", one)
    different = set.union(*results.values())
    print(f"held-out numbers of the demo: {'equal in both builds' if len(different) == 1 else f'**{len(different)} different**'}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True)
    parser.add_argument("--after", required=True)
    parser.add_argument("--parts", required=True, help="the gateway's example `gateway_speed`, built with the profile `dist`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rollouts", type=int, default=5_000)
    parser.add_argument("--many", type=int, default=0)
    parser.add_argument("--steps", type=int, default=8, help="training steps of the demo; 0: no demo")
    parser.add_argument("--no-calls", action="store_true", help="leave the gateway out")
    arguments = parser.parse_args()
    comparison = Comparison(os.path.abspath(arguments.before), os.path.abspath(arguments.after), arguments.rounds)
    if not arguments.no_calls:
        calls(comparison, arguments.parts)
    rollouts(comparison, arguments.rollouts, arguments.many)
    if arguments.steps:
        demo(comparison, arguments.steps)
    comparison.print()


if __name__ == "__main__":
    main()
