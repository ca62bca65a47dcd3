"""The processes that train together, one per device."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState


class Ranks:
    """This process among those that `accelerate launch` started; alone without it."""

    def __init__(self, devices: list[str]) -> None:
        on_cpu = all(device == "cpu" for device in devices)
        self._state = PartialState(cpu=on_cpu)
        chosen = devices[self.rank % len(devices)]
        self.device: torch.device = self._state.device if chosen == "auto" else torch.device(chosen)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    @property
    def rank(self) -> int:
        """The number of this process; 0 has the channel."""
        return int(self._state.process_index)

    @property
    def count(self) -> int:
        """How many processes there are."""
        return int(self._state.num_processes)

    @property
    def is_first(self) -> bool:
        """Whether this process has the channel and writes files."""
        return self.rank == 0

    def share(self, value: Any) -> Any:
        """What the first process has, in all of them."""
        if self.count == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        """What each process has, in all of them."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def add_up(self, tensors: list[torch.Tensor]) -> None:
        """Replaces each tensor by its sum over the processes."""
        if self.count > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            dist.barrier()
