"""Builds a workflow from `[workflow]`: constructor arguments, some of them named objects."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import typing
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Any

from osmosis_ai.rollout.entrypoint import Problem
from osmosis_ai.rollout.failure import user_traceback

# `"@module:attribute"` stands for that object; `"@@text"` is the text `"@text"`.
_OBJECT = "@"
_MODE = "mode"


class Mode(Enum):
    """Where a rollout of the workflow runs."""

    INLINE = "inline"
    SUBPROCESS = "subproc"


class BuildError(Exception):
    """All reasons why there is no workflow."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = problems


@dataclass(frozen=True)
class Arguments:
    """`[workflow]`, read."""

    mode: Mode
    given: dict[str, Any]


def read_arguments(table: dict[str, Any], cls: type, entrypoint: ModuleType) -> Arguments:
    """Takes our own settings out and puts objects in place of their names."""
    given = dict(table)
    mode = Mode.INLINE
    if _MODE in given:
        modes = {one.value: one for one in Mode}
        if given[_MODE] in modes:
            mode = modes[given.pop(_MODE)]
        elif _MODE not in (_parameters(cls) or {}):
            known = " or ".join(f'"{name}"' for name in modes)
            message = f"[workflow] mode is `{given[_MODE]}`; it must be {known}"
            raise BuildError([Problem("workflow_mode_unknown", message)])
    problems: list[Problem] = []
    resolved = {
        key: _resolved(value, f"[workflow] {key}", entrypoint, problems)
        for key, value in given.items()
    }
    if problems:
        raise BuildError(problems)
    return Arguments(mode, resolved)


def build(cls: type, given: dict[str, Any]) -> Any:
    """An instance of the class; what its constructor raises becomes a problem."""
    problems = _misfits(cls, given)
    arguments = _converted(cls, given, problems)
    if problems:
        raise BuildError(problems)
    try:
        return cls(**arguments)
    except BaseException as error:
        message = f"`{cls.__name__}(...)` raised {type(error).__name__}: {error}"
        problem = Problem("workflow_init_failed", message, None, user_traceback(error))
    raise BuildError([problem])


def _resolved(value: Any, where: str, entrypoint: ModuleType, problems: list[Problem]) -> Any:
    if isinstance(value, dict):
        return {
            key: _resolved(item, f"{where}.{key}", entrypoint, problems)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_resolved(item, where, entrypoint, problems) for item in value]
    if not isinstance(value, str) or not value.startswith(_OBJECT):
        return value
    name = value[len(_OBJECT) :]
    if name.startswith(_OBJECT):
        return name
    module, separator, attribute = name.partition(":")
    if not separator or not module or not attribute:
        problems.append(
            Problem(
                "workflow_argument_invalid",
                f"{where}: `{value}` names no object",
                f'write `"@module:name"`, or `"@{value}"` for the text itself',
            )
        )
        return None
    try:
        found: Any = _module(module, entrypoint)
        for part in attribute.split("."):
            found = getattr(found, part)
        return found
    except BaseException as error:
        problems.append(
            Problem(
                "workflow_argument_missing",
                f"{where}: `{value}` can't be had: {type(error).__name__}: {error}",
                None,
                user_traceback(error),
            )
        )
        return None


def _module(name: str, entrypoint: ModuleType) -> ModuleType:
    # The entrypoint may be imported under a name of our own; a second import would be another one.
    stem = (getattr(entrypoint, "__file__", None) or "").rpartition("/")[2].removesuffix(".py")
    return entrypoint if name == stem else import_module(name)


def _parameters(cls: type) -> dict[str, inspect.Parameter] | None:
    """What the constructor takes; `None` when it does not say."""
    try:
        return dict(inspect.signature(cls).parameters)
    except (TypeError, ValueError):
        return None


def _misfits(cls: type, given: dict[str, Any]) -> list[Problem]:
    parameters = _parameters(cls)
    if parameters is None:
        # The call itself will tell.
        return []
    keyword = [
        name
        for name, p in parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    problems = []
    for name in given:
        if name not in keyword and not takes_any:
            near = difflib.get_close_matches(name, keyword, n=1)
            takes = ", ".join(f"`{one}`" for one in keyword) or "no arguments"
            problems.append(
                Problem(
                    "workflow_argument_unknown",
                    f"[workflow] {name}: `{cls.__name__}` has no such argument",
                    f"did you mean `{near[0]}`?" if near else f"it takes {takes}",
                )
            )
    missing = [
        name
        for name in keyword
        if parameters[name].default is inspect.Parameter.empty and name not in given
    ]
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing)
        problems.append(
            Problem(
                "workflow_argument_missing",
                f"`{cls.__name__}` needs {listed}",
                f'add it to [workflow] in the config; `{missing[0]} = "@module:name"` passes an '
                "object",
            )
        )
    return problems


def _converted(cls: type, given: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Tables become the dataclasses that the constructor's annotations ask for."""
    try:
        hints = typing.get_type_hints(getattr(cls, "__init__"))  # noqa: B009
    except Exception:
        return given
    made = dict(given)
    for name, value in given.items():
        wanted = _dataclass_in(hints.get(name))
        if wanted is None or not isinstance(value, dict):
            continue
        try:
            made[name] = wanted(**value)
        except Exception as error:
            problems.append(
                Problem(
                    "workflow_argument_invalid",
                    f"[workflow] {name} does not fit `{wanted.__name__}`: {error}",
                )
            )
    return made


def _dataclass_in(hint: Any) -> Any:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    for argument in typing.get_args(hint):
        if isinstance(argument, type) and dataclasses.is_dataclass(argument):
            return argument
    return None
