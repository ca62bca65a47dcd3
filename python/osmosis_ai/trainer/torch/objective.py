"""What tokens add to the loss, and the sums that a report is made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .rows import Loss

_SUMS = (
    "loss",
    "tokens",
    "weight",
    "entropy",
    "clipped",
    "kl_to_sampled",
    "kl_to_reference",
    "reference_weight",
    "mismatch",
    "behaviour",
    "kept",
    "capped",
)


@dataclass(frozen=True)
class Tokens:
    """The weighted tokens of a microbatch: one entry each, in double precision."""

    weights: torch.Tensor
    advantages: torch.Tensor
    sampled: torch.Tensor
    proximal: torch.Tensor | None
    reference: torch.Tensor | None


def k3(gap: torch.Tensor) -> torch.Tensor:
    """An estimate of KL from one sample that is never negative."""
    return torch.expm1(gap) - gap


class Tally:
    """Sums over the tokens of an update; `report` turns them into means, weighted by |weight|."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._sums = dict.fromkeys(_SUMS, 0.0)
        self._mismatch_max = 0.0

    def add(self, tokens: Tokens, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        """Adds tokens; returns what they add to the loss, to be differentiated."""
        size = tokens.weights.abs()
        terms = self._terms(tokens, logprobs, size)
        added = (tokens.weights * terms).sum()
        self._note("loss", added)
        self._sums["tokens"] += float(tokens.weights.numel())
        self._note("weight", size.sum())
        self._note("entropy", (size * entropy).sum())
        return added

    def _terms(self, tokens: Tokens, logprobs: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        if self._loss.objective == "likelihood":
            return -logprobs
        with torch.no_grad():
            apart = (logprobs - tokens.sampled).abs()
            self._note("kl_to_sampled", (size * k3(tokens.sampled - logprobs)).sum())
            self._note("mismatch", (size * apart).sum())
            if apart.numel():
                self._mismatch_max = max(self._mismatch_max, float(apart.max()))
        near, kept = tokens.sampled, torch.ones_like(size)
        behaviour = kept
        if self._loss.objective == "decoupled" and tokens.proximal is not None:
            near = tokens.proximal
            behaviour = torch.exp(near - tokens.sampled)
            kept = (behaviour <= self._loss.behaviour_weight_cap).to(size.dtype)
            behaviour = torch.where(kept > 0, behaviour, torch.zeros_like(behaviour))
            self._note("kept", (size * kept).sum())
            self._note("behaviour", (size * behaviour).sum())
            self._note("capped", (size * (1 - kept)).sum())
        ratio = torch.exp(logprobs - near)
        low, high = 1 - self._loss.clip_low, 1 + self._loss.clip_high
        free = ratio * tokens.advantages
        held = ratio.clamp(low, high) * tokens.advantages
        self._note("clipped", (size * kept * (held < free)).sum())
        terms = -torch.minimum(free, held) * behaviour
        if tokens.reference is not None:
            gap = tokens.reference - logprobs
            terms = terms + self._loss.kl_coef * k3(gap) * kept
            self._note("kl_to_reference", (size * kept * k3(gap)).sum())
            self._note("reference_weight", (size * kept).sum())
        return terms

    def _note(self, name: str, value: torch.Tensor) -> None:
        self._sums[name] += float(value.detach())

    def sums(self) -> list[float]:
        """All sums and the maximum, for adding over processes."""
        return [*self._sums.values(), self._mismatch_max]

    def replace(self, processes: list[list[float]]) -> None:
        """Takes the sums of all processes."""
        for place, name in enumerate(_SUMS):
            self._sums[name] = sum(sums[place] for sums in processes)
        self._mismatch_max = max(sums[-1] for sums in processes)

    def report(self, gradient_norm: float) -> dict[str, float | int | None]:
        """The numbers of an update."""
        of = self._sums

        def mean(name: str, over: str = "weight") -> float:
            return of[name] / of[over] if of[over] > 0 else 0.0

        decoupled = self._loss.objective == "decoupled"
        return {
            "loss": of["loss"],
            "entropy": mean("entropy"),
            "clip_fraction": mean("clipped"),
            "kl_to_sampled": mean("kl_to_sampled"),
            "kl_to_reference": mean("kl_to_reference", "reference_weight"),
            "mismatch_mean": mean("mismatch"),
            "mismatch_max": self._mismatch_max,
            "behaviour_weight": mean("behaviour", "kept") if of["kept"] > 0 else None,
            "capped_fraction": mean("capped") if decoupled else None,
            "gradient_norm": gradient_norm,
            "tokens": int(of["tokens"]),
        }
