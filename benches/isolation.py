"""What `[workers] isolation = "process"` costs beside `shared`, in the same run.

Run it with `cargo xtask bench isolation`. Three kinds of rollouts, each in both modes by turns, medians of 3:

- `bare`: a Python workflow and grader that do nothing, so that nothing is measured but the processes.
- `model`: one call to a scripted model that answers after 500 ms.
- `import`: `bare`, behind an import of half a second and 100 MB, which a fork inherits.

Rates are from the first start to the last result as the store saw them. Processor time is of the engine and
all its workers, start included.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile

from projects import ASK, ECHO
from tables import print_table

IMPORT = f"""
import time
BALLAST = [str(number) for number in range(1_500_000)]
time.sleep(0.2)
{ECHO}
"""

KINDS = {"bare": ECHO, "model": ASK, "import": IMPORT}
MODES = ("shared", "process")


class Bench:
    def __init__(self, osmosis: str, root: pathlib.Path) -> None:
        self.osmosis = osmosis
        self.root = root
        self.runs = 0

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def run(self, kind: str, mode: str, count: int, in_flight: int) -> tuple[float, float]:
        """Rollouts per second, and seconds of processor time per rollout."""
        self.runs += 1
        command = [
            self.osmosis, "eval", "submit", f"{kind}-{mode}.toml", "--name", f"run-{self.runs}",
            "--limit", str(count), "--max-in-flight", str(in_flight), "--workers", "2",
            "--python", sys.executable, "--json",
        ]  # fmt: skip
        before = children_seconds()
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{kind}, {mode}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        spent = children_seconds() - before
        report = json.loads(done.stdout)["resource"]
        assert report["outcomes"]["scored"] == count, report["outcomes"]
        with sqlite3.connect(f"{report['output_path']}/run.db") as database:
            query = "SELECT MIN(started_at_ms), MAX(finished_at_ms) FROM rollouts"
            first, last = database.execute(query).fetchone()
        return 1000 * count / (last - first), spent / count


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--count", type=int, default=400, help="rollouts of each run")
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    table = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(str(pathlib.Path(arguments.osmosis).resolve()), pathlib.Path(folder))
        rows = ({"user_prompt": f"say {i}", "ground_truth": str(i)} for i in range(arguments.count))
        bench.write("data/d.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        bench.write("p.toml", "[[reply]]\ntext = 'x'\ndelay_ms = 500\n")
        for kind, source in KINDS.items():
            bench.write(f"rollouts/{kind}/main.py", source)
            for mode in MODES:
                bench.write(
                    f"{kind}-{mode}.toml",
                    f'[experiment]\nrollout = "{kind}"\nentrypoint = "main.py"\ndataset = "d"\n'
                    f'model_path = "script:p.toml"\n[workers]\nisolation = "{mode}"\n',
                )
            found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
            for _ in range(arguments.rounds):
                for mode in MODES:
                    found[mode].append(bench.run(kind, mode, arguments.count, arguments.in_flight))
            rate = {mode: statistics.median(r for r, _ in found[mode]) for mode in MODES}
            cost = {mode: statistics.median(c for _, c in found[mode]) for mode in MODES}
            table.append([
                kind,
                *(f"{rate[mode]:.0f}" for mode in MODES),
                f"{rate['process'] / rate['shared']:.2f}",
                *(f"{1000 * cost[mode]:.1f}" for mode in MODES),
                f"{1000 * (cost['process'] - cost['shared']):.1f}",
            ])  # fmt: skip
    header = ["rollouts", *(f"{mode}, per second" for mode in MODES), "ratio"]
    header += [*(f"{mode}, ms of processor each" for mode in MODES), "difference, ms"]
    print_table(header, table)
    print(f"{arguments.count} rollouts, {arguments.in_flight} at once, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
