"""Modules come from the snapshot, whatever happens to the project and to the copy beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SDK = Path(__file__).parent.parent
MAIN = """
import pathlib
import helper
from package import inner

HERE = pathlib.Path(__file__).parent

def fail():
    raise ValueError("as it was")  # the user's line
"""


class Places:
    """A project, the copy that a worker runs in, and the snapshot of both."""

    def __init__(self, root: Path) -> None:
        self.project, self.folder, self.snapshot = root / "p", root / ".p.run-1", root / "snapshot"
        for place in (self.project, self.folder, self.snapshot):
            self.write(place, "main.py", MAIN)
            self.write(place, "helper.py", "VALUE = 'helper as it was'\n")
            self.write(place, "package/__init__.py", "")
            self.write(place, "package/inner.py", "VALUE = 1\n")
            self.write(place, "data.txt", "data as it was")
        self.importable: list[str] = []

    @staticmethod
    def write(place: Path, name: str, text: str) -> None:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, script: str, before: str = "") -> Any:
        """What a process finds that imports the entrypoint as a worker does."""
        told = {
            "project": str(self.project),
            "folder": str(self.folder),
            "snapshot": str(self.snapshot),
            "importable": self.importable,
        }
        code = f"""
import json, os, sys
sys.path.insert(0, {str(SDK)!r})
{before}
from osmosis_ai import project_snapshot
project_snapshot.install()
sys.path.insert(0, os.getcwd())
import main
def tell(value): print(json.dumps(value))
{script}
"""
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env={**os.environ, "_OSMOSIS_SNAPSHOT": json.dumps(told)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_code_is_the_snapshots_whatever_is_in_the_project_and_in_the_copy(places: Places) -> None:
    for place in (places.project, places.folder):
        for name in ("main.py", "helper.py", "package/inner.py"):
            places.write(place, name, "VALUE = 'forged'\nfrom helper import VALUE as forged\n")
        # Not in the snapshot, and before the standard library's on the path.
        places.write(place, "colorsys.py", "VALUE = 'forged'\n")
        places.write(place, "package/planted.py", "VALUE = 'forged'\n")
    found = places.run(
        """
import colorsys
try:
    from package import planted
except ImportError:
    planted = None
tell([main.helper.VALUE, main.inner.VALUE, hasattr(colorsys, "VALUE"), planted is None])
"""
    )
    assert found == ["helper as it was", 1, False, True]


def test_a_module_is_at_home_in_the_copy_and_its_code_in_the_project(places: Places) -> None:
    found = places.run(
        """
import inspect
tell([main.__file__, main.fail.__code__.co_filename, (main.HERE / "data.txt").read_text(),
      inspect.getsource(main.fail),
      sys.modules["package"].__path__[0]])
"""
    )
    assert found[0] == str(places.folder / "main.py")
    assert found[1] == str(places.project / "main.py")
    assert found[2] == "data as it was"
    assert found[3].startswith("def fail():")
    assert found[4] == str(places.folder / "package")


def test_a_traceback_shows_the_line_that_ran_after_the_file_was_edited(places: Places) -> None:
    places.write(places.project, "main.py", "edited\n" * 20)
    found = places.run(
        """
import traceback
try:
    main.fail()
except ValueError:
    tell(traceback.format_exc())
"""
    )
    assert f'File "{places.project}/main.py", line 9, in fail' in found
    assert "# the user's line" in found
    assert "edited" not in found


def test_nothing_is_written_beside_the_code(places: Places) -> None:
    places.run("tell(None)")
    for place in (places.project, places.folder, places.snapshot):
        assert not list(place.rglob("__pycache__"))


def test_an_editable_installation_of_the_project_is_the_snapshots(places: Places) -> None:
    for place in (places.project, places.snapshot, places.folder):
        places.write(place, "src/installed/__init__.py", "from .part import VALUE\n")
        places.write(place, "src/installed/part.py", "VALUE = 'as it was'\n")
        places.write(place, "src/on_path.py", "VALUE = 'as it was'\n")
    for name in ("src/installed/part.py", "src/on_path.py"):
        places.write(places.project, name, "VALUE = 'forged'\n")
    # As setuptools does it: by a finder of its own, or by a folder on the path.
    finder = f"""
import importlib.util
class Editable:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "installed":
            folder = {str(places.project / "src/installed")!r}
            return importlib.util.spec_from_file_location(
                name, folder + "/__init__.py", submodule_search_locations=[folder])
sys.meta_path.append(Editable)
sys.path.append({str(places.project / "src")!r})
try:
    import no_such_module
except ImportError:
    pass
"""
    found = places.run("import installed, on_path\ntell([installed.VALUE, on_path.VALUE])", finder)
    assert found == ["as it was", "as it was"]


def test_what_does_not_count_is_imported_only_if_it_was_there(places: Places) -> None:
    places.write(places.project, "vendored/fixtures.py", "VALUE = 'mine'\n")
    (places.folder / "vendored").symlink_to(places.project / "vendored")
    places.write(places.folder, "planted.py", "VALUE = 'forged'\n")
    places.importable = ["vendored"]
    found = places.run(
        """
from vendored import fixtures
try:
    import planted
except ImportError:
    tell(fixtures.VALUE)
"""
    )
    assert found == "mine"


def test_breakpoints_are_set_where_the_code_is(places: Places) -> None:
    found = places.run(
        """
from osmosis_ai.worker.debugging import TerminalPdb
pdb = TerminalPdb()
tell([pdb.lookupmodule("main.py"), pdb.lookupmodule("helper"), pdb.set_break(
    pdb.lookupmodule("main.py"), 9)])
"""
    )
    assert found == [str(places.project / "main.py"), str(places.project / "helper.py"), None]
