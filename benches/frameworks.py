"""What our integrations cost beside the frameworks they integrate, two workers beside one, and the reference SDK.

Run it with `cargo xtask bench frameworks` (`-- --only openai`, `strands`, `workers` or `reference` for one part).
Every rollout is one agent with one model call, answered by `mock_model.py` in a process of its own. Rivals take turns,
round by round, so that what else the machine does hits all of them.

- openai, strands: rollouts/s and CPU per rollout in one process, at concurrency 64 and 1: the bare framework with its
  defaults, our integration against the same endpoint, and our integration through `osmosis gateway`. Goals at 64:
  1.3 times the bare rate for OpenAI Agents, 2 times for Strands; at 1 not slower.
- workers: `osmosis eval submit` with two workers and with one; an agent with a tool and two calls, answered by a
  scripted policy in the engine. Goal: 1.7 times. The engine needs its share of the two cores, so beside the rate stands
  what the processor times allow.
- reference: only with `--with-reference`. `osmosis-ai` from PyPI on Python 3.12 in a venv that is made for it: its
  `LocalBackend` and its bridge, beside `osmosis eval submit` with the same agent, grader and model. Goal: 2 times.

Venvs are made below `target/bench-venvs` and kept (`--venvs` names another folder).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from gateway_process import gateway
from projects import MULTIPLY_TOOL

BENCHES = pathlib.Path(__file__).resolve().parent
ROOT = BENCHES.parent
WORDS = 16
REFERENCE = "osmosis-ai==0.3.8"
ROLLOUTS = {64: 512, 1: 128}
IN_FLIGHT = 64

AGENT = MULTIPLY_TOOL + """
class Solve(AgentWorkflow):
    async def run(self, ctx):
        agent = OsmosisAgent(name="solver", model=OsmosisRolloutModel(), tools=TOOLS)
        await Runner.run(agent, ctx.prompt, session=OsmosisMemorySession(name="solver"))

class Any(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"""
SCRIPT = """
[[reply]]
when.last_role = "user"
tool_calls = [{ name = "multiply", arguments = { a = 6, b = 7 } }]

[[reply]]
text = "It is {tool_result}."
"""


def environment(**more: str) -> dict[str, str]:
    kept = {**os.environ, **more}
    # Else every start would compile every module again.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept


def cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def process(command: list[str], **more: str) -> Iterator[subprocess.Popen[str]]:
    # What it says besides is for the case that it ends too early.
    with tempfile.TemporaryFile("w+") as said:
        started = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=environment(**more)
        )
        try:
            yield started
        finally:
            if started.poll() is not None:
                said.seek(0)
                print(said.read()[-3000:], file=sys.stderr)
            started.terminate()
            started.wait()


@contextlib.contextmanager
def mock_model() -> Iterator[str]:
    with process([sys.executable, str(BENCHES / "mock_model.py"), str(WORDS)]) as server:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"  # type: ignore[union-attr]


class Loop:
    """A process that runs rollouts when it is told to, and those that work for it."""

    def __init__(self, started: subprocess.Popen[str], *helpers: subprocess.Popen[str]) -> None:
        self.started, self.helpers = started, helpers
        self.runs: dict[int, list[tuple[float, float]]] = {}

    def run(self, concurrency: int, count: int) -> None:
        before = sum(cpu_seconds(helper.pid) for helper in self.helpers)
        assert self.started.stdin and self.started.stdout
        print(concurrency, count, file=self.started.stdin, flush=True)
        line = self.started.stdout.readline()
        if not line:
            sys.exit(f"{self.started.args} ended")
        wall, processor = map(float, line.split())
        processor += sum(cpu_seconds(helper.pid) for helper in self.helpers) - before
        self.runs.setdefault(concurrency, []).append((count / wall, 1000 * processor / count))

    def median(self, concurrency: int) -> tuple[float, float]:
        rates, milliseconds = zip(*self.runs[concurrency], strict=True)
        return statistics.median(rates), statistics.median(milliseconds)


def framework(name: str, python: str, osmosis: str, rounds: int) -> None:
    loops = ["bare", "untraced", "ours"] if name == "openai" else ["bare", "ours"]
    program = str(BENCHES / "framework_loops.py")
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(mock_model())
        serving = stack.enter_context(gateway(osmosis, "--upstream", url))

        def loop(kind: str, url: str, key: str, **more: str) -> Loop:
            command = [python, program, f"{name}-{kind}"]
            set_up = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key, "PYTHONPATH": str(ROOT / "python"), **more}
            return Loop(stack.enter_context(process(command, **set_up)))

        rivals = {kind: loop(kind, url, "x") for kind in loops}
        rivals["ours, gateway between"] = loop("ours", serving.url, serving.key, OSMOSIS_ROLLOUT_ID="gateway")
        for rival in rivals.values():
            rival.run(64, 64)
            rival.runs.clear()
        for _ in range(rounds):
            for concurrency, count in ROLLOUTS.items():
                for rival in rivals.values():
                    rival.run(concurrency, count)
        for concurrency in ROLLOUTS:
            bare = rivals["bare"].median(concurrency)
            print(f"{name}, concurrency {concurrency}, medians of {rounds}, {load()}")
            for kind, rival in rivals.items():
                rate, milliseconds = rival.median(concurrency)
                print(
                    f"  {kind:<24} {rate:7.0f} rollouts/s  {milliseconds:6.2f} ms CPU"
                    f"   {rate / bare[0]:5.2f} x rate  {bare[1] / milliseconds:5.2f} x less CPU",
                    flush=True,
                )


class Workspace:
    """A workspace with the agent, and runs of it."""

    def __init__(self, osmosis: str, folder: str, model: str, tools: str, **more: str) -> None:
        self.osmosis, self.root, self.more = osmosis, pathlib.Path(folder), more
        for path in ("rollouts/r", "data"):
            (self.root / path).mkdir(parents=True)
        (self.root / "rollouts/r/main.py").write_text(AGENT.replace("TOOLS", tools))
        (self.root / "p.toml").write_text(SCRIPT)
        row = json.dumps({"user_prompt": "What is 6 times 7? Answer with words.", "ground_truth": "42"})
        (self.root / "data/d.jsonl").write_text(f"{row}\n" * 8192)
        (self.root / "c.toml").write_text(
            f'[experiment]\nrollout = "r"\nentrypoint = "main.py"\ndataset = "d"\nmodel_path = "{model}"\n'
        )

    def run(self, workers: int, count: int) -> Run:
        command = [
            self.osmosis, "eval", "submit", "c.toml", "--python", sys.executable, "--limit", str(count),
            "--max-in-flight", str(IN_FLIGHT), "--workers", str(workers), "--json",
        ]  # fmt: skip
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = subprocess.Popen(
            command, env=environment(**self.more), cwd=self.root, stdout=subprocess.PIPE, text=True
        )
        engine = 0.0
        while started.poll() is None:
            # Its own, without the workers'; what it used last is as good as what it used.
            engine = cpu_seconds(started.pid) or engine
            time.sleep(0.02)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        output, _ = started.communicate()
        if started.returncode != 0:
            sys.exit(f"{command}: exit {started.returncode}\n{output}")
        said = json.loads(output)["resource"]
        assert said["outcomes"]["scored"] == count, said["outcomes"]
        with sqlite3.connect(f"{said['output_path']}/run.db") as database:
            query = "SELECT MIN(started_at_ms), MAX(finished_at_ms) FROM rollouts"
            first, last = database.execute(query).fetchone()
        whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Run(1000 * count / (last - first), 1000 * engine, 1000 * (whole - engine))

    def measure(self, workers: int, count: int) -> Run:
        """As of one rollout of many: start-up is not counted."""
        small, large = self.run(workers, count // 8), self.run(workers, count)
        more = count - count // 8
        return Run(large.rate, (large.engine - small.engine) / more, (large.workers - small.workers) / more)


class Run(NamedTuple):
    """Rollouts/s from the first start to the last result, and milliseconds of processor time."""

    rate: float
    engine: float
    workers: float


def medians(runs: list[Run]) -> Run:
    return Run(*(statistics.median(values) for values in zip(*runs, strict=True)))


def busy(count: int) -> float:
    """Seconds that so many bare loops side by side take: what the machine's cores have to give just now."""
    began = time.perf_counter()
    loops = [subprocess.Popen([sys.executable, "-c", "sum(i * i for i in range(20_000_000))"]) for _ in range(count)]
    for loop in loops:
        loop.wait()
    return time.perf_counter() - began


def workers(osmosis: str, rounds: int) -> None:
    found: dict[int, list[Run]] = {1: [], 2: []}
    ceilings = []
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(osmosis, f"{folder}/w", "script:p.toml", "[multiply]")
        workspace.run(1, 64)
        for _ in range(rounds):
            for count, runs in found.items():
                runs.append(workspace.measure(count, 1024))
            ceilings.append(2 * busy(1) / busy(2))
    one, two = medians(found[1]), medians(found[2])
    print(f"workers, scripted policy, {IN_FLIGHT} in flight, medians of {rounds}, {load()}")
    for count, run in ((1, one), (2, two)):
        print(
            f"  {count}: {run.rate:7.0f} rollouts/s  CPU of the worker {run.workers:.2f} ms, of the engine {run.engine:.2f} ms"
        )
    pairs = [two.rate / one.rate for one, two in zip(found[1], found[2], strict=True)]
    print(
        f"  two beside one: {two.rate / one.rate:.2f} x (round by round {', '.join(f'{pair:.2f}' for pair in pairs)})"
    )
    print(f"  two bare loops beside one, taken in between: {statistics.median(ceilings):.2f} x")
    # One worker has a core of its own; two of them and the engine share two.
    limit = 2 * one.workers / (two.workers + two.engine)
    print(f"  what two quiet cores allow by these processor times: {limit:.2f} x", flush=True)


def reference(osmosis: str, python: str, rounds: int) -> None:
    program = str(BENCHES / "reference_loop.py")
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(mock_model())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        # The reference keeps files of every rollout at home. Without a key it sends no traces.
        bridge = stack.enter_context(process([python, program, "bridge", url, "key"], HOME=folder))
        address = bridge.stdout.readline().strip()  # type: ignore[union-attr]
        backend = stack.enter_context(process([python, program, "backend", address, "key"], HOME=folder))
        theirs = Loop(backend, bridge)
        ours = Workspace(osmosis, f"{folder}/ours", "m", "[]", OPENAI_BASE_URL=url, OPENAI_API_KEY="x")
        theirs.run(IN_FLIGHT, IN_FLIGHT)
        theirs.runs.clear()
        ours.run(1, IN_FLIGHT)
        found: dict[int, list[Run]] = {1: [], 2: []}
        for _ in range(rounds):
            theirs.run(IN_FLIGHT, 512)
            for count, runs in found.items():
                runs.append(ours.measure(count, 1024))
        rate, milliseconds = theirs.median(IN_FLIGHT)
    print(f"reference ({REFERENCE}), OpenAI Agents, {IN_FLIGHT} in flight, medians of {rounds}, {load()}")
    print(f"  LocalBackend and bridge         {rate:7.0f} rollouts/s  {milliseconds:6.2f} ms CPU")
    for count, runs in found.items():
        run = medians(runs)
        processor = run.workers + run.engine
        print(
            f"  osmosis eval submit, {count} worker(s) {run.rate:7.0f} rollouts/s  {processor:6.2f} ms CPU"
            f"   {run.rate / rate:5.2f} x rate  {milliseconds / processor:5.2f} x less CPU",
            flush=True,
        )


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def venv(folder: pathlib.Path, python: str, install: list[list[str]]) -> str:
    """The interpreter of a venv with these packages, made when it is not there."""
    found = folder / "bin/python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        for arguments in install:
            subprocess.run([str(found), "-m", "pip", "install", "--quiet", *arguments], check=True)
        (folder / "complete").touch()
    return str(found)


def reference_venv(folder: pathlib.Path) -> str:
    python = shutil.which("python3.12")
    if python is None:
        sys.exit("the reference SDK needs Python 3.12: put `python3.12` into PATH")
    # Its dependencies by hand: some index mirrors lack the newest `certifi` that it asks for.
    named = [
        "openai-agents[litellm]>=0.18.1,<0.21", "litellm>=1.94.3,<2,!=1.95.0.*,!=1.96.0.*,!=1.96.1.*", "fastapi",
        "uvicorn", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "python-dotenv", "httpx", "certifi",
        "pydantic", "keyring", "cryptography", "questionary", "prompt-toolkit", "packaging", "typer", "rich", "pyarrow",
        "orjson", "aiohttp", "fsspec",
    ]  # fmt: skip
    return venv(folder, python, [["--no-deps", REFERENCE], named])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--only", choices=["openai", "strands", "workers", "reference"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--with-reference", action="store_true")
    parser.add_argument("--venvs", type=pathlib.Path, default=ROOT / "target/bench-venvs")
    arguments = parser.parse_args()
    osmosis, rounds = str(pathlib.Path(arguments.osmosis).resolve()), arguments.rounds
    wanted = {arguments.only} if arguments.only else {"openai", "strands", "workers"}
    if "openai" in wanted:
        framework("openai", sys.executable, osmosis, rounds)
    if "strands" in wanted:
        pinned = str(ROOT / "python/requirements-strands-dev.txt")
        python = venv(arguments.venvs / "strands", sys.executable, [["-r", pinned]])
        framework("strands", python, osmosis, rounds)
    if "workers" in wanted:
        workers(osmosis, rounds)
    if arguments.with_reference or "reference" in wanted:
        reference(osmosis, reference_venv(arguments.venvs / "reference"), rounds)


if __name__ == "__main__":
    main()
