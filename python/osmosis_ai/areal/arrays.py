"""Numbers out of whatever array library user code has, without importing any."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """Nested lists and Python numbers, from numpy arrays, torch tensors, lists or a number.

    Raises `TypeError` for what is none of these.
    """
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        if all(type(item) in (int, float, bool) for item in value):
            return list(value)
        return [plain(item) for item in value]
    if (
        isinstance(value, str | bytes | bytearray | dict)
        or value is None
        or isinstance(value, type)
    ):
        raise TypeError(f"a value of type `{type(value).__name__}` is no array")
    for convert in ("tolist", "__array__", "__index__", "__float__"):
        method = getattr(value, convert, None)
        if callable(method):
            return plain(method())
    raise TypeError(f"a value of type `{type(value).__name__}` is no array")


def shape(value: Any) -> tuple[int, ...]:
    """The shape of what `plain` gave; raises `ValueError` for ragged lists."""
    if not isinstance(value, list):
        return ()
    inner = {shape(item) for item in value}
    if len(inner) > 1:
        raise ValueError("its rows differ in length")
    return (len(value), *(inner.pop() if inner else ()))


def flat(value: Any) -> list[Any]:
    """All numbers of what `plain` gave, in order."""
    if not isinstance(value, list):
        return [value]
    if not any(isinstance(item, list) for item in value):
        return value
    return [number for item in value for number in flat(item)]
