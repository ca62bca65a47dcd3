"""What does a policy gain when rollouts don't wait for updates, nor updates for the slowest rollout?

Run it with `cargo xtask bench async_training --markdown` (`-- --seeds 5` for five seeds, `-- --quick` for a look). The
task and its settings are those of `examples/calculator`, with tools of scripted latency: `--usual` seconds, and for a
share (`--tail`) of the rollouts `--slow` seconds. Held-out rows are answered at once, so that the time of evaluations
is not what is compared. Each seed trains six times, in turn:

- with the tail and without one, because how much waiting costs is a matter of the tail that was chosen;
- synchronously (`max_staleness = 0`), asynchronously (`max_staleness = --staleness`), and asynchronously with equal
  data per step (`flat_groups = "keep"`): by default, asynchronous training replaces groups whose rewards are all equal,
  which synchronous training does not.

Two questions are apart: how soon the target is reached by the clock, and what a rollout teaches. For the second,
held-out rewards are compared at equal numbers of rollouts: the mean of the curve up to the most that all three have.
The difference of each seed is taken, and is within noise when the 95% interval of its mean (Student's, so three seeds say
little) contains 0. `--tune` adds rows of asynchronous training with other settings, without a tail.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import pathlib
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from typing import Any

from tables import print_table

HERE = pathlib.Path(__file__).parent
CALCULATOR = HERE.parent / "examples" / "calculator"
# Half of a 95% interval of a mean of so many differences, in standard errors.
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}


@dataclass(frozen=True)
class Mode:
    """A way of training: what it adds to `[training]`."""

    name: str
    settings: tuple[tuple[str, Any], ...]


@dataclass
class Run:
    """What a training came to. Points of the curve are (seconds, rollouts, held-out reward)."""

    curve: list[tuple[float, float, float]]
    seconds: float
    staleness: float
    learner_waited: float

    def reached(self, target: float) -> tuple[float, float] | None:
        """Seconds and rollouts when the held-out reward first reached the target."""
        for seconds, rollouts, reward in self.curve[1:]:
            if reward >= target:
                return seconds, rollouts
        return None

    def rollouts(self) -> float:
        return self.curve[-1][1]

    def last(self) -> float:
        return statistics.fmean(reward for _, _, reward in self.curve[-2:])

    def mean_until(self, budget: float) -> float:
        """The mean of the curve over the rollouts up to `budget`, with straight lines between its points."""
        area = 0.0
        for (_, begin, low), (_, end, high) in itertools.pairwise(self.curve):
            if begin >= budget or end <= begin:
                continue
            share = min(1.0, (budget - begin) / (end - begin))
            at_end = low + (high - low) * share
            area += (low + at_end) / 2 * share * (end - begin)
        return area / budget


def toml_value(value: Any) -> str:
    # JSON has the same texts, numbers, booleans and lists, as far as a config here goes.
    return json.dumps(value)


def make_workspace(folder: pathlib.Path, example: dict[str, Any], tail: float, chosen: argparse.Namespace) -> None:
    rollout = folder / "rollouts" / example["experiment"]["rollout"]
    shutil.copytree(CALCULATOR / "rollouts" / example["experiment"]["rollout"], rollout)
    (rollout / "main.py").rename(rollout / "calculator_example.py")
    shutil.copy(HERE / "long_tail" / "main.py", rollout)
    (folder / "data").mkdir()
    (folder / "configs" / "training").mkdir(parents=True)
    latencies = {"usual": chosen.usual, "slow": chosen.slow, "tail": tail}
    for name, added in [(example["experiment"]["dataset"], latencies), (example["training"]["eval_dataset"], {})]:
        rows = (CALCULATOR / "data" / f"{name}.jsonl").read_text().splitlines()
        with (folder / "data" / f"{name}.jsonl").open("w") as file:
            for line in rows[: None if added else chosen.held_out]:
                row = json.loads(line)
                row["metadata"] = {**(row.get("metadata") or {}), **added}
                file.write(json.dumps(row) + "\n")


def train(folder: pathlib.Path, example: dict[str, Any], mode: Mode, seed: int, chosen: argparse.Namespace) -> Run:
    name = f"{mode.name}-{seed}".replace(" ", "-").replace(",", "")
    config = json.loads(json.dumps(example))
    config["training"] |= {"seed": seed, "steps": chosen.steps, **dict(mode.settings)}
    config["checkpoints"] = {"eval_interval": chosen.interval, "checkpoint_save_freq": chosen.steps}
    path = folder / "configs" / "training" / f"{name}.toml"
    with path.open("w") as file:
        for section, keys in config.items():
            file.write(f"[{section}]\n")
            file.writelines(f"{key} = {toml_value(value)}\n" for key, value in keys.items())
    command = [chosen.osmosis, "train", "submit", str(path), "--name", name, "--json", "--python", sys.executable]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    with sqlite3.connect(folder / ".osmosis" / "training" / name / "run.db") as database:
        steps = database.execute("SELECT finished_at_ms, metrics FROM steps ORDER BY step").fetchall()
    # From the evaluation before training on: what comes before it is the same for all.
    began = steps[0][0]
    points = [((at - began) / 1000, json.loads(metrics)) for at, metrics in steps]
    curve = []
    rollouts = 0
    for at, metrics in points:
        # Everything that ended, trained on or not. `stale` ones are among the scored.
        counts = [key for key in metrics if key.startswith("rollouts/") and key != "rollouts/stale"]
        rollouts += sum(metrics[key] or 0 for key in counts) if metrics["step"] else 0
        if metrics.get("eval/reward_mean") is not None:
            curve.append((at, rollouts, metrics["eval/reward_mean"]))
    trained = [metrics for _, metrics in points[1:]]

    def mean(*names: str) -> float:
        return statistics.fmean(sum(metrics.get(name) or 0.0 for name in names) for metrics in trained)

    asynchronous = any("time/wait_rollouts" in metrics for metrics in trained)
    return Run(
        curve=curve,
        seconds=points[-1][0],
        staleness=mean("staleness/mean"),
        learner_waited=mean("time/wait_rollouts") if asynchronous else mean("time/rollout", "time/grade"),
    )


def with_error(values: list[float], sign: bool = False) -> str:
    """Mean and standard error."""
    mean = f"{statistics.fmean(values):{'+' if sign else ''}.3f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}"


def within_noise(differences: list[float]) -> str:
    if len(differences) < 2:
        return "one seed says nothing"
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    mean = statistics.fmean(differences)
    if abs(mean) <= STUDENT.get(len(differences), 2.0) * error:
        return "yes"
    return "no: better" if mean > 0 else "no: **worse**"


def median_or_never(values: list[float | None], unit: str = "") -> str:
    reached = sorted(value for value in values if value is not None)
    never = len(values) - len(reached)
    if never * 2 >= len(values):
        return f"never ({never} of {len(values)})"
    # Who never gets there comes last.
    return f"{statistics.median(reached + [math.inf] * never):,.0f}{unit}"


def report(title: str, modes: list[Mode], runs: dict[Mode, list[Run]], chosen: argparse.Namespace) -> None:
    print(f"### {title}")
    seeds = len(next(iter(runs.values())))
    budgets = [min(runs[mode][seed].rollouts() for mode in modes) for seed in range(seeds)]
    first = runs[modes[0]]
    rows = []
    for mode in modes:
        mine = runs[mode]
        to_target = [run.reached(chosen.target) for run in mine]
        per_sample = [run.mean_until(budget) for run, budget in zip(mine, budgets)]
        differences = [mean - base.mean_until(budget) for mean, base, budget in zip(per_sample, first, budgets)]
        is_first = mode is modes[0]
        rows.append(
            [
                mode.name,
                median_or_never([point[0] if point else None for point in to_target], " s"),
                median_or_never([point[1] if point else None for point in to_target]),
                f"{statistics.median(run.seconds for run in mine):.0f} s",
                f"{statistics.median(base.seconds / run.seconds for base, run in zip(first, mine)):.2f}",
                f"{statistics.median(run.rollouts() for run in mine):,.0f}",
                with_error([run.last() for run in mine]),
                with_error(per_sample),
                "" if is_first else with_error(differences, sign=True),
                "" if is_first else within_noise(differences),
                f"{statistics.median(run.staleness for run in mine):.2f}",
                f"{statistics.median(run.learner_waited for run in mine):.2f} s",
            ]
        )
    header = ["training", f"time to {chosen.target}", f"rollouts to {chosen.target}", f"time of {chosen.steps} steps"]
    header += ["times as fast", "rollouts", "last reward", "reward at equal rollouts", "− synchronous"]
    print_table([*header, "within noise", "versions old", "learner waited per step"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--seeds", type=int, default=3, help="how many: 1, 2, 3, …")
    parser.add_argument("--quick", action="store_true", help="two seeds of 10 steps, for a look at the program")
    parser.add_argument("--only", choices=["tail", "no tail"])
    parser.add_argument("--tune", action="store_true", help="also other settings of asynchronous training, without a tail")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--interval", type=int, default=5, help="steps between evaluations")
    parser.add_argument("--held-out", type=int, default=128)
    parser.add_argument("--usual", type=float, default=0.2, help="seconds that most tool calls take")
    parser.add_argument("--slow", type=float, default=4.0, help="seconds that the others take")
    parser.add_argument("--tail", type=float, default=0.03, help="the share of the others")
    parser.add_argument("--curves", action="store_true", help="also print every held-out point")
    parser.add_argument("--markdown", action="store_true", help="the tables are markdown in any case")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.seeds, chosen.steps = min(chosen.seeds, 2), min(chosen.steps, 10)

    example = tomllib.loads((CALCULATOR / "configs" / "training" / "calculator.toml").read_text())
    stale = ("max_staleness", chosen.staleness)
    modes = [
        Mode("synchronous", (("max_staleness", 0),)),
        Mode("asynchronous", (stale,)),
        Mode("asynchronous, equal data per step", (stale, ("flat_groups", "keep"))),
    ]
    variants = [
        Mode("asynchronous, decoupled", (stale, ("objective", "decoupled"))),
        Mode("asynchronous, decoupled, equal data", (stale, ("objective", "decoupled"), ("flat_groups", "keep"))),
        Mode("asynchronous, 1 version", (("max_staleness", 1),)),
        Mode("asynchronous, 1 version, decoupled", (("max_staleness", 1), ("objective", "decoupled"))),
    ]
    lr = example["training"]["lr"]
    print(f"{chosen.seeds} seeds, {chosen.steps} steps, lr {lr}, load before: {os.getloadavg()[0]:.1f}\n")
    cases = [("tail", chosen.tail), ("no tail", 0.0)]
    for case, tail in cases:
        if chosen.only not in (None, case):
            continue
        wanted = modes + (variants if chosen.tune and case == "no tail" else [])
        runs: dict[Mode, list[Run]] = {mode: [] for mode in wanted}
        with tempfile.TemporaryDirectory(prefix="osmosis-async-") as folder:
            make_workspace(pathlib.Path(folder), example, tail, chosen)
            for seed in range(1, chosen.seeds + 1):
                # In both orders, so that a machine that becomes slower or faster favours none.
                for mode in wanted if seed % 2 else wanted[::-1]:
                    run = train(pathlib.Path(folder), example, mode, seed, chosen)
                    runs[mode].append(run)
                    print(f"  seed {seed}, {case}, {mode.name}: {run.seconds:.0f} s, last {run.last():.3f}", file=sys.stderr)
                    if chosen.curves:
                        print("   ", *(f"{at:.0f}s:{n}:{reward:.2f}" for at, n, reward in run.curve), file=sys.stderr)
        slow = f"{chosen.slow:g} s for {chosen.tail:.0%} of the rollouts" if tail else "no tail"
        report(f"Tools take {chosen.usual:g} s, {slow}", wanted, runs, chosen)
    print(f"Load after: {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
