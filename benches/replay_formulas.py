"""The formulas of docs/training.md written down once more, in float64, for `training_replay.py`.

Nothing here comes from the engine or from the torch trainer: neither their code is imported, nor are derivatives
written by hand as the engine's are. Advantages, weights and the optimizer are numpy, the model and the loss are torch,
whose automatic differentiation gives the gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy
import torch

EPSILON = 1e-6
torch.set_default_dtype(torch.float64)
# Rows are small: threads would only wait for each other.
torch.set_num_threads(1)


@dataclass
class Row:
    """A sequence; `advantage` and `weight` are those of its trained tokens."""

    ids: list[int]
    mask: list[bool]
    sampled: list[float]
    temperature: float
    reward_of: tuple[str, str]
    advantage: float = 0.0
    weight: float = 0.0

    @property
    def trained(self) -> list[int]:
        """The places that are trained on: nothing comes before the first."""
        return [place for place, on in enumerate(self.mask) if on and place > 0]

    def longest_answer(self) -> int:
        """Tokens of the longest run that was sampled."""
        longest = length = 0
        for on in self.mask:
            length = length + 1 if on else 0
            longest = max(longest, length)
        return longest


# Advantages and weights.


def group_advantages(groups: list[numpy.ndarray], algorithm: str) -> list[numpy.ndarray | None]:
    """Of each group's rewards; None for a group that is left out."""
    flat = [len(group) < 2 or numpy.ptp(group) <= 1e-9 * numpy.abs(group).max() for group in groups]
    if algorithm == "reinforce_plus_plus":
        every = numpy.concatenate(groups)
        if numpy.ptp(every) <= 1e-9 * numpy.abs(every).max():
            return [None] * len(groups)
        return [(group - every.mean()) / (every.std() + EPSILON) for group in groups]
    differences = [group - group.mean() for group in groups]
    if algorithm == "reinforce_plus_plus_baseline":
        # The mean of each group is 0, and so is that of the batch.
        every = numpy.concatenate([d * (not out) for d, out in zip(differences, flat)])
        found = [(d - every.mean()) / (every.std() + EPSILON) for d in differences]
    elif algorithm == "grpo":
        found = [d / (group.std() + EPSILON) for d, group in zip(differences, groups)]
    elif algorithm == "dr_grpo":
        found = differences
    elif algorithm == "rloo":
        found = [
            numpy.array([own - numpy.delete(group, place).mean() for place, own in enumerate(group)])
            if len(group) > 1
            else d
            for d, group in zip(differences, groups)
        ]
    else:
        raise ValueError(f"unknown algorithm `{algorithm}`")
    return [None if out else advantages for out, advantages in zip(flat, found)]


def token_weight(normalization: str, samples: int, own_tokens: int, all_tokens: int, max_response: int) -> float:
    """Of each trained token of a sample."""
    return {
        "sample": 1 / (samples * max(own_tokens, 1)),
        "batch": 1 / max(all_tokens, 1),
        "constant": 1 / (samples * max_response),
        "none": 1 / samples,
    }[normalization]


def overlong_penalty(length: int, buffer: int, penalty: float, max_response: int) -> float:
    """What an answer of so many tokens loses."""
    return penalty * min(max(length - (max_response - buffer), 0), buffer) / buffer


# The model.


class Model:
    """A decoder of the Llama family (Llama, Qwen2, Qwen3), one row at a time."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, numpy.ndarray]) -> None:
        self.config = config
        self.tensors = {
            name: torch.tensor(numpy.asarray(values, dtype=numpy.float64), requires_grad=True)
            for name, values in sorted(tensors.items())
        }

    def logits(self, ids: list[int]) -> torch.Tensor:
        """Of the next token at each place."""
        config, get = self.config, self.tensors
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        width = config.get("head_dim") or config["hidden_size"] // heads
        length = len(ids)
        theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        frequency = theta ** (-torch.arange(0, width, 2).double() / width)
        angle = torch.arange(length).double()[:, None] * frequency
        cos, sin = torch.cos(angle)[:, None, :], torch.sin(angle)[:, None, :]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)

        def norm(values: torch.Tensor, name: str) -> torch.Tensor:
            scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + config["rms_norm_eps"])
            return values * scale * get[name]

        def linear(values: torch.Tensor, name: str) -> torch.Tensor:
            product = values @ get[f"{name}.weight"].T
            return product + get[f"{name}.bias"] if f"{name}.bias" in get else product

        def rotated(values: torch.Tensor) -> torch.Tensor:
            one, other = values.chunk(2, -1)
            return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)

        state = get["model.embed_tokens.weight"][torch.tensor(ids)]
        for layer in range(config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            given = norm(state, f"{name}.input_layernorm.weight")
            query = linear(given, f"{name}.self_attn.q_proj").view(length, heads, width)
            key = linear(given, f"{name}.self_attn.k_proj").view(length, kv_heads, width)
            value = linear(given, f"{name}.self_attn.v_proj").view(length, kv_heads, width)
            if f"{name}.self_attn.q_norm.weight" in get:
                query = norm(query, f"{name}.self_attn.q_norm.weight")
                key = norm(key, f"{name}.self_attn.k_norm.weight")
            key, value = (part.repeat_interleave(heads // kv_heads, 1) for part in (rotated(key), value))
            score = torch.einsum("thd,shd->hts", rotated(query), key) / math.sqrt(width)
            share = torch.softmax(score.masked_fill(future, -math.inf), -1)
            mixed = torch.einsum("hts,shd->thd", share, value).reshape(length, heads * width)
            state = state + linear(mixed, f"{name}.self_attn.o_proj")
            given = norm(state, f"{name}.post_attention_layernorm.weight")
            gate = torch.nn.functional.silu(linear(given, f"{name}.mlp.gate_proj"))
            state = state + linear(gate * linear(given, f"{name}.mlp.up_proj"), f"{name}.mlp.down_proj")
        last = norm(state, "model.norm.weight")
        return last @ get.get("lm_head.weight", get["model.embed_tokens.weight"]).T

    def scored(self, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprob and entropy at each trained place."""
        places = torch.tensor(row.trained)
        logits = self.logits(row.ids)[places - 1] / row.temperature
        distribution = torch.log_softmax(logits, -1)
        ids = torch.tensor(row.ids)[places]
        chosen = distribution.gather(1, ids[:, None]).squeeze(1)
        return chosen, -(distribution.exp() * distribution).sum(-1)

    def logprobs(self, rows: list[Row]) -> list[torch.Tensor]:
        """At each trained place, without a gradient."""
        with torch.no_grad():
            return [self.scored(row)[0] for row in rows]


# The loss of one update.


@dataclass
class Update:
    """What an update reports, and its gradient by parameter."""

    numbers: dict[str, float]
    # The sum of the sizes of what the loss is a sum of: differences are judged by it.
    size: float
    gradient: dict[str, numpy.ndarray]


def update(
    model: Model,
    rows: list[Row],
    training: dict[str, Any],
    proximal: list[torch.Tensor] | None,
    reference: list[torch.Tensor] | None,
) -> Update:
    """The loss over all rows, and its gradient, not yet scaled down to norm 1."""
    parts: dict[str, list[torch.Tensor]] = {}

    def note(name: str, values: torch.Tensor) -> None:
        parts.setdefault(name, []).append(values.detach())

    model_parameters = list(model.tensors.values())
    gradient = [torch.zeros_like(parameter) for parameter in model_parameters]
    for index, row in enumerate(rows):
        now, entropy = model.scored(row)
        old = torch.tensor([row.sampled[place] for place in row.trained])
        near = None if proximal is None else proximal[index]
        terms, clipped, kept = surrogate(training, row.advantage, now, old, near)
        if reference is not None:
            gap = reference[index] - now
            kl = gap.square() / 2 if training["kl_estimator"] == "k2" else gap.exp() - gap - 1
            terms = terms + training["kl_coef"] * kl
            note("kl_reference", (gap.exp() - gap - 1)[kept])
        terms = terms - training["entropy_coef"] * entropy
        added = row.weight * terms[kept].sum()
        for total, own in zip(gradient, torch.autograd.grad(added, model_parameters, allow_unused=True)):
            if own is not None:
                total += own
        note("terms", row.weight * terms[kept])
        note("entropy", entropy)
        note("clip_fraction", (clipped & kept).double())
        back = old - now
        note("kl", back.exp() - back - 1)
        note("capped", (~kept).double())
        note("weights", torch.full_like(now, row.weight))
        note("kept_weights", torch.full_like(now, row.weight)[kept])
    every = {name: torch.cat(values) for name, values in parts.items()}

    def mean(name: str, over: str = "weights") -> float:
        return float((every[name] * every[over]).sum() / every[over].sum())

    numbers = {
        "loss": float(every["terms"].sum()),
        "entropy": mean("entropy"),
        "clip_fraction": mean("clip_fraction"),
        "kl": mean("kl"),
        "kl_reference": mean("kl_reference", "kept_weights") if reference is not None else 0.0,
        "gradient_norm": float(torch.sqrt(sum(part.square().sum() for part in gradient))),
        "capped": mean("capped"),
    }
    named = {name: part.numpy() for name, part in zip(model.tensors, gradient)}
    return Update(numbers, float(every["terms"].abs().sum()), named)


def surrogate(
    training: dict[str, Any], advantage: float, now: torch.Tensor, old: torch.Tensor, near: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the advantage adds at each token, where that is clipped, and which tokens count at all."""
    low, high = 1 - training["clip_ratio"], 1 + training["clip_ratio_high"]
    kept = torch.ones_like(now, dtype=torch.bool)
    objective = training["objective"]
    if objective == "cispo":
        ratio = torch.exp(now - old).detach()
        return -torch.minimum(ratio, torch.tensor(high)) * advantage * now, ratio > high, kept
    behaviour = torch.tensor(1.0)
    if objective == "gspo":
        ratio = torch.exp((now - old).mean()).expand_as(now)
    elif objective == "decoupled":
        behaviour = torch.exp(near - old)
        kept = behaviour <= training["behaviour_weight_cap"]
        ratio = torch.exp(now - near)
    else:
        ratio = torch.exp(now - old)
    inside = (ratio >= low) & (ratio <= high)
    bounded = torch.where(ratio < low, torch.tensor(low), torch.where(ratio > high, torch.tensor(high), ratio))
    worth = torch.where(bounded * advantage < ratio * advantage, bounded, ratio) * advantage
    clipped = ~inside & (bounded * advantage < ratio * advantage)
    if training["dual_clip"] is not None and advantage < 0 and objective != "gspo":
        floor = training["dual_clip"] * advantage
        clipped = clipped | (worth < floor)
        worth = torch.where(worth < floor, torch.tensor(floor), worth)
    return -worth * behaviour, clipped, kept


# The optimizer.


class AdamW:
    """Without weight decay. The gradient is scaled down to norm 1."""

    def __init__(self, lr: float, updates: int, first: dict[str, Any], second: dict[str, Any]) -> None:
        self.lr = lr
        self.updates = updates
        self.first = {name: numpy.asarray(part, dtype=numpy.float64) for name, part in first.items()}
        self.second = {name: numpy.asarray(part, dtype=numpy.float64) for name, part in second.items()}

    def step(self, model: Model, computed: Update, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        """Changes the model."""
        self.updates += 1
        scale = 1.0 / max(1.0, computed.numbers["gradient_norm"])
        for name, parameter in model.tensors.items():
            gradient = computed.gradient[name] * scale
            first = self.first.get(name, 0.0) * betas[0] + (1 - betas[0]) * gradient
            second = self.second.get(name, 0.0) * betas[1] + (1 - betas[1]) * gradient**2
            self.first[name], self.second[name] = first, second
            direction = first / (1 - betas[0] ** self.updates)
            spread = numpy.sqrt(second / (1 - betas[1] ** self.updates)) + 1e-8
            with torch.no_grad():
                parameter -= torch.tensor(self.lr * direction / spread)
