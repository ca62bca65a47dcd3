"""Recomputes the steps of trainings in float64, with formulas of its own (`replay_formulas.py`), and compares.

    python benches/training_replay.py --osmosis target/debug/osmosis [--agent-python PY] [--only gspo,cispo]
    python benches/training_replay.py --osmosis target/debug/osmosis --run WORKSPACE/.osmosis/training/RUN

The interpreter needs torch, numpy and safetensors; for the torch trainer also transformers, peft and accelerate
(`cargo xtask torch` makes one: `~/.cache/osmosis-torch/torch/bin/python`).

Without `--run`, the model of `builtin/tiny` is trained for a few steps once for each objective (`CASES`), with several
updates per batch and a high learning rate, so that ratios leave their bounds. Of each step the program takes what the
run recorded (rewards from `run.db`; tokens, masks and logprobs from `osmosis export`; weights and moments from the
checkpoint before), and computes logprobs, advantages, weights, losses, gradients and AdamW's steps. The result is
compared with `metrics.jsonl` and with the checkpoint after. The same rows are then given to a process of the torch
trainer, and its reports and files are compared in the same way.

Then every case is recomputed with one key of its config changed (`wrong`): a comparison that still agrees could not tell
the formulas apart. Ends with 1 when a difference is above its tolerance, or when a wrong formula is not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy
from replay_formulas import AdamW, Model, Row, Update, update
from replay_record import Run, Step, loss_settings, read_run, step_of
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tables import print_table

ROOT = pathlib.Path(__file__).resolve().parent.parent
TINY = ROOT / "crates/osmosis-policy/builtin/tiny.safetensors"
# What differences are divided by at least, and how large they may then be. float32 has 24 bits, and clipping is a
# threshold: a token whose ratio is at its bound within rounding may fall on either side.
TOLERANCES = {
    "logprobs": (1.0, 1e-4),
    "loss": (0.0, 5e-4),
    "entropy": (1e-3, 1e-4),
    "clip_fraction": (1.0, 1e-2),
    "kl": (1e-2, 1e-3),
    "kl_reference": (1e-2, 1e-3),
    "gradient_norm": (1e-3, 1e-3),
    "first moment": (0.0, 2e-3),
    "second moment": (0.0, 2e-3),
    "weights": (0.0, 5e-3),
}


@dataclass(frozen=True)
class Case:
    """A training to recompute: what it adds to `[training]`, and a key that makes the formula another one."""

    settings: dict[str, Any]
    wrong: dict[str, Any]


CASES = {
    "grpo": Case({"clip_ratio": 0.05}, {"algorithm": "dr_grpo"}),
    "dr_grpo": Case({"algorithm": "dr_grpo", "clip_ratio": 0.1, "clip_ratio_high": 0.2}, {"clip_ratio_high": 0.1}),
    "rloo": Case({"algorithm": "rloo", "updates_per_batch": 1}, {"algorithm": "dr_grpo"}),
    "reinforce_plus_plus": Case({"algorithm": "reinforce_plus_plus"}, {"algorithm": "grpo"}),
    "reinforce_plus_plus_baseline": Case(
        {"algorithm": "reinforce_plus_plus_baseline"}, {"algorithm": "reinforce_plus_plus"}
    ),
    "grpo, by token": Case({"loss_normalization": "batch"}, {"loss_normalization": "sample"}),
    "dual_clip": Case({"dual_clip": 1.05, "clip_ratio": 0.01}, {"dual_clip": None}),
    "gspo": Case({"objective": "gspo", "clip_ratio": 0.05, "clip_ratio_high": 0.1}, {"objective": "clipped"}),
    "cispo": Case({"objective": "cispo", "clip_ratio_high": 0.05}, {"objective": "clipped"}),
    "decoupled": Case(
        {"objective": "decoupled", "behaviour_weight_cap": 1.2, "max_staleness": 2, "clip_ratio": 0.05},
        {"objective": "clipped"},
    ),
    "entropy": Case({"entropy_coef": 0.05}, {"entropy_coef": 0.04}),
    "kl, k2": Case({"kl_coef": 0.5, "kl_estimator": "k2"}, {"kl_estimator": "k3"}),
    "kl, k3": Case({"kl_coef": 0.5}, {"kl_estimator": "k2"}),
    "recipe dapo": Case({"recipe": "dapo", "n_samples_per_prompt": 2}, {"overlong": None}),
    "recipe cispo": Case({"recipe": "cispo"}, {"loss_normalization": "sample"}),
}
CONFIG = {
    "lr": 3e-4,
    "steps": 3,
    "rollout_batch_size": 4,
    "n_samples_per_prompt": 4,
    "updates_per_batch": 3,
    "max_prompt_length": 512,
    "max_response_length": 40,
    "seed": 3,
}
# Two turns, so that rows have tokens of others between those that are trained on. The reward says nothing: it only has
# to differ.
PROJECT = '''
import asyncio, json, urllib.request
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context

class TwoTurns(AgentWorkflow):
    async def run(self, ctx):
        rollout, messages = get_rollout_context(), list(ctx.prompt)
        host = rollout.chat_completions_url.split("/")[2]
        for turn in range(2):
            if turn:
                messages.append({"role": "user", "content": "Are you sure?"})
            body = json.dumps({"model": "osmosis-rollout", "messages": messages}).encode()
            headers = {"authorization": "Bearer " + rollout.api_key, "content-type": "application/json"}
            request = urllib.request.Request(f"http://{host}/v1/chat/completions", body, headers)
            answer = await asyncio.to_thread(lambda: urllib.request.urlopen(request).read())
            messages.append({"role": "assistant", "content": json.loads(answer)["choices"][0]["message"]["content"]})
        return messages

class Arbitrary(Grader):
    async def grade(self, ctx):
        ctx.set_reward(sum(map(ord, ctx.sample.messages[-1]["content"] or "")) % 3 / 2)
'''


# Trainings.


def make_workspace(folder: pathlib.Path) -> None:
    """A project without dependencies, and the model as a folder."""
    for name in ("rollouts/two_turns", "data", "configs/training", "models/tiny"):
        (folder / name).mkdir(parents=True)
    (folder / "rollouts/two_turns/main.py").write_text(PROJECT)
    rows = (ROOT / "examples/calculator/data/train.jsonl").read_text().splitlines(keepends=True)
    (folder / "data/rows.jsonl").write_text("".join(rows[:60]))
    with safe_open(TINY, "numpy") as file:
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            (folder / "models/tiny" / name).write_text(file.metadata()[name])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    save_file(tensors, folder / "models/tiny/model.safetensors", metadata={"format": "pt"})


def train(folder: pathlib.Path, name: str, case: Case, args: argparse.Namespace) -> pathlib.Path:
    """The folder of a finished run."""
    file = "".join(letter if letter.isalnum() else "-" for letter in name)
    settings = {**CONFIG, **case.settings}
    lines = ["[experiment]", "rollout = 'two_turns'", "entrypoint = 'main.py'", "dataset = 'rows'"]
    lines += ["model_path = './models/tiny'", "[training]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    lines += ["[checkpoints]", "checkpoint_save_freq = 1", ""]
    path = folder / f"configs/training/{file}.toml"
    path.write_text("\n".join(lines))
    command = [args.osmosis, "train", "submit", str(path), "--name", file, "--json"]
    command += ["--python", args.agent_python] if args.agent_python else []
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"`{name}` was not trained:\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}")
    return folder / ".osmosis/training" / file


# Recomputing.


class Differences:
    """The largest of each quantity."""

    def __init__(self) -> None:
        self.largest: dict[str, float] = {}

    def note(self, name: str, found: float, ours: float, size: float = 0.0) -> None:
        floor, _ = TOLERANCES[name]
        self.add(name, abs(found - ours) / max(abs(ours), floor, size, 1e-300))

    def add(self, name: str, difference: float) -> None:
        # A number that is none is as far off as can be.
        difference = difference if math.isfinite(difference) else math.inf
        self.largest[name] = max(self.largest.get(name, 0.0), difference)

    def note_tensors(self, name: str, found: dict[str, Any], ours: dict[str, Any]) -> None:
        """By the length of the difference, over all parameters together."""
        if found.keys() != ours.keys():
            self.add(name, math.inf)
            return
        apart = sum(float(numpy.square(found[key] - ours[key]).sum()) for key in ours)
        size = sum(float(numpy.square(ours[key]).sum()) for key in ours)
        self.add(name, math.sqrt(apart / max(size, 1e-300)))

    def excess(self) -> float:
        """How many times its tolerance the worst is."""
        return max(difference / TOLERANCES[name][1] for name, difference in self.largest.items())


@dataclass
class Replayed:
    """A step as it should have been."""

    before: dict[str, numpy.ndarray]
    model: Model
    optimizer: AdamW
    updates: list[Update]
    proximal: list[Any] | None
    reference: list[Any] | None


def replay(run: Run, step: Step, changed: dict[str, Any], fresh: bool) -> Replayed:
    """All updates of a step; with `fresh`, by an optimizer that remembers nothing."""
    training = loss_settings(run, changed)
    model, start = run.model(step.number - 1), run.model(0)
    before = {name: part.detach().numpy().copy() for name, part in model.tensors.items()}
    first, second = ({}, {}) if fresh else run.moments(step.number - 1)
    done = 0 if fresh else (step.number - 1) * training["updates_per_batch"]
    optimizer = AdamW(training["lr"], done, first, second)
    proximal = model.logprobs(step.rows) if training["objective"] == "decoupled" else None
    reference = start.logprobs(step.rows) if training["kl_coef"] > 0 else None
    updates = []
    for _ in range(training["updates_per_batch"]):
        updates.append(update(model, step.rows, training, proximal, reference))
        optimizer.step(model, updates[-1])
    return Replayed(before, model, optimizer, updates, proximal, reference)


def compare_files(
    differences: Differences, ours: Replayed, weights: dict[str, Any], moments: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    differences.note_tensors("first moment", moments[0], ours.optimizer.first)
    differences.note_tensors("second moment", moments[1], ours.optimizer.second)
    moved = {name: numpy.asarray(part, numpy.float64) - ours.before[name] for name, part in weights.items()}
    should = {name: part.detach().numpy() - ours.before[name] for name, part in ours.model.tensors.items()}
    differences.note_tensors("weights", moved, should)


REPORTED = ("loss", "entropy", "clip_fraction", "kl", "kl_reference", "gradient_norm")


def compare_run(run: Run, changed: dict[str, Any], differences: Differences) -> None:
    """Every step with an update against `metrics.jsonl` and the checkpoint after it."""
    last = 0
    for number, metrics in sorted(run.metrics.items()):
        if number == 0 or metrics.get("skipped"):
            continue
        if number != last + 1:
            sys.exit(f"{run.folder.name}: step {last + 1} made no update: the number of updates is not known")
        last = number
        step = step_of(run, number, changed)
        if not changed and sum(len(row.trained) for row in step.rows) != metrics["tokens/trained"]:
            sys.exit(f"{run.folder.name}: step {number} trained on {metrics['tokens/trained']} tokens, not on these")
        ours = replay(run, step, changed, fresh=False)
        if not run.batches:
            for row, logprobs in zip(step.rows, run.model(number - 1).logprobs(step.rows)):
                sampled = numpy.array([row.sampled[place] for place in row.trained])
                differences.add("logprobs", float(numpy.abs(sampled - logprobs.numpy()).max()))
        count = len(ours.updates)
        size = sum(one.size for one in ours.updates) / count
        for name in REPORTED:
            mean = sum(one.numbers[name] for one in ours.updates) / count
            differences.note(name, metrics[name] or 0.0, mean, size if name == "loss" else 0.0)
        weights = load_file(run.checkpoint(number) / "model.safetensors")
        compare_files(differences, ours, weights, run.moments(number))


# The torch trainer.


class TorchTrainer:
    """A process of it, spoken to as the program does."""

    def __init__(self, python: str, folder: pathlib.Path) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / "socket"))
        listener.listen(1)
        listener.settimeout(300)
        environment = {
            **os.environ,
            "OSMOSIS_TRAINER_SOCKET": str(folder / "socket"),
            "OSMOSIS_TRAINER_DEVICES": "cpu",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "python"),
        }
        log = (folder / "trainer.log").open("w")
        self.process = subprocess.Popen(
            [python, "-m", "osmosis_ai.trainer.torch"], env=environment, stdout=log, stderr=log
        )
        self.connection, _ = listener.accept()
        self.lines = self.connection.makefile("rb")
        self.receive()

    def receive(self) -> dict[str, Any]:
        return json.loads(self.lines.readline() or sys.exit("the torch trainer has ended"))

    def ask(self, call: str, **values: Any) -> Any:
        self.send({"call": call, **values})
        while True:
            reply = self.receive()
            if "error" in reply:
                sys.exit(f"the torch trainer refused `{call}`: {reply['error']}")
            if "logprobs" in reply:
                self.send({"accept": True})
            elif "ok" in reply:
                return reply["ok"]

    def send(self, message: dict[str, Any]) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def end(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)
        self.process.wait(60)


@contextlib.contextmanager
def torch_trainer(python: str) -> Iterator[TorchTrainer]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(python, pathlib.Path(folder))
        try:
            yield trainer
        finally:
            trainer.end()


def sent_rows(step: Step, ours: Replayed) -> list[dict[str, Any]]:
    """As the trainer takes them."""
    sent = []
    for index, row in enumerate(step.rows):

        def column(values: Any, row: Row = row) -> list[float]:
            whole = [0.0] * len(row.ids)
            for place, value in zip(row.trained, values):
                whole[place] = float(value)
            return whole

        count = len(row.trained)
        line = {
            "ids": row.ids,
            "temperatures": [row.temperature] * len(row.ids),
            "weights": column([row.weight] * count),
            "advantages": column([row.advantage] * count),
            "sampled_logprobs": row.sampled,
        }
        for name, columns in (("proximal_logprobs", ours.proximal), ("reference_logprobs", ours.reference)):
            line[name] = None if columns is None else column(columns[index])
        sent.append(line)
    return sent


def compare_torch(run: Run, trainer: TorchTrainer, folder: pathlib.Path, differences: Differences) -> None:
    """The last step's rows, given to the torch trainer with the weights before it."""
    number = max(number for number, metrics in run.metrics.items() if not metrics.get("skipped"))
    step = step_of(run, number, {})
    ours = replay(run, step, {}, fresh=True)
    training = loss_settings(run, {})
    loss = {
        "objective": training["objective"],
        "clip_low": 1.0 if training["objective"] == "cispo" else training["clip_ratio"],
        "clip_high": training["clip_ratio_high"],
        **{name: training[name] for name in ("dual_clip", "kl_coef", "kl_estimator", "entropy_coef")},
    }
    if training["objective"] == "decoupled":
        loss["behaviour_weight_cap"] = training["behaviour_weight_cap"]
    trainer.ask("open", model=str(run.checkpoint(number - 1)), lr=training["lr"], seed=1, dtype="float32", lora=None)
    names = {"kl": "kl_to_sampled", "kl_reference": "kl_to_reference"}
    for own in ours.updates:
        report = trainer.ask("update", rows=sent_rows(step, ours), loss=loss)
        for name in REPORTED:
            size = own.size if name == "loss" else 0.0
            differences.note(name, report[names.get(name, name)], own.numbers[name], size)
    shutil.rmtree(folder, ignore_errors=True)
    trainer.ask("save", model=str(folder), optimizer=str(folder / "trainer/optimizer.safetensors"))
    saved = load_file(folder / "trainer/optimizer.safetensors")
    moments = [
        {name.removeprefix(prefix): part for name, part in saved.items() if name.startswith(prefix)}
        for prefix in ("exp_avg.", "exp_avg_sq.")
    ]
    compare_files(differences, ours, load_file(folder / "model.safetensors"), (moments[0], moments[1]))


# The program.


def table_row(name: str, differences: Differences) -> list[str]:
    cells = [f"{differences.largest[key]:.0e}" if key in differences.largest else "" for key in TOLERANCES]
    return [name, *cells]


def main() -> int:
    """Runs it; 1 when something differs, or nothing does where it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--run", type=pathlib.Path, help="the folder of a finished training")
    parser.add_argument("--agent-python", help="the interpreter of the agents; without it the run makes an environment")
    parser.add_argument("--trainer-python", default=sys.executable, help="the interpreter of the torch trainer")
    parser.add_argument("--only", help="names of cases, with commas between them")
    parser.add_argument("--folder", type=pathlib.Path, help="where trainings are made and kept")
    parser.add_argument("--no-torch", action="store_true", help="leave out the torch trainer")
    args = parser.parse_args()
    args.osmosis = str(pathlib.Path(args.osmosis).resolve())
    if args.agent_python:
        # Not resolved: a link to an interpreter is an environment of its own.
        args.agent_python = str(pathlib.Path(args.agent_python).absolute())
    if args.run is not None:
        differences = Differences()
        compare_run(read_run(args.run.resolve(), args.osmosis), {}, differences)
        print_table(["run", *TOLERANCES], [table_row(args.run.name, differences)])
        return int(differences.excess() > 1)
    chosen = args.only.split(",") if args.only else list(CASES)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or pathlib.Path(temporary) / "workspace"
        if not (folder / "models").exists():
            make_workspace(folder)
        return check(chosen, folder, args)


def check(chosen: list[str], folder: pathlib.Path, args: argparse.Namespace) -> int:
    tables: dict[str, list[list[str]]] = {"embedded model": [], "torch trainer": []}
    wrong, failed = [], False
    with contextlib.ExitStack() as stack:
        trainer = None if args.no_torch else stack.enter_context(torch_trainer(args.trainer_python))
        for name in chosen:
            print(f"… {name}", file=sys.stderr)
            run = read_run(train(folder, name, CASES[name], args), args.osmosis)
            found, other = Differences(), Differences()
            compare_run(run, {}, found)
            compare_run(run, CASES[name].wrong, other)
            tables["embedded model"].append(table_row(name, found))
            [(key, value)] = CASES[name].wrong.items()
            wrong.append([name, f"{key} = {json.dumps(value)}", f"{found.excess():.2f}", f"{other.excess():.0f}"])
            failed |= found.excess() > 1 or other.excess() <= 1
            if trainer is not None:
                by_torch = Differences()
                compare_torch(run, trainer, folder / "by_torch", by_torch)
                tables["torch trainer"].append(table_row(name, by_torch))
                failed |= by_torch.excess() > 1
    bounds = ["*at most*", *(f"{most:.0e}" for _, most in TOLERANCES.values())]
    for title, rows in tables.items():
        if rows:
            print(f"\n### {title}: largest relative differences\n")
            print_table(["case", *TOLERANCES], [*rows, bounds])
    print("\n### the same, recomputed with another formula\n")
    columns = ["case", "recomputed as if", "worst difference / its bound", "with the other formula"]
    print_table(columns, wrong)
    print("\nDIFFERENT" if failed else "\nall within their bounds, and every other formula is outside")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
