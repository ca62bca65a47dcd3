"""Keeps one node of the run on every machine of the cluster, and reports what happens to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from osmosis_ai.ray.cluster import Cluster, Line, Machine
from osmosis_ai.ray.plan import NodePlan

Event = dict[str, Any]

# An actor that answers nothing for so many looks is reported.
_SILENT_LOOKS = 6


@dataclass
class TrackedNode:
    """The node on one machine, as last seen."""

    machine: Machine
    line: Line = field(default_factory=Line)
    state: str = "starting"
    restarts: int = 0
    # How often in a row it did not answer.
    silent: int = 0
    joined: bool = False

    @property
    def over(self) -> bool:
        """It ended with code 0: the run is over, or somebody drained it."""
        return self.state == "ended"


class Supervisor:
    """Decides what to do at each look; the cluster does it, the sink gets events."""

    def __init__(self, cluster: Cluster, plan: NodePlan, sink: Callable[[Event], None]) -> None:
        self._cluster = cluster
        self._plan = plan
        self._fingerprint = plan.to_actor()["fingerprint"]
        self._sink = sink
        self._kept: dict[str, TrackedNode] = {}
        self._failures: dict[str, str] = {}

    @property
    def over(self) -> bool:
        """Every node has ended by itself."""
        return bool(self._kept) and all(kept.over for kept in self._kept.values())

    @property
    def running(self) -> int:
        """Nodes whose process runs."""
        return sum(kept.state == "running" for kept in self._kept.values())

    def look(self) -> None:
        """One round: who is there, who is new, who is gone, what do they report."""
        live = {machine.id: machine for machine in self._cluster.machines()}
        for machine_id in [i for i in self._kept if i not in live]:
            kept = self._kept.pop(machine_id)
            self._cluster.remove(machine_id)
            if not kept.over:
                self._report("left", kept.machine, why="Ray reports the machine dead")
        for machine in live.values():
            if machine.id not in self._kept:
                self._start(machine)
        self._ask()

    def stop(self, how: str) -> None:
        """Asks every node to leave: `drain` or `now`."""
        self._cluster.stop([i for i, kept in self._kept.items() if not kept.over], how)

    def has_left(self) -> bool:
        """After `stop`: looks without starting anything; whether all have left."""
        live = {machine.id for machine in self._cluster.machines()}
        for machine_id in [i for i in self._kept if i not in live]:
            del self._kept[machine_id]
        self._ask()
        return all(kept.over for kept in self._kept.values())

    def remove(self) -> None:
        """Ends every actor for good."""
        for machine_id in list(self._kept):
            self._cluster.remove(machine_id)
        self._kept.clear()

    def _start(self, machine: Machine) -> None:
        try:
            self._cluster.keep(machine, self._plan)
        except Exception as error:
            # A machine may die at any moment. Whatever it is, the next look tries again.
            problem = f"{type(error).__name__}: {error}".splitlines()[0][:500]
            if self._failures.get(machine.id) != problem:
                self._failures[machine.id] = problem
                self._report("failed", machine, why=problem)
            return
        self._failures.pop(machine.id, None)
        self._kept[machine.id] = TrackedNode(machine)

    def _ask(self) -> None:
        since = {i: kept.line for i, kept in self._kept.items()}
        for seen in self._cluster.look(since):
            kept = self._kept[seen.machine_id]
            if seen.answer is not None:
                self._take(kept, seen.answer)
            elif seen.gone:
                # Made anew at the next look, if its machine is there.
                del self._kept[seen.machine_id]
                if not kept.over:
                    self._report("left", kept.machine, why="its actor is gone")
            else:
                kept.silent += 1
                if kept.silent == _SILENT_LOOKS:
                    self._report("silent", kept.machine, why="its actor does not answer")

    def _take(self, kept: TrackedNode, answer: dict[str, Any]) -> None:
        kept.silent = 0
        first = kept.line.instance is None
        if first and (answer["fingerprint"] != self._fingerprint or answer["state"] == "ended"):
            # Left over from an earlier start of the run. The next look makes it anew.
            self._cluster.remove(kept.machine.id)
            del self._kept[kept.machine.id]
            return
        if not first and answer["instance"] != kept.line.instance:
            kept.restarts = 0
            self._report("restarted", kept.machine, why="Ray started its actor again")
        for line in answer["lines"]:
            self._report("log", kept.machine, line=line)
        kept.line = Line(answer["next"], answer["instance"])
        if answer["restarts"] > kept.restarts and not first:
            self._report("restarted", kept.machine, why=answer["last_exit"])
        kept.restarts = answer["restarts"]
        before, kept.state = kept.state, answer["state"]
        if kept.state == "running" and not kept.joined:
            kept.joined = True
            self._report("joined", kept.machine)
        if kept.state == "waiting" and before != "waiting":
            self._report("failed", kept.machine, why=_why(answer))
        if kept.over and before != "ended":
            self._report("left", kept.machine, why=answer["last_exit"])

    def _report(self, event: str, machine: Machine, **more: Any) -> None:
        self._sink({"event": event, "node": machine.id, "address": machine.address, **more})


def _why(answer: dict[str, Any]) -> str:
    """How the process ended, with the last that it printed: that is usually its error."""
    printed = [line for line in answer["lines"] if line.strip()]
    # The very last line is our own, about the next start.
    last = printed[-2].strip() if len(printed) > 1 else ""
    return f"{answer['last_exit']}: {last}" if last else str(answer["last_exit"])
