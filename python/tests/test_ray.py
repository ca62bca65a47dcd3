"""Nodes on Ray, without Ray: the process that an actor owns, and what the supervisor decides.

With a real cluster: `ray_cluster.py`, which `cargo xtask ci` runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.ray.cluster import Line, Machine, Seen, _with_port
from osmosis_ai.ray.node.process import BinaryMissingError, NodeProcess, find_binary
from osmosis_ai.ray.plan import NodePlan
from osmosis_ai.ray.supervisor import Supervisor

SECRET = "osn1_very-secret"


def until(condition: Callable[[], Any], seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for `osmosis`; a test writes what it does."""
    path = tmp_path / "osmosis"
    monkeypatch.setenv("OSMOSIS_BIN", str(path))
    return path


def does(program: Path, script: str) -> None:
    # Replaced as a whole: a running script must not be written to.
    new = program.with_suffix(".new")
    new.write_text(f"#!/bin/sh\n{script}\n")
    new.chmod(0o755)
    new.rename(program)


@pytest.fixture
def keep() -> Iterator[Callable[..., NodeProcess]]:
    kept: list[NodeProcess] = []

    def start(**more: Any) -> NodeProcess:
        node = NodeProcess(["node", "--run", "demo"], {"OSMOSIS_JOIN": SECRET}, **more)
        kept.append(node)
        return node

    yield start
    for node in kept:
        node.stop("now")
        assert node.wait(20)


def test_a_program_that_fails_is_started_again_and_its_lines_are_kept(
    program: Path, tmp_path: Path, keep: Any
) -> None:
    does(
        program,
        'echo "$@ $OSMOSIS_JOIN"\n'
        f"test -e {tmp_path}/second || {{ touch {tmp_path}/second; exit 7; }}",
    )
    node = keep(waits=(0.05,))
    assert node.wait(20)
    seen = node.look(0)
    assert (seen["state"], seen["restarts"]) == ("ended", 1)
    assert seen["lines"] == [
        f"node --run demo {SECRET}",
        "`osmosis node` ended with code 7; starting it again in 0.05 s",
        f"node --run demo {SECRET}",
    ]
    assert node.look(2)["lines"] == seen["lines"][2:]


def test_the_token_is_on_no_command_line(program: Path, keep: Any) -> None:
    does(program, "echo started; exec sleep 60")
    node = keep()
    pid = until(lambda: node.look(0)["lines"] and node.look(0)["pid"])
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert "sleep 60" in commands.stdout
    assert SECRET not in commands.stdout
    assert os.getpgid(pid) == pid, "it leads a group of its own"


def test_draining_waits_for_the_program_and_now_does_not(program: Path, keep: Any) -> None:
    does(
        program, "trap 'echo drained' TERM; trap 'exit 0' INT; echo up; while :; do sleep 0.1; done"
    )
    node = keep()
    until(lambda: "up" in node.look(0)["lines"])
    node.stop("drain")
    until(lambda: "drained" in node.look(0)["lines"])
    assert not node.wait(0.3)
    node.stop("now")
    assert node.wait(20)
    assert node.look(0)["restarts"] == 0


def test_a_stop_while_it_waits_for_its_next_start_ends_it(program: Path, keep: Any) -> None:
    does(program, "exit 1")
    node = keep(waits=(600.0,))
    until(lambda: node.look(0)["state"] == "waiting")
    node.stop("drain")
    assert node.wait(5)


def test_the_program_ends_with_its_owner(program: Path, tmp_path: Path) -> None:
    does(program, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time\nfrom osmosis_ai.ray.node.process import NodeProcess\n"
            "NodeProcess(['node'], {})\ntime.sleep(60)",
        ],
        cwd=Path(__file__).parent.parent,
    )
    pid = until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    assert Path(f"/proc/{pid}").exists()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_missing_program_is_reported_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: Any
) -> None:
    monkeypatch.setenv("OSMOSIS_BIN", str(tmp_path / "nowhere"))
    node = keep(waits=(600.0,))
    until(lambda: node.look(0)["state"] == "waiting")
    assert "pip install osmosis-rs" in node.look(0)["last_exit"]
    monkeypatch.delenv("OSMOSIS_BIN")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(BinaryMissingError, match="neither beside"):
        find_binary({"PATH": str(tmp_path)})
    beside = tmp_path / "osmosis"
    beside.touch(0o755)
    assert find_binary({"PATH": ""}) == str(beside)


class FakeCluster:
    """Machines that a test adds and removes, with actors that answer what it sets."""

    def __init__(self, *machines: str) -> None:
        self.live = list(machines)
        self.actors: dict[str, dict[str, Any]] = {}
        self.started: list[str] = []
        self.removed: list[str] = []
        self.asked: list[tuple[list[str], str]] = []
        self.silent: set[str] = set()

    def machines(self) -> list[Machine]:
        return [Machine(name, f"10.0.0.{name}") for name in self.live]

    def keep(self, machine: Machine, plan: NodePlan) -> None:
        if machine.id in self.actors:
            return
        self.started.append(machine.id)
        self.actors[machine.id] = {
            "state": "running",
            "restarts": 0,
            "last_exit": None,
            "all_lines": [],
            "fingerprint": plan.to_actor()["fingerprint"],
            "instance": f"{machine.id} first",
        }

    def look(self, since: dict[str, Line]) -> list[Seen]:
        return [self._seen(name, line) for name, line in since.items()]

    def _seen(self, name: str, line: Line) -> Seen:
        if name in self.silent:
            return Seen(name, None)
        actor = self.actors.get(name)
        if actor is None:
            return Seen(name, None, gone=True)
        known = line.number if line.instance == actor["instance"] else 0
        lines = actor["all_lines"]
        return Seen(name, {**actor, "lines": lines[known:], "next": len(lines), "missed": 0})

    def stop(self, machine_ids: list[str], how: str) -> None:
        self.asked.append((machine_ids, how))

    def remove(self, machine_id: str) -> None:
        self.removed.append(machine_id)
        self.actors.pop(machine_id, None)


PLAN = NodePlan("demo", variables={"OSMOSIS_JOIN": SECRET})


def supervised(cluster: FakeCluster) -> tuple[Supervisor, list[str]]:
    told: list[str] = []

    def note(event: dict[str, Any]) -> None:
        detail = event.get("why") or event.get("line") or ""
        told.append(f"{event['event']} {event['node']} {detail}".strip())

    return Supervisor(cluster, PLAN, note), told


def test_every_machine_gets_a_node_and_later_ones_too() -> None:
    cluster = FakeCluster("1", "2")
    supervisor, told = supervised(cluster)
    supervisor.look()
    cluster.live.append("3")
    supervisor.look()
    supervisor.look()
    assert cluster.started == ["1", "2", "3"]
    assert told == ["joined 1", "joined 2", "joined 3"]
    assert supervisor.running == 3


def test_a_dead_machine_is_reported_once_and_its_actor_forgotten() -> None:
    cluster = FakeCluster("1", "2")
    supervisor, told = supervised(cluster)
    supervisor.look()
    cluster.live.remove("2")
    supervisor.look()
    supervisor.look()
    assert told[2:] == ["left 2 Ray reports the machine dead"]
    assert cluster.removed == ["2"]


def test_lines_and_restarts_are_reported_once() -> None:
    cluster = FakeCluster("1")
    supervisor, told = supervised(cluster)
    supervisor.look()
    actor = cluster.actors["1"]
    actor["all_lines"] += ["hello", "error: no database", "starting it again in 1 s"]
    actor.update(state="waiting", last_exit="it ended with code 1")
    supervisor.look()
    actor.update(state="running", restarts=1)
    supervisor.look()
    supervisor.look()
    assert told[1:] == [
        "log 1 hello",
        "log 1 error: no database",
        "log 1 starting it again in 1 s",
        "failed 1 it ended with code 1: error: no database",
        "restarted 1 it ended with code 1",
    ]


def test_an_actor_that_ray_started_again_is_read_from_its_first_line() -> None:
    cluster = FakeCluster("1")
    supervisor, told = supervised(cluster)
    cluster.keep(Machine("1", ""), PLAN)
    cluster.actors["1"]["all_lines"] = ["a", "b"]
    supervisor.look()
    cluster.actors["1"].update(instance="1 second", all_lines=["c", "d", "e"])
    supervisor.look()
    assert told == [
        *("log 1 a", "log 1 b", "joined 1"),
        *("restarted 1 Ray started its actor again", "log 1 c", "log 1 d", "log 1 e"),
    ]


def test_actors_of_an_earlier_start_are_kept_only_if_they_do_the_same() -> None:
    cluster = FakeCluster("1", "2", "3")
    for machine in cluster.machines():
        cluster.keep(machine, PLAN)
    cluster.actors["2"]["fingerprint"] = "of another run with that name"
    cluster.actors["3"]["state"] = "ended"
    supervisor, told = supervised(cluster)
    supervisor.look()
    supervisor.look()
    assert cluster.removed == ["2", "3"]
    assert cluster.started == ["1", "2", "3", "2", "3"]
    assert told == ["joined 1", "joined 2", "joined 3"]


def test_an_actor_that_is_gone_is_made_again() -> None:
    cluster = FakeCluster("1")
    supervisor, told = supervised(cluster)
    supervisor.look()
    del cluster.actors["1"]
    supervisor.look()
    supervisor.look()
    assert told == ["joined 1", "left 1 its actor is gone", "joined 1"]


def test_silence_is_reported_once() -> None:
    cluster = FakeCluster("1")
    supervisor, told = supervised(cluster)
    supervisor.look()
    cluster.silent.add("1")
    for _ in range(10):
        supervisor.look()
    assert told == ["joined 1", "silent 1 its actor does not answer"]


def test_nodes_that_end_by_themselves_end_the_supervision() -> None:
    cluster = FakeCluster("1", "2")
    supervisor, told = supervised(cluster)
    assert not supervisor.over, "nobody has come yet"
    supervisor.look()
    cluster.actors["1"].update(state="ended", last_exit="ended with code 0")
    supervisor.look()
    assert not supervisor.over
    supervisor.stop("drain")
    assert cluster.asked == [(["2"], "drain")]
    cluster.actors["2"].update(state="ended", last_exit="ended with code 0")
    assert supervisor.has_left()
    assert supervisor.over
    supervisor.remove()
    assert sorted(cluster.removed) == ["1", "2"]
    assert told[2:] == ["left 1 ended with code 0", "left 2 ended with code 0"]


def test_what_identifies_a_plan_and_what_is_shown_of_it() -> None:
    assert SECRET not in repr(PLAN)
    other = NodePlan("demo", variables={"OSMOSIS_JOIN": "another"})
    assert other.to_actor()["fingerprint"] != PLAN.to_actor()["fingerprint"]
    assert NodePlan("eval/demo").actor_name("ab12") == "osmosis-eval-demo-ab12"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("auto", "auto"),
        ("10.0.0.1:6379", "10.0.0.1:6379"),
        ("ray://head", "ray://head:10001"),
        ("ray://head:10002", "ray://head:10002"),
        ("ray://[fd00::1]", "ray://[fd00::1]:10001"),
    ],
)
def test_a_head_without_a_port_means_rays_own(given: str, used: str) -> None:
    assert _with_port(given) == used
