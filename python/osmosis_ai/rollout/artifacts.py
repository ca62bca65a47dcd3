"""The folder for a rollout's files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def artifacts_folder(folder: Path | None) -> Iterator[Path | None]:
    """Creates the folder, and removes it at the end if the rollout left nothing in it."""
    if folder is not None:
        # Private, each of them: `parents=True` would leave the modes of the parents to the umask.
        for missing in reversed([folder, *folder.parents]):
            if not missing.exists():
                missing.mkdir(mode=0o700, exist_ok=True)
    try:
        yield folder
    finally:
        if folder is not None:
            with contextlib.suppress(OSError):
                folder.rmdir()
