"""`python -m osmosis_ai.ray`: the supervisor as a program.

`osmosis … --cluster ray` starts it with `--control`. Then it connects, reports `connected`, and
does what comes over standard input, one JSON object per line:

    {"start": {"run": …, "arguments": […], "variables": {…}}}
    {"stop": "drain"} or {"stop": "now"}

When standard input ends without a stop, whoever started it has died: it leaves, and the nodes go
on. Events go to standard output, one JSON object per line; what Ray prints goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import sys
import threading
import time
from typing import Any, TextIO

from osmosis_ai.ray.cluster import ClusterError, RayCluster
from osmosis_ai.ray.plan import JOIN_VARIABLE, STORE_VARIABLE, NodePlan
from osmosis_ai.ray.supervisor import Event, Supervisor

_LOOK_SECONDS = 1.0
# Nodes that are asked to drain finish what they hold. Then they are asked to leave at once.
_DRAIN_SECONDS = 600.0
_NOW_SECONDS = 15.0
# A head that is away this long takes its cluster with it.
_HEAD_SECONDS = 300.0


def main() -> int:
    """Returns the exit code."""
    arguments = _arguments()
    events = _Events()
    orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
    try:
        plan = None if arguments.control else _plan_from_environment(arguments)
        cluster = RayCluster(arguments.address)
    except ClusterError as error:
        events({"event": "unusable", "message": str(error), "hint": error.hint})
        return 1
    if arguments.control:
        threading.Thread(target=_read_orders, args=(orders,), daemon=True).start()
    else:
        _stop_on_signals(orders)
    events(
        {
            "event": "connected",
            "ray": cluster.version,
            "address": cluster.own_address,
            "nodes": len(cluster.machines()),
        }
    )
    try:
        if plan is None:
            plan = _wait_for_plan(orders)
        if plan is not None:
            supervisor = Supervisor(cluster, plan, events)
            _keep(supervisor, orders, events, until_over=not arguments.control)
    except ClusterError as error:
        events({"event": "unusable", "message": str(error), "hint": error.hint})
        return 1
    except BrokenPipeError:
        # Nobody reads any more: the same as the end of standard input.
        return 0
    finally:
        cluster.forget()
    return 0


def _keep(
    supervisor: Supervisor,
    orders: queue.Queue[dict[str, Any] | None],
    events: _Events,
    *,
    until_over: bool,
) -> None:
    """Looks until a stop is ordered, the run is over, or there is nobody left who listens."""
    unreachable: float | None = None
    while True:
        try:
            supervisor.look()
            unreachable = None
        except (ConnectionError, RuntimeError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            now = time.monotonic()
            unreachable = now if unreachable is None else unreachable
            if now - unreachable > _HEAD_SECONDS:
                raise ClusterError(
                    f"the Ray cluster has not answered for {_HEAD_SECONDS:g} s: {error}",
                    "start its head again, then resume the run",
                ) from error
        if until_over and supervisor.over:
            supervisor.remove()
            events({"event": "ended"})
            return
        try:
            order = orders.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        if order is None:
            return
        if "stop" in order:
            _stop(supervisor, str(order["stop"]), orders)
            events({"event": "ended"})
            return


def _stop(supervisor: Supervisor, how: str, orders: queue.Queue[dict[str, Any] | None]) -> None:
    supervisor.stop(how)
    deadline = time.monotonic() + (_DRAIN_SECONDS if how == "drain" else _NOW_SECONDS)
    while not supervisor.has_left():
        late = time.monotonic() > deadline
        if late and how == "now":
            break
        try:
            order = orders.get(timeout=0.2)
        except queue.Empty:
            order = {}
        hurried = order is not None and order.get("stop") == "now"
        if how == "drain" and (late or hurried):
            how = "now"
            supervisor.stop(how)
            deadline = time.monotonic() + _NOW_SECONDS
    supervisor.remove()


def _wait_for_plan(orders: queue.Queue[dict[str, Any] | None]) -> NodePlan | None:
    while True:
        order = orders.get()
        if order is None or "stop" in order:
            return None
        if "start" in order:
            given = order["start"]
            return NodePlan(
                run=given["run"],
                arguments=tuple(given.get("arguments", ())),
                variables=dict(given["variables"]),
            )


def _read_orders(orders: queue.Queue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        if line.strip():
            orders.put(json.loads(line))
    orders.put(None)


def _stop_on_signals(orders: queue.Queue[dict[str, Any] | None]) -> None:
    asked = [False]

    def ask(*_: Any) -> None:
        orders.put({"stop": "now" if asked[0] else "drain"})
        asked[0] = True

    signal.signal(signal.SIGINT, ask)
    signal.signal(signal.SIGTERM, ask)


class _Events:
    """Standard output, which belongs to events alone from here on."""

    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def __call__(self, event: Event) -> None:
        self._out.write(json.dumps(event) + "\n")
        self._out.flush()


def _plan_from_environment(arguments: argparse.Namespace) -> NodePlan:
    if not arguments.run:
        raise ClusterError("no run is given", "give `--run NAME`")
    missing = [n for n in (STORE_VARIABLE, *arguments.env) if not os.environ.get(n)]
    if missing:
        raise ClusterError(f"`{missing[0]}` is not set", "set it in the environment")
    names = (STORE_VARIABLE, JOIN_VARIABLE, *arguments.env)
    variables = {name: os.environ[name] for name in names if os.environ.get(name)}
    return NodePlan(arguments.run, tuple(arguments.node_arguments), variables)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m osmosis_ai.ray",
        description="Keeps one `osmosis node` on every machine of a Ray cluster. The store and the "
        f"token are taken from {STORE_VARIABLE} and {JOIN_VARIABLE}.",
    )
    parser.add_argument(
        "--address",
        default="auto",
        help="`auto` (this machine belongs to the cluster) or `ray://HEAD[:PORT]`",
    )
    parser.add_argument("--run", help="name of the run")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="variable that nodes get from this environment, for keys of model servers",
    )
    parser.add_argument(
        "--control", action="store_true", help="take orders from standard input: for `osmosis`"
    )
    parser.add_argument("node_arguments", nargs="*", help="after `--`: arguments of `osmosis node`")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
