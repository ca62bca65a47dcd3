"""What the nodes of a run are started with."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import osmosis_ai

STORE_VARIABLE = "OSMOSIS_STORE"
JOIN_VARIABLE = "OSMOSIS_JOIN"


@dataclass(frozen=True)
class NodePlan:
    """The same for every node of the run."""

    run: str
    # More arguments of `osmosis node`.
    arguments: tuple[str, ...] = ()
    # The store, the token and keys. Never on a command line: every user of a machine can read it.
    variables: dict[str, str] = field(default_factory=dict, repr=False)

    def actor_name(self, node_id: str) -> str:
        """The name under which Ray knows the actor of one machine."""
        return f"osmosis-{self.run.replace('/', '-')}-{node_id}"

    def to_actor(self) -> dict[str, Any]:
        """As the actor gets it: plain data, because its machine may not have this class."""
        arguments = ["node", "--run", self.run, *self.arguments]
        what = [osmosis_ai.__version__, arguments, sorted(self.variables.items())]
        fingerprint = hashlib.sha256(json.dumps(what).encode()).hexdigest()
        return {
            "arguments": arguments,
            "variables": dict(self.variables),
            "fingerprint": fingerprint[:16],
        }
