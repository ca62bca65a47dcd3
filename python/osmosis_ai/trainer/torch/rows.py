"""Rows to learn from, as they come over the channel."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from .errors import LearnerError

Objective = Literal["clipped", "decoupled", "gspo", "cispo", "likelihood"]
KlEstimator = Literal["k2", "k3"]


@dataclass(frozen=True)
class Loss:
    """What is minimised: see "Algorithms" in docs/training.md."""

    objective: Objective
    clip_low: float = 0.0
    clip_high: float = 0.0
    dual_clip: float | None = None
    kl_coef: float = 0.0
    kl_estimator: KlEstimator = "k3"
    entropy_coef: float = 0.0
    behaviour_weight_cap: float = math.inf

    @classmethod
    def read(cls, message: dict[str, Any]) -> Loss:
        """From a request; whatever is not known here is refused."""
        unknown = set(message) - {field.name for field in fields(cls)}
        if unknown:
            raise LearnerError("invalid", f"unknown part of the loss `{min(unknown)}`")
        loss = cls(**message)
        if loss.objective not in get_args(Objective):
            raise LearnerError("invalid", f"unknown objective `{loss.objective}`")
        if loss.kl_estimator not in get_args(KlEstimator):
            raise LearnerError("invalid", f"unknown KL estimator `{loss.kl_estimator}`")
        return loss


@dataclass(frozen=True)
class Row:
    """One sequence. All lists have the length of `ids`; nothing comes before the first token."""

    ids: list[int]
    temperatures: list[float]
    weights: list[float]
    advantages: list[float]
    sampled_logprobs: list[float]
    proximal_logprobs: list[float] | None = None
    reference_logprobs: list[float] | None = None

    def check(self, index: int, vocabulary: int, context: int | None) -> None:
        """Refuses what every use of a row would fail on."""
        length = len(self.ids)
        if context is not None and length > context:
            raise _wrong(index, f"has {length} tokens, the model's context is {context}")
        unknown = next((token for token in self.ids if not 0 <= token < vocabulary), None)
        if unknown is not None:
            raise _wrong(index, f"has token `{unknown}`, the vocabulary has {vocabulary}")
        if len(self.temperatures) != length:
            raise _wrong(index, f"has {length} ids and {len(self.temperatures)} `temperatures`")
        if any(not (math.isfinite(t) and t > 0) for t in self.temperatures[1:]):
            raise _wrong(index, "has a temperature that is not above 0")

    def check_loss(self, index: int, loss: Loss) -> None:
        """Refuses what an update can't be made of."""
        columns = {
            "weights": self.weights,
            "advantages": self.advantages,
            "sampled_logprobs": self.sampled_logprobs,
            "proximal_logprobs": self.proximal_logprobs,
            "reference_logprobs": self.reference_logprobs,
        }
        for name, column in columns.items():
            if column is None:
                continue
            if len(column) != len(self.ids):
                raise _wrong(index, f"has {len(self.ids)} ids and {len(column)} `{name}`")
            if not all(map(math.isfinite, column)):
                raise _wrong(index, f"has a number in `{name}` that is not finite")
        if self.weights and self.weights[0] != 0:
            raise _wrong(index, "has a weight at its first token, which nothing comes before")
        if loss.objective == "decoupled" and self.proximal_logprobs is None:
            raise _wrong(index, "has no `proximal_logprobs`, which `decoupled` needs")
        if loss.kl_coef != 0 and self.reference_logprobs is None:
            raise _wrong(index, "has no `reference_logprobs`, which `kl_coef` needs")


def read_rows(message: list[dict[str, Any]]) -> list[Row]:
    """From a request. A number that JSON can't write comes as null."""

    def numbers(column: list[float | None] | None) -> list[float] | None:
        if column is None:
            return None
        return [math.nan if number is None else number for number in column]

    def read(row: dict[str, Any]) -> Row:
        columns: dict[str, Any] = {
            name: column if name == "ids" else numbers(column) for name, column in row.items()
        }
        return Row(**columns)

    return [read(row) for row in message]


def microbatches(rows: list[Row], most_tokens: int) -> list[list[int]]:
    """Places of rows, in batches of at most `most_tokens` with their padding (or of one row).

    Rows of similar length go together. Equal rows give equal batches.
    """
    places = sorted(range(len(rows)), key=lambda place: (-len(rows[place].ids), place))
    batches: list[list[int]] = []
    for place in places:
        last = batches[-1] if batches else None
        # The first row of a batch is its longest.
        if last and (len(last) + 1) * len(rows[last[0]].ids) <= most_tokens:
            last.append(place)
        else:
            batches.append([place])
    return batches


def _wrong(index: int, message: str) -> LearnerError:
    return LearnerError("invalid", f"row {index} {message}")
