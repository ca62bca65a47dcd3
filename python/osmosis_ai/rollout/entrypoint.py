"""Finds and imports the module that holds a rollout."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from osmosis_ai import project_snapshot
from osmosis_ai.rollout.failure import user_traceback


@dataclass(frozen=True)
class Problem:
    """One reason why an entrypoint can't be used. `code` is stable."""

    code: str
    message: str
    hint: str | None = None
    traceback: str | None = None


class EntrypointError(Exception):
    """All the reasons at once."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = problems


@dataclass(frozen=True)
class Entrypoint:
    """A file of the project, and the class in it that was picked by name, if any."""

    project: Path
    file: Path
    picked: str | None

    @property
    def shown(self) -> str:
        """The file as people write it."""
        return show_path(self.file, self.project)


def show_path(file: str | Path, project: Path) -> str:
    """The path relative to the project when it is inside."""
    try:
        return str(Path(project_snapshot.run_folder(str(file))).resolve().relative_to(project))
    except ValueError:
        return str(file)


def parse_entrypoint(project_path: str, entrypoint: str) -> Entrypoint:
    """Reads `main.py` or `main.py:Name`; raises when the file is missing or outside."""
    project = Path(project_path).resolve()
    name, separator, picked = entrypoint.rpartition(":")
    if not separator or not picked.isidentifier():
        name, picked = entrypoint, ""
    file = (project / name).resolve()
    if not file.is_relative_to(project):
        raise EntrypointError(
            [Problem("entrypoint_outside", f"entrypoint `{name}` is outside of `{project}`")]
        )
    if not file.is_file():
        present = ", ".join(f"`{p.name}`" for p in sorted(project.glob("*.py"))) or "no .py file"
        raise EntrypointError(
            [
                Problem(
                    "entrypoint_missing",
                    f"entrypoint `{name}` does not exist in `{project}`",
                    f"the folder has {present}",
                )
            ]
        )
    if file.suffix != ".py":
        raise EntrypointError(
            [Problem("entrypoint_not_python", f"entrypoint `{name}` is not a .py file")]
        )
    return Entrypoint(project, file, picked or None)


def parse_source(entrypoint: Entrypoint) -> ast.Module:
    """The syntax tree of the entrypoint."""
    try:
        file = project_snapshot.shown(str(entrypoint.file))
        return ast.parse(entrypoint.file.read_bytes(), filename=file)
    except (SyntaxError, ValueError) as error:
        raise EntrypointError([_syntax_problem(error, entrypoint)]) from None


def import_entrypoint(entrypoint: Entrypoint) -> ModuleType:
    """Imports the module; whatever it raises, `sys.exit()` included, becomes a problem."""
    try:
        return _import(entrypoint)
    except SystemExit as error:
        problem = Problem(
            "exits_on_import",
            f"importing `{entrypoint.shown}` called `sys.exit({error.code!r})`",
            'move what should only run as a program below `if __name__ == "__main__":`',
            user_traceback(error),
        )
    except SyntaxError as error:
        problem = _syntax_problem(error, entrypoint)
    except BaseException as error:
        problem = Problem(
            "import_failed",
            f"importing `{entrypoint.shown}` raised {type(error).__name__}: {error}",
            _import_hint(error),
            user_traceback(error),
        )
    raise EntrypointError([problem])


def _import(entrypoint: Entrypoint) -> ModuleType:
    for folder in {str(entrypoint.file.parent): None, str(entrypoint.project): None}:
        if folder not in sys.path:
            sys.path.insert(0, folder)
    importlib.invalidate_caches()
    package = _package_name(entrypoint)
    if package is not None:
        return importlib.import_module(f"{package}.{entrypoint.file.stem}")
    # A name that is taken (`types.py`, `agents.py` beside the framework) gets one of our own.
    name = entrypoint.file.stem
    if name in sys.modules or name in sys.stdlib_module_names or not name.isidentifier():
        name = f"osmosis_entrypoint_{name}"
    spec = project_snapshot.spec_of_file(name, str(entrypoint.file))
    if spec is None or spec.loader is None:
        raise ImportError(f"`{entrypoint.shown}` can't be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _package_name(entrypoint: Entrypoint) -> str | None:
    folders = entrypoint.file.relative_to(entrypoint.project).parts[:-1]
    here = entrypoint.project
    for folder in folders:
        here = here / folder
        if not (here / "__init__.py").is_file() or not folder.isidentifier():
            return None
    return ".".join(folders) or None


def _syntax_problem(error: SyntaxError | ValueError, entrypoint: Entrypoint) -> Problem:
    file = getattr(error, "filename", None) or str(entrypoint.file)
    line = getattr(error, "lineno", None) or 1
    text = getattr(error, "msg", None) or str(error)
    return Problem(
        "syntax_error",
        f"{show_path(file, entrypoint.project)}:{line}: {text}",
        None,
        user_traceback(error),
    )


def _import_hint(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError) and error.name:
        if error.name == "osmosis_ai" or error.name.startswith("osmosis_ai."):
            return f"this version of the SDK has no `{error.name}`"
        return (
            f"add the package that provides `{error.name.partition('.')[0]}` to `dependencies` in "
            "the rollout's pyproject.toml"
        )
    return None
