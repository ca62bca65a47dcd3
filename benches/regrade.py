"""How long grading a recorded run again takes, and whether one build is faster than another.

    cargo xtask bench regrade -- --binary OLD
    python benches/regrade.py --binary OLD --binary NEW --rollouts 100000 --rounds 3

It makes one run of many rollouts by the store's own interface (as `big_run` does) and grades it again with each binary
in turn, every second round in the opposite order, so that whatever else the machine does disturbs them alike. The
grader is one line of Python. Each regrade must give the same grades. Beside the wall time stands the processor time of
the engine and its workers, which other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import big_run
from tables import print_table


@dataclass(frozen=True)
class Measured:
    """One regrade."""

    wall: float
    processor: float
    peak_mb: float
    # Outcomes and pass rate.
    grades: tuple[str, float]


def regrade(bench: big_run.Bench, binary: str, name: str, options: list[str]) -> Measured:
    """Grades the run `first` again, and removes the new run."""
    command = [binary, "eval", "regrade", "first", "--name", name, "--json", "--progress", "none"]
    out = bench.root / "out.txt"
    with out.open("w") as file:
        began = time.perf_counter()
        child = subprocess.Popen(
            [*command, *options, "--python", sys.executable], cwd=bench.root, stdout=file
        )
        # With the descendants that were waited for: the guard waits for the workers, we for the guard.
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{command}: exit {child.returncode}\n{out.read_text()[-2000:]}")
    report = json.loads(out.read_text())["resource"]
    grades = (json.dumps(report["outcomes"]), report["pass_rate"])
    shutil.rmtree(bench.folder(name))
    return Measured(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, grades)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--osmosis", help="measured after those of --binary")
    parser.add_argument("--binary", action="append", default=[], help="measured in turn; the first is the baseline")
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--max-in-flight", type=int, action="append", default=[])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--make-run", help="the built example, otherwise it is built for release")
    parser.add_argument("--markdown", action="store_true", help="ignored: tables are markdown")
    arguments = parser.parse_args()
    given = [*arguments.binary, *([arguments.osmosis] if arguments.osmosis else [])]
    binaries = [str(pathlib.Path(binary).resolve()) for binary in given]
    if not binaries:
        parser.error("name a program with --osmosis or --binary")
    variants = [
        (binary, in_flight)
        for in_flight in (arguments.max_in_flight or [None])
        for binary in binaries
    ]
    results: dict[tuple[str, int | None], list[Measured]] = {variant: [] for variant in variants}
    with tempfile.TemporaryDirectory() as folder:
        generator = arguments.make_run or big_run.built_generator()
        rows = arguments.rollouts // big_run.PER_ROW
        bench = big_run.Bench(binaries[0], generator, pathlib.Path(folder), rows)
        for round_number in range(arguments.rounds):
            ordered = variants if round_number % 2 == 0 else variants[::-1]
            for binary, in_flight in ordered:
                options = ["--workers", str(arguments.workers)]
                if in_flight is not None:
                    options += ["--max-in-flight", str(in_flight)]
                results[binary, in_flight].append(regrade(bench, binary, "again", options))
    baseline = results[variants[0]]
    if len({one.grades for measured in results.values() for one in measured}) != 1:
        sys.exit(f"the builds give different grades: {results}")
    header = ["program", "in flight", "wall", "rollouts/s", "processor time", "peak memory", "times as fast"]
    print(f"\n{arguments.rollouts:,} rollouts, {arguments.workers} workers, medians of {arguments.rounds}")
    print_table(header, [row(variant, results[variant], baseline, arguments.rollouts) for variant in variants])


def row(
    variant: tuple[str, int | None], measured: list[Measured], baseline: list[Measured], rollouts: int
) -> list[str]:
    """One line of the table."""
    binary, in_flight = variant
    wall = statistics.median(one.wall for one in measured)
    before = statistics.median(one.wall for one in baseline)
    processor = statistics.median(one.processor for one in measured)
    peak = max(one.peak_mb for one in measured)
    return [
        pathlib.Path(binary).name,
        "default" if in_flight is None else str(in_flight),
        f"{wall:.1f} s",
        f"{rollouts / wall:,.0f}",
        f"{processor:.1f} s, {processor / rollouts * 1e6:.0f} µs each",
        f"{peak:.0f} MB",
        f"{before / wall:.1f}",
    ]


if __name__ == "__main__":
    main()
