"""Whether this process is a worker, and what that means for the libraries in it."""

from __future__ import annotations

import os

# The OpenAI Agents SDK would send every run's trace to its vendor.
_TRACING_VARIABLE = "OPENAI_AGENTS_DISABLE_TRACING"

_in_worker = False


def enter_worker() -> None:
    """Marks the process as a worker, before user code is imported."""
    global _in_worker
    _in_worker = True
    os.environ[_TRACING_VARIABLE] = "1"


def keep_traces_here() -> None:
    """In a process of the user's own: off, unless the environment says otherwise."""
    os.environ.setdefault(_TRACING_VARIABLE, "1")


def in_worker() -> bool:
    """Whether this process is a worker."""
    return _in_worker
