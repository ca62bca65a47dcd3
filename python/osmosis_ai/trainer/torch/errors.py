"""What can go wrong in a way that the other side understands."""

from __future__ import annotations

import errno
from typing import Literal

Kind = Literal["unreadable", "invalid", "not_finite", "disk_full", "unwritable", "fault"]


class LearnerError(Exception):
    """A request that failed; the learner is as it was before it."""

    def __init__(self, kind: Kind, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.hint = hint


def of_writing(error: OSError, what: str) -> LearnerError:
    """The error for a file that can't be written."""
    kind: Kind = "disk_full" if error.errno == errno.ENOSPC else "unwritable"
    return LearnerError(kind, f"{what}: {error}")
