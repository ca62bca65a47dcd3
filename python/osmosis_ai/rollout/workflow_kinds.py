"""Workflow kinds: the shapes that user code may have, and the registry that lists them.

A kind is a module that implements `WorkflowKind` and calls `register`. It decides what counts as a
workflow of its shape, builds it, runs it and grades it. The worker and `discovery` know kinds only
through this module. The SDK's own kind is `agent_workflow_kind`; `osmosis_ai.shipped_kinds` imports
the others.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from osmosis_ai.rollout.entrypoint import Entrypoint, show_path
from osmosis_ai.rollout.jobs import GradeJob, GradeResult, RunJob, RunResult


@dataclass(frozen=True)
class Location:
    """Where something of the user's is defined."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class UserClass:
    """A class of the user's, and how many executions of it may run at once."""

    name: str
    location: Location
    config: str | None = None
    max_concurrent: int | None = None


@dataclass(frozen=True)
class LoadRequest:
    """What the engine asked to load: the entrypoint and the tables of the run's config."""

    project_path: str
    entrypoint: str
    workflow_table: dict[str, Any]
    grader_table: dict[str, Any]


@dataclass(frozen=True)
class Source:
    """An imported entrypoint."""

    request: LoadRequest
    entrypoint: Entrypoint
    tree: ast.Module
    module: ModuleType

    def bound(self, fits: Callable[[Any], bool]) -> list[tuple[str, Any]]:
        """Values of the entrypoint's namespace, each once, under the first name it has."""
        found: dict[int, tuple[str, Any]] = {}
        for name, value in list(vars(self.module).items()):
            # Proxies and aliases like `dict[str, int]` may fail when asked what they are.
            with contextlib.suppress(Exception):
                if fits(value):
                    found.setdefault(id(value), (name, value))
        return list(found.values())

    def where(self, cls: type) -> Location:
        """The place of the class, relative to the project when it is inside."""
        try:
            file = inspect.getsourcefile(cls) or str(self.entrypoint.file)
            line = inspect.getsourcelines(cls)[1]
        except (OSError, TypeError):
            file, line = str(self.entrypoint.file), 1
        return Location(show_path(Path(file), self.entrypoint.project), max(line, 1))


class LoadedWorkflow(ABC):
    """A workflow that passed preflight, ready for many tasks at once."""

    @property
    @abstractmethod
    def workflow_class(self) -> UserClass:
        """The class that runs."""

    @property
    @abstractmethod
    def grader_class(self) -> UserClass | None:
        """The class that grades; `None` for a workflow that grades itself."""

    @property
    @abstractmethod
    def warnings(self) -> list[str]:
        """Remarks of preflight."""

    @property
    def serve_warnings(self) -> list[str]:
        """Remarks of preflight that matter only to whoever serves the project."""
        return []

    def begin_serving(self, loop: asyncio.AbstractEventLoop) -> None:  # noqa: B027
        """Called once in a process that is about to run tasks on the loop; may start threads.

        Most workflows need nothing.
        """

    @abstractmethod
    async def run(self, job: RunJob, started: Callable[[], None]) -> RunResult:
        """Runs one rollout. Calls `started` just before user code; raises what user code raised."""

    @abstractmethod
    async def grade(self, job: GradeJob, started: Callable[[], None]) -> GradeResult:
        """Grades one rollout. Calls `started` just before user code; raises what user code
        raised, or `UngradedSampleError` naming the samples that were left out.
        """


class Candidate(ABC):
    """A class or object of the entrypoint that is a workflow of some kind."""

    @property
    @abstractmethod
    def cls(self) -> type:
        """Where its code is."""

    @property
    @abstractmethod
    def is_declared(self) -> bool:
        """Whether it says so by its bases. Others count only where no candidate is declared."""

    @abstractmethod
    def load(self, source: Source) -> LoadedWorkflow:
        """Checks and builds it; raises `EntrypointError` with all problems."""


class WorkflowKind(ABC):
    """One shape of workflows."""

    name: ClassVar[str]

    @abstractmethod
    def prepare_process(self) -> None:
        """Called once in every worker process, before user code is imported."""

    @abstractmethod
    def candidate(self, name: str, value: Any) -> Candidate | None:
        """The value as a workflow of this kind; `None` when it is none."""

    @abstractmethod
    def candidates(self, source: Source) -> Sequence[Candidate]:
        """All workflows of this kind in the entrypoint's namespace."""


_registered: dict[str, WorkflowKind] = {}


def register(kind: WorkflowKind) -> None:
    """Adds a kind. One of the same name is replaced: its module was imported again."""
    _registered[kind.name] = kind


def registered() -> list[WorkflowKind]:
    """The kinds, in order of registration."""
    return list(_registered.values())
