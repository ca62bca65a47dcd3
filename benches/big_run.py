"""What looking at a run of 100,000 rollouts costs: time and peak memory of what reads one.

Run it with `cargo xtask bench big_run`. It makes two runs of 25,000 rows times 4 (and two of a
tenth) by the store's own interface (`crates/osmosis-store-sqlite/examples/make_run.rs`), with two model
calls and their bodies each, then runs `eval info`, `compare`, `show`, `regrade` and `export` in all
its formats on them. Commands and formats that this binary does not have are left out. Memory is
flat when the two columns hold about the same.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PER_ROW = 4

MAIN = """
from osmosis_ai.rollout import AgentWorkflow, Grader

class Echo(AgentWorkflow):
    async def run(self, ctx):
        return [*ctx.prompt, {"role": "assistant", "content": "The answer is 0"}]

class Exact(Grader):
    async def grade(self, ctx):
        text = ctx.sample.messages[-1]["content"]
        ctx.set_reward(1.0 if text.split()[-1] == ctx.label else 0.0)
"""


class Bench:
    def __init__(self, osmosis: str, generator: str, root: pathlib.Path, rows: int) -> None:
        self.osmosis = osmosis
        self.root = root
        self.rows = rows
        self.write("rollouts/r/main.py", MAIN)
        self.write("policies/p.toml", "[[reply]]\ntext = 'x'\n")
        self.write(
            "configs/eval/c.toml",
            '[experiment]\nrollout = "r"\nentrypoint = "main.py"\ndataset = "d"\n'
            f'model_path = "script:policies/p.toml"\n[evaluation]\nn = {PER_ROW}\n',
        )
        lines = [
            json.dumps(
                {"user_prompt": f"What is {i} times {i + 3}?", "ground_truth": str(i * (i + 3))}
            )
            for i in range(rows)
        ]
        self.write("data/d.jsonl", "\n".join(lines) + "\n")
        # Its config and what it is pinned to become those of the large runs.
        self.must("eval", "submit", "configs/eval/c.toml", "--name", "template", "--limit", "1",
                  "--python", sys.executable)  # fmt: skip
        template = str(self.folder("template"))
        data = str(root / "data/d.jsonl")
        for name, seed, gain in (("first", "1", "0"), ("second", "2", "100")):
            subprocess.run(
                [generator, template, str(self.folder(name)), data, str(PER_ROW), seed, gain],
                check=True,
            )

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def folder(self, run: str) -> pathlib.Path:
        return self.root / ".osmosis/evals" / run

    def must(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.osmosis, *arguments], cwd=self.root, capture_output=True, text=True
        )
        if done.returncode != 0:
            sys.exit(f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def measure(self, *arguments: str) -> tuple[float, float]:
        """Seconds and peak megabytes of a command that must succeed."""
        out = self.root / "out.txt"
        with out.open("w") as file:
            began = time.perf_counter()
            child = subprocess.Popen(
                [self.osmosis, *arguments], cwd=self.root, stdout=file, stderr=subprocess.STDOUT
            )
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            sys.exit(f"{arguments}: exit {child.returncode}\n{out.read_text()[-2000:]}")
        return seconds, usage.ru_maxrss / 1024

    def commands(self) -> list[tuple[str, list[str]]]:
        found = [
            ("eval info", ["eval", "info", "first", "--json"]),
            ("eval show", ["eval", "show", "first", str(self.rows // 2), "--json"]),
        ]
        if self.has("eval", "compare"):
            found.append(("eval compare", ["eval", "compare", "first", "second", "--json"]))
        help_text = self.must("export", "--help")
        for format_name in ("jsonl", "parquet", "messages", "sft", "atif", "inspect"):
            if format_name in help_text:
                target = f"exported.{format_name}"
                command = ["export", "first", "--format", format_name, "-o", target]
                found.append((f"export {format_name}", command))
        if self.has("eval", "regrade"):
            command = ["eval", "regrade", "first"]
            if "--python" in self.must("eval", "regrade", "--help"):
                command += ["--python", sys.executable]
            found.append(("eval regrade", command))
        return found

    def has(self, *command: str) -> bool:
        asked = subprocess.run([self.osmosis, *command, "--help"], capture_output=True)
        return asked.returncode == 0

    def remove_exports(self) -> None:
        for path in self.root.glob("exported.*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def built_generator() -> str:
    """The program that makes runs, built for release."""
    build = ["cargo", "build", "--release", "-p", "osmosis-store-sqlite", "--example", "make_run"]
    subprocess.run(build, cwd=ROOT, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return str(target / "release/examples/make_run")


def check_comparison(bench: Bench) -> None:
    """The planted improvement of the second run must be found, or the times mean nothing."""
    others = json.loads(bench.must("eval", "compare", "first", "second", "--json"))["data"][
        "others"
    ]
    found = others[0]
    assert found["verdict"] == "better", found["summary"]
    print(f"  compare says: {found['summary']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--make-run", help="the built example, otherwise it is built for release")
    arguments = parser.parse_args()
    generator = arguments.make_run or built_generator()
    osmosis = str(pathlib.Path(arguments.osmosis).resolve())
    results: dict[str, list[tuple[float, float]]] = {}
    for rollouts in (arguments.rollouts // 10, arguments.rollouts):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            bench = Bench(osmosis, generator, pathlib.Path(folder), rollouts // PER_ROW)
            size = sum(f.stat().st_size for f in bench.folder("first").rglob("*") if f.is_file())
            print(
                f"{rollouts:,} rollouts ({rollouts // PER_ROW:,} rows × {PER_ROW}), "
                f"{size / 1e6:.0f} MB, two runs made in {time.perf_counter() - began:.1f} s"
            )
            if bench.has("eval", "compare"):
                check_comparison(bench)
            for name, command in bench.commands():
                results.setdefault(name, []).append(bench.measure(*command))
                bench.remove_exports()
    small, large = arguments.rollouts // 10, arguments.rollouts
    print(f"{'':<18}{small:>9,} rollouts{large:>20,} rollouts")
    for name, ((few_s, few_mb), (many_s, many_mb)) in results.items():
        print(f"  {name:<16}{few_s:8.2f} s {few_mb:6.0f} MB {many_s:14.2f} s {many_mb:6.0f} MB")


if __name__ == "__main__":
    main()
