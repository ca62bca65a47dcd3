"""User data as JSON text: strict, and precise about what is not JSON."""

from __future__ import annotations

import json
import math
from typing import Any

from osmosis_ai.rollout.errors import NotJsonError

# Readers on the other side recurse; theirs stop at 128.
MAX_DEPTH = 100


def dump_json(value: Any, where: str) -> str:
    """Renders `value`; raises `NotJsonError` naming the path (from `where`) of what is not JSON."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJsonError(_find_problem(value, where, 0) or f"{where}: {error}") from None
    # Counting brackets is cheap and proves most documents shallow.
    if text.count("[") + text.count("{") > MAX_DEPTH:
        problem = _find_problem(value, where, 0)
        if problem is not None:
            raise NotJsonError(problem)
    return text


def _find_problem(value: Any, path: str, depth: int) -> str | None:
    if depth > MAX_DEPTH:
        return f"{path}: nested deeper than {MAX_DEPTH} levels (or contains itself)"
    if value is None or isinstance(value, bool | int):
        return None
    if isinstance(value, str):
        return None if _is_unicode(value) else f"{path}: text that is not valid Unicode"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{path}: `{value}` is not a JSON number"
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str | int | float | bool | type(None)):
                return f"{path}: key of type {type(key).__name__}"
            if isinstance(key, str) and not _is_unicode(key):
                return f"{path}: key that is not valid Unicode"
            problem = _find_problem(item, f"{path}.{key}", depth + 1)
            if problem is not None:
                return problem
        return None
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            problem = _find_problem(item, f"{path}[{index}]", depth + 1)
            if problem is not None:
                return problem
        return None
    return f"{path}: object of type {type(value).__name__}"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
