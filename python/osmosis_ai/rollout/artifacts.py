"""The folder for a rollout's files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class ArtifactsFolder:
    """A folder that is made when it is first asked for.

    Most rollouts never ask, and making and removing a folder can take longer than a grade. So can
    taking its path apart.
    """

    __slots__ = ("_made", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._made: Path | None = None

    def path(self) -> Path:
        """The folder, which exists from now on."""
        if self._made is None:
            path = Path(self._path)
            # Private, each of them: with `parents=True` the umask decides on the parents.
            for missing in reversed([path, *path.parents]):
                if not missing.exists():
                    missing.mkdir(mode=0o700, exist_ok=True)
            self._made = path
        return self._made

    def remove_if_empty(self) -> None:
        """Removes the folder if it was asked for and nothing was left in it."""
        if self._made is not None:
            with contextlib.suppress(OSError):
                self._made.rmdir()


@contextlib.contextmanager
def artifacts_folder(path: str | None) -> Iterator[Any]:
    """What to set a `FOLDER_FIELD` to; at the end the folder is removed if it is empty."""
    if path is None:
        yield None
        return
    folder = ArtifactsFolder(path)
    try:
        yield folder
    finally:
        folder.remove_if_empty()


class _FolderField:
    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Path | None:
        # Without an instance, a dataclass asks for the default.
        given = None if instance is None else instance.__dict__.get(self._name)
        return given.path() if isinstance(given, ArtifactsFolder) else given

    def __set__(self, instance: Any, value: Path | ArtifactsFolder | None) -> None:
        instance.__dict__[self._name] = value


# The default of a dataclass field that takes a path or an `ArtifactsFolder` and reads as a path or
# `None`.
FOLDER_FIELD: Any = _FolderField()
