"""What our integrations cost beside the frameworks they integrate, two workers beside one, and the reference SDK.

Run it with `cargo xtask bench frameworks` (`-- --only openai`, `strands`, `workers` or `reference` for one part).
Every rollout is one agent with one model call. The model is `mock_model.py` in a process of its own, or a scripted
policy in the engine. Rivals take turns, round by round, so that what else the machine does hits all of them.

- openai, strands: rollouts/s and CPU per rollout in one process, at concurrency 64 and 1: the bare framework with its
  defaults, our integration against the same endpoint, and our integration through `osmosis gateway`. Goals at 64:
  1.3 times the bare rate for OpenAI Agents, 2 times for Strands; at 1 not slower.
- workers: `osmosis eval submit` with two workers and with one. Goal: 1.7 times.
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
from collections.abc import Iterator

from gateway_process import gateway

BENCHES = pathlib.Path(__file__).resolve().parent
ROOT = BENCHES.parent
WORDS = 16
REFERENCE = "osmosis-ai==0.3.8"
ROLLOUTS = {64: 512, 1: 128}

AGENT = """
from agents import Runner
from osmosis_ai.rollout import AgentWorkflow, Grader
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel,
)

class Solve(AgentWorkflow):
    async def run(self, ctx):
        agent = OsmosisAgent(name="solver", model=OsmosisRolloutModel())
        await Runner.run(agent, ctx.prompt, session=OsmosisMemorySession(name="solver"))

class Any(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
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
    started = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(**more)
    )
    try:
        yield started
    finally:
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

    def __init__(self, osmosis: str, folder: str, model: str, **more: str) -> None:
        self.osmosis, self.root, self.more = osmosis, pathlib.Path(folder), more
        for path in ("rollouts/r", "data"):
            (self.root / path).mkdir(parents=True)
        (self.root / "rollouts/r/main.py").write_text(AGENT)
        (self.root / "p.toml").write_text(f"[[reply]]\ntext = '{' '.join(['word'] * WORDS)}'\n")
        row = json.dumps({"user_prompt": "What is 6 times 7? Answer with words.", "ground_truth": "42"})
        (self.root / "data/d.jsonl").write_text(f"{row}\n" * 8192)
        (self.root / "c.toml").write_text(
            f'[experiment]\nrollout = "r"\nentrypoint = "main.py"\ndataset = "d"\nmodel_path = "{model}"\n'
        )

    def run(self, workers: int, count: int) -> tuple[float, float]:
        """Rollouts/s from the first start to the last result, and CPU seconds of all its processes."""
        command = [
            self.osmosis, "eval", "submit", "c.toml", "--python", sys.executable, "--limit", str(count),
            "--max-in-flight", str(64 * workers), "--workers", str(workers), "--json",
        ]  # fmt: skip
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, env=environment(**self.more), cwd=self.root, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            sys.exit(f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        said = json.loads(done.stdout)["resource"]
        assert said["outcomes"]["scored"] == count, said["outcomes"]
        with sqlite3.connect(f"{said['output_path']}/run.db") as database:
            query = "SELECT MIN(started_at_ms), MAX(finished_at_ms) FROM rollouts"
            first, last = database.execute(query).fetchone()
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return 1000 * count / (last - first), cpu


def slope(workspace: Workspace, workers: int, count: int) -> tuple[float, float]:
    """Rollouts/s, and CPU milliseconds per rollout without start-up."""
    _, small = workspace.run(workers, count // 8)
    rate, large = workspace.run(workers, count)
    return rate, 1000 * (large - small) / (count - count // 8)


def workers(osmosis: str, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(osmosis, folder, "script:p.toml")
        workspace.run(1, 64)
        found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        for _ in range(rounds):
            for count, runs in found.items():
                runs.append(slope(workspace, count, 1024))
    print(f"workers, scripted policy, medians of {rounds}, {load()}")
    rates = {}
    for count, runs in found.items():
        rates[count] = statistics.median(rate for rate, _ in runs)
        milliseconds = statistics.median(cpu for _, cpu in runs)
        print(f"  {count}: {rates[count]:7.0f} rollouts/s  {milliseconds:6.2f} ms CPU in all processes", flush=True)
    print(f"  two beside one: {rates[2] / rates[1]:.2f} x")


def reference(osmosis: str, python: str, rounds: int) -> None:
    program = str(BENCHES / "reference_loop.py")
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(mock_model())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        # The reference keeps files of every rollout in its working directory or home.
        home = {"HOME": folder, "OPENAI_API_KEY": "x"}
        bridge = stack.enter_context(process([python, program, "bridge", url, "key"], **home))
        address = bridge.stdout.readline().strip()  # type: ignore[union-attr]
        backend = stack.enter_context(process([python, program, "backend", address, "key"], **home))
        theirs = Loop(backend, bridge)
        ours = Workspace(osmosis, f"{folder}/ours", "m", OPENAI_BASE_URL=url, OPENAI_API_KEY="x")
        theirs.run(64, 64)
        theirs.runs.clear()
        ours.run(2, 64)
        found = []
        for _ in range(rounds):
            theirs.run(64, 512)
            found.append(slope(ours, 2, 1024))
        rate, milliseconds = theirs.median(64)
        our_rate = statistics.median(rate for rate, _ in found)
        our_cpu = statistics.median(cpu for _, cpu in found)
    print(f"reference ({REFERENCE}), OpenAI Agents, medians of {rounds}, {load()}")
    print(f"  LocalBackend and bridge  {rate:7.0f} rollouts/s  {milliseconds:6.2f} ms CPU")
    print(f"  osmosis eval submit      {our_rate:7.0f} rollouts/s  {our_cpu:6.2f} ms CPU")
    print(f"  {our_rate / rate:.2f} x rate, {milliseconds / our_cpu:.2f} x less CPU")


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
