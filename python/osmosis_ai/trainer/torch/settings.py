"""What a trainer is started with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .errors import LearnerError

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Lora:
    """`[training.lora]`"""

    rank: int
    alpha: float
    target_modules: list[str] | None = None
    dropout: float = 0.0

    @classmethod
    def read(cls, table: dict[str, Any]) -> Lora:
        """From the config's table. `base` is for the embedded policy: here `dtype` decides."""
        rank = int(table.get("rank", 16))
        modules = table.get("target_modules")
        return cls(
            rank=rank,
            alpha=float(table.get("alpha", 2 * rank)),
            target_modules=None if modules is None else [str(name) for name in modules],
            dropout=float(table.get("dropout", 0.0)),
        )


@dataclass(frozen=True)
class Settings:
    """The first request of a connection."""

    model: Path
    lr: float
    seed: int = 0
    dtype: Dtype = "float32"
    lora: Lora | None = None
    microbatch_tokens: int | None = None
    """Most tokens in one pass, padding included; by the size of the vocabulary without one."""
    max_gradient_norm: float = 1.0
    betas: tuple[float, float] = field(default=(0.9, 0.999))
    epsilon: float = 1e-8

    @classmethod
    def read(cls, message: dict[str, Any]) -> Settings:
        """From the request."""
        dtype = message.get("dtype", "float32")
        if dtype not in ("float32", "bfloat16"):
            raise LearnerError("invalid", f"unknown dtype `{dtype}`")
        lora = message.get("lora")
        return cls(
            model=Path(message["model"]),
            lr=float(message["lr"]),
            seed=int(message.get("seed", 0)),
            dtype=dtype,
            lora=None if lora is None else Lora.read(lora),
            microbatch_tokens=message.get("microbatch_tokens"),
        )
