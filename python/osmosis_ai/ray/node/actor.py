"""The actor that stands for one machine of a Ray cluster: it owns that machine's `osmosis node`."""

from __future__ import annotations

import sys
import threading
import uuid
from typing import Any

import ray

from osmosis_ai.ray.node.process import NodeProcess

# How long an actor whose process has ended waits for somebody who asks how.
_LAST_LOOK_SECONDS = 120.0


class OsmosisNode:
    """One node of a run. `ray list actors` shows it by name."""

    def __init__(self, plan: dict[str, Any], label: str) -> None:
        self._label = label
        # What it was started for: another supervisor may want something else.
        self._fingerprint = plan["fingerprint"]
        # Another one when Ray has started the actor again.
        self._instance = uuid.uuid4().hex
        # Its name and the run are public in the dashboard; what is in the variables is not.
        self._process = NodeProcess(plan["arguments"], plan["variables"], on_line=_print)
        threading.Thread(target=self._leave_when_over, daemon=True).start()

    def __repr__(self) -> str:
        return self._label

    def look(self, since: int, instance: str | None) -> dict[str, Any]:
        """See `NodeProcess.look`. Lines are counted anew by another instance."""
        seen = self._process.look(since if instance == self._instance else 0)
        return {**seen, "fingerprint": self._fingerprint, "instance": self._instance}

    def stop(self, how: str) -> None:
        """See `NodeProcess.stop`."""
        self._process.stop(how)

    def _leave_when_over(self) -> None:
        """Without a supervisor nobody else removes an actor whose run is over."""
        while not self._process.wait(10):
            pass
        while self._process.unwatched_for() < _LAST_LOOK_SECONDS:
            threading.Event().wait(10)
        # To end the process instead would make Ray start it again.
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def _print(line: str) -> None:
    """Into the actor's log, which the dashboard shows."""
    print(line, file=sys.stdout, flush=True)
