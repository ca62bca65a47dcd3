"""Turns an exception of user code into something a report can show."""

from __future__ import annotations

import asyncio
import errno
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from osmosis_ai.rollout.errors import OsmosisError
from osmosis_ai.rollout.types import RolloutErrorCategory

_OUR_CODE = str(Path(__file__).resolve().parent.parent) + "/"
_HTTP_CLIENTS = frozenset(
    {"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp", "requests", "urllib3"}
)
# Model clients whose errors are about the request they sent.
_MODEL_CLIENT_ERRORS = frozenset(
    {
        ("openai", "APIError"),
        ("anthropic", "APIError"),
        ("strands", "ModelThrottledException"),
        ("strands", "ContextWindowOverflowException"),
    }
)
# The engine takes a failure of this kind for one of the machine.
OUT_OF_DESCRIPTORS = "out_of_descriptors"
_MAX_MESSAGE = 4_000
_MAX_TRACEBACK = 16_000


@dataclass(frozen=True)
class Failure:
    """What went wrong: the category, the exception's name, its text, and where it came from."""

    category: RolloutErrorCategory
    kind: str
    message: str
    traceback: str | None = None


def failure_of(error: BaseException) -> Failure:
    """Describes an exception that left user code."""
    cause = _unwrapped(error)
    kind, message = _kind(cause), _text(error)
    if _is_out_of_descriptors(error, set()):
        kind, message = OUT_OF_DESCRIPTORS, f"{kind}: {message}"
    return Failure(
        category=error_category(cause),
        kind=kind,
        message=_shorten(message, _MAX_MESSAGE),
        traceback=user_traceback(error),
    )


def error_category(error: BaseException) -> RolloutErrorCategory:
    """The reference SDK's word for an exception."""
    error = _unwrapped(error)
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return RolloutErrorCategory.TIMEOUT
    if _is_http_error(error):
        return RolloutErrorCategory.HTTP_ERROR
    if isinstance(error, ValueError | TypeError | AssertionError):
        return RolloutErrorCategory.VALIDATION_ERROR
    return RolloutErrorCategory.AGENT_ERROR


def user_traceback(error: BaseException) -> str | None:
    """The traceback without this package's own frames, bounded; `None` when nothing is left."""
    try:
        report = traceback.TracebackException.from_exception(error)
        _drop_our_frames(report, set())
        text = "".join(report.format()).rstrip()
    except Exception as problem:
        # An exception's own `__str__` or a vanished source file must not hide the failure.
        return f"(no traceback: {type(problem).__name__})"
    if not report.stack and report.__cause__ is None and report.__context__ is None:
        # A SyntaxError says where it is without any frame.
        return text if isinstance(error, SyntaxError) else None
    return _shorten(text, _MAX_TRACEBACK)


def is_our_code(filename: str) -> bool:
    """Whether a frame of this file is ours (or the import system's) rather than the user's."""
    return filename.startswith((_OUR_CODE, "<frozen importlib"))


def _drop_our_frames(report: Any, seen: set[int]) -> None:
    if report is None or id(report) in seen:
        return
    seen.add(id(report))
    report.stack[:] = [frame for frame in report.stack if not is_our_code(frame.filename)]
    _drop_our_frames(report.__cause__, seen)
    _drop_our_frames(report.__context__, seen)
    for inner in getattr(report, "exceptions", None) or []:
        _drop_our_frames(inner, seen)


def _unwrapped(error: BaseException) -> BaseException:
    """What a framework's envelope around any exception holds."""
    inner = getattr(error, "original_exception", None)
    ours = type(error).__module__.partition(".")[0] == "strands"
    return inner if ours and isinstance(inner, BaseException) else error


def _kind(error: BaseException) -> str:
    if isinstance(error, OsmosisError) and error.kind:
        return error.kind
    if isinstance(error, ValidationError):
        # pydantic wraps what a validator raised; ours has a name of its own.
        for detail in error.errors(include_url=False, include_input=False):
            inner = detail.get("ctx", {}).get("error")
            if isinstance(inner, OsmosisError) and inner.kind:
                return inner.kind
    return type(error).__name__


def _is_out_of_descriptors(error: object, seen: set[int]) -> bool:
    """Whether this process, or the machine, had none left for a file or a connection."""
    if not isinstance(error, BaseException) or id(error) in seen:
        return False
    seen.add(id(error))
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return True
    inner = getattr(error, "exceptions", ())
    inner = inner if isinstance(inner, list | tuple) else ()
    causes = (_unwrapped(error), error.__cause__, error.__context__, *inner)
    return any(_is_out_of_descriptors(cause, seen) for cause in causes)


def _is_http_error(error: BaseException) -> bool:
    for cls in type(error).__mro__:
        root = cls.__module__.partition(".")[0]
        if root in _HTTP_CLIENTS or (root, cls.__name__) in _MODEL_CLIENT_ERRORS:
            return True
        if cls.__module__ == "urllib.error" or cls.__module__ == "http.client":
            return True
    return False


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(the exception has no readable text)"


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = limit // 3
    return f"{text[:head]}\n… {len(text) - limit} characters left out …\n{text[head - limit :]}"
