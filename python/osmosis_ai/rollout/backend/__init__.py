"""Backends execute workflows and graders."""

from osmosis_ai.rollout.backend.base import ExecutionBackend, PhaseCallback
from osmosis_ai.rollout.backend.local import LocalBackend

__all__ = ["ExecutionBackend", "LocalBackend", "PhaseCallback"]
