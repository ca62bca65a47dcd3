"""Claims, completions and calls per second of the store in PostgreSQL beside the one in SQLite.

Run it with `cargo xtask bench stores` (`-- --rollouts 500 --rounds 3` for less). Both stores take turns in one process
(`crates/osmosis-store-postgres/examples/store_rates.rs`), which starts a PostgreSQL of its own with fsync; medians of the
rounds. Claims are of 8 rollouts each, one after the other; 64 completions and 64 rollouts with 6 calls each are under way at
once. The last table is the room that the bodies of 1,200 calls take, stored in five ways.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import subprocess
from collections import defaultdict

from tables import print_table

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHAT = ["claims/s", "completions/s", "calls/s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--osmosis", help="ignored: the example is built by cargo")
    parser.add_argument("--markdown", action="store_true", help="what it prints is markdown in any case")
    parser.add_argument("--rollouts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    command = ["cargo", "run", "--profile", "dist", "--quiet", "-p", "osmosis-store-postgres", "--example", "store_rates"]
    command += ["--", str(arguments.rollouts), str(arguments.rounds)]
    printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    report(printed, arguments.rounds)


def report(printed: str, rounds: int) -> None:
    rates: dict[str, list[list[float]]] = defaultdict(list)
    room: list[tuple[str, int]] = []
    for line in printed.splitlines():
        name, *values = line.split()
        if name == "room":
            room.append((values[0], int(values[1])))
        else:
            rates[name].append([float(value) for value in values])
    medians = {name: [statistics.median(column) for column in zip(*found, strict=True)] for name, found in rates.items()}
    rows = []
    for n, what in enumerate(WHAT):
        postgres, sqlite = medians["postgres"][n], medians["sqlite"][n]
        rows.append([what, f"{postgres:,.0f}", f"{sqlite:,.0f}", f"{postgres / sqlite:.2f}"])
    print_table([f"median of {rounds} rounds", "PostgreSQL", "SQLite", "ratio"], rows)
    whole = dict(room)["whole"]
    print_table(["bodies of calls", "bytes", "of whole"], [[name, f"{n:,}", f"{n / whole:.3f}"] for name, n in room])


if __name__ == "__main__":
    main()
