"""The Ray cluster, as far as the supervisor needs it."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from dataclasses import dataclass
from typing import Any, Protocol

from osmosis_ai.ray.plan import NodePlan

NAMESPACE = "osmosis"
# Ray's own port for clients outside of the cluster.
_CLIENT_PORT = 10001
_ANSWER_SECONDS = 5.0


class ClusterError(Exception):
    """The cluster can't be used. `hint` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Machine:
    """A live node of the Ray cluster that may run something."""

    id: str
    address: str


@dataclass(frozen=True)
class Line:
    """The next line to read of a node, as counted by one instance of its actor."""

    number: int = 0
    instance: str | None = None


@dataclass(frozen=True)
class Seen:
    """What an actor answered; `None` if it did not."""

    machine_id: str
    answer: dict[str, Any] | None
    # Ray says that it will never answer again.
    gone: bool = False


class Cluster(Protocol):
    """What the supervisor does with a cluster. `RayCluster` is the real one."""

    def machines(self) -> list[Machine]:
        """Those that are alive and have processors to offer."""

    def keep(self, machine: Machine, plan: NodePlan) -> None:
        """Makes the actor of a machine, or finds the one that is there."""

    def look(self, since: dict[str, Line]) -> list[Seen]:
        """Asks the actors of these machines what they do."""

    def stop(self, machine_ids: list[str], how: str) -> None:
        """Asks these actors to end their process: `drain` or `now`."""

    def remove(self, machine_id: str) -> None:
        """Ends an actor for good, and its process with it."""


class RayCluster:
    """A connection to a Ray cluster."""

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise ClusterError(
                f"`{sys.executable}` can't import Ray: {error}",
                "install it with `pip install 'osmosis-rs[ray]'`, in the version of the cluster",
            ) from error
        self._ray = ray
        self._handles: dict[str, Any] = {}
        self._looks: dict[str, Any] = {}
        _connect(ray, address)
        self.version = str(ray.__version__)
        self.own_address = _own_address(ray, address)

    def machines(self) -> list[Machine]:
        """A machine with no processors is kept free on purpose, as the head often is."""
        return [
            Machine(node["NodeID"], node["NodeManagerAddress"])
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) > 0
        ]

    def keep(self, machine: Machine, plan: NodePlan) -> None:
        """Does not wait until it runs."""
        self._handles[machine.id] = self._actor(machine, plan)

    def look(self, since: dict[str, Line]) -> list[Seen]:
        """All at once. A question that was not answered stays open until the next look."""
        for machine_id, line in since.items():
            if machine_id not in self._looks and machine_id in self._handles:
                handle = self._handles[machine_id]
                self._looks[machine_id] = handle.look.remote(line.number, line.instance)
        asked = {i: ref for i, ref in self._looks.items() if i in since}
        if asked:
            self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_SECONDS)
        return [self._answer(machine_id, asked.get(machine_id)) for machine_id in since]

    def stop(self, machine_ids: list[str], how: str) -> None:
        """Does not wait for an answer."""
        for machine_id in machine_ids:
            if machine_id in self._handles:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    self._handles[machine_id].stop.remote(how)

    def remove(self, machine_id: str) -> None:
        """That of a dead machine is gone already."""
        self._looks.pop(machine_id, None)
        handle = self._handles.pop(machine_id, None)
        if handle is not None:
            with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.kill(handle, no_restart=True)

    def forget(self) -> None:
        """Leaves the cluster; detached actors stay."""
        self._ray.shutdown()

    def _actor(self, machine: Machine, plan: NodePlan) -> Any:
        from ray import cloudpickle
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from osmosis_ai.ray import node
        from osmosis_ai.ray.node import actor

        # Machines of the cluster need no copy of our package.
        cloudpickle.register_pickle_by_value(node)
        name = plan.actor_name(machine.id)
        return (
            self._ray.remote(actor.OsmosisNode)
            .options(
                name=name,
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                scheduling_strategy=NodeAffinitySchedulingStrategy(machine.id, soft=False),
            )
            .remote(plan.to_actor(), f"osmosis node of run {plan.run} on {machine.address}")
        )

    def _answer(self, machine_id: str, question: Any) -> Seen:
        if question is None:
            return Seen(machine_id, None, gone=machine_id not in self._handles)
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(question, timeout=0)
        except errors.GetTimeoutError:
            return Seen(machine_id, None)
        except errors.ActorDiedError:
            self._looks.pop(machine_id, None)
            self._handles.pop(machine_id, None)
            return Seen(machine_id, None, gone=True)
        except errors.RayError as error:
            logging.getLogger(__name__).debug("no answer from %s: %s", machine_id, error)
            self._looks.pop(machine_id, None)
            return Seen(machine_id, None)
        self._looks.pop(machine_id, None)
        return Seen(machine_id, answer)


def _connect(ray: Any, address: str) -> None:
    try:
        ray.init(
            address=_with_port(address),
            namespace=NAMESPACE,
            # The actors report their lines themselves, also to the supervisor of a resumed run.
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    except ImportError as error:
        raise ClusterError(
            f"Ray's client can't be used: {error}",
            "install it with `pip install 'osmosis-rs[ray]'`",
        ) from error
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        hint = (
            "on a machine of the cluster use `--cluster ray`; from elsewhere `--cluster "
            f"ray://HEAD`, where HEAD runs `ray start --head` and its port {_CLIENT_PORT} can be "
            "reached. Python and Ray must have the same versions as on the cluster"
        )
        first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ClusterError(f"no connection to the Ray cluster at `{address}`: {first}", hint) from (
            error
        )


def _with_port(address: str) -> str:
    """`ray://HEAD` means Ray's usual port."""
    scheme, separator, place = address.partition("://")
    if scheme != "ray" or not separator:
        return address
    bare = place.rpartition("]")[2]
    return address if ":" in bare else f"{address}:{_CLIENT_PORT}"


def _own_address(ray: Any, address: str) -> str:
    """Where machines of the cluster reach this one."""
    scheme, _, place = _with_port(address).partition("://")
    if scheme != "ray":
        return str(ray.util.get_node_ip_address())
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    with contextlib.suppress(OSError):
        family, kind, _, _, target = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # Sends nothing: it only chooses a route.
            probe.connect(target)
            return str(probe.getsockname()[0])
    return "127.0.0.1"
