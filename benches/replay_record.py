"""What a finished training recorded, and the rows that its steps were made of, for `training_replay.py`."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy
from replay_formulas import Model, Row, group_advantages, overlong_penalty, token_weight
from safetensors.numpy import load_file

# Of `[training]`, what a replay needs, where the run's record leaves out what changes nothing.
DEFAULTS = {
    "clip_ratio_high": None,
    "dual_clip": None,
    "kl_estimator": "k3",
    "entropy_coef": 0.0,
    "loss_normalization": None,
    "overlong": None,
    "max_extra_rows": 0,
    "objective": "clipped",
}
NORMALIZATION = {
    "grpo": "sample",
    "dr_grpo": "constant",
    "rloo": "none",
    "reinforce_plus_plus": "batch",
    "reinforce_plus_plus_baseline": "batch",
}


@dataclass
class Step:
    """What one step was made of."""

    number: int
    rows: list[Row]


@dataclass
class Run:
    """A finished training."""

    folder: pathlib.Path
    training: dict[str, Any]
    start: pathlib.Path
    exported: list[dict[str, Any]]
    rewards: dict[str, dict[str, float] | None]
    visits: dict[str, tuple[int, int]]
    batches: dict[int, list[str]]
    metrics: dict[int, dict[str, Any]]

    def model(self, step: int) -> Model:
        """After a step; the start model for 0."""
        folder = self.checkpoint(step)
        return Model(json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors"))

    def checkpoint(self, step: int) -> pathlib.Path:
        return self.folder / f"checkpoints/step_{step}" if step else self.start

    def moments(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The running means of the gradient and of its square."""
        if step == 0:
            return {}, {}
        tensors = load_file(self.checkpoint(step) / "trainer/optimizer.safetensors")
        # Embedded models and the torch trainer name them in their own ways.
        prefixes = ("m.", "v.") if any(name.startswith("m.") for name in tensors) else ("exp_avg.", "exp_avg_sq.")
        first, second = (
            {name.removeprefix(prefix): part for name, part in tensors.items() if name.startswith(prefix)}
            for prefix in prefixes
        )
        return first, second


def read_run(folder: pathlib.Path, osmosis: str) -> Run:
    """Everything that a replay takes from a run."""
    with contextlib.closing(sqlite3.connect(f"file:{folder}/run.db?mode=ro", uri=True)) as database:
        [pinned] = database.execute("SELECT pinned FROM run").fetchone()
        rollouts = database.execute(
            "SELECT rollout_id, row_index, run_index, outcome, sample_rewards FROM rollouts WHERE state = 'done'"
        ).fetchall()
        batches = database.execute("SELECT number, content FROM batches").fetchall()
        steps = database.execute("SELECT step, metrics FROM steps").fetchall()
    facts = json.loads(pinned)
    training = {**DEFAULTS, **{key.removeprefix("training."): value for key, value in facts.items()}}
    if isinstance(training["objective"], dict):
        training |= training["objective"]["decoupled"]
        training["objective"] = "decoupled"
    workspace = folder.parents[2]
    with tempfile.TemporaryDirectory() as temporary:
        file = pathlib.Path(temporary) / "rows.jsonl"
        export = [osmosis, "export", folder.name, "--format", "slime", "-o", str(file)]
        subprocess.run(export, cwd=workspace, check=True, capture_output=True)
        exported = [json.loads(line) for line in file.read_text().splitlines()]
    n = training["n_samples_per_prompt"]
    return Run(
        folder=folder,
        training=training,
        start=workspace / facts["experiment.model_path"],
        exported=exported,
        rewards={
            name: json.loads(rewards) if outcome == "scored" else None for name, _, _, outcome, rewards in rollouts
        },
        visits={name: (row, run // n) for name, row, run, _, _ in rollouts},
        batches={
            number: [member["rollout"] for group in json.loads(content)["groups"] for member in group["members"]]
            for number, content in batches
        },
        metrics={number: json.loads(metrics) for number, metrics in steps},
    )


def step_of(run: Run, number: int, changed: dict[str, Any]) -> Step:
    """The rows of a step, with their advantages and weights."""
    training = {**run.training, **changed}
    rows: dict[str, list[Row]] = {}
    for line in run.exported:
        name, version = line["metadata"]["rollout_id"], {str(number - 1)}
        ours = name in run.batches[number] if run.batches else set(line["weight_versions"]) == version
        if ours:
            before = [0.0] * (len(line["tokens"]) - line["response_length"])
            rows.setdefault(name, []).append(
                Row(
                    ids=line["tokens"],
                    mask=[False] * len(before) + [bool(on) for on in line["loss_mask"]],
                    sampled=before + line["rollout_log_probs"],
                    temperature=line["metadata"]["temperature"],
                    reward_of=(name, line["metadata"]["sample_id"]),
                )
            )
    visits = {run.visits[name] for name in rows}
    groups: dict[tuple[int, int], list[str]] = {}
    for name, visit in run.visits.items():
        in_batch = not run.batches or name in run.batches[number]
        if visit in visits and in_batch:
            groups.setdefault(visit, []).append(name)
    complete = {
        visit: sorted(names) for visit, names in groups.items() if all(run.rewards[name] is not None for name in names)
    }

    def reward(name: str) -> float:
        [reward] = run.rewards[name].values()
        overlong = training["overlong"]
        if overlong is None:
            return reward
        length = max(row.longest_answer() for row in rows[name])
        return reward - overlong_penalty(
            length, overlong["buffer"], overlong["penalty"], training["max_response_length"]
        )

    compared = [numpy.array([reward(name) for name in names]) for names in complete.values()]
    found = group_advantages(compared, training["algorithm"])
    kept = list(zip(complete.values(), found))
    extra = run.metrics[number].get("rows/extra") or 0
    flat = [names for names, advantages in kept if advantages is None]
    if extra and extra != len(flat):
        sys.exit(f"step {number}: {extra} rows were replaced, of {len(flat)} with equal rewards: it can't be told which")
    kept = [(names, advantages) for names, advantages in kept if not (extra and advantages is None)]
    samples = sum(len(names) for names, _ in kept)
    tokens = {name: sum(len(row.trained) for row in rows[name]) for names, _ in kept for name in names}
    normalization = training["loss_normalization"] or NORMALIZATION[training["algorithm"]]
    trained: list[Row] = []
    for names, advantages in kept:
        for name, advantage in zip(names, advantages if advantages is not None else []):
            weight = token_weight(
                normalization, samples, tokens[name], sum(tokens.values()), training["max_response_length"]
            )
            for row in rows[name]:
                row.advantage, row.weight = float(advantage), weight
                trained.append(row)
    return Step(number, [row for row in trained if row.trained])


def loss_settings(run: Run, changed: dict[str, Any]) -> dict[str, Any]:
    training = {**run.training, **changed}
    if training["clip_ratio_high"] is None:
        training["clip_ratio_high"] = training["clip_ratio"]
    return training
