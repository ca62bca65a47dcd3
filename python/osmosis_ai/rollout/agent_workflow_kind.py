"""The SDK's own workflow kind: a subclass of `AgentWorkflow` beside a subclass of `Grader`.

All problems of an entrypoint are reported at once, each naming every candidate and where it is.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.artifacts import artifacts_folder
from osmosis_ai.rollout.backend.base import ServedBackend
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.config import InvalidConfigError, config_class_of, override
from osmosis_ai.rollout.context import GraderContext, RolloutContext
from osmosis_ai.rollout.entrypoint import Entrypoint, EntrypointError, Problem, show_path
from osmosis_ai.rollout.execution import GraderRunner, WorkflowRunner
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.jobs import GradedSamples, GradeJob, GradeResult, RunJob, RunResult
from osmosis_ai.rollout.types import AgentWorkflowConfig, BaseConfig, GraderConfig
from osmosis_ai.rollout.workflow_kinds import (
    Candidate,
    LoadedWorkflow,
    Location,
    Source,
    UserClass,
    WorkflowKind,
    register,
)

T = TypeVar("T")
ConfigT = TypeVar("ConfigT", bound=BaseConfig)


class LoadedAgentWorkflow(LoadedWorkflow):
    """A workflow and its grader that passed preflight."""

    def __init__(
        self,
        workflow: type[AgentWorkflow[Any]],
        workflow_config: AgentWorkflowConfig | None,
        workflow_location: Location,
        grader: type[Grader],
        grader_config: GraderConfig | None,
        grader_location: Location,
        remarks: list[str],
        serve_remarks: list[str],
    ) -> None:
        self.workflow = workflow
        self.workflow_config = workflow_config
        self.workflow_location = workflow_location
        self.grader = grader
        self.grader_config = grader_config
        self.grader_location = grader_location
        self._remarks = remarks
        self._serve_remarks = serve_remarks
        self._workflow_runner = WorkflowRunner(workflow, workflow_config)
        self._grader_runner = GraderRunner(grader, grader_config)

    @property
    def workflow_class(self) -> UserClass:
        """The workflow."""
        return _user_class(self.workflow, self.workflow_location, self.workflow_config)

    @property
    def grader_class(self) -> UserClass:
        """The grader."""
        return _user_class(self.grader, self.grader_location, self.grader_config)

    @property
    def warnings(self) -> list[str]:
        """Remarks of preflight."""
        return self._remarks

    @property
    def serve_warnings(self) -> list[str]:
        """That the file does not make a server of its own."""
        return self._serve_remarks

    async def run(self, job: RunJob, started: Callable[[], None]) -> RunResult:
        """Runs the workflow on the row's prompt; its samples go to the grader."""
        context = RolloutContext(
            chat_completions_url=job.chat_completions_url,
            api_key=job.api_key,
            rollout_id=job.rollout_id,
        )
        with artifacts_folder(job.artifacts_dir) as folder:
            started()
            return await self._workflow_runner.run(context, job.prompt, job.metadata, folder)

    async def grade(self, job: GradeJob, started: Callable[[], None]) -> GradeResult:
        """Grades the samples."""
        with artifacts_folder(job.artifacts_dir) as folder:
            context = GraderContext(
                label=job.label,
                samples=job.samples,
                metadata=job.metadata,
                artifacts_dir=folder,
                project_path=job.project_path,
                judge=job.judge,
                turn_counts=job.turn_counts,
            )
            started()
            return GradedSamples(await self._grader_runner.grade(context))


@dataclass(frozen=True)
class AgentWorkflowCandidate(Candidate):
    """A concrete subclass of `AgentWorkflow`."""

    workflow: type[AgentWorkflow[Any]]

    @property
    def cls(self) -> type:
        """The class itself."""
        return self.workflow

    @property
    def is_declared(self) -> bool:
        """Always: its base says so."""
        return True

    def load(self, source: Source) -> LoadedWorkflow:
        """The whole project: a workflow alone is not one."""
        return AGENT_WORKFLOWS.load(source)


class AgentWorkflowKind(WorkflowKind):
    """Workflows and graders that derive from the SDK's classes."""

    name = "agent_workflow"

    def prepare_process(self) -> None:
        """Needs nothing."""

    def candidate(self, name: str, value: Any) -> Candidate | None:
        """A concrete subclass of `AgentWorkflow`."""
        if not _is_class(value, AgentWorkflow) or inspect.isabstract(value):
            return None
        return AgentWorkflowCandidate(value)

    def candidates(self, source: Source) -> Sequence[Candidate]:
        """The concrete subclasses that the namespace holds."""
        found = (self.candidate(name, value) for name, value in source.bound(_is_workflow))
        return [one for one in found if one is not None]

    def load(self, source: Source) -> LoadedAgentWorkflow:
        """The workflow and the grader of the entrypoint, or all that is wrong with them."""
        return _Search(source).result()


@dataclass
class _Search:
    """One entrypoint, and what was wrong or odd with it so far."""

    source: Source
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    serve_warnings: list[str] = field(default_factory=list)

    @property
    def entrypoint(self) -> Entrypoint:
        return self.source.entrypoint

    def result(self) -> LoadedAgentWorkflow:
        request = self.source.request
        picked = self._picked()
        workflow: type[AgentWorkflow[Any]] | None = self._one_class(
            AgentWorkflow, picked, "workflow", "run"
        )
        grader: type[Grader] | None = self._one_class(Grader, picked, "grader", "grade")
        backend = self._backend(workflow)
        workflow_config = self._config(
            AgentWorkflowConfig,
            backend.workflow_config if backend else None,
            config_class_of(workflow, AgentWorkflow, AgentWorkflowConfig) if workflow else None,
            request.workflow_table,
            workflow,
            "workflow",
        )
        grader_config = self._config(
            GraderConfig,
            backend.grader_config if backend and backend.grader is grader else None,
            GraderConfig if grader else None,
            request.grader_table,
            grader,
            "grader",
        )
        self._note_missing_server()
        if self.problems or workflow is None or grader is None:
            raise EntrypointError(self.problems)
        return LoadedAgentWorkflow(
            workflow=workflow,
            workflow_config=workflow_config,
            workflow_location=self.source.where(workflow),
            grader=grader,
            grader_config=grader_config,
            grader_location=self.source.where(grader),
            remarks=self.warnings,
            serve_remarks=self.serve_warnings,
        )

    def _picked(self) -> Any:
        """The class named by `main.py:Name`."""
        name = self.entrypoint.picked
        if name is None:
            return None
        value = getattr(self.source.module, name, None)
        if value is None:
            self._problem("name_missing", f"`{self.entrypoint.shown}` has no `{name}`")
        elif not _is_class(value, AgentWorkflow) and not _is_class(value, Grader):
            self._problem(
                "name_not_a_workflow",
                f"`{name}` in `{self.entrypoint.shown}` is not a subclass of AgentWorkflow",
            )
        elif inspect.isabstract(value):
            self._problem("name_abstract", _abstract(value, self.source.where(value)))
        return value

    def _one_class(self, base: type, picked: Any, what: str, method: str) -> Any:
        classes = [
            value for _, value in self.source.bound(lambda v: _is_class(v, base) and v is not base)
        ]
        concrete = [cls for cls in classes if not inspect.isabstract(cls)]
        if _is_class(picked, base):
            concrete = [] if inspect.isabstract(picked) else [picked]
        elif base is AgentWorkflow and self.entrypoint.picked and not _is_class(picked, Grader):
            # The name that was asked for is the problem, and it is reported already.
            return None
        elif not concrete:
            abstract = [_abstract(cls, self.source.where(cls)) for cls in classes]
            self._problem(
                f"no_{what}",
                f"`{self.entrypoint.shown}` has no concrete subclass of {base.__name__}"
                + "".join(f"; {text}" for text in abstract),
                f"define or import one class that derives from {base.__name__} and has "
                f"`async def {method}(self, ctx)`",
            )
        elif len(concrete) > 1:
            listed = ", ".join(f"`{cls.__name__}` ({self.source.where(cls)})" for cls in concrete)
            self._problem(
                f"several_{what}s",
                f"`{self.entrypoint.shown}` has {len(concrete)} {what}s: {listed}",
                f'pick one with `entrypoint = "{self.entrypoint.shown}:{concrete[0].__name__}"`, '
                "or keep only one in the module",
            )
        for cls in concrete:
            self._check_async(cls, method)
        return concrete[0] if len(concrete) == 1 else None

    def _check_async(self, cls: type, method: str) -> None:
        function = inspect.unwrap(getattr(cls, method))
        if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
            return
        is_generator = inspect.isasyncgenfunction(function)
        what = "an async generator (it uses `yield`)" if is_generator else "not async"
        code = function.__code__
        place = Location(show_path(code.co_filename, self.entrypoint.project), code.co_firstlineno)
        self._problem(
            f"{method}_not_async",
            f"`{cls.__name__}.{method}` ({place}) is {what}",
            f"write `async def {method}(self, ctx)`",
        )

    def _backend(self, workflow: Any) -> LocalBackend | None:
        """A backend built at import, or inside the app that serves it, names its configs."""
        backends = [value for _, value in self.source.bound(lambda v: isinstance(v, LocalBackend))]
        backends += [app.backend for app in self._apps() if isinstance(app.backend, LocalBackend)]
        return next((b for b in backends if b.workflow is workflow), None)

    def _apps(self) -> list[ServedBackend]:
        return [value for _, value in self.source.bound(lambda v: isinstance(v, ServedBackend))]

    def _config(
        self,
        kind: type[ConfigT],
        given: ConfigT | None,
        declared: type[ConfigT] | None,
        overrides: dict[str, Any],
        owner: type | None,
        table: str,
    ) -> ConfigT | None:
        found = self.source.bound(lambda v: isinstance(v, kind))
        config = given
        if config is None and len(found) > 1:
            listed = ", ".join(
                f"`{name}` ({self.entrypoint.shown}:{self._binding_line(name)})"
                for name, _ in found
            )
            self._problem(
                f"several_{table}_configs",
                f"`{self.entrypoint.shown}` has {len(found)} {kind.__name__} instances: {listed}",
                "keep one at module level, or pass the one that counts to the backend",
            )
            return None
        if config is None and found:
            config = found[0][1]
        if not overrides or (config is None and declared is None):
            return config
        try:
            made, remarks = override(
                config,
                declared or kind,
                overrides,
                owner.__name__ if owner is not None else table,
            )
        except InvalidConfigError as error:
            name = (type(config) if config is not None else declared or kind).__name__
            self._problem(
                f"{table}_config_invalid",
                f"[{table}] does not fit `{name}`: " + "; ".join(error.reasons),
            )
            return None
        self.warnings += [f"[{table}] {remark}" for remark in remarks]
        return made

    def _note_missing_server(self) -> None:
        if self._apps():
            return
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Call):
                called = node.func
                name = getattr(called, "id", None) or getattr(called, "attr", None)
                if name == "create_rollout_server":
                    return
        self.serve_warnings.append(
            f"`{self.entrypoint.shown}` never calls `create_rollout_server()`; `osmosis serve` "
            "does not need it, running the file itself as a server (`uvicorn main:app`) does"
        )

    def _binding_line(self, name: str) -> int:
        lines = [
            node.lineno
            for node in ast.walk(self.source.tree)
            if (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
            or (isinstance(node, ast.ImportFrom | ast.Import) and _imports(node, name))
        ]
        return max(lines, default=1)

    def _problem(self, code: str, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(code, message, hint))


def _is_class(value: Any, base: type) -> bool:
    return isinstance(value, type) and base in value.__mro__


def _imports(node: ast.ImportFrom | ast.Import, name: str) -> bool:
    return any((alias.asname or alias.name.partition(".")[0]) == name for alias in node.names)


def _abstract(cls: type, location: Location) -> str:
    missing = ", ".join(f"`{name}`" for name in sorted(getattr(cls, "__abstractmethods__", ())))
    return f"`{cls.__name__}` ({location}) does not implement {missing}"


def _user_class(
    cls: type, location: Location, config: AgentWorkflowConfig | GraderConfig | None
) -> UserClass:
    return UserClass(
        name=cls.__name__,
        location=location,
        config=config.name if config is not None else None,
        max_concurrent=config.concurrency.max_concurrent if config is not None else None,
    )


def _is_workflow(value: Any) -> bool:
    return _is_class(value, AgentWorkflow)


AGENT_WORKFLOWS = AgentWorkflowKind()
register(AGENT_WORKFLOWS)
