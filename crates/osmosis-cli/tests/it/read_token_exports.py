"""Reads the exports for trainers in the working directory with the packages they are for.

`AREAL` and `VERL` are folders with the packages. `SLIME`, when set, is one with the sources of slime.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
for name in ["AREAL", "VERL", "SLIME"]:
    sys.path.insert(0, os.environ.get(name, "."))

import numpy as np
import torch
from datasets import load_dataset


def areal():
    from areal.utils.data import concat_padded_tensors

    rows = load_dataset("parquet", data_files="t.areal.parquet", split="train")
    types = {
        "input_ids": torch.int32,
        "attention_mask": torch.bool,
        "loss_mask": torch.int32,
        "logprobs": torch.float32,
        "versions": torch.int32,
        "rewards": torch.float32,
    }
    batch = concat_padded_tensors(
        [
            {key: torch.tensor([row[key]], dtype=dtype) for key, dtype in types.items()}
            for row in rows
        ]
    )
    assert batch["input_ids"].shape == batch["loss_mask"].shape == batch["versions"].shape
    assert batch["rewards"].shape == (len(rows),)
    mask = batch["loss_mask"].bool()
    assert (mask & ~batch["attention_mask"]).sum() == 0
    assert (batch["versions"][mask] >= 0).all() and (batch["logprobs"][mask] <= 0).all()
    assert (batch["versions"][:, 0] == -1).all()
    return batch


def verl():
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
    from verl.utils.dataset.rl_dataset import RLHFDataset

    # The prompts.
    config = OmegaConf.create({"filter_overlong_prompts": False, "cache_dir": "cache"})
    prompts = RLHFDataset("t.verl.parquet", tokenizer=None, config=config)
    first = prompts[0]
    assert first["raw_prompt"][-1]["role"] == "user" and first["raw_prompt"][-1]["content"]
    assert (
        first["reward_model"]["ground_truth"] is not None
        and first["index"] == first["extra_info"]["index"]
    )

    # The rollouts.
    rows = load_dataset("parquet", data_files="t.verl.parquet", split="train")
    fields = [
        "prompt_ids",
        "response_ids",
        "response_mask",
        "response_logprobs",
        "reward_score",
        "num_turns",
    ]
    outputs = [
        AgentLoopOutput(
            **{name: row[name] for name in fields}, metrics=AgentLoopMetrics()
        ).as_dict()
        for row in rows
    ]

    def pad(name, left=False):
        side = "left" if left else "right"
        return torch.nn.utils.rnn.pad_sequence(
            [o[name] for o in outputs], batch_first=True, padding_side=side
        )

    batch = DataProto.from_single_dict(
        {
            "prompts": pad("prompts", left=True),
            "responses": pad("responses"),
            "response_mask": pad("response_mask"),
            "rollout_log_probs": pad("rollout_log_probs"),
            "rm_scores": pad("rm_scores"),
            "uid": np.array(rows["uid"], dtype=object),
        }
    )
    assert len(batch) == len(rows)
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards=batch.batch["rm_scores"],
        response_mask=batch.batch["response_mask"],
        index=batch.non_tensor_batch["uid"],
    )
    assert advantages.shape == batch.batch["responses"].shape and advantages.abs().sum() > 0
    assert (advantages[batch.batch["response_mask"] == 0] == 0).all()
    assert all(output["response_mask"][0] == 1 for output in outputs)
    return rows


def slime():
    lines = [json.loads(line) for line in open("t.slime.jsonl")]
    torch.save({"rollout_id": 0, "samples": lines}, "slime_0.pt")
    loaded = torch.load("slime_0.pt", weights_only=False)["samples"]
    try:
        from slime.utils.types import Sample
    except ImportError:
        return None
    samples = [Sample.from_dict(sample) for sample in loaded]
    for sample in samples:
        assert sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED)
        assert (
            len(sample.loss_mask)
            == len(sample.rollout_log_probs)
            == sample.response_length
            < len(sample.tokens)
        )
        assert sample.effective_response_length > 0
    return samples


batch, rows, samples = areal(), verl(), slime()
# One and the same thing, told in three ways.
assert [row["prompt_ids"] + row["response_ids"] for row in rows] == [
    ids[mask].tolist()
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
]
if samples is not None:
    assert [sample.tokens for sample in samples] == [
        row["prompt_ids"] + row["response_ids"] for row in rows
    ]
    assert [sample.reward for sample in samples] == rows["reward_score"][:]
    assert len({sample.group_index for sample in samples}) == len(set(rows["uid"]))
print(len(rows), "rows;", "slime's Sample" if samples else "without slime")
