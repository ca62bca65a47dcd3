"""What a reward process must know to import what this process has imported."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from types import MethodType
from typing import Any

from osmosis_ai.areal.alias import alias_installed

MAIN = "__main__"


def setup() -> dict[str, Any]:
    """Where modules come from in this process, right now."""
    if main_script() is not None:
        # What a reward process makes of the script's classes comes back under this name.
        sys.modules.setdefault("__mp_main__", sys.modules[MAIN])
    return {
        "folder": os.getcwd(),
        "path": [os.path.abspath(folder) for folder in sys.path],
        "argv": list(sys.argv),
        "files": _loaded_from_elsewhere(),
        "main": main_script(),
        "alias": alias_installed(),
    }


def main_script() -> tuple[str, str] | None:
    """How to import the script of this process; `None` when it has none (an interactive one)."""
    main = sys.modules.get(MAIN)
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name and name != MAIN:
        return ("module", name)
    file = getattr(main, "__file__", None)
    return ("path", os.path.abspath(file)) if file and os.path.isfile(file) else None


def module_of(function: Any) -> str:
    """The module whose import makes the function available."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, MethodType):
        owner = function.__self__
        function = owner if isinstance(owner, type) else type(owner)
    elif not hasattr(function, "__qualname__"):
        function = type(function)
    return getattr(function, "__module__", None) or "builtins"


def _loaded_from_elsewhere() -> dict[str, str]:
    """Modules that no search of the import path would find under their name.

    A rollout's entrypoint has a name of our own when its file's name is taken.
    """
    folders = {os.path.abspath(folder) for folder in sys.path}
    files = {}
    for name, module in list(sys.modules.items()):
        with contextlib.suppress(Exception):
            spec = module.__spec__
            file = spec.origin if spec is not None else None
            if "." in name or not spec or spec.name != name or not file or file[-3:] != ".py":
                continue
            folder, base = os.path.split(os.path.abspath(file))
            if base == "__init__.py":
                folder, base = os.path.split(folder)
            if base.removesuffix(".py") != name or folder not in folders:
                files[name] = file
    return files
