"""Whether this process is a worker, and what that means for the libraries in it."""

from __future__ import annotations

import os

_in_worker = False


def enter_worker() -> None:
    """Marks the process as a worker, before user code is imported."""
    global _in_worker
    _in_worker = True
    # The OpenAI Agents SDK would send every run's trace to its vendor.
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"


def in_worker() -> bool:
    """Whether this process is a worker."""
    return _in_worker
