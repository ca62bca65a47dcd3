"""Finds AReaL-style workflows in an entrypoint, by what they can do and not by their bases."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.areal import workflow_api
from osmosis_ai.areal.workflow_api import WorkflowShape
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.workflow_kinds import Source

# A module-level workflow of this name needs no building.
INSTANCE_NAME = "workflow"


@dataclass(frozen=True)
class Candidate:
    """A workflow class, or a workflow that is built already."""

    name: str
    value: Any
    shape: WorkflowShape
    # Any class may happen to have a `run(self, data, **kwargs)`; it counts when nothing else does.
    by_chance: bool = False

    @property
    def is_class(self) -> bool:
        """Whether it must be built."""
        return isinstance(self.value, type)

    @property
    def cls(self) -> type:
        """Where its code is."""
        value = self.value
        return value if isinstance(value, type) else type(value)

    @property
    def is_async(self) -> bool:
        """Whether its method can be awaited."""
        return inspect.iscoroutinefunction(_method(self.value, self.shape))


def candidate(name: str, value: Any) -> Candidate | None:
    """The value as a workflow; `None` when it is none, or lacks methods."""
    cls = value if isinstance(value, type) else type(value)
    if issubclass(cls, AgentWorkflow | Grader) or inspect.isabstract(cls):
        return None
    # A module, a function or a mock has whatever it is asked for.
    for shape in WorkflowShape:
        if _defines(cls, shape.value) and _fits(_method(value, shape), shape):
            declared = shape is WorkflowShape.EPISODE or _declared(cls)
            return Candidate(name, value, shape, by_chance=not declared)
    return None


def candidates(source: Source) -> list[Candidate]:
    """What the entrypoint's namespace offers; more than one is for the user to choose from."""
    instance = candidate(INSTANCE_NAME, getattr(source.module, INSTANCE_NAME, None))
    if instance is not None and not instance.is_class:
        return [instance]
    classes = source.bound(lambda value: isinstance(value, type))
    found = [one for name, cls in classes if (one := candidate(name, cls)) is not None]
    own = [one for one in found if _inside(one.cls, source.entrypoint.project)]
    declared = [one for one in own if not one.by_chance]
    imported = [one for one in found if not one.by_chance]
    return declared or imported or own


def _declared(cls: type) -> bool:
    """Whether it derives from AReaL's own class for agents, ours or the real one."""
    return any(
        base is workflow_api.AgentWorkflow
        or (base.__name__ == "AgentWorkflow" and base.__module__.partition(".")[0] == "areal")
        for base in cls.__mro__
    )


def _defines(cls: type, method: str) -> bool:
    return any(method in vars(base) for base in cls.__mro__)


def _method(value: Any, shape: WorkflowShape) -> Any:
    return inspect.unwrap(getattr(value, shape.value, None) or _nothing)


def _nothing() -> None:
    pass


def _fits(method: Any, shape: WorkflowShape) -> bool:
    if shape is WorkflowShape.EPISODE:
        return True
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):
        return False
    required = [
        p
        for p in parameters
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        and p.name != "self"
    ]
    takes_more = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return takes_more and len(required) == 1


def _inside(cls: type, project: Path) -> bool:
    try:
        file = inspect.getsourcefile(cls)
    except TypeError:
        return False
    return file is not None and Path(file).resolve().is_relative_to(project)
