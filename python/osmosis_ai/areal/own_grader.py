"""A workflow of AReaL's shape that is ready to run: what it returns is the grade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from osmosis_ai.areal.building import Mode
from osmosis_ai.areal.workflow_api import WorkflowShape


@dataclass(frozen=True)
class OwnGrader:
    """A workflow that passed preflight. It is built, once for all rollouts of the process."""

    workflow: Any
    shape: WorkflowShape
    mode: Mode
    name: str
    file: str
    line: int
    warnings: list[str]
