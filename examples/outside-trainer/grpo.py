"""GRPO in torch, for a policy whose rollouts run in `osmosis train serve`.

    python grpo.py RUN_FOLDER [LEARNING_RATE]

The folder is `.osmosis/training/NAME`; OSMOSIS_TRAINER_URL and OSMOSIS_CONTROL_KEY say where the
engine is.
Versions are numbered like batches, so a trainer that died knows from the version what is done.
"""

import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from osmosis_ai.trainer import BatchArrays, TrainerClient

CLIP = 0.2
EPOCHS = 2
USED = ("ids", "attention_mask", "loss_mask", "logprobs", "temperatures", "advantages")


def loss_of(model: torch.nn.Module, batch: BatchArrays) -> torch.Tensor:
    """The clipped policy gradient: a mean over the tokens of a row, then over the rows."""
    ids, attention, mask, sampled, temperature, advantage = (
        torch.from_numpy(getattr(batch, name)) for name in USED
    )
    logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1]
    logprobs = (logits / temperature[:, 1:, None]).log_softmax(-1)
    logprobs = logprobs.gather(-1, ids[:, 1:, None]).squeeze(-1)
    ratio = (logprobs - sampled[:, 1:]).exp()
    advantage = advantage[:, None]
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    mask = mask[:, 1:]
    return -((gain * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


def main() -> None:
    """Trains until there are no more batches."""
    run, lr = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 3e-4
    client = TrainerClient()
    version = client.version()
    # What answers now: `train serve` keeps a copy of everything that was announced last.
    model = AutoModelForCausalLM.from_pretrained(
        run / "checkpoints" / f"step_{version}", dtype=torch.float32
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    for batch in client.batches():
        if batch.number > version:  # else it was trained on before this process began
            for _ in range(EPOCHS if batch.rows else 0):
                optimizer.zero_grad()
                loss_of(model, batch.arrays()).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                version = client.announce(weights=folder, version=batch.number)
        batch.ack()
        rewards = [row.reward for row in batch.rows]
        mean = sum(rewards) / len(rewards) if rewards else float("nan")
        print(
            f"batch {batch.number}: {len(rewards)} rows, reward {mean:.3f}, now version {version}",
            flush=True,
        )


if __name__ == "__main__":
    main()
