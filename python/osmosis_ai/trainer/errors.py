"""What can go wrong between a trainer and the engine."""

from __future__ import annotations


class TrainerError(Exception):
    """The engine could not be asked, or said no."""


class TrainerUnreachableError(TrainerError):
    """Nobody answered for as long as the client was told to try."""


class TrainerRequestError(TrainerError):
    """The engine refused a request."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class TrainerKeyError(TrainerRequestError):
    """The key is missing, or not the engine's control key."""
