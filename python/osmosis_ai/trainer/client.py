"""The client: batches in, new weights out."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from osmosis_ai.trainer.batch import TrainingBatch, from_arrow, from_json
from osmosis_ai.trainer.errors import TrainerError
from osmosis_ai.trainer.wire import Wire

_log = logging.getLogger("osmosis_ai.trainer")

_ARROW = "application/vnd.apache.arrow.stream"
_BATCHES = "/v1/training/batches"
# Longer than the engine takes to write a large batch.
_MARGIN_SECONDS = 120.0
# Reading a checkpoint of a few gigabytes takes minutes.
_ANNOUNCE_SECONDS = 1800.0


class TrainerClient:
    """Talks to `osmosis train serve`.

    - `base_url`: what it printed; else the variable `OSMOSIS_TRAINER_URL`.
    - `api_key`: its control key; else the variable `OSMOSIS_CONTROL_KEY`.
    - `retry_for`: for so many seconds a request is tried again while the engine can't be reached.
    - `arrow`: whether batches come as Arrow; else where `pyarrow` is installed.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        retry_for: float = 300.0,
        arrow: bool | None = None,
    ) -> None:
        base_url = base_url or os.environ.get("OSMOSIS_TRAINER_URL")
        api_key = api_key or os.environ.get("OSMOSIS_CONTROL_KEY")
        if not base_url:
            raise ValueError("no address: give `base_url`, or set OSMOSIS_TRAINER_URL")
        if not api_key:
            raise ValueError("no key: give `api_key`, or set OSMOSIS_CONTROL_KEY")
        if arrow is None:
            arrow = importlib.util.find_spec("pyarrow") is not None
        self._wire = Wire(base_url, api_key, retry_for)
        self._arrow = arrow

    def __repr__(self) -> str:
        return f"TrainerClient({self._wire.root!r})"

    def batches(self, *, wait: float = 30.0) -> Iterator[TrainingBatch]:
        """Each batch as soon as it is there, beginning with the oldest that is not acknowledged.

        Ends when the run has no more of them. A batch is to be acknowledged before the next one is
        asked for. `wait` is how long one request is held, in seconds, at most 300.
        """
        after: int | None = None
        told = False
        while True:
            batch, waiting_for = self._poll(wait, after)
            if batch is not None:
                yield batch
                after, told = batch.number, False
            elif waiting_for == "end":
                return
            elif waiting_for == "acknowledgement":
                raise TrainerError(
                    f"batch {after} is not acknowledged: call `ack()` before the next one"
                )
            elif waiting_for == "version" and not told:
                told = True
                _log.warning(
                    "the engine waits for another policy version: rollouts of this one would be "
                    "older than `max_staleness` allows; `announce` it"
                )

    def next_batch(self, *, wait: float = 30.0, after: int | None = None) -> TrainingBatch | None:
        """The oldest batch that is not acknowledged, numbered above `after`; or nothing."""
        return self._poll(wait, after)[0]

    def acknowledge(self, number: int) -> None:
        """Says that a batch is trained on and saved; saying it twice does no harm."""
        self._wire.ask("POST", f"{_BATCHES}/{number}/ack")

    def announce(
        self,
        *,
        weights: str | os.PathLike[str] | None = None,
        endpoints: Sequence[str | Mapping[str, Any]] | None = None,
        model: str | None = None,
        version: int | None = None,
    ) -> int:
        """Has the rollouts go on with a new policy, and says which version it is.

        - `weights`: a checkpoint folder (safetensors) where the engine runs; for embedded policies.
        - `endpoints`: the servers that answer from now on, for a policy behind servers.
        - neither: the servers have exchanged their weights in place.
        - `version`: the next one, unless it is given. It never goes back.
        """
        if version is None:
            # Settled before it is sent: the request may have to be sent again.
            version = self.version() + 1
        change: dict[str, Any] = {"version": version}
        if weights is not None:
            change["weights"] = os.path.abspath(weights)
        if endpoints is not None:
            change["endpoints"] = [
                endpoint if isinstance(endpoint, str) else dict(endpoint) for endpoint in endpoints
            ]
        if model is not None:
            change["model"] = model
        reply = self._wire.ask("POST", "/v1/policy", body=change, timeout=_ANNOUNCE_SECONDS)
        return int(reply.json()["version"])

    def version(self) -> int:
        """The version of the policy that answers now."""
        reply = self._wire.ask("GET", "/v1/policy")
        return int(reply.json()["policy"]["version"])

    def _poll(self, wait: float, after: int | None) -> tuple[TrainingBatch | None, str | None]:
        """A batch, or why there is none."""
        query = f"?wait={wait:g}" + ("" if after is None else f"&after={after}")
        reply = self._wire.ask(
            "GET",
            _BATCHES + query,
            accept=_ARROW if self._arrow else "application/json",
            timeout=wait + _MARGIN_SECONDS,
        )
        if reply.status == 204:
            return None, reply.headers.get("osmosis-waiting-for")
        if reply.headers.get_content_type() == _ARROW:
            return from_arrow(reply.body, self.acknowledge), None
        return from_json(reply.json(), self.acknowledge), None
