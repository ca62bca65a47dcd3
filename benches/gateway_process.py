"""`osmosis gateway` as a process of its own, for as long as a block of code runs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from typing import NamedTuple


class Serving(NamedTuple):
    url: str
    key: str
    pid: int


@contextlib.contextmanager
def gateway(osmosis: str, *arguments: str, core: str | None = None) -> Iterator[Serving]:
    """The gateway, recording into a folder that goes with it; on one core when it is said."""
    with tempfile.TemporaryDirectory() as folder:
        pinned = ["taskset", "-c", core] if core else []
        command = [*pinned, osmosis, "gateway", *arguments, "--json", "--store", f"{folder}/calls"]
        started = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=folder, env={"OPENAI_API_KEY": "x", **os.environ}
        )
        try:
            assert started.stdout
            said = ""
            # One object over several lines, whose end stands alone.
            for line in started.stdout:
                said += line
                if line.startswith("}"):
                    break
            serving = json.loads(said)["resource"]
            yield Serving(serving["url"], serving["api_key"], started.pid)
        finally:
            started.terminate()
            started.communicate()
