"""TRL's `GRPOTrainer` on rollouts of `osmosis train serve`, through its `rollout_func`.

    python trl_grpo.py RUN_FOLDER BATCHES ROLLOUT_BATCH_SIZE N_SAMPLES_PER_PROMPT

The numbers are those of the config, with `max_staleness` at least 1: then every batch is full.
TRL's prompts are placeholders: which prompt is next, what the agent does with it and what it is
worth is decided where the rollouts run.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from osmosis_ai.trainer import TrainerClient, TrainingBatch

run, (batches, groups, members) = Path(sys.argv[1]), map(int, sys.argv[2:5])
client = TrainerClient()
incoming = client.batches()
current: list[TrainingBatch] = []


def rollouts(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
    """The next batch in place of what TRL would have sampled for its prompts."""
    current[:] = [next(incoming)]
    # A sample that split into several rows does not fit into TRL's groups.
    rows = [row for group in current[0].groups().values() if len(group) == members for row in group]
    rewards: list[float | None] = [row.reward for row in rows]
    while rows and len(rows) < len(prompts):  # without a reward, TRL leaves it out
        rows.append(rows[0])
        rewards.append(None)
    first = [row.loss_mask.index(1) for row in rows]
    return {
        "prompt_ids": [row.ids[:at] for row, at in zip(rows, first, strict=True)],
        "completion_ids": [row.ids[at:] for row, at in zip(rows, first, strict=True)],
        "logprobs": [row.logprobs[at:] for row, at in zip(rows, first, strict=True)],
        "env_mask": [row.loss_mask[at:] for row, at in zip(rows, first, strict=True)],
        "grade": rewards,
    }


def graded(completions: list[str], grade: list[float | None], **_: Any) -> list[float | None]:
    """The rewards that the graders gave."""
    return grade


class Announce(TrainerCallback):
    """After each step the rollouts go on with the new weights."""

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Announces, then acknowledges: whoever dies in between finds the version of the batch."""
        batch = current[0]
        with tempfile.TemporaryDirectory() as folder:
            parts["model"].save_pretrained(folder)
            version = client.announce(weights=folder, version=batch.number)
        batch.ack()
        mean = sum(row.reward for row in batch.rows) / len(batch.rows)
        print(f"batch {batch.number}: reward {mean:.3f}, now version {version}", flush=True)


version = client.version()
start = run / "checkpoints" / f"step_{version}"
tokenizer = AutoTokenizer.from_pretrained(start)
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
with tempfile.TemporaryDirectory() as output:
    GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(start),
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": ["-"] * groups}),
        reward_funcs=graded,
        rollout_func=rollouts,
        callbacks=[Announce()],
        args=GRPOConfig(
            output_dir=output,
            max_steps=batches - version,
            per_device_train_batch_size=groups * members,
            num_generations=members,
            learning_rate=3e-4,
            lr_scheduler_type="constant",
            beta=0.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
        ),
    ).train()
for batch in incoming:  # says that there are no more, and lets the engine end
    raise SystemExit(f"batch {batch.number} is left over")
