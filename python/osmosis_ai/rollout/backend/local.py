"""Runs workflow and grader in this process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.base import ExecutionBackend, PhaseCallback
from osmosis_ai.rollout.context import GraderContext, RolloutContext, get_rollout_context
from osmosis_ai.rollout.execution import NO_GRADE, GraderRunner, WorkflowRunner
from osmosis_ai.rollout.failure import error_category
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import (
    AgentWorkflowConfig,
    ExecutionRequest,
    ExecutionResult,
    GraderConfig,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)

DEFAULT_CONCURRENCY = 4

T = TypeVar("T")


class LocalBackend(ExecutionBackend):
    """Executes in this process, on the running event loop.

    Classes and configs are given as objects or as dotted names (`package.module.Name` or
    `package.module:Name`). Without a config, four executions run at once.
    """

    def __init__(
        self,
        *,
        workflow: type[AgentWorkflow[Any]] | str,
        workflow_config: AgentWorkflowConfig | str | None = None,
        grader: type[Grader] | str | None = None,
        grader_config: GraderConfig | str | None = None,
    ) -> None:
        self.workflow: type[AgentWorkflow[Any]] = _class(workflow, AgentWorkflow, "workflow")
        self.workflow_config = _instance(workflow_config, AgentWorkflowConfig, "workflow_config")
        self.grader: type[Grader] | None = (
            None if grader is None else _class(grader, Grader, "grader")
        )
        self.grader_config = _instance(grader_config, GraderConfig, "grader_config")
        self._workflow_runner = WorkflowRunner(self.workflow, self.workflow_config)
        self._grader_runner = (
            None if self.grader is None else GraderRunner(self.grader, self.grader_config)
        )
        self._workflow_slots = _Slots(self.workflow_config)
        self._grader_slots = _Slots(self.grader_config)
        self._project_path = _folder_of(self.workflow)
        self._running = 0

    def health(self) -> dict[str, Any]:
        """Status, what is running, and the limits."""
        return {
            "status": "ok",
            "backend": "local",
            "running": self._running,
            "max_concurrent": _limit(self.workflow_config),
        }

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: PhaseCallback,
        on_grader_complete: PhaseCallback | None = None,
    ) -> None:
        """Runs the workflow, reports, grades when there is a grader, and reports again.

        Model calls go where the surrounding `RolloutContext` (else the environment) says. The
        deadlines count from the moment user code starts. After a failed workflow the grader's
        callback is told of the same failure.
        """
        self._running += 1
        try:
            ran = await self._run(request)
            await _tell(on_workflow_complete, ran)
            if on_grader_complete is None:
                return
            if ran.status is RolloutStatus.SUCCESS and self._grader_runner is not None:
                ran = await self._grade(request, ran.samples, self._grader_runner)
            await _tell(on_grader_complete, ran)
        finally:
            self._running -= 1

    async def _run(self, request: ExecutionRequest) -> ExecutionResult:
        around = get_rollout_context()
        rollout = RolloutContext(
            chat_completions_url=around.chat_completions_url if around else "",
            api_key=around.api_key if around else None,
            rollout_id=(around.rollout_id if around else "") or request.id,
            artifacts_dir=around.artifacts_dir if around else None,
        )
        async with self._workflow_slots.one():
            try:
                result = await _within(
                    self._workflow_runner.run(
                        rollout, request.prompt, request.metadata, rollout.artifacts_dir
                    ),
                    request.agent_timeout_sec,
                )
            except _DeadlineError as error:
                return _failed(f"the workflow {error}", RolloutErrorCategory.TIMEOUT)
            except Exception as error:
                return _failed(f"{type(error).__name__}: {error}", error_category(error))
        return ExecutionResult(
            status=RolloutStatus.SUCCESS, samples={sample.id: sample for sample in result.samples}
        )

    async def _grade(
        self, request: ExecutionRequest, samples: dict[str, RolloutSample], grader: GraderRunner
    ) -> ExecutionResult:
        for sample in samples.values():
            sample.label = request.label
        around = get_rollout_context()
        context = GraderContext(
            label=request.label,
            samples=samples,
            metadata=request.metadata,
            artifacts_dir=around.artifacts_dir if around else None,
            project_path=self._project_path,
        )
        async with self._grader_slots.one():
            try:
                kept = await _within(grader.grade(context), request.grader_timeout_sec)
            except _DeadlineError as error:
                return _failed(f"the grader {error}", RolloutErrorCategory.TIMEOUT, samples)
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
                return _failed(message, error_category(error), samples)
        return ExecutionResult(
            status=RolloutStatus.SUCCESS, samples={sample.id: sample for sample in kept}
        )


class _DeadlineError(Exception):
    pass


async def _within(work: Awaitable[T], limit: float | None) -> T:
    task = asyncio.ensure_future(_staying(work))
    try:
        done, _ = await asyncio.wait({task}, timeout=limit)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
    if not done:
        task.cancel()
        await asyncio.wait({task})
        # What it raised on the way out is not why it failed.
        with contextlib.suppress(BaseException):
            task.result()
        raise _DeadlineError(f"passed its deadline of {limit:g} s")
    return task.result()


async def _staying(work: Awaitable[T]) -> T:
    # In a task of its own, `sys.exit()` would end the event loop instead of the rollout.
    try:
        return await work
    except SystemExit as error:
        raise RuntimeError(f"user code called `sys.exit({error.code!r})`") from error


async def _tell(callback: PhaseCallback, result: ExecutionResult) -> None:
    told: Any = callback(result)
    if inspect.isawaitable(told):
        await told


def _failed(
    message: str,
    category: RolloutErrorCategory,
    samples: dict[str, RolloutSample] | None = None,
) -> ExecutionResult:
    # A failed grade carries no reward, and removes nothing.
    cleared = {name: s.model_copy(update=NO_GRADE) for name, s in (samples or {}).items()}
    return ExecutionResult(
        status=RolloutStatus.FAILURE, samples=cleared, err_message=message, err_category=category
    )


def _limit(config: AgentWorkflowConfig | GraderConfig | None) -> int | None:
    return DEFAULT_CONCURRENCY if config is None else config.concurrency.max_concurrent


class _Slots:
    """As many at once as the config says, on each event loop."""

    def __init__(self, config: AgentWorkflowConfig | GraderConfig | None) -> None:
        self._limit = _limit(config)
        self._of: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    def one(self) -> contextlib.AbstractAsyncContextManager[Any]:
        if self._limit is None:
            return contextlib.nullcontext()
        loop = asyncio.get_running_loop()
        return self._of.setdefault(loop, asyncio.Semaphore(self._limit))


def _folder_of(cls: type) -> str | None:
    try:
        return str(Path(inspect.getfile(cls)).resolve().parent)
    except (OSError, TypeError):
        return None


def _resolve(value: Any, parameter: str) -> Any:
    if not isinstance(value, str):
        return value
    module, separator, name = value.partition(":")
    if not separator:
        module, _, name = value.rpartition(".")
    if not module or not name:
        raise ValueError(f"{parameter} `{value}` is not a dotted name like `package.module.Name`")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise ValueError(f"{parameter} `{value}`: `{module}` has no `{name}`") from None


def _class(value: Any, base: type, parameter: str) -> Any:
    resolved = _resolve(value, parameter)
    if not isinstance(resolved, type) or not issubclass(resolved, base):
        raise TypeError(f"{parameter} must be a subclass of {base.__name__}, not {resolved!r}")
    return resolved


def _instance(value: Any, cls: type[T], parameter: str) -> T | None:
    resolved = _resolve(value, parameter)
    if resolved is not None and not isinstance(resolved, cls):
        raise TypeError(f"{parameter} must be an instance of {cls.__name__}, not {resolved!r}")
    return resolved
