"""Osmosis for Python users: the rollout SDK and the worker that runs it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.eval.rubric import JudgeError as JudgeError
    from osmosis_ai.eval.rubric import MalformedJudgementError as MalformedJudgementError
    from osmosis_ai.eval.rubric import MissingAPIKeyError as MissingAPIKeyError
    from osmosis_ai.eval.rubric import ModelNotFoundError as ModelNotFoundError
    from osmosis_ai.eval.rubric import ProviderRequestError as ProviderRequestError
    from osmosis_ai.eval.rubric import RubricResult as RubricResult
    from osmosis_ai.eval.rubric import evaluate_rubric as evaluate_rubric

__version__ = "0.1.0"

# Loaded when they are asked for: a worker that judges nothing need not know them.
_LAZY = frozenset(
    {
        "JudgeError",
        "MalformedJudgementError",
        "MissingAPIKeyError",
        "ModelNotFoundError",
        "ProviderRequestError",
        "RubricResult",
        "evaluate_rubric",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    value = getattr(import_module("osmosis_ai.eval.rubric"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
