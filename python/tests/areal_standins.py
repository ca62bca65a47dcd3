"""Stand-ins for what the real `areal` imports and no workflow here needs: torch and the like.

They take several gigabytes, `areal` itself one megabyte.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAMES = {
    *("PIL", "aiodns", "aiofiles", "colorlog", "datasets", "einops", "etcd3", "flask", "hydra"),
    *("lark", "numba", "omegaconf", "orjson", "psutil", "ray", "rich", "tenacity", "torch"),
    *("torch_memory_saver", "torchdata", "transformers", "uvloop", "wandb", "werkzeug", "yaml"),
}


class _AnyType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls

    def __getitem__(cls, item: Any) -> Any:
        return cls


class Anything(metaclass=_AnyType):
    """Can be named, called, subscripted, used as a decorator and as a base."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *given: Any, **named: Any) -> Any:
        return given[0] if len(given) == 1 and not named else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Finder:
    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in _NAMES:
            return None
        return ModuleSpec(name, _Loader(), is_package=True)


def install() -> None:
    """After every other place: what is installed wins."""
    sys.meta_path.append(_Finder)
    version = importlib.metadata.version

    def version_of(name: str) -> str:
        return "99.0" if name in _NAMES else version(name)

    importlib.metadata.version = version_of
