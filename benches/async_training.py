"""How much sooner does a policy learn when rollouts don't wait for updates, nor updates for the slowest rollout?

Run it with `cargo xtask bench async_training` (`-- --seeds 1,2` for some seeds). The task is the calculator of the
demo with a tool of scripted latency: most rollouts take `--usual` seconds, a few (`--tail`) take `--slow`. For each
seed it trains twice, with `max_staleness = 0` and with `max_staleness = --staleness`, one after the other in turn, and
takes from `run.db` when the held-out reward first reached `--target`, and the last held-out reward. Held-out rows are
answered at once in both, so that the time of evaluations is not what is compared. Goals: 1.5 times sooner, and the
same reward in the end within noise.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).parent
CALCULATOR = HERE.parent / "examples" / "calculator"

CONFIG = """
[experiment]
rollout = "calculator"
entrypoint = "main.py"
dataset = "train"
model_path = "builtin/tiny"

[training]
lr = 3e-4
n_samples_per_prompt = 8
rollout_batch_size = 16
updates_per_batch = {updates}
steps = {steps}
seed = {seed}
eval_dataset = "held_out"
max_prompt_length = 512
max_response_length = 256
max_staleness = {staleness}
{extra}

[checkpoints]
eval_interval = {interval}
checkpoint_save_freq = {steps}
"""


def make_workspace(folder: pathlib.Path, arguments: argparse.Namespace) -> None:
    rollout = folder / "rollouts" / "calculator"
    rollout.mkdir(parents=True)
    shutil.copy(HERE / "long_tail" / "main.py", rollout)
    shutil.copy(CALCULATOR / "rollouts" / "calculator" / "pyproject.toml", rollout)
    (folder / "data").mkdir()
    (folder / "configs" / "training").mkdir(parents=True)
    latencies = {"usual": arguments.usual, "slow": arguments.slow, "tail": arguments.tail}
    for name, metadata in [("train", latencies), ("held_out", {})]:
        rows = (CALCULATOR / "data" / f"{name}.jsonl").read_text().splitlines()
        if name == "held_out":
            rows = rows[: arguments.held_out]
        with (folder / "data" / f"{name}.jsonl").open("w") as file:
            for row in rows:
                file.write(json.dumps({**json.loads(row), "metadata": metadata}) + "\n")


def train(folder: pathlib.Path, arguments: argparse.Namespace, seed: int, staleness: int) -> dict[str, Any]:
    name = f"seed-{seed}-staleness-{staleness}"
    config = folder / "configs" / "training" / f"{name}.toml"
    config.write_text(
        CONFIG.format(
            steps=arguments.steps,
            seed=seed,
            staleness=staleness,
            interval=arguments.interval,
            updates=arguments.updates,
            extra=arguments.extra.replace(";", "\n") if staleness else "",
        )
    )
    command = [arguments.osmosis, "train", "submit", str(config), "--name", name, "--json", "--python", sys.executable]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    run = folder / ".osmosis" / "training" / name
    with sqlite3.connect(run / "run.db") as database:
        steps = database.execute("SELECT finished_at_ms, metrics FROM steps ORDER BY step").fetchall()
    # From the evaluation before training on: what comes before it is the same for both.
    began = steps[0][0]
    points = [(at - began, json.loads(metrics)) for at, metrics in steps]
    held_out = [(at / 1000, m["eval/reward_mean"]) for at, m in points if m.get("eval/reward_mean") is not None]
    reached = [at for at, reward in held_out[1:] if reward >= arguments.target]
    trained = [metrics for _, metrics in points[1:]]

    def mean(name: str) -> float:
        return statistics.fmean(metrics.get(name) or 0.0 for metrics in trained)

    return {
        "seconds_to_target": reached[0] if reached else None,
        "seconds": points[-1][0] / 1000,
        "curve": held_out,
        "last": statistics.fmean(reward for _, reward in held_out[-2:]),
        "staleness": mean("staleness/mean"),
        "wait_rollouts": mean("time/wait_rollouts") if staleness else mean("time/rollout") + mean("time/grade"),
        "wait_update": mean("time/wait_update") if staleness else mean("time/update") + mean("time/swap"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--target", type=float, default=0.7)
    parser.add_argument("--interval", type=int, default=3, help="steps between evaluations")
    parser.add_argument("--held-out", type=int, default=128)
    parser.add_argument("--updates", type=int, default=2, help="updates_per_batch")
    parser.add_argument("--usual", type=float, default=0.2, help="seconds that most tool calls take")
    parser.add_argument("--slow", type=float, default=4.0, help="seconds that the others take")
    parser.add_argument("--tail", type=float, default=0.03, help="the share of the others")
    parser.add_argument("--extra", default="", help="further lines for [training] of the asynchronous runs, by `;`")
    parser.add_argument("--curves", action="store_true", help="also print every held-out point")
    arguments = parser.parse_args()

    ratios = []
    differences = []
    header = f"{'seed':>4} {'mode':>6} {'to target':>10} {'all steps':>10} {'last':>6} {'staleness':>10}"
    print(f"{header} {'wait for rollouts':>18} {'for update':>11} {'load':>5}")
    with tempfile.TemporaryDirectory(prefix="osmosis-async-") as folder:
        workspace = pathlib.Path(folder)
        make_workspace(workspace, arguments)
        for turn, seed in enumerate(map(int, arguments.seeds.split(","))):
            found = {}
            # In turn, so that a machine that becomes slower or faster favours neither.
            modes = [0, arguments.staleness] if turn % 2 == 0 else [arguments.staleness, 0]
            for staleness in modes:
                run = found[staleness] = train(workspace, arguments, seed, staleness)
                target = "never" if run["seconds_to_target"] is None else f"{run['seconds_to_target']:.1f} s"
                print(
                    f"{seed:>4} {'async' if staleness else 'sync':>6} {target:>10} {run['seconds']:>8.1f} s "
                    f"{run['last']:>6.3f} {run['staleness']:>10.2f} {run['wait_rollouts']:>16.2f} s "
                    f"{run['wait_update']:>9.2f} s {os.getloadavg()[0]:>5.1f}",
                    flush=True,
                )
                if arguments.curves:
                    print("     " + "  ".join(f"{at:.0f}s:{reward:.2f}" for at, reward in run["curve"]), flush=True)
            one, other = found[0]["seconds_to_target"], found[arguments.staleness]["seconds_to_target"]
            if one is not None and other is not None:
                ratios.append(one / other)
            differences.append(found[arguments.staleness]["last"] - found[0]["last"])

    complete = len(ratios) == len(differences)
    if ratios:
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"\nsooner at the target, by seed: {each}; median {statistics.median(ratios):.2f} (goal 1.5)")
    print(f"last held-out reward, async - sync: {', '.join(f'{d:+.3f}' for d in differences)}")
    raise SystemExit(not (complete and statistics.median(ratios) >= 1.5))


if __name__ == "__main__":
    main()
