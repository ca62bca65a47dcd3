"""How fast rollouts go that never call a model, and what many of them cost.

Run it with `cargo xtask bench throughput`. It builds a Rust rollout and the bare-store program first.

- Bare store: claim and complete, nothing between (`crates/osmosis-store-sqlite/examples/store_rate.rs`).
- Rust and Python workflow and grader without model calls, 2 workers, as a share of the bare store.
- From a claim to user code in a warm worker; a further worker by fork.
- 10,000 rollouts waiting on a slow model at once: memory and CPU of the engine.
- 100,000 rollouts in one run: memory along the way, time of `eval info` and of the report.

Rates are from the first start to the last result as the store saw them; medians of 3 where short.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime

from projects import ASK, ECHO

ROOT = pathlib.Path(__file__).resolve().parent.parent

RUST = """
use osmosis_sdk::{AgentWorkflow, Grader, GraderContext, Result, WorkflowContext, WorkflowOutput};

struct Echo;

impl AgentWorkflow for Echo {
    type Config = ();

    async fn run(&self, ctx: &WorkflowContext) -> Result<WorkflowOutput> {
        let said = ctx.user_prompt().unwrap_or_default()[4..].to_owned();
        let mut messages = ctx.prompt().to_vec();
        messages.push(serde_json::json!({"role": "assistant", "content": said}));
        Ok(messages.into())
    }
}

struct Exact;

impl Grader for Exact {
    type Config = ();

    async fn grade(&self, ctx: &GraderContext) -> Result<()> {
        let answer = ctx.sample()?.final_text().unwrap_or_default();
        ctx.set_reward(Some(answer.as_str()) == ctx.label())?;
        Ok(())
    }
}

fn main() {
    osmosis_sdk::run_worker(Echo, Exact)
}
"""


class Bench:
    def __init__(self, osmosis: str, root: pathlib.Path) -> None:
        self.osmosis = osmosis
        self.root = root
        self.environment = dict(os.environ)
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.runs = 0

    def rollout(self, name: str, entrypoint: str, files: dict[str, str]) -> None:
        for path, text in files.items():
            target = self.root / "rollouts" / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        self.write(
            f"{name}.toml",
            f'[experiment]\nrollout = "{name}"\nentrypoint = "{entrypoint}"\n'
            f'dataset = "d"\nmodel_path = "script:p.toml"\n',
        )

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def command(self, name: str, limit: int, in_flight: int, workers: int) -> list[str]:
        self.runs += 1
        return [
            self.osmosis, "eval", "submit", f"{name}.toml", "--name", f"run-{self.runs}",
            "--limit", str(limit), "--max-in-flight", str(in_flight), "--workers", str(workers),
            "--python", sys.executable, "--json",
        ]  # fmt: skip

    def submit(self, name: str, limit: int, in_flight: int = 128, workers: int = 2) -> dict:
        done = subprocess.run(
            self.command(name, limit, in_flight, workers),
            cwd=self.root, env=self.environment, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"{name}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return json.loads(done.stdout)["resource"]

    def rate(self, name: str, count: int) -> float:
        """Rollouts per second, from the first start to the last result."""
        path = self.submit(name, count)["output_path"]
        with sqlite3.connect(f"{path}/run.db") as database:
            query = "SELECT MIN(started_at_ms), MAX(finished_at_ms) FROM rollouts"
            first, last = database.execute(query).fetchone()
        return 1000 * count / (last - first)


def memory_mb(pid: int) -> float:
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bare_store(root: pathlib.Path, count: int) -> float:
    program = ["cargo", "run", "--quiet", "--profile", "dist", "-p", "osmosis-store-sqlite", "--example", "store_rate"]
    with tempfile.TemporaryDirectory(dir=root) as folder:
        command = [*program, "--", folder, str(count)]
        return float(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def rates(bench: Bench, count: int) -> None:
    bare, rust, python = [], [], []
    for _ in range(3):
        bare.append(bare_store(bench.root, count))
        rust.append(bench.rate("rust", count))
        python.append(bench.rate("python", count))
    ceiling = statistics.median(bare)
    print(f"bare store                     {ceiling:8.0f} rollouts/s")
    for name, found in (("rust", rust), ("python", python)):
        rate = statistics.median(found)
        print(f"{name:<7} workflow and grader    {rate:8.0f} rollouts/s   {rate / ceiling:5.2f} of the store")


def warm_start(bench: Bench, count: int) -> None:
    """From the claim of a rollout to its first line of user code, with nothing else to do."""
    queue = bench.submit("python", count, in_flight=1, workers=1)["durations"]["queue_ms"]
    print(f"claim to user code, warm       {queue['p50']:8.2f} ms   (p90 {queue['p90']:.2f} ms)")
    path = pathlib.Path(bench.submit("python", 64, in_flight=64, workers=8)["output_path"])
    started = [
        datetime.fromisoformat(line.split()[0].replace("Z", "+00:00"))
        for line in (path / "logs.txt").read_text().splitlines()
        if "| started as" in line
    ]
    each = 1000 * (started[-1] - started[0]).total_seconds() / (len(started) - 1)
    print(f"a further worker by fork       {each:8.1f} ms   ({len(started)} processes)")


def waiting(bench: Bench, count: int) -> None:
    # Long enough that all of them wait together for a while.
    bench.write("p.toml", "[[reply]]\ntext = 'x'\ndelay_ms = 60000\n")
    process = subprocess.Popen(
        bench.command("waiting", count, count, 2),
        cwd=bench.root, env=bench.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    log = bench.root / f".osmosis/evals/run-{bench.runs}/run.db"
    while not log.exists() or leased(log) < count:
        if process.poll() is not None:
            sys.exit("the run with waiting rollouts ended early")
        time.sleep(0.5)
    time.sleep(15)
    before = cpu_seconds(process.pid)
    time.sleep(10)
    share = 100 * (cpu_seconds(process.pid) - before) / 10
    print(f"{count} waiting at once           {memory_mb(process.pid):8.0f} MB   {share:.1f}% of a core")
    output, _ = process.communicate()
    scored = json.loads(output)["resource"]["outcomes"]["scored"]
    print(f"  of them scored afterwards    {scored:8}")


def leased(database: pathlib.Path) -> int:
    try:
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
            query = "SELECT COUNT(*) FROM rollouts WHERE state = 'leased'"
            return connection.execute(query).fetchone()[0]
    except sqlite3.Error:
        return 0


def many(bench: Bench, count: int) -> None:
    process = subprocess.Popen(
        bench.command("python", count, 128, 2),
        cwd=bench.root, env=bench.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    seen = []
    while process.poll() is None:
        seen.append(memory_mb(process.pid))
        time.sleep(0.5)
    output, _ = process.communicate()
    resource = json.loads(output)["resource"]
    assert resource["outcomes"]["scored"] == count, resource
    quarter = seen[len(seen) // 4]
    print(f"{count} in one run             {max(seen):8.0f} MB at most, {quarter:.0f} MB at a quarter")
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run(
            [bench.osmosis, "eval", "info", resource["run_name"], "--json"],
            cwd=bench.root, capture_output=True, check=True,
        )  # fmt: skip
        times.append(time.perf_counter() - began)
    print(f"  eval info                    {1000 * statistics.median(times):8.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--short", action="store_true", help="a tenth of everything")
    parser.add_argument("--only", choices=["rates", "warm", "waiting", "many"])
    arguments = parser.parse_args()
    scale = 10 if arguments.short else 1
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(str(pathlib.Path(arguments.osmosis).resolve()), pathlib.Path(folder))
        rows = [{"user_prompt": f"say {i}", "ground_truth": str(i)} for i in range(100_000)]
        bench.write("data/d.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        bench.write("p.toml", "[[reply]]\ntext = 'x'\n")
        bench.rollout("python", "main.py", {"main.py": ECHO})
        bench.rollout("waiting", "main.py", {"main.py": ASK})
        cargo = (
            '[package]\nname = "echo"\nversion = "0.1.0"\nedition = "2024"\n[dependencies]\n'
            f'osmosis-sdk = {{ path = "{ROOT}/crates/osmosis-sdk" }}\nserde_json = "1"\n[workspace]\n'
        )
        bench.rollout("rust", "Cargo.toml", {"Cargo.toml": cargo, "src/main.rs": RUST})
        if arguments.only in (None, "rates"):
            rates(bench, 20_000 // scale)
        if arguments.only in (None, "warm"):
            warm_start(bench, 1_000 // scale)
        if arguments.only in (None, "waiting"):
            waiting(bench, 10_000 // scale)
        if arguments.only in (None, "many"):
            many(bench, 100_000 // scale)


if __name__ == "__main__":
    main()
