"""Imports the project's modules from the snapshot that the run executes.

Workers run in a copy of the project that user code may write to. A module found there, or in the
project itself (an editable installation), is read from the snapshot, which nobody writes to. Its
`__file__` is in the copy, where its data files are; its code says that it is from the project, so
that tracebacks and debuggers name and show the user's own files.
"""

from __future__ import annotations

import importlib.util
import json
import linecache
import os
import sys
from collections.abc import Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from types import CodeType, ModuleType
from typing import Any

# Set by the engine; stays, because processes of a rollout import the project too.
SNAPSHOT_VARIABLE = "_OSMOSIS_SNAPSHOT"


class Snapshot:
    """Where the project, the copy that workers run in and the snapshot are."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._project: str = told["project"]
        self._folder: str = told["folder"]
        self._files: str = told["snapshot"]
        self._importable = frozenset(told["importable"])

    def within(self, path: str) -> str | None:
        """The path from the project's folder on, of a path in any of the three; else `None`."""
        path = os.path.abspath(path)
        for root in (self._folder, self._files, self._project):
            if path == root:
                return ""
            if path.startswith(root + os.sep):
                return path[len(root) + 1 :]
        return None

    def in_project(self, within: str) -> str:
        """The user's own file."""
        return os.path.join(self._project, within) if within else self._project

    def in_folder(self, within: str) -> str:
        """The file in the copy."""
        return os.path.join(self._folder, within) if within else self._folder

    def in_files(self, within: str) -> str:
        """The file in the snapshot."""
        return os.path.join(self._files, within) if within else self._files

    def has_folder(self, within: str) -> bool:
        """Whether the snapshot has anything there."""
        return os.path.isdir(self.in_files(within))

    def is_importable(self, within: str) -> bool:
        """Whether it was there when the run began, without being part of the snapshot."""
        return within in self._importable


_snapshot: Snapshot | None = None


def install() -> None:
    """Has modules imported from the snapshot, when the engine named one."""
    global _snapshot
    told = os.environ.get(SNAPSHOT_VARIABLE)
    if not told or _snapshot is not None:
        return
    _snapshot = Snapshot(json.loads(told))
    sys.path_hooks.insert(0, _finder_for)
    sys.meta_path.insert(0, _EditableInstallations)
    for path in list(sys.path_importer_cache):
        if _snapshot.within(path) is not None:
            del sys.path_importer_cache[path]


def shown(path: str) -> str:
    """The path in the project of a path in the snapshot or in the copy; any other as it is."""
    within = None if _snapshot is None else _snapshot.within(path)
    return path if _snapshot is None or within is None else _snapshot.in_project(within)


def run_folder(path: str) -> str:
    """The path in the copy that workers run in of a path in the project; any other as it is."""
    within = None if _snapshot is None else _snapshot.within(path)
    return path if _snapshot is None or within is None else _snapshot.in_folder(within)


def spec_of_file(name: str, file: str) -> ModuleSpec | None:
    """How to import one file under a name of its own."""
    within = None if _snapshot is None else _snapshot.within(file)
    if _snapshot is None or within is None or not os.path.isfile(_snapshot.in_files(within)):
        return importlib.util.spec_from_file_location(name, file)
    loader = _Loader(name, _snapshot.in_files(within))
    return importlib.util.spec_from_file_location(name, file, loader=loader)


class _Loader(SourceFileLoader):
    """Compiles a file of the snapshot as the user's own. Bytecode is neither read nor written."""

    def get_code(self, fullname: str) -> CodeType | None:
        source = self.get_data(self.path)
        file = shown(self.path)
        text = importlib.util.decode_source(source)
        # What the user's file says by now need not be what runs.
        lines = text.splitlines(keepends=True)
        linecache.cache[file] = (len(source), None, lines, file)
        return self.source_to_code(source, file)


class _Finder(FileFinder):
    """Finds modules of one folder, in the snapshot."""

    def __init__(self, snapshot: Snapshot, within: str) -> None:
        super().__init__(
            snapshot.in_files(within),
            (ExtensionFileLoader, EXTENSION_SUFFIXES),
            (_Loader, SOURCE_SUFFIXES),
        )
        self._snapshot = snapshot
        self._within = within
        self._beside = FileFinder(
            snapshot.in_folder(within),
            (ExtensionFileLoader, EXTENSION_SUFFIXES),
            (SourceFileLoader, SOURCE_SUFFIXES),
        )

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = super().find_spec(fullname, target)
        if spec is None:
            return self._find_beside(fullname)
        places = spec.submodule_search_locations
        if places is not None:
            spec.submodule_search_locations = [self._in_folder(place) for place in places]
        if isinstance(spec.loader, _Loader):
            spec.origin = self._in_folder(spec.loader.path)
            spec.cached = None
        return spec

    def invalidate_caches(self) -> None:
        super().invalidate_caches()
        self._beside.invalidate_caches()

    def _in_folder(self, path: str) -> str:
        within = self._snapshot.within(path)
        return path if within is None else self._snapshot.in_folder(within)

    def _find_beside(self, fullname: str) -> ModuleSpec | None:
        """What does not count and was there when the run began: imported as it is."""
        name = os.path.join(self._within, fullname.rpartition(".")[2])
        endings = ("", *SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)
        if not any(self._snapshot.is_importable(name + ending) for ending in endings):
            return None
        return self._beside.find_spec(fullname)


def _finder_for(path: str) -> _Finder:
    within = None if _snapshot is None else _snapshot.within(path)
    if _snapshot is None or within is None or not _snapshot.has_folder(within):
        raise ImportError("no folder of the project's snapshot", path=path)
    return _Finder(_snapshot, within)


class _EditableInstallations:
    """Sends what other finders find in the project itself to the snapshot."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            # Those of the interpreter ask `sys.path_hooks`.
            if finder is cls or getattr(finder, "__module__", "").startswith("_frozen_importlib"):
                continue
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            found = None if spec is None else cls._from_snapshot(spec)
            if found is not None:
                return found
        return None

    @staticmethod
    def _from_snapshot(spec: ModuleSpec) -> ModuleSpec | None:
        if _snapshot is None or not spec.origin or type(spec.loader) is not SourceFileLoader:
            return None
        within = _snapshot.within(spec.origin)
        if within is None or not os.path.isfile(_snapshot.in_files(within)):
            return None
        found = spec_of_file(spec.name, _snapshot.in_folder(within))
        if found is not None and spec.submodule_search_locations is not None:
            places = [run_folder(place) for place in spec.submodule_search_locations]
            found.submodule_search_locations = places
        return found
