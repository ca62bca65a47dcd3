"""Makes `import areal…` lead here when the real package is not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_HOME = "osmosis_ai.areal"

# Modules that are this package's own under another name.
_MODULES = {
    "areal.api.reward_api": f"{_HOME}.reward_api",
    "areal.api.workflow_api": f"{_HOME}.workflow_api",
    "areal.api.io_struct": f"{_HOME}.io_struct",
    "areal.api.cli_args": f"{_HOME}.cli_args",
    "areal.api.engine_api": f"{_HOME}.engine_api",
    "areal.infra.workflow_context": f"{_HOME}.workflow_context",
    "areal.utils.stats_tracker": f"{_HOME}.stats_tracker",
    "areal.utils.logging": f"{_HOME}.log_names",
}
# Packages, and what can be taken from each directly.
_PACKAGES: dict[str, dict[str, str]] = {
    "areal": {"workflow_context": "areal.infra.workflow_context"},
    "areal.api": {
        "AsyncRewardWrapper": "areal.api.reward_api",
        "RolloutWorkflow": "areal.api.workflow_api",
        "AgentWorkflow": "areal.api.workflow_api",
        "WorkflowLike": "areal.api.workflow_api",
        "ModelRequest": "areal.api.io_struct",
        "ModelResponse": "areal.api.io_struct",
        "InferenceEngine": "areal.api.engine_api",
    },
    "areal.infra": {},
    "areal.utils": {},
}


def install_alias() -> None:
    """Looks for `areal` here after every other place; a real one that is installed wins."""
    if not alias_installed():
        sys.meta_path.append(_Finder)


def alias_installed() -> bool:
    """Whether `areal` may lead here in this process."""
    return _Finder in sys.meta_path


def remove_alias() -> None:
    """Takes it back, with the modules that were imported through it."""
    if alias_installed():
        sys.meta_path.remove(_Finder)
    for name in [*_MODULES, *_PACKAGES]:
        module = sys.modules.get(name)
        if getattr(module, "__name__", "").startswith(_HOME) or isinstance(module, _Package):
            del sys.modules[name]


class _Finder:
    """At the end of `sys.meta_path`."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, rest = name.partition(".")
        if root != "areal":
            return None
        if rest and not isinstance(sys.modules.get(root), _Package):
            # The real package lacks this one; it is not for us to complete it.
            return None
        if name in _PACKAGES:
            return ModuleSpec(name, _PackageLoader(), is_package=True)
        if name in _MODULES:
            return ModuleSpec(name, _AliasLoader())
        offered = ", ".join(f"`{known}`" for known in sorted(_MODULES))
        raise ModuleNotFoundError(
            f"no module named `{name}`: `areal` is not installed, and Osmosis offers {offered} in "
            "its place; install `areal` for the rest",
            name=name,
        )


class _Package(ModuleType):
    def __getattr__(self, attribute: str) -> Any:
        name = self.__name__
        taken = _PACKAGES[name].get(attribute)
        if taken is None:
            raise AttributeError(f"module `{name}` has no attribute `{attribute}`")
        module = import_module(taken)
        value = module if taken.endswith(f".{attribute}") else getattr(module, attribute)
        setattr(self, attribute, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_PACKAGES[self.__name__]})


class _PackageLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Package(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _AliasLoader(Loader):
    """Answers with the module of this package itself, so that there is one of each class."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_MODULES[spec.name])
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the alias's spec on it.
        module.__spec__ = self._own
