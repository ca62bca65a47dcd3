"""Serves one `osmosis train submit`: requests in, answers out, until the connection ends."""

from __future__ import annotations

import logging
import os
import platform
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import peft
import torch
import transformers

from .channel import PROTOCOL, Channel, ClosedError, Message
from .errors import LearnerError
from .learner import Learner
from .ranks import Ranks
from .rows import Loss, read_rows
from .settings import Settings

DEVICES_VARIABLE = "OSMOSIS_TRAINER_DEVICES"
_END: Message = {"call": "end"}
log = logging.getLogger("osmosis_ai.trainer.torch")


class Service:
    """Answers requests, the same in every process; the first one has the channel."""

    def __init__(self, ranks: Ranks, channel: Channel | None) -> None:
        self._ranks = ranks
        self._channel = channel
        self._learner: Learner | None = None
        self._calls: dict[str, Callable[[Message], Message | None]] = {
            "open": self._open,
            "update": self._update,
            "logprobs": self._logprobs,
            "save": self._save,
            "restore": self._restore,
        }

    def serve(self) -> None:
        """Until the other side has gone."""
        while True:
            message = self._ranks.share(self._receive())
            if message["call"] == "end":
                return
            self._send(self._answer(message))

    def _answer(self, message: Message) -> Message:
        call = self._calls.get(message.pop("call"))
        if call is None:
            return _failed(LearnerError("invalid", "this trainer does not know the request"))
        try:
            return {"ok": call(message)}
        except LearnerError as error:
            if self._ranks.count > 1 and error.kind not in ("invalid", "unreadable"):
                # The others may wait for this process; whoever started them starts them again.
                raise
            return _failed(error)

    def _open(self, message: Message) -> Message:
        settings = Settings.read(message)
        log.info("opening %s", settings.model)
        self._learner = learner = Learner(settings, self._ranks)
        return {
            "parameters": learner.policy.parameters,
            "trained": sum(parameter.numel() for parameter in learner.trained.values()),
            "vocabulary": learner.policy.vocabulary,
            "device": str(self._ranks.device),
            "processes": self._ranks.count,
        }

    def _update(self, message: Message) -> Message | None:
        rows, loss = read_rows(message["rows"]), Loss.read(message["loss"])
        learner = self._opened()
        report = learner.update(rows, loss, self._accept, self._progress)
        state = message.get("state")
        if report is not None and state is not None:
            folder = Path(state)
            learner.save(folder, folder / "trainer" / "optimizer.safetensors")
        return report

    def _logprobs(self, message: Message) -> Message:
        rows = read_rows(message["rows"])
        of_start = bool(message.get("of_start", False))
        return {"logprobs": self._opened().logprobs(rows, of_start)}

    def _save(self, message: Message) -> None:
        self._opened().save(Path(message["model"]), Path(message["optimizer"]))

    def _restore(self, message: Message) -> None:
        files = Path(message["model"]), Path(message["optimizer"])
        self._opened().restore(*files, int(message["updates"]))

    def _accept(self, logprobs: list[list[float]]) -> bool:
        self._send({"logprobs": logprobs})
        return bool(self._ranks.share(self._receive()).get("accept"))

    def _progress(self, done: int, of: int) -> None:
        self._send({"progress": {"done": done, "of": of}})

    def _opened(self) -> Learner:
        if self._learner is None:
            raise LearnerError("invalid", "no model is open")
        return self._learner

    def _receive(self) -> Message:
        if self._channel is None:
            return {}
        try:
            return self._channel.receive()
        except ClosedError:
            return _END

    def _send(self, message: Message) -> None:
        if self._channel is not None:
            self._channel.send(message)


def _failed(error: LearnerError) -> Message:
    return {"error": {"kind": error.kind, "message": str(error), "hint": error.hint}}


def main() -> None:
    """Connects, says what is here, and serves."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    devices = os.environ.get(DEVICES_VARIABLE, "auto").split(",")
    ranks = Ranks(devices)
    channel = Channel.from_environment() if ranks.is_first else None
    if channel is not None:
        versions: dict[str, Any] = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "peft": peft.__version__,
            "accelerate": accelerate.__version__,
        }
        channel.send({"hello": {"protocol": PROTOCOL, "versions": versions}})
    try:
        Service(ranks, channel).serve()
    except ClosedError:
        sys.exit(0)
    except Exception:
        traceback.print_exc()
        # Other processes of the group are ended by whoever started them.
        os._exit(1)


if __name__ == "__main__":
    main()
