"""Does the demo learn, whatever the seed, and how long does it take?

Run it with `cargo xtask bench demo` (`-- --seeds 1,2` for some of them). Each run is `osmosis demo --json` with
one seed: evaluate `builtin/tiny` on the held-out rows, train it by GRPO, evaluate it again. The goals of the
project: at most 0.3 before, at least 0.8 after, sampled and greedy, under 240 seconds, for each of the five seeds.
On a machine that does other things too, the processor time beside the seconds says how long two cores of its own
would have taken at least.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys

from tables import print_table

SEEDS = [1, 2, 3, 4, 5]


def processor_seconds() -> float:
    """Of all processes that have ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def mean(run: dict, side: str, decoding: str) -> float:
    """Of the rewards on held-out rows."""
    return run[side][decoding]["mean"]


def unseen(run: dict, decoding: str) -> float:
    """The same after training, on the rows whose phrasing was never trained on."""
    return run["after"]["unseen_phrasings"][decoding]["mean"]


def failed(run: dict) -> int:
    """Held-out rollouts without a reward, before and after."""
    return sum(run[side][decoding]["failed"] for side in ("before", "after") for decoding in ("sampled", "greedy"))


def reached(run: dict) -> bool:
    low = all(mean(run, "before", decoding) <= 0.3 for decoding in ("sampled", "greedy"))
    high = all(mean(run, "after", decoding) >= 0.8 for decoding in ("sampled", "greedy"))
    return low and high and run["seconds"] <= 240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    arguments = parser.parse_args()

    runs, rows = [], []
    for seed in map(int, arguments.seeds.split(",")):
        command = [arguments.osmosis, "demo", "--json", "--seed", str(seed), "--python", sys.executable]
        before = processor_seconds()
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        run = json.loads(done.stdout)["resource"]
        runs.append(run)
        row = [str(seed)]
        row += [f"{mean(run, 'before', way):.3f} → {mean(run, 'after', way):.3f}" for way in ("sampled", "greedy")]
        row += [f"{unseen(run, way):.3f}" for way in ("sampled", "greedy")]
        row += [str(failed(run)), f"{run['seconds']:.1f}", f"{processor_seconds() - before:.0f}"]
        rows.append([*row, f"{os.getloadavg()[1]:.1f}"])
        print(f"seed {seed}: {', '.join(rows[-1][1:])}", file=sys.stderr, flush=True)
    head = ["seed", "sampled", "greedy", "unseen phrasings after, sampled", "greedy", "failed", "seconds", "CPU s", "load"]
    print_table(head, rows)

    print(f"\nmedian seconds: {statistics.median(run['seconds'] for run in runs):.1f}")
    missed = [run for run in runs if not reached(run)]
    print("every seed reached the goals" if not missed else f"{len(missed)} of {len(runs)} missed a goal")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
