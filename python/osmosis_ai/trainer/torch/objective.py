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

    rows: torch.Tensor
    """Which row of the microbatch each is of: a sequence is in one microbatch as a whole."""
    weights: torch.Tensor
    advantages: torch.Tensor
    sampled: torch.Tensor
    proximal: torch.Tensor | None
    reference: torch.Tensor | None


@dataclass(frozen=True)
class Surrogate:
    """What advantages add to the loss, before the weights of the tokens."""

    terms: torch.Tensor
    clipped: torch.Tensor


def k3(gap: torch.Tensor) -> torch.Tensor:
    """An estimate of KL from one sample that is never negative."""
    return torch.expm1(gap) - gap


class Tally:
    """Sums over the tokens of an update; `report` turns them into means, weighted by |weight|."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._sums = dict.fromkeys(_SUMS, 0.0)
        self._mismatch_max = 0.0

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether `add` must be given entropies that can be differentiated."""
        return self._loss.entropy_coef != 0

    def add(self, tokens: Tokens, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        """Adds tokens; returns what they add to the loss, to be differentiated."""
        size = tokens.weights.abs()
        terms = self._terms(tokens, logprobs, entropy, size)
        added = (tokens.weights * terms).sum()
        self._note("loss", added)
        self._sums["tokens"] += float(tokens.weights.numel())
        self._note("weight", size.sum())
        self._note("entropy", (size * entropy).sum())
        return added

    def _terms(
        self,
        tokens: Tokens,
        logprobs: torch.Tensor,
        entropy: torch.Tensor,
        size: torch.Tensor,
    ) -> torch.Tensor:
        if self._loss.objective == "likelihood":
            return -logprobs
        with torch.no_grad():
            apart = (logprobs - tokens.sampled).abs()
            self._note("kl_to_sampled", (size * k3(tokens.sampled - logprobs)).sum())
            self._note("mismatch", (size * apart).sum())
            if apart.numel():
                self._mismatch_max = max(self._mismatch_max, float(apart.max()))
        kept = torch.ones_like(size)
        if self._loss.objective == "cispo":
            surrogate = self._constant_weight(tokens, logprobs)
        elif self._loss.objective == "gspo":
            gaps = _sequence_gaps(tokens, logprobs)
            surrogate = self._held(tokens.advantages, gaps)
        elif self._loss.objective == "decoupled" and tokens.proximal is not None:
            behaviour = torch.exp(tokens.proximal - tokens.sampled)
            kept = (behaviour <= self._loss.behaviour_weight_cap).to(size.dtype)
            behaviour = torch.where(kept > 0, behaviour, torch.zeros_like(behaviour))
            self._note("kept", (size * kept).sum())
            self._note("behaviour", (size * behaviour).sum())
            self._note("capped", (size * (1 - kept)).sum())
            near = self._held(tokens.advantages, logprobs - tokens.proximal)
            surrogate = Surrogate(near.terms * behaviour, near.clipped)
        else:
            surrogate = self._held(tokens.advantages, logprobs - tokens.sampled)
        self._note("clipped", (size * kept * surrogate.clipped).sum())
        terms = surrogate.terms
        if tokens.reference is not None:
            gap = tokens.reference - logprobs
            kl = 0.5 * gap.square() if self._loss.kl_estimator == "k2" else k3(gap)
            terms = terms + self._loss.kl_coef * kl * kept
            self._note("kl_to_reference", (size * kept * k3(gap)).sum())
            self._note("reference_weight", (size * kept).sum())
        if self._loss.entropy_coef != 0:
            terms = terms - self._loss.entropy_coef * entropy * kept
        return terms

    def _held(self, advantages: torch.Tensor, gap: torch.Tensor) -> Surrogate:
        """PPO's: the ratio, of which `gap` is the logarithm, earns nothing beyond its bounds."""
        ratio = torch.exp(gap)
        free = ratio * advantages
        held = ratio.clamp(*self._bounds) * advantages
        worth, clipped = torch.minimum(free, held), held < free
        most = self._loss.dual_clip
        if most is not None:
            # A token that must become rarer and became much likelier: its pull is bounded.
            bounded = (advantages < 0) & (worth < most * advantages)
            worth = torch.where(bounded, most * advantages, worth)
            clipped = clipped | bounded
        return Surrogate(-worth, clipped)

    def _constant_weight(self, tokens: Tokens, logprobs: torch.Tensor) -> Surrogate:
        """CISPO's: the clipped ratio is a constant, so that no token loses its gradient."""
        ratio = torch.exp(logprobs.detach() - tokens.sampled)
        constant = ratio.clamp(*self._bounds)
        return Surrogate(-constant * tokens.advantages * logprobs, constant != ratio)

    @property
    def _bounds(self) -> tuple[float, float]:
        return 1 - self._loss.clip_low, 1 + self._loss.clip_high

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


def _sequence_gaps(tokens: Tokens, logprobs: torch.Tensor) -> torch.Tensor:
    """Of each token: the mean of logprob - sampled logprob over the tokens of its row."""
    count = int(tokens.rows.max()) + 1 if tokens.rows.numel() else 0
    sums = torch.zeros(count, dtype=logprobs.dtype, device=logprobs.device)
    sums = sums.index_add(0, tokens.rows, logprobs - tokens.sampled)
    lengths = torch.bincount(tokens.rows, minlength=count).clamp(min=1)
    return (sums / lengths)[tokens.rows]
