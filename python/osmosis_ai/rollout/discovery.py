"""Finds the workflow, the grader and their configs in an entrypoint, and checks them.

All problems are reported at once, each naming every candidate and where it is.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from osmosis_ai.areal.building import BuildError, Mode, build, read_arguments
from osmosis_ai.areal.finding import Candidate, candidate, candidates
from osmosis_ai.areal.own_grader import OwnGrader
from osmosis_ai.areal.workflow_api import WorkflowShape
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.config import InvalidConfigError, config_class_of, override
from osmosis_ai.rollout.entrypoint import (
    Entrypoint,
    EntrypointError,
    Problem,
    import_entrypoint,
    parse_entrypoint,
    parse_source,
    show_path,
)
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import RolloutServer
from osmosis_ai.rollout.types import AgentWorkflowConfig, BaseConfig, GraderConfig

T = TypeVar("T")
ConfigT = TypeVar("ConfigT", bound=BaseConfig)


@dataclass(frozen=True)
class Location:
    """Where something of the user's is defined."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Discovered:
    """A rollout that passed preflight."""

    workflow: type[AgentWorkflow[Any]]
    workflow_config: AgentWorkflowConfig | None
    workflow_location: Location
    grader: type[Grader]
    grader_config: GraderConfig | None
    grader_location: Location
    warnings: list[str]


def discover(
    project_path: str,
    entrypoint: str,
    workflow_overrides: dict[str, Any] | None = None,
    grader_overrides: dict[str, Any] | None = None,
) -> Discovered:
    """Imports the entrypoint and finds the rollout in it; raises `EntrypointError`."""
    parsed = parse_entrypoint(project_path, entrypoint)
    tree = parse_source(parsed)
    module = import_entrypoint(parsed)
    return _Search(parsed, tree, module).result(workflow_overrides or {}, grader_overrides or {})


def discover_rollout(
    project_path: str,
    entrypoint: str,
    workflow_table: dict[str, Any],
    grader_table: dict[str, Any],
) -> Discovered | OwnGrader:
    """Like `discover`, for workflows of every shape. Those of AReaL's are built here, once."""
    parsed = parse_entrypoint(project_path, entrypoint)
    tree = parse_source(parsed)
    search = _Search(parsed, tree, import_entrypoint(parsed))
    found = search.own_grader(workflow_table, grader_table)
    return search.result(workflow_table, grader_table) if found is None else found


@dataclass
class _Search:
    entrypoint: Entrypoint
    tree: ast.Module
    module: ModuleType
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def result(
        self, workflow_overrides: dict[str, Any], grader_overrides: dict[str, Any]
    ) -> Discovered:
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
            workflow_overrides,
            workflow,
            "workflow",
        )
        grader_config = self._config(
            GraderConfig,
            backend.grader_config if backend and backend.grader is grader else None,
            GraderConfig if grader else None,
            grader_overrides,
            grader,
            "grader",
        )
        self._note_missing_server()
        if self.problems or workflow is None or grader is None:
            raise EntrypointError(self.problems)
        return Discovered(
            workflow=workflow,
            workflow_config=workflow_config,
            workflow_location=self._where(workflow),
            grader=grader,
            grader_config=grader_config,
            grader_location=self._where(grader),
            warnings=self.warnings,
        )

    def own_grader(
        self, workflow_table: dict[str, Any], grader_table: dict[str, Any]
    ) -> OwnGrader | None:
        """The one workflow of AReaL's shape; `None` when the entrypoint is not about those."""
        found = self._own_grader_candidate()
        if found is None:
            return None
        place = self._where(found.cls)
        if not found.is_async:
            method = found.shape.value
            self._problem(
                f"{method}_not_async",
                f"`{found.cls.__name__}.{method}` ({place}) is not async",
                f"write `async def {method}(...)`",
            )
            raise EntrypointError(self.problems)
        try:
            arguments = read_arguments(workflow_table, found.cls, self.module)
            workflow = found.value
            if found.is_class:
                workflow = build(found.cls, arguments.given)
            elif arguments.given:
                listed = ", ".join(f"`{name}`" for name in arguments.given)
                message = (
                    f"[workflow] has {listed}, but `{found.name}` in `{self.entrypoint.shown}` is "
                    "built already"
                )
                hint = f'name its class: `entrypoint = "{self.entrypoint.shown}:Name"`'
                raise BuildError([Problem("workflow_argument_unknown", message, hint)])
        except BuildError as error:
            raise EntrypointError(error.problems) from None
        if arguments.mode is Mode.SUBPROCESS and found.shape is WorkflowShape.EPISODE:
            self._problem(
                "workflow_mode_unknown",
                "[workflow] mode is `subproc`, which is for workflows with `run`: the engine of "
                f"`{found.cls.__name__}.arun_episode` lives in the worker",
            )
            raise EntrypointError(self.problems)
        if grader_table:
            self.warnings.append(
                f"[grader] has no effect: what `{found.cls.__name__}` returns is the grade"
            )
        return OwnGrader(
            workflow=workflow,
            shape=found.shape,
            mode=arguments.mode,
            name=found.cls.__name__,
            file=place.file,
            line=place.line,
            warnings=self.warnings,
        )

    def _own_grader_candidate(self) -> Candidate | None:
        if self.entrypoint.picked is not None:
            value = getattr(self.module, self.entrypoint.picked, None)
            return None if value is None else candidate(self.entrypoint.picked, value)
        found = candidates(self.module, self.entrypoint.project)
        ours = [
            cls
            for _, cls in self._bound(lambda v: _is_class(v, AgentWorkflow))
            if not inspect.isabstract(cls)
        ]
        if ours:
            found = [one for one in found if not one.by_chance]
        if not found:
            return None
        if len(found) + len(ours) == 1:
            return found[0]
        classes = [*ours, *(one.cls for one in found)]
        listed = ", ".join(f"`{cls.__name__}` ({self._where(cls)})" for cls in classes)
        self._problem(
            "several_workflows",
            f"`{self.entrypoint.shown}` has {len(classes)} workflows: {listed}",
            f'pick one with `entrypoint = "{self.entrypoint.shown}:{classes[0].__name__}"`, '
            "or keep only one in the module",
        )
        raise EntrypointError(self.problems)

    def _bound(self, fits: Callable[[Any], bool]) -> list[tuple[str, Any]]:
        """Values of the entrypoint's namespace, each once, under the first name it has."""
        found: dict[int, tuple[str, Any]] = {}
        for name, value in list(vars(self.module).items()):
            # Proxies and aliases like `dict[str, int]` may fail when asked what they are.
            with contextlib.suppress(Exception):
                if fits(value):
                    found.setdefault(id(value), (name, value))
        return list(found.values())

    def _picked(self) -> Any:
        """The class named by `main.py:Name`."""
        name = self.entrypoint.picked
        if name is None:
            return None
        value = getattr(self.module, name, None)
        if value is None:
            self._problem("name_missing", f"`{self.entrypoint.shown}` has no `{name}`")
        elif not _is_class(value, AgentWorkflow) and not _is_class(value, Grader):
            self._problem(
                "name_not_a_workflow",
                f"`{name}` in `{self.entrypoint.shown}` is not a subclass of AgentWorkflow",
            )
        elif inspect.isabstract(value):
            self._problem("name_abstract", _abstract(value, self._where(value)))
        return value

    def _one_class(self, base: type, picked: Any, what: str, method: str) -> Any:
        classes = [
            value for _, value in self._bound(lambda v: _is_class(v, base) and v is not base)
        ]
        concrete = [cls for cls in classes if not inspect.isabstract(cls)]
        if _is_class(picked, base):
            concrete = [] if inspect.isabstract(picked) else [picked]
        elif base is AgentWorkflow and self.entrypoint.picked and not _is_class(picked, Grader):
            # The name that was asked for is the problem, and it is reported already.
            return None
        elif not concrete:
            abstract = [_abstract(cls, self._where(cls)) for cls in classes]
            self._problem(
                f"no_{what}",
                f"`{self.entrypoint.shown}` has no concrete subclass of {base.__name__}"
                + "".join(f"; {text}" for text in abstract),
                f"define or import one class that derives from {base.__name__} and has "
                f"`async def {method}(self, ctx)`",
            )
        elif len(concrete) > 1:
            listed = ", ".join(f"`{cls.__name__}` ({self._where(cls)})" for cls in concrete)
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
        backends = [value for _, value in self._bound(lambda v: isinstance(v, LocalBackend))]
        backends += [app.backend for app in self._apps() if isinstance(app.backend, LocalBackend)]
        return next((b for b in backends if b.workflow is workflow), None)

    def _apps(self) -> list[RolloutServer]:
        return [value for _, value in self._bound(lambda v: isinstance(v, RolloutServer))]

    def _config(
        self,
        kind: type[ConfigT],
        given: ConfigT | None,
        declared: type[ConfigT] | None,
        overrides: dict[str, Any],
        owner: type | None,
        table: str,
    ) -> ConfigT | None:
        found = self._bound(lambda v: isinstance(v, kind))
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
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                called = node.func
                name = getattr(called, "id", None) or getattr(called, "attr", None)
                if name == "create_rollout_server":
                    return
        self.warnings.append(
            f"`{self.entrypoint.shown}` never calls `create_rollout_server()`; evaluation and "
            "training here do not need it, serving the rollout by itself does"
        )

    def _binding_line(self, name: str) -> int:
        lines = [
            node.lineno
            for node in ast.walk(self.tree)
            if (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
            or (isinstance(node, ast.ImportFrom | ast.Import) and _imports(node, name))
        ]
        return max(lines, default=1)

    def _where(self, cls: type) -> Location:
        try:
            file = inspect.getsourcefile(cls) or str(self.entrypoint.file)
            line = inspect.getsourcelines(cls)[1]
        except (OSError, TypeError):
            file, line = str(self.entrypoint.file), 1
        return Location(show_path(Path(file), self.entrypoint.project), max(line, 1))

    def _problem(self, code: str, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(code, message, hint))


def _is_class(value: Any, base: type) -> bool:
    return isinstance(value, type) and base in value.__mro__


def _imports(node: ast.ImportFrom | ast.Import, name: str) -> bool:
    return any((alias.asname or alias.name.partition(".")[0]) == name for alias in node.names)


def _abstract(cls: type, location: Location) -> str:
    missing = ", ".join(f"`{name}`" for name in sorted(getattr(cls, "__abstractmethods__", ())))
    return f"`{cls.__name__}` ({location}) does not implement {missing}"
