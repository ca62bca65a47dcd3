"""Trains with TRL's GRPOTrainer: a part of `trl_peer.py`, run by a Python that has trl.

    python trl_worker.py SETTINGS.json

Prints a JSON object per line: first what was set and what TRL's defaults are, then one for each batch of rollouts.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import sys
import time
from typing import Any

# Those that a reader would compare with ours.
TOLD = [
    *("loss_type", "learning_rate", "lr_scheduler_type", "weight_decay", "max_grad_norm", "num_generations"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "num_iterations", "gradient_checkpointing", "bf16"),
    *("temperature", "beta", "epsilon", "max_completion_length", "scale_rewards", "use_vllm"),
]


def score_of(path: str) -> Any:
    """The function `score` of a file."""
    spec = importlib.util.spec_from_file_location("format_of_task", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.score


def main() -> None:
    settings = json.loads(pathlib.Path(sys.argv[1]).read_text())
    # Replies go where the output went; what the packages print goes to stderr.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(**fields: Any) -> None:
        print(json.dumps(fields, default=str), file=replies, flush=True)

    began = time.perf_counter()
    import datasets
    import torch
    import transformers
    import trl
    from trl.extras.profiling import ProfilingContext

    torch.set_num_threads(2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["model"], padding_side="left")
    score = score_of(settings["format"])
    rows = []
    for row in settings["rows"]:
        text = tokenizer.apply_chat_template(
            row["messages"], tools=settings["tools"], add_generation_prompt=True, tokenize=False
        )
        rows.append({"prompt": text, "label": row["label"]})
    # TRL reads texts as this; what our gateway made of the same messages must be the same ids.
    expected = settings["expected_ids"]
    same = sum(tokenizer(row["prompt"])["input_ids"] == ids for row, ids in zip(rows, expected, strict=False))
    end = tokenizer.eos_token_id
    seen: dict[str, Any] = {"rewards": [], "lengths": [], "times": {}}

    def reward(completion_ids: list[list[int]], label: list[str], **_: Any) -> list[float]:
        # Not the texts that TRL decodes: they lack special tokens, and a tool call may be written with some.
        texts = [tokenizer.decode([one for one in ids if one != end]) for ids in completion_ids]
        rewards = [score(text, wanted) for text, wanted in zip(texts, label, strict=True)]
        seen["rewards"] += rewards
        seen["lengths"] += map(len, completion_ids)
        return rewards

    def keep_time(context: Any, duration: float) -> None:
        name = context.name.split(".", 1)[-1]
        seen["times"][name] = seen["times"].get(name, 0.0) + duration

    ProfilingContext._log_metrics = keep_time

    samples = settings["batch_rows"] * settings["group"]
    fields = {field.name: field for field in dataclasses.fields(trl.GRPOConfig)}
    micro = settings["micro_batch"] or samples
    if micro == "default":
        micro = fields["per_device_train_batch_size"].default
    micro = min(micro, samples)
    assert samples % micro == 0, f"{samples} samples are no multiple of {micro}"
    chosen = {
        "output_dir": settings["folder"],
        "learning_rate": settings["lr"],
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "loss_type": "grpo",
        "beta": 0.0,
        "epsilon": 0.2,
        "temperature": settings["temperature"],
        "num_generations": settings["group"],
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": samples // micro,
        "steps_per_generation": samples // micro,
        "num_iterations": settings["updates"],
        "max_steps": settings["batches"] * settings["updates"],
        "max_completion_length": settings["max_tokens"],
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "use_vllm": False,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": settings["seed"],
        **settings["options"],
    }
    arguments = trl.GRPOConfig(**chosen)
    adapters = None
    if settings["lora"]:
        import peft

        adapters = peft.LoraConfig(
            r=settings["lora"]["rank"],
            lora_alpha=settings["lora"]["alpha"],
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
        )
    model = transformers.AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32)

    class Watch(transformers.TrainerCallback):
        """Keeps the time, and saves while the clock stands still."""

        def __init__(self) -> None:
            self.begin = self.last = 0.0
            self.paused = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.begin = time.perf_counter()

        def on_step_end(self, _arguments: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step % settings["updates"]:
                return
            stopped = time.perf_counter()
            seconds = stopped - self.begin - self.paused
            batch = state.global_step // settings["updates"]
            times, took = seen["times"], seconds - self.last
            generate = times.get("transformers.generate", 0.0)
            grading = times.get("_calculate_rewards", 0.0)
            prepare = times.get("_prepare_inputs", 0.0) - generate - grading
            saved = None
            if batch % settings["save_every"] == 0 or batch == settings["batches"]:
                saved = f"{settings['folder']}/batch_{batch}"
                trainer.save_model(saved)
            tell(
                batch=batch,
                seconds=seconds,
                reward=sum(seen["rewards"]) / len(seen["rewards"]),
                samples=len(seen["rewards"]),
                tokens=sum(seen["lengths"]),
                step=took,
                generate=generate,
                grade=grading,
                old_logprobs=prepare,
                update=took - generate - grading - prepare,
                checkpoint=saved,
            )
            seen.update(rewards=[], lengths=[], times={})
            self.last = seconds
            self.paused += time.perf_counter() - stopped

    watch = Watch()
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=arguments,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[watch],
        peft_config=adapters,
    )
    # Unset, `bf16` becomes true unless `fp16` is set.
    untouched = {name: fields[name].default for name in TOLD} | {"bf16": True}
    dtypes = sorted({str(parameter.dtype) for parameter in trainer.model.parameters()})
    tell(
        versions={package.__name__: package.__version__ for package in (trl, transformers, torch)},
        threads=torch.get_num_threads(),
        dtypes=dtypes,
        defaults=untouched,
        chosen={name: getattr(arguments, name) for name in TOLD},
        same_prompts=[same, len(expected)],
        trained=sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad),
        start_up=time.perf_counter() - began,
    )
    trainer.train()


if __name__ == "__main__":
    main()
