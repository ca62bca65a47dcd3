"""AReaL-style workflows as a workflow kind: importing this module registers it.

A workflow of this kind takes whole rows, and what it returns is the grade.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_ai.areal import finding
from osmosis_ai.areal.alias import install_alias
from osmosis_ai.areal.building import Arguments, BuildError, Mode, build, read_arguments
from osmosis_ai.areal.http_clients import has_aiohttp, has_httpx
from osmosis_ai.areal.reward_api import warm_up
from osmosis_ai.areal.running import run_rollout
from osmosis_ai.areal.workflow_api import WorkflowShape
from osmosis_ai.rollout.entrypoint import EntrypointError, Problem
from osmosis_ai.rollout.jobs import GradeJob, GradeResult, NoGrader, RunJob, RunResult
from osmosis_ai.rollout.workflow_kinds import (
    Candidate,
    LoadedWorkflow,
    LoadRequest,
    Location,
    Source,
    UserClass,
    WorkflowKind,
    register,
)


@dataclass(frozen=True)
class LoadedArealWorkflow(LoadedWorkflow):
    """A workflow that passed preflight. It is built, once for all rollouts of the process."""

    workflow: Any
    shape: WorkflowShape
    mode: Mode
    name: str
    location: Location
    request: LoadRequest
    remarks: list[str]

    @property
    def workflow_class(self) -> UserClass:
        """The workflow's class."""
        return UserClass(self.name, self.location)

    @property
    def grader_class(self) -> None:
        """The workflow grades itself."""

    @property
    def warnings(self) -> list[str]:
        """Remarks of preflight."""
        return self.remarks

    def begin_serving(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the reward processes, so that the first reward does not wait for them."""
        if self.mode is Mode.INLINE:
            warm_up(loop)

    async def run(self, job: RunJob, started: Callable[[], None]) -> RunResult:
        """Runs the workflow on the row; what it returns is the grade."""
        return await run_rollout(self.workflow, self.shape, self.mode, self.request, job, started)

    async def grade(self, job: GradeJob, started: Callable[[], None]) -> GradeResult:
        """There is nothing to grade."""
        return NoGrader(self.name)


@dataclass(frozen=True)
class ArealCandidate(Candidate):
    """A workflow class, or a workflow that is built already."""

    found: finding.Candidate

    @property
    def cls(self) -> type:
        """Where its code is."""
        return self.found.cls

    @property
    def is_declared(self) -> bool:
        """Whether it derives from AReaL's class, or has `arun_episode`."""
        return not self.found.by_chance

    def load(self, source: Source) -> LoadedWorkflow:
        """Builds it from `[workflow]`."""
        found = self.found
        location = source.where(found.cls)
        _check_method(found, location)
        try:
            arguments = read_arguments(source.request.workflow_table, found.cls, source.module)
            workflow = _built(found, arguments, source)
        except BuildError as error:
            raise EntrypointError(error.problems) from None
        _check_mode(found, arguments.mode)
        _check_http_client(found)
        remarks = []
        if source.request.grader_table:
            remarks.append(
                f"[grader] has no effect: what `{found.cls.__name__}` returns is the grade"
            )
        return LoadedArealWorkflow(
            workflow=workflow,
            shape=found.shape,
            mode=arguments.mode,
            name=found.cls.__name__,
            location=location,
            request=source.request,
            remarks=remarks,
        )


class ArealKind(WorkflowKind):
    """Classes with `arun_episode(engine, data)` or `run(data, **extra_kwargs)`."""

    name = "areal"

    def prepare_process(self) -> None:
        """Makes `import areal` work where the real package is not installed."""
        install_alias()

    def candidate(self, name: str, value: Any) -> Candidate | None:
        """The value, when it has one of the two methods."""
        found = finding.candidate(name, value)
        return None if found is None else ArealCandidate(found)

    def candidates(self, source: Source) -> Sequence[Candidate]:
        """What the namespace offers; an instance named `workflow` comes first."""
        return [ArealCandidate(one) for one in finding.candidates(source)]


def _built(found: finding.Candidate, arguments: Arguments, source: Source) -> Any:
    if found.is_class:
        return build(found.cls, arguments.given)
    if arguments.given:
        shown = source.entrypoint.shown
        listed = ", ".join(f"`{name}`" for name in arguments.given)
        message = f"[workflow] has {listed}, but `{found.name}` in `{shown}` is built already"
        hint = f'name its class: `entrypoint = "{shown}:Name"`'
        raise BuildError([Problem("workflow_argument_unknown", message, hint)])
    return found.value


def _check_method(found: finding.Candidate, location: Location) -> None:
    if found.is_async:
        return
    method = found.shape.value
    message = f"`{found.cls.__name__}.{method}` ({location}) is not async"
    hint = f"write `async def {method}(...)`"
    raise EntrypointError([Problem(f"{method}_not_async", message, hint)])


def _check_mode(found: finding.Candidate, mode: Mode) -> None:
    if mode is Mode.SUBPROCESS and found.shape is WorkflowShape.EPISODE:
        message = (
            "[workflow] mode is `subproc`, which is for workflows with `run`: the engine of "
            f"`{found.cls.__name__}.arun_episode` lives in the worker"
        )
        raise EntrypointError([Problem("workflow_mode_unknown", message)])


def _check_http_client(found: finding.Candidate) -> None:
    """`engine.agenerate` goes over HTTP, for which our own package brings nothing along."""
    if found.shape is not WorkflowShape.EPISODE or has_aiohttp() or has_httpx():
        return
    message = (
        f"`{found.cls.__name__}.arun_episode` needs an HTTP client: neither aiohttp nor httpx is "
        "there"
    )
    hint = "add `osmosis-rs[areal]` to `dependencies` in the rollout's pyproject.toml"
    raise EntrypointError([Problem("missing_extra", message, hint)])


register(ArealKind())
